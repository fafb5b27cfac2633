"""A snapshot segment: one worker's boxes in one file of shared memory, and its header.

The file outlives whoever wrote it. Its states are a one-way street, and the commit is written last:

    free -> writing (the worker copies) -> written (the worker is done) -> verified (the agent has
    hashed every box and sealed the header)

Only a verified segment whose seal and digests hold is ever restored from. Who may write when is
decided by the agent (``sailor/checkpoint/retention.py``), not here. No torch: buffers are numpy
views of the mapping.

Layout: 64 bytes of fixed header, the manifest (msgpack: writer and boxes), one 8-byte digest per
box, then the data from ``data_offset`` on; per box weight, moment1 and moment2, contiguous fp32.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from sailor.errors import SailorError
from sailor.parallel.boxes import KINDS, Box
from sailor.parallel.layout import WorkerId
from sailor.runtime.messages import SnapshotId

MAGIC = b"SAILSNAP"
FORMAT_VERSION = 1
PAGE = 4096
_ALIGN = 64  # a cache line; also what vector loads like
# magic, format version, state, generation, step, manifest bytes, data offset, data bytes, seal
_HEADER = struct.Struct("<8sIIQqQQQQ")
_STATE = struct.Struct("<I")
_STATE_OFFSET = 12
_WHEN = struct.Struct("<Qq")
_WHEN_OFFSET = 16
_SEAL = struct.Struct("<Q")
_SEAL_OFFSET = _HEADER.size - _SEAL.size


class CorruptSnapshot(SailorError):
    """State in memory or on disk is not what was written: it is refused, another copy is needed."""

    def __init__(self, what: str, *, where: str) -> None:
        super().__init__(
            what, code="E604", where=where, fix="nothing to do: it is not used, another copy is"
        )


class SegmentState(IntEnum):
    """How far a segment has come."""

    free = 0
    writing = 1
    written = 2
    verified = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class BoxPlace:
    """Where a box lies: ``offset`` in bytes from the start of the data, ``shape`` of each kind."""

    name: str
    offset: int
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Elements of one kind."""
        total = 1
        for extent in self.shape:
            total *= extent
        return total

    @property
    def num_bytes(self) -> int:
        """Bytes of all three kinds."""
        return self.numel * 4 * len(KINDS)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Whose state it is and what lies where. Never changes while the segment is in use."""

    writer: WorkerId
    boxes: tuple[BoxPlace, ...]


def place(boxes: Iterable[tuple[str, tuple[int, ...]]]) -> tuple[BoxPlace, ...]:
    """(name, shape) of each box -> one after the other, aligned."""
    placed, offset = [], 0
    for name, shape in boxes:
        here = BoxPlace(name=name, offset=offset, shape=shape)
        placed.append(here)
        offset = _up(offset + here.num_bytes, _ALIGN)
    return tuple(placed)


def shapes_of(boxes: Iterable[Box]) -> list[tuple[str, tuple[int, ...]]]:
    """What ``place`` wants, of a layout's boxes."""
    return [(box.name, box.shape) for box in boxes]


def file_bytes(manifest: Manifest) -> int:
    """Size of the file a manifest needs, in whole pages."""
    return _up(_data_offset(manifest) + _data_bytes(manifest), PAGE)


def digest(data: memoryview | bytes) -> int:
    """xxh3_64: catches torn and flipped bytes at memory speed; no defence against a forger."""
    return xxhash.xxh3_64_intdigest(data)


