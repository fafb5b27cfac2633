"""Durable checkpoints: ``step-00000040/g<generation>-<node>-<slot>.safetensors``, manifest, marker.

Agents write files, each box once per checkpoint. The controller completes: it looks at every file,
writes manifest.json and, last of all, COMPLETE. A folder without that marker is no checkpoint,
whatever it holds. Inside a file the tensors are named "<kind>/<box>", for kind in weight, moment1,
moment2; the digest of each box is in the file's metadata, the digest of each file in the manifest.
No torch: any layout can read it, and so can anything else that reads safetensors. The folder may be
of this computer or of any store, see ``files``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import struct
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import msgspec
import numpy as np
import xxhash

from sailor.checkpoint import files
from sailor.checkpoint.files import Folder, Sink, StorePath
from sailor.checkpoint.segment import CorruptSnapshot, Segment, digest
from sailor.errors import SailorError
from sailor.parallel.boxes import KINDS, all_boxes
from sailor.runtime.messages import Persisted, RunSettings

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
COMPLETE = "COMPLETE"
_HEADER_LENGTH = struct.Struct("<Q")
_LONGEST_HEADER_BYTES = 100 << 20  # the limit the safetensors library itself sets
_CHUNK_BYTES = 4 << 20


class CheckpointFailed(SailorError):
    """A durable checkpoint could not be written or completed; earlier ones are intact."""

    def __init__(self, what: str, *, where: str, why: str = "") -> None:
        fix = "checkpoint.keep=1   keeps fewer   or   checkpoint.directory=/ANOTHER/DISK"
        super().__init__(what, code="E601", why=why, where=where, fix=fix)


class StoredFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a checkpoint, as the manifest has it."""

    digest: str
    num_bytes: int
    boxes: tuple[str, ...]


