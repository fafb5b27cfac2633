"""Megatron's indexed datasets: ``NAME.bin`` has the tokens, ``NAME.idx`` where each sequence lies.

Layout of the index, little-endian (megatron/core/datasets/indexed_dataset.py): magic, u64 version,
u8 type of the tokens, u64 number of sequences, u64 entries of the document index, i32 length of
each sequence, i64 byte offset of each, i64 document index: the first sequence of each document and
the number of all.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sailor.data.shards import Shard
from sailor.data.tokens import Manifest
from sailor.errors import DataError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
# Codes of Megatron's DType; those of no integer are no tokens.
TYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8), 2: np.dtype(np.int8), 3: np.dtype(np.int16), 4: np.dtype(np.int32),
    5: np.dtype(np.int64), 8: np.dtype(np.uint16),
}  # fmt: skip
_HEADER = struct.Struct("<QBQQ")


class MegatronFile:
    """A pair of files, memory-mapped. Raises DataError E519 unless they are whole and agree."""

    def __init__(self, path: Path) -> None:
        """``path``: one of the two files, or their common name."""
        self.bin, self.idx = pair_of(path)
        try:
            index = self.idx.read_bytes()
            size = self.bin.stat().st_size
        except OSError as error:
            raise damaged(path, str(error)) from error
        if not index.startswith(MAGIC):
            raise damaged(self.idx, "it does not begin as an index of Megatron does")
        if len(index) < len(MAGIC) + _HEADER.size:
            raise damaged(self.idx, "it ends within its header")
        version, code, sequences, entries = _HEADER.unpack_from(index, len(MAGIC))
        if version != VERSION or code not in TYPES:
            raise damaged(self.idx, f"version {version}, type {code} of tokens is not known")
        self.dtype = TYPES[code]
        at = len(MAGIC) + _HEADER.size
        wanted = at + 4 * sequences + 8 * sequences + 8 * entries
        if len(index) != wanted:
            raise damaged(self.idx, f"it has {len(index)} bytes, its header speaks of {wanted}")
        self.lengths = np.frombuffer(index, "<i4", sequences, at)
        self.offsets = np.frombuffer(index, "<i8", sequences, at + 4 * sequences)
        self.document_index = np.frombuffer(index, "<i8", entries, at + 12 * sequences)
        self._check(size)
        self._tokens = (
            np.asarray(np.memmap(self.bin, self.dtype, mode="r"))
            if size
            else np.empty(0, self.dtype)
        )

    def _check(self, size: int) -> None:
        """That all sequences lie in the file and all documents in the sequences."""
        ends = self.offsets + self.lengths.astype(np.int64) * self.dtype.itemsize
        if self.lengths.size and (
            self.lengths.min() < 0 or self.offsets.min() < 0 or ends.max() > size
        ):
            raise damaged(self.bin, f"it has {size} bytes, its index speaks of {ends.max()}")
        if np.any(self.offsets % self.dtype.itemsize):
            raise damaged(self.idx, "a sequence begins within a token")
        documents = self.document_index
        if (
            not documents.size or documents[0] != 0 or documents[-1] != self.lengths.size
            or np.any(np.diff(documents) < 0)
        ):  # fmt: skip
            raise damaged(self.idx, "its documents are not made of its sequences")

    def documents(self) -> Iterator[npt.NDArray[np.integer]]:
        """The tokens of each document, all its sequences together."""
        for first, last in zip(self.document_index[:-1], self.document_index[1:], strict=True):
            parts = [self.sequence(i) for i in range(int(first), int(last))]
            if len(parts) == 1:
                yield parts[0]
            elif parts:
                yield np.concatenate(parts)

    def sequence(self, number: int) -> npt.NDArray[np.integer]:
        """The tokens of one sequence: a view of the file."""
        start = int(self.offsets[number]) // self.dtype.itemsize
        return self._tokens[start : start + int(self.lengths[number])]


def write_megatron(
    path: Path, documents: Iterable[npt.NDArray[np.integer]], *, vocab_size: int
) -> int:
    """Write ``path``.bin and .idx, one sequence a document; the number of tokens.

    As Megatron does, of 16 bits where the vocabulary allows it, else 32. The index is written last.
    """
    code = 8 if vocab_size <= 1 << 16 else 4
    dtype = TYPES[code]
    bin_, idx = pair_of(path)
    lengths = []
    with bin_.open("wb") as file:
        for tokens in documents:
            file.write(tokens.astype(dtype).tobytes())
            lengths.append(len(tokens))
    sizes = np.array(lengths, dtype="<i4")
    ends = np.cumsum(sizes.astype(np.int64) * dtype.itemsize)
    offsets = np.concatenate(([0], ends[:-1])) if lengths else ends
    header = MAGIC + _HEADER.pack(VERSION, code, len(lengths), len(lengths) + 1)
    document_index = np.arange(len(lengths) + 1, dtype="<i8")
    idx.write_bytes(
        header + sizes.tobytes() + offsets.astype("<i8").tobytes() + document_index.tobytes()
    )
    return int(sizes.sum())


def export_megatron(manifest: Manifest, *, end_of_text: int, base: Path) -> tuple[Path, Path]:
    """Both streams of prepared tokens, as ``BASE_train`` and ``BASE_held_out``; their names.

    Documents end with the token that ends a text, as Megatron's own preprocessing with
    ``--append-eod`` leaves them. Raises DataError E518 when they cannot be written.
    """
    names = base.with_name(f"{base.name}_train"), base.with_name(f"{base.name}_held_out")
    for name, shards in zip(names, (manifest.train, manifest.held_out), strict=True):
        try:
            name.parent.mkdir(parents=True, exist_ok=True)
            write_megatron(
                name, _documents(manifest, shards, end_of_text), vocab_size=manifest.vocab_size
            )
        except OSError as error:
            raise DataError(
                "tokens cannot be written", code="E518", where=f"{name}.bin", why=str(error),
                fix="data.megatron=/ANOTHER/DISK/NAME   or   make room",
            ) from error  # fmt: skip
    return names


def _documents(
    manifest: Manifest, shards: Iterable[Shard], end_of_text: int
) -> Iterator[npt.NDArray[np.integer]]:
    """Each document with its end. Documents never cross shards."""
    for shard in shards:
        tokens = np.asarray(np.memmap(Path(manifest.path) / shard.file, manifest.dtype, mode="r"))
        start = 0
        for at in np.flatnonzero(tokens == end_of_text):
            yield tokens[start : int(at) + 1]
            start = int(at) + 1


def pair_of(path: Path) -> tuple[Path, Path]:
    """The .bin and the .idx of either of them or of their common name."""
    base = path.with_suffix("") if path.suffix in (".bin", ".idx") else path
    return base.with_name(base.name + ".bin"), base.with_name(base.name + ".idx")


def damaged(path: Path, why: str) -> DataError:
    """E519 for a file of tokens that is cut off, or another kind of file."""
    return DataError(
        f"{path} is no whole file of tokens", code="E519", where=str(path), why=why,
        fix="copy or make it again; data=tokens reads Megatron's .bin with .idx, nanoGPT's and "
        "llm.c's .bin, and folders of MDS shards",
    )  # fmt: skip