class Segment:
    """One mapped segment. Several processes map the same file; the agent made it."""

    def __init__(self, path: Path, mapping: mmap.mmap) -> None:
        """Use ``write_header`` or ``attach``."""
        self.path = path
        self._map = mapping
        (magic, version, _, _, _, manifest_bytes, self._data, self._data_bytes, _) = (
            _HEADER.unpack_from(mapping)
        )
        if magic != MAGIC or version != FORMAT_VERSION:
            raise CorruptSnapshot("not a snapshot segment of this version", where=str(path))
        end = _HEADER.size + manifest_bytes
        if self._data + self._data_bytes > len(mapping) or end > self._data:
            raise CorruptSnapshot("segment is shorter than its header says", where=str(path))
        try:
            self.manifest = msgspec.msgpack.decode(mapping[_HEADER.size : end], type=Manifest)
        except msgspec.MsgspecError as error:
            raise CorruptSnapshot(f"manifest unreadable: {error}", where=str(path)) from error
        self._digests = _up(end, 8)
        self.places: Mapping[str, BoxPlace] = {p.name: p for p in self.manifest.boxes}
        self._index = {p.name: i for i, p in enumerate(self.manifest.boxes)}

    @staticmethod
    def write_header(path: Path, *, manifest: Manifest) -> Segment:
        """Make the file at ``path``, large enough already, a free segment for these boxes."""
        encoded = msgspec.msgpack.encode(manifest)
        mapping = _map(path)
        mapping[: _HEADER.size] = _HEADER.pack(
            MAGIC, FORMAT_VERSION, SegmentState.free, 0, -1, len(encoded),
            _data_offset(manifest), _data_bytes(manifest), 0,
        )  # fmt: skip
        mapping[_HEADER.size : _HEADER.size + len(encoded)] = encoded
        return Segment(path, mapping)

    @staticmethod
    def attach(path: Path) -> Segment:
        """Map a segment somebody else made. Raises CorruptSnapshot when it is not one."""
        try:
            mapping = _map(path)
        except (OSError, ValueError) as error:
            raise CorruptSnapshot(f"cannot map: {error}", where=str(path)) from error
        if len(mapping) < _HEADER.size:
            raise CorruptSnapshot("segment is too short", where=str(path))
        return Segment(path, mapping)

    @property
    def state(self) -> SegmentState:
        """How far it has come, read from the mapping now."""
        return SegmentState(_STATE.unpack_from(self._map, _STATE_OFFSET)[0])

    @property
    def snapshot(self) -> SnapshotId:
        """Which state it holds, or is being written."""
        generation, step = _WHEN.unpack_from(self._map, _WHEN_OFFSET)
        return SnapshotId(generation=generation, step=step, worker=self.manifest.writer)

    # Writing: the worker copies between ``begin`` and ``finish``.

    def begin(self, *, generation: int, step: int) -> None:
        """From here until ``finish`` the contents are torn."""
        self._enter(SegmentState.writing)
        _WHEN.pack_into(self._map, _WHEN_OFFSET, generation, step)

    def finish(self) -> None:
        """All boxes are copied."""
        self._enter(SegmentState.written)

    def release(self) -> None:
        """What it held may be forgotten."""
        self._enter(SegmentState.free)

    def _enter(self, state: SegmentState) -> None:
        """One byte, stored at once: struct.pack_into puts zeros first, and another process that
        looks at that moment would take the segment for a free one."""
        self._map[_STATE_OFFSET] = state

    def arrays(self, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weight, moment1 and moment2 of a box: fp32 views of the mapping."""
        at = self.places[name]
        flat = np.frombuffer(
            self._map, dtype=np.float32, count=3 * at.numel, offset=self._data + at.offset
        ).reshape(3, *at.shape)
        return flat[0], flat[1], flat[2]

    def raw(self, name: str) -> memoryview:
        """The bytes of a box, all three kinds in order, as a view of the mapping."""
        at = self.places[name]
        start = self._data + at.offset
        return memoryview(self._map)[start : start + at.num_bytes]

    @property
    def memory(self) -> mmap.mmap:
        """The whole mapping."""
        return self._map

    # Sealing and checking: the agent.

    def seal(self) -> dict[str, int]:
        """Hash every box, write the digests, then the seal, then the state. The commit is last.

        Raises CorruptSnapshot when the writer has not finished. Runs without the GIL for the most
        part; meant for a thread.
        """
        if self.state is not SegmentState.written:
            raise CorruptSnapshot(f"segment is {self.state.name}, not written", where=str(self))
        digests = [digest(self.raw(at.name)) for at in self.manifest.boxes]
        struct.pack_into(f"<{len(digests)}Q", self._map, self._digests, *digests)
        _SEAL.pack_into(self._map, _SEAL_OFFSET, self._sum())
        self._enter(SegmentState.verified)
        return {at.name: value for at, value in zip(self.manifest.boxes, digests, strict=True)}

    def check_seal(self) -> None:
        """Raises CorruptSnapshot unless verified and header, manifest and digests are as sealed."""
        if self.state is not SegmentState.verified:
            raise CorruptSnapshot(f"segment is {self.state.name}, not verified", where=str(self))
        if _SEAL.unpack_from(self._map, _SEAL_OFFSET)[0] != self._sum():
            raise CorruptSnapshot("header is not as it was sealed", where=str(self))

    def digest_of(self, name: str) -> int:
        """The digest written at sealing time."""
        where = self._digests + 8 * self._index[name]
        return int(_SEAL.unpack_from(self._map, where)[0])

    def check(self, name: str) -> None:
        """Raises CorruptSnapshot unless the box's bytes have the digest they were sealed with."""
        if digest(self.raw(name)) != self.digest_of(name):
            raise CorruptSnapshot(f"box {name} has other bytes than were sealed", where=str(self))

    def touch(self) -> None:
        """Fault in every page of the mapping, so that the first copy is as fast as the second."""
        pages = np.frombuffer(self._map, dtype=np.uint8)[::PAGE]
        pages.max()  # the file's pages exist already: reading maps them without writing

    def __str__(self) -> str:
        return f"{self.path.name} ({self.snapshot.worker} step {self.snapshot.step})"

    def _sum(self) -> int:
        head = bytearray(self._map[: self._data])
        _STATE.pack_into(head, _STATE_OFFSET, 0)
        _SEAL.pack_into(head, _SEAL_OFFSET, 0)
        return digest(bytes(head))


def _map(path: Path) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)


def _data_offset(manifest: Manifest) -> int:
    encoded = len(msgspec.msgpack.encode(manifest))
    return _up(_up(_HEADER.size + encoded, 8) + 8 * len(manifest.boxes), PAGE)


def _data_bytes(manifest: Manifest) -> int:
    if not manifest.boxes:
        return 0
    last = manifest.boxes[-1]
    return last.offset + last.num_bytes


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