class CheckpointManifest(msgspec.Struct, frozen=True, kw_only=True):
    """manifest.json. ``model``, ``pieces`` and ``seed`` are what a resuming run must share."""

    format_version: int
    step: int
    generation: int
    model: str
    pieces: int
    seed: int
    files: dict[str, StoredFile]


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A complete checkpoint: ``path`` is its folder, ``boxes`` the names of what it holds."""

    step: int
    generation: int
    path: Folder
    boxes: tuple[str, ...]
    num_bytes: int


@overload
def step_directory(directory: Path, step: int) -> Path: ...
@overload
def step_directory(directory: StorePath, step: int) -> StorePath: ...
@overload
def step_directory(directory: Folder, step: int) -> Folder: ...


def step_directory(directory: Folder, step: int) -> Folder:
    """Where the checkpoint of a step lives."""
    return directory / f"step-{step:08d}"


# Writing: agents


def write_part(
    directory: Folder, *, step: int, name: str, sources: Sequence[tuple[Segment, Iterable[str]]]
) -> str:
    """Write boxes of verified segments as ``<name>.safetensors``; its digest (hex).

    Streams straight from shared memory: here it needs no memory of its own. All of it is there in
    the end, or none. Raises CheckpointFailed (disk full, no permission, a store that does not
    answer), and CorruptSnapshot when a box is not what was sealed. Blocks; meant for a thread.
    """
    path = step_directory(directory, step) / f"{name}.safetensors"
    try:
        return files.write(path, lambda sink: _stream(sink, sources))
    except OSError as error:
        raise CheckpointFailed(
            f"cannot write the checkpoint of step {step}", where=str(path), why=str(error)
        ) from error


def _stream(sink: Sink, sources: Sequence[tuple[Segment, Iterable[str]]]) -> str:
    """The safetensors format: length of the header, header (JSON), tensors one after the other."""
    chosen = [(segment, name) for segment, names in sources for name in names]
    header: dict[str, object] = {}
    metadata = {"format": "sailor", "version": str(FORMAT_VERSION)}
    offset = 0
    for segment, name in chosen:
        at = segment.places[name]
        metadata[f"digest/{name}"] = f"{segment.digest_of(name):016x}"
        for kind in KINDS:
            end = offset + 4 * at.numel
            header[f"{kind}/{name}"] = {
                "dtype": "F32",
                "shape": list(at.shape),
                "data_offsets": [offset, end],
            }
            offset = end
    encoded = json.dumps({"__metadata__": metadata, **header}, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    total = xxhash.xxh3_64()
    for piece in (_HEADER_LENGTH.pack(len(encoded)), encoded):
        _write(sink, memoryview(piece), total)
    for segment, name in chosen:
        raw = segment.raw(name)
        if digest(raw) != segment.digest_of(name):
            raise CorruptSnapshot(f"box {name} changed after sealing", where=str(segment))
        _write(sink, raw, total)
    return total.hexdigest()


def _write(sink: Sink, data: memoryview, total: xxhash.xxh3_64) -> None:
    for start in range(0, len(data), _CHUNK_BYTES):
        chunk = data[start : start + _CHUNK_BYTES]
        total.update(chunk)
        sink(chunk)


# Completing: the controller


def complete(
    directory: Folder, step: int, parts: Sequence[Persisted], *, settings: RunSettings, keep: int,
    keep_every: int = 0,
) -> int:  # fmt: skip
    """Make the reported files a checkpoint, then remove all but those ``kept``. Its bytes.

    Raises CheckpointFailed when a box of the model is missing or a file is not there; nothing is
    removed then. Where two files have a box, the one of the later generation counts.
    """
    folder = step_directory(directory, step)
    file_of: dict[str, str] = {}
    digests: dict[str, str] = {}
    for part in sorted(parts, key=lambda p: p.generation):
        for name, written in part.files.items():
            digests[name] = written
            file_of.update(dict.fromkeys(_read_header(folder / name).boxes, name))
    missing = [
        box.name
        for box in all_boxes(settings.spec, pieces=settings.pieces)
        if box.name not in file_of
    ]
    if missing:
        raise CheckpointFailed(
            f"the checkpoint of step {step} lacks {len(missing)} boxes",
            where=str(folder),
            why=f"nobody wrote {missing[0]}",
        )
    stored = {
        name: StoredFile(
            digest=written,
            num_bytes=_size(folder / name),
            boxes=tuple(box for box, file in file_of.items() if file == name),
        )
        for name, written in digests.items()
    }
    manifest = CheckpointManifest(
        format_version=FORMAT_VERSION,
        step=step,
        generation=max(part.generation for part in parts),
        model=settings.spec.name,
        pieces=settings.pieces,
        seed=settings.train.seed,
        files=stored,
    )
    encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    try:
        _put(folder / MANIFEST, encoded)
        _put(folder / COMPLETE, f"{digest(encoded):016x}\n".encode())
    except OSError as error:
        raise CheckpointFailed(
            f"cannot complete the checkpoint of step {step}", where=str(folder), why=str(error)
        ) from error
    try:
        _prune(directory, kept(steps(directory), keep=keep, every=keep_every), before=step)
    except OSError as error:  # the new one is complete; the old ones go with the next
        log.warning("old checkpoints are still there: %s", error)
    return sum(file.num_bytes for file in stored.values())


def kept(complete_steps: Sequence[int], *, keep: int, every: int) -> frozenset[int]:
    """Which of the complete checkpoints stay: the newest ``keep``, and for good the first at or
    after every multiple of ``every`` steps (0: none for good)."""
    ascending = sorted(complete_steps)
    stay = set(ascending[-max(keep, 1) :])
    if every > 0:
        first: dict[int, int] = {}
        for step in ascending:
            first.setdefault(step // every, step)
        stay |= {step for multiple, step in first.items() if multiple > 0}
    return frozenset(stay)


def _prune(directory: Folder, stay: Container[int], *, before: int) -> None:
    """Remove the others older than step ``before``: what is incomplete there never will be one."""
    for folder in files.children(directory):
        step = _step_of(folder)
        if step is None or step in stay or step >= before:
            continue
        with contextlib.suppress(OSError):  # the marker first: never half a checkpoint with one
            files.remove(folder / COMPLETE)
        files.remove_tree(folder)


# Reading


def steps(directory: Folder) -> list[int]:
    """Steps of all complete checkpoints, ascending. Raises OSError when a store cannot tell."""
    found = [
        step
        for folder in files.children(directory)
        if (step := _step_of(folder)) is not None and files.exists(folder / COMPLETE)
    ]
    return sorted(found)


def newest(
    directory: Folder, *, but: Container[str] = (), below: int | None = None
) -> Checkpoint | None:
    """The newest complete checkpoint whose manifest is as completed, or None.

    ``but``: folders that were found not to hold what was written. ``below``: of earlier steps only.
    Raises OSError when a store cannot tell: that there is none must not be mistaken for that
    nobody answered.
    """
    for step in reversed(steps(directory)):
        folder = step_directory(directory, step)
        if str(folder) in but or (below is not None and step >= below):
            continue
        try:
            manifest = read_manifest(folder)
        except CorruptSnapshot as error:
            log.warning("passing over the checkpoint of step %d: %s", step, error)
            continue
        stored = manifest.files.values()
        return Checkpoint(
            step=step,
            generation=manifest.generation,
            path=folder,
            boxes=tuple(box for file in stored for box in file.boxes),
            num_bytes=sum(file.num_bytes for file in stored),
        )
    return None


def read_manifest(folder: Folder) -> CheckpointManifest:
    """What a checkpoint holds. Raises CorruptSnapshot unless it is complete and as completed."""
    try:
        encoded = files.read(folder / MANIFEST)
        marker = files.read(folder / COMPLETE).decode(errors="replace").strip()
        if marker != f"{digest(encoded):016x}":
            raise CorruptSnapshot("the manifest is not the one completed", where=str(folder))
        return msgspec.json.decode(encoded, type=CheckpointManifest)
    except (OSError, msgspec.MsgspecError) as error:
        raise CorruptSnapshot(f"checkpoint unreadable: {error}", where=str(folder)) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class _Header:
    """Of a safetensors file: box -> digest; box -> (shape, start of its bytes in the file)."""

    boxes: Mapping[str, int]
    at: Mapping[str, tuple[tuple[int, ...], int]]


def _read_header(path: Folder) -> _Header:
    try:
        (length,) = _HEADER_LENGTH.unpack(files.read_range(path, 0, _HEADER_LENGTH.size))
        if length > _LONGEST_HEADER_BYTES:
            raise CorruptSnapshot("header length is absurd", where=str(path))
        header = json.loads(files.read_range(path, _HEADER_LENGTH.size, length))
        start = _HEADER_LENGTH.size + length
        boxes, at = {}, {}
        for key, value in header.pop("__metadata__").items():
            if key.startswith("digest/"):
                name = key.removeprefix("digest/")
                weight = header[f"{KINDS[0]}/{name}"]
                boxes[name] = int(value, 16)
                at[name] = (tuple(weight["shape"]), start + weight["data_offsets"][0])
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise CorruptSnapshot(f"cannot read the header: {error!r}", where=str(path)) from error
    return _Header(boxes=boxes, at=at)


class Reader:
    """Reads boxes of one checkpoint, headers once. Every box is checked against its digest."""

    def __init__(self, folder: Folder) -> None:
        """``folder`` is one step's. Raises CorruptSnapshot when it is no complete checkpoint."""
        self._folder = folder
        self.manifest = read_manifest(folder)
        self._file_of = {
            box: name for name, file in self.manifest.files.items() for box in file.boxes
        }
        self._headers: dict[str, _Header] = {}

    def rows(self, kind: str, box: str, start: int, stop: int) -> np.ndarray:
        """Rows [start, stop) of a box along its first axis, of one kind. Not checked against the
        digest, which is of the whole box. Raises CorruptSnapshot when they cannot be read.
        """
        path, header = self._at(box)
        shape, offset = header.at[box]
        data = np.empty((stop - start, *shape[1:]), dtype=np.float32)
        offset += 4 * (KINDS.index(kind) * math.prod(shape) + start * math.prod(shape[1:]))
        _fill(data, path, offset, box=box)
        return data

    def read(self, box: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weight, moment1 and moment2 of a box. Raises CorruptSnapshot."""
        path, header = self._at(box)
        shape, offset = header.at[box]
        data = np.empty((len(KINDS), *shape), dtype=np.float32)
        _fill(data, path, offset, box=box)
        if digest(data.data.cast("B")) != header.boxes[box]:
            raise CorruptSnapshot(f"box {box} has other bytes than were written", where=str(path))
        return data[0], data[1], data[2]

    def _at(self, box: str) -> tuple[Folder, _Header]:
        """The file that has a box, and its header. Raises CorruptSnapshot."""
        name = self._file_of.get(box)
        if name is None:
            raise CorruptSnapshot(f"box {box} is in no file", where=str(self._folder))
        path = self._folder / name
        header = self._headers.get(name)
        if header is None:
            header = self._headers[name] = _read_header(path)
        if box not in header.at:
            raise CorruptSnapshot(f"box {box} is not in its file", where=str(path))
        return path, header


def _fill(data: np.ndarray, path: Folder, offset: int, *, box: str) -> None:
    """Read an array from a file, straight into its memory. Raises CorruptSnapshot."""
    try:
        count = files.read_into(path, offset, data.data.cast("B"))
    except OSError as error:
        raise CorruptSnapshot(f"cannot read {box}: {error}", where=str(path)) from error
    if count != data.nbytes:
        raise CorruptSnapshot(f"the file ends within box {box}", where=str(path))


def read_box(folder: Folder, box: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One box of a complete checkpoint: weight, moment1, moment2. Raises CorruptSnapshot."""
    return Reader(folder).read(box)


def verify(directory: Folder, step: int) -> list[str]:
    """What is wrong with a checkpoint, file by file; empty when every byte is as written."""
    return problems_of(step_directory(directory, step))


def problems_of(folder: Folder) -> list[str]:
    """The same of a step's folder."""
    try:
        manifest = read_manifest(folder)
    except CorruptSnapshot as error:
        return [str(error)]
    problems = []
    for name, stored in manifest.files.items():
        path = folder / name
        total = xxhash.xxh3_64()
        try:
            for chunk in files.chunks(path, most=_CHUNK_BYTES):
                total.update(chunk)
        except OSError as error:
            problems.append(f"{name}: {error}")
            continue
        if total.hexdigest() != stored.digest:
            problems.append(f"{name}: digest {total.hexdigest()}, written as {stored.digest}")
    return problems


def _size(path: Folder) -> int:
    try:
        return files.size(path)
    except OSError as error:
        raise CheckpointFailed(
            "a reported file is not there", where=str(path), why=str(error)
        ) from error


def _step_of(folder: Folder) -> int | None:
    """None for what is no checkpoint's folder."""
    name = folder.name
    number = name.removeprefix("step-")
    return int(number) if number != name and number.isdigit() else None


def _put(path: Folder, data: bytes) -> None:
    files.write(path, lambda sink: sink(memoryview(data)))
