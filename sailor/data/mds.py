"""MosaicML's MDS shards, read only: ``index.json`` and files of rows with named columns.

A shard, little-endian (streaming/base/format/mds): u32 number of rows, u32 offset of each row and
of the end, then the rows; a row has a u32 size for each column of no fixed size, then the columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from sailor.data.documents import library
from sailor.data.megatron import damaged

INDEX = "index.json"


class MdsFolder:
    """A folder of shards. Raises DataError E519 where its index is none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            index = msgspec.json.decode((folder / INDEX).read_bytes(), type=dict[str, Any])
            self.shards = [MdsShard(folder, shard) for shard in index["shards"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise damaged(folder / INDEX, str(error) or type(error).__name__) from error

    @property
    def columns(self) -> dict[str, str]:
        """Name -> encoding, of the first shard: "str", "bytes", "ndarray:uint32", ..."""
        return dict(self.shards[0].encodings) if self.shards else {}


class MdsShard:
    """One file of rows."""

    def __init__(self, folder: Path, entry: dict[str, Any]) -> None:
        if entry["format"] != "mds":
            raise ValueError(f"a shard of format {entry['format']}")
        self.encodings = dict(zip(entry["column_names"], entry["column_encodings"], strict=True))
        self._sizes: list[int | None] = list(entry["column_sizes"])
        self._names = list(entry["column_names"])
        self._rows = int(entry["samples"])
        self._raw: Path = folder / entry["raw_data"]["basename"]
        packed = entry.get("zip_data")
        self._packed: Path | None = folder / packed["basename"] if packed else None
        self._compression = str(entry.get("compression") or "")

    @property
    def file(self) -> Path:
        """What is on disk: the shard, or its compressed form."""
        return self._raw if self._raw.exists() or self._packed is None else self._packed

    def rows(self, column: str) -> Iterator[bytes]:
        """A column's bytes, row by row. Raises DataError E519 for a shard that is cut off."""
        data = self._read()
        try:
            number = int(np.frombuffer(data, "<u4", 1)[0])
            if number != self._rows:
                raise ValueError(f"it has {number} rows, the index speaks of {self._rows}")
            offsets = np.frombuffer(data, "<u4", number + 1, 4)
            if int(offsets[-1]) != len(data):
                raise ValueError(f"it has {len(data)} bytes, its header speaks of {offsets[-1]}")
        except ValueError as error:
            raise damaged(self.file, str(error)) from error
        if column not in self._names:
            raise damaged(self.file, f"it has no column {column}, as other shards have")
        which = self._names.index(column)
        free = sum(size is None for size in self._sizes)
        for start in offsets[:-1]:
            told = iter(np.frombuffer(data, "<u4", free, int(start)))
            sizes = [int(next(told)) if size is None else size for size in self._sizes]
            at = int(start) + 4 * free + sum(sizes[:which])
            yield data[at : at + sizes[which]]

    def _read(self) -> bytes:
        try:
            data = self.file.read_bytes()
        except OSError as error:
            raise damaged(self.file, str(error)) from error
        if self.file == self._raw:
            return data
        if not self._compression.startswith("zstd"):
            raise damaged(self.file, f"compression {self._compression!r} is not read; unpack it")
        return bytes(library("zstandard").ZstdDecompressor().decompressobj().decompress(data))


# MDS's numbers for types of values (streaming/base/format/mds/encodings.py).
_VALUE_TYPES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 32: "uint32", 33: "int32", 64: "uint64",
    65: "int64",
}  # fmt: skip


def numbers(value: bytes, encoding: str) -> npt.NDArray[np.integer]:
    """A column of numbers, flat. ``encoding``: "bytes" (64 bits each, as llm-foundry writes them),
    or "ndarray", "ndarray:TYPE", "ndarray:TYPE:SHAPE". Raises ValueError for other types."""
    kind, _, rest = encoding.partition(":")
    if kind == "bytes":
        return np.frombuffer(value, "<i8")
    name, _, shape = rest.partition(":")
    at = 0
    if not name:  # the value begins with its type
        name, at = _VALUE_TYPES.get(value[0], ""), 1
    if name not in _VALUE_TYPES.values():
        raise ValueError(f"{encoding} holds no tokens")
    if not shape:  # then comes its shape: how many numbers, of 1, 2, 4 or 8 bytes
        at += 1 + (value[at] >> 2) * 2 ** (value[at] & 3)
    return np.frombuffer(value, np.dtype(name).newbyteorder("<"), -1, at)
