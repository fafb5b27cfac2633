"""Tokens on disk: memory-mapped shards with a manifest, written once, read by every worker.

``prepare`` turns a corpus into a folder of two streams, what is trained on and what is held out;
``TokenStream`` reads sequences of one of them. No torch.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash
from filelock import FileLock

from sailor.data.corpus import Corpus
from sailor.data.tokenizer import Tokenizer
from sailor.errors import DataError

VERSION = 1
MANIFEST = "manifest.json"
SHARD_TOKENS = 1 << 28
_HELD_OUT_ONE_IN = 50  # documents
_BATCH_DOCUMENTS = 64  # encoded at once, on as many cores as the tokenizer uses


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """One file of raw token numbers."""

    file: str
    num_tokens: int
    xxh3: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a folder of tokens holds. ``path`` is where it lies, and what workers open."""

    version: int
    corpus: str
    fingerprint: str
    tokenizer: str
    vocab_size: int
    dtype: str
    num_documents: int
    train: tuple[Shard, ...]
    held_out: tuple[Shard, ...]
    path: str = ""

    @property
    def train_tokens(self) -> int:
        """Tokens that may be trained on."""
        return sum(shard.num_tokens for shard in self.train)

    @property
    def held_out_tokens(self) -> int:
        """Tokens kept for evaluation."""
        return sum(shard.num_tokens for shard in self.held_out)


def prepare(
    corpus: Corpus, *, tokenizer: Tokenizer, directory: Path, shard_tokens: int = SHARD_TOKENS
) -> Manifest:
    """Tokenize into a folder of ``directory`` named after the corpus; if it is there, only look.

    A folder is complete or absent: it gets its name last. One process at a time writes, others
    wait for it. Raises DataError when the text is too little to hold anything out.
    """
    fingerprint = corpus.fingerprint()
    target = directory / f"{tokenizer.name}-{fingerprint[:16]}"
    directory.mkdir(parents=True, exist_ok=True)
    with FileLock(directory / ".lock"):
        if target.exists():
            try:
                return load_manifest(target)
            except DataError:
                shutil.rmtree(target)  # damaged: the corpus is here, so write it again
        partial = directory / f"{target.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)  # of a process that died here
        partial.mkdir()
        manifest = _write(corpus, fingerprint, tokenizer, partial, shard_tokens)
        os.replace(partial, target)
    return msgspec.structs.replace(manifest, path=str(target))


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
            fix="delete the folder and prepare the data again",
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
                fix="delete the folder and prepare the data again",
            )  # fmt: skip


def _write(
    corpus: Corpus, fingerprint: str, tokenizer: Tokenizer, path: Path, shard_tokens: int
) -> Manifest:
    """All files of the folder."""
    train, held_out = split(corpus)
    dtype = _dtype(tokenizer.vocab_size)
    manifest = Manifest(
        version=VERSION, corpus=corpus.name, fingerprint=fingerprint, tokenizer=tokenizer.name,
        vocab_size=tokenizer.vocab_size, dtype=dtype.name,
        num_documents=len(train) + len(held_out),
        train=_write_stream("train", train, tokenizer, dtype, path, shard_tokens),
        held_out=_write_stream("held_out", held_out, tokenizer, dtype, path, shard_tokens),
    )  # fmt: skip
    (path / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2))
    return manifest


def split(corpus: Corpus) -> tuple[list[bytes], list[bytes]]:
    """Documents to train on, and those held out. Raises DataError E504 when one of them is none."""
    documents = list(corpus.documents())
    # By content, so that two copies of a text are never on both sides.
    hashes = [xxhash.xxh3_64_intdigest(document) for document in documents]
    held = {h for h in hashes if h % _HELD_OUT_ONE_IN == 0} or {min(hashes, default=0)}
    train = [d for d, h in zip(documents, hashes, strict=True) if h not in held]
    held_out = [d for d, h in zip(documents, hashes, strict=True) if h in held]
    if not train or not held_out:
        raise DataError(
            "the text is too little to hold any of it out", code="E504", where=corpus.name,
            why=f"it has {len(set(hashes))} different documents of text in {len(corpus.files)} "
            "files",
            fix="point data.path at more text",
        )  # fmt: skip
    return train, held_out


def _write_stream(
    name: str, documents: Sequence[bytes], tokenizer: Tokenizer, dtype: np.dtype, path: Path,
    shard_tokens: int,
) -> tuple[Shard, ...]:  # fmt: skip
    """Documents end to end, each closed by the end-of-text token, in shards of whole documents."""
    shards: list[Shard] = []
    end = np.array([tokenizer.end_of_text], dtype=dtype)
    pieces: list[npt.NDArray[np.unsignedinteger]] = []
    held = 0

    def flush() -> None:
        nonlocal held
        data = np.concatenate(pieces).tobytes()
        file = f"{name}-{len(shards):05d}.bin"
        (path / file).write_bytes(data)
        shards.append(
            Shard(file=file, num_tokens=held, xxh3=xxhash.xxh3_128(data).hexdigest())
        )  # fmt: skip
        pieces.clear()
        held = 0

    for first in range(0, len(documents), _BATCH_DOCUMENTS):
        for tokens in tokenizer.encode(documents[first : first + _BATCH_DOCUMENTS]):
            pieces += [tokens.astype(dtype, copy=False), end]
            held += len(tokens) + 1
            if held >= shard_tokens:
                flush()
    if pieces:
        flush()
    return tuple(shards)


def _dtype(vocab_size: int) -> np.dtype:
    """The narrowest unsigned type that holds every token."""
    for dtype in (np.uint8, np.uint16):
        if vocab_size <= np.iinfo(dtype).max + 1:
            return np.dtype(dtype)
    return np.dtype(np.uint32)


class TokenStream:
    """Sequences of ``sequence_length`` tokens and their successors, by number.

    Sequences do not overlap (but for the one token that is a target here and an input there) and
    do not cross shards. ``num_sequences`` is fixed by the files and the length.
    """

    def __init__(
        self, manifest: Manifest, shards: Sequence[Shard], *, sequence_length: int
    ) -> None:
        self.sequence_length = sequence_length
        self._shards = [  # as plain arrays: a memmap's own slices are many times slower
            np.asarray(np.memmap(Path(manifest.path) / shard.file, manifest.dtype, mode="r"))
            for shard in shards
        ]
        counts = [max(0, (len(shard) - 1) // sequence_length) for shard in self._shards]
        self._starts = np.concatenate(([0], np.cumsum(counts)))
        self.num_sequences = int(self._starts[-1])
        if self.num_sequences < 1:
            raise DataError(
                f"not one sequence of {sequence_length} tokens", code="E504", where=manifest.path,
                why=f"the stream has {sum(map(len, self._shards))} tokens",
                fix="point data.path at more text or shorten data.sequence_length",
            )  # fmt: skip

    def read(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Tokens of some sequences, [len(sequences), sequence_length + 1]."""
        out = np.empty((len(sequences), self.sequence_length + 1), dtype=np.int64)
        which = np.searchsorted(self._starts, sequences, side="right") - 1
        for row, (shard, sequence) in enumerate(zip(which, sequences, strict=True)):
            start = int(sequence - self._starts[shard]) * self.sequence_length
            out[row] = self._shards[shard][start : start + self.sequence_length + 1]
        return out
