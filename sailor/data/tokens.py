"""Tokens on disk: memory-mapped shards with a manifest, written once, read by every worker.

A folder has two streams, what is trained on and what is held out; ``TokenStream`` reads sequences
of one of them. prepare.py writes it. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from sailor.data.blend import Blend, whole
from sailor.data.shards import Shard
from sailor.errors import DataError

VERSION = 2
MANIFEST = "manifest.json"


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One source of a mixture. ``share``: so many of blend.PARTS samples are of it."""

    name: str
    share: int
    corpus: str
    fingerprint: str
    num_documents: int
    skipped: dict[str, int] = {}
    train: tuple[Shard, ...]
    held_out: tuple[Shard, ...]

    @property
    def key(self) -> int:
        """What its order is drawn from, besides the seed: other sources have no say in it."""
        return xxhash.xxh3_64_intdigest(self.name.encode())


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a folder of tokens holds. ``path`` is where it lies, and what workers open."""

    version: int
    corpus: str
    fingerprint: str
    tokenizer: str
    vocab_size: int
    dtype: str
    num_documents: int
    skipped: dict[str, int] = {}
    """Reason -> documents that were left out."""
    train: tuple[Shard, ...]
    held_out: tuple[Shard, ...]
    parts: tuple[Part, ...] = ()
    """The sources of a mixture, whose shards stand above one source after the other; else empty."""
    path: str = ""

    @property
    def train_tokens(self) -> int:
        """Tokens that may be trained on."""
        return sum(shard.num_tokens for shard in self.train)

    @property
    def held_out_tokens(self) -> int:
        """Tokens kept for evaluation."""
        return sum(shard.num_tokens for shard in self.held_out)


def load_manifest(path: Path) -> Manifest:
    """The manifest of a folder of tokens. Raises DataError E503 if it is missing or damaged."""
    try:
        manifest = msgspec.json.decode((path / MANIFEST).read_bytes(), type=Manifest)
        item = np.dtype(manifest.dtype).itemsize
        for shard in manifest.train + manifest.held_out:
            if (path / shard.file).stat().st_size != shard.num_tokens * item:
                raise ValueError(f"{shard.file} does not have {shard.num_tokens} tokens")
        if manifest.version != VERSION:
            raise ValueError(f"version {manifest.version}, expected {VERSION}")
    except (OSError, ValueError, TypeError) as error:  # msgspec's errors are ValueErrors
        raise DataError(
            "tokens are missing or damaged", code="E503", where=str(path), why=str(error),
            fix=f"rm -r {path}   and the same command makes them again",
        ) from error  # fmt: skip
    return msgspec.structs.replace(manifest, path=str(path))


def verify(manifest: Manifest) -> None:
    """Read every shard and compare digests. Raises DataError E503."""
    for shard in manifest.train + manifest.held_out:
        file = Path(manifest.path) / shard.file
        found = xxhash.xxh3_128(file.read_bytes()).hexdigest()
        if found != shard.xxh3:
            raise DataError(
                f"{shard.file} is not what was written", code="E503", where=str(file),
                why=f"xxh3 {found}, expected {shard.xxh3}",
                fix=f"rm -r {manifest.path}   and the same command makes them again",
            )  # fmt: skip


class TokenStream:
    """Sequences of ``sequence_length`` tokens and their successors, by number.

    Sequences do not overlap (but for the one token that is a target here and an input there) and
    do not cross shards. ``num_sequences`` is fixed by the files and the length; ``blend`` says
    which of them are of which of the ``sources``, and how often each is read.
    """

    def __init__(
        self, manifest: Manifest, shards: Sequence[Shard], *, sequence_length: int
    ) -> None:
        self.sequence_length = sequence_length
        tokens = [  # as plain arrays: a memmap's own slices are many times slower
            np.asarray(np.memmap(Path(manifest.path) / shard.file, manifest.dtype, mode="r"))
            for shard in shards
        ]
        counts = [max(0, (len(shard) - 1) // sequence_length) for shard in tokens]
        self._windows = [_windows(shard, sequence_length) for shard in tokens]
        self._starts = np.concatenate(([0], np.cumsum(counts)))
        self.num_sequences = int(self._starts[-1])
        if self.num_sequences < 1:
            raise DataError(
                f"not one sequence of {sequence_length} tokens", code="E504", where=manifest.path,
                why=f"the stream has {sum(map(len, tokens))} tokens",
                fix=f"train.sequence_length={_shorter(sequence_length, tokens)}   or   "
                "data.path=MORE_TEXT",
            )  # fmt: skip
        self.sources, self.blend = _blend(manifest, shards, counts)

    def read(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Tokens of some sequences, [len(sequences), sequence_length + 1]."""
        out = np.empty((len(sequences), self.sequence_length + 1), dtype=np.int64)
        which = np.searchsorted(self._starts, sequences, side="right") - 1
        rows = sequences - self._starts[which]
        for shard in np.unique(which):
            mine = which == shard
            out[mine] = self._windows[shard][rows[mine]]
        return out


def _windows(tokens: npt.NDArray[np.integer], length: int) -> npt.NDArray[np.integer]:
    """A view, [sequences, length + 1]: each overlaps the next by one token."""
    if len(tokens) <= length:
        return np.empty((0, length + 1), dtype=tokens.dtype)
    return np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::length]


def _shorter(sequence_length: int, shards: Sequence[npt.NDArray[np.integer]]) -> int:
    """The longest power of two that one of the files has a sequence of."""
    most = max((len(shard) - 1 for shard in shards), default=1)
    return 1 << max(0, min(most, sequence_length).bit_length() - 1)


def check_streams(manifest: Manifest, *, sequence_length: int) -> None:
    """Whether there is something to read on both sides, and of every source of a mixture.

    Raises DataError E504.
    """
    for shards in (manifest.train, manifest.held_out):
        TokenStream(manifest, shards, sequence_length=sequence_length)
    for part in manifest.parts:
        if not any(shard.num_tokens > sequence_length for shard in part.train):
            raise DataError(
                f"not one sequence of {sequence_length} tokens in {part.name}", code="E504",
                where=f"data.mixture.{part.name}",
                why="its longest file of tokens has "
                f"{max(shard.num_tokens for shard in part.train):,}",
                fix=f"more text for data.mixture.{part.name}.path   or   "
                f"~data.mixture.{part.name}   or   a shorter train.sequence_length",
            )  # fmt: skip


def _blend(
    manifest: Manifest, shards: Sequence[Shard], counts: Sequence[int]
) -> tuple[tuple[str, ...], Blend]:
    """Names and blend of a stream of these shards, of so many sequences each. A source that has
    none is left out."""
    if not manifest.parts:
        return (manifest.corpus,), whole(sum(counts))
    of = {shard.file: part for part in manifest.parts for shard in part.train + part.held_out}
    sequences = dict.fromkeys((part.name for part in manifest.parts), 0)
    for shard, count in zip(shards, counts, strict=True):
        sequences[of[shard.file].name] += count
    there = [part for part in manifest.parts if sequences[part.name]]
    blend = Blend(
        counts=tuple(sequences[part.name] for part in there),
        shares=tuple(part.share for part in there), keys=tuple(part.key for part in there),
    )  # fmt: skip
    return tuple(part.name for part in there), blend
