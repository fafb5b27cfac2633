"""A node's snapshot memory: a private folder in /dev/shm, bounded, with reuse of faulted pages.

The agent owns it. Files outlive the workers that write them and die with the agent: it removes its
folder when it exits, and whoever comes later removes those of agents that could not (``sweep``).
What the segments in it hold and may be used for is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from sailor.checkpoint.segment import (
    PAGE,
    Manifest,
    Segment,
    file_bytes,
    place,
)
from sailor.errors import SailorError
from sailor.parallel.layout import WorkerId
from sailor.units import gib

SHARED_MEMORY = Path("/dev/shm")
_OWNER = "owner"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_TOUCH_BYTES = 64 << 20  # faulted in one go; between goes another thread may run


_LARGER = "mount -o remount,size=4G /dev/shm   (docker run --shm-size=4g)"


class OutOfSnapshotMemory(SailorError):
    """The node's share of memory for snapshots does not hold what the layout needs."""

    exit_code = 3


class Arena:
    """All segments of one node. Methods may block for page faults and may run in any thread."""

    def __init__(self, directory: Path, *, budget_bytes: int) -> None:
        """Use ``open_arena``."""
        self.directory = directory
        self.budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._sizes: dict[Path, int] = {}  # every file
        self._pool: dict[Path, int] = {}  # those nobody uses
        self._count = 0

    @property
    def used_bytes(self) -> int:
        """Bytes of segments in use; the pool comes on top."""
        return sum(self._sizes.values()) - sum(self._pool.values())

    def segment(self, *, writer: WorkerId, boxes: Sequence[tuple[str, tuple[int, ...]]]) -> Segment:
        """A free, faulted segment for these boxes (name, shape): a pooled one, else a new one.

        Raises OutOfSnapshotMemory.
        """
        manifest = Manifest(writer=writer, boxes=place(boxes))
        needed = file_bytes(manifest)
        with self._lock:
            path = self._file(needed)
        return Segment.write_header(path, manifest=manifest)

    def reserve(self, sizes: Iterable[int]) -> None:
        """Have faulted memory lie ready for segments of these files' sizes, all in use at once.

        It is only kept as long as nothing else needs it. Raises OutOfSnapshotMemory.
        """
        with self._lock:
            taken: list[Path] = []
            try:
                for size in sorted(sizes, reverse=True):
                    taken.append(self._file(size))
            finally:
                self._pool |= {path: self._sizes[path] for path in taken}

    def free(self, segment: Segment) -> None:
        """Nobody will read or write it any more; its pages wait for the next one."""
        segment.release()
        with self._lock:
            size = self._sizes.get(segment.path)
            if size is not None:  # else all is destroyed already
                self._pool[segment.path] = size

    def destroy(self) -> None:
        """Remove everything. Mappings others hold stay valid for them."""
        with self._lock:
            self._sizes.clear()
            self._pool.clear()
            shutil.rmtree(self.directory, ignore_errors=True)

    def _file(self, needed: int) -> Path:
        """A file of the pool, taken out of it, or a new one. Raises OutOfSnapshotMemory."""
        fitting = [p for p, size in self._pool.items() if needed <= size <= 2 * needed + PAGE]
        if fitting:
            path = min(fitting, key=lambda p: self._pool[p])
            del self._pool[path]
            return path
        self._make_room(needed)
        return self._create(needed)

    def _make_room(self, needed: int) -> None:
        for path in sorted(self._pool, key=lambda p: self._pool[p]):
            if sum(self._sizes.values()) + needed <= self.budget_bytes:
                return
            path.unlink(missing_ok=True)
            del self._pool[path], self._sizes[path]
        total = sum(self._sizes.values())
        if total + needed > self.budget_bytes:
            raise OutOfSnapshotMemory(
                f"a snapshot segment of {gib(needed)} does not fit",
                code="E609",
                why=f"{gib(total)} of {gib(self.budget_bytes)} for snapshots are in use",
                where=str(self.directory),
                fix=_LARGER,
            )

    def _create(self, size: int) -> Path:
        self._count += 1
        path = self.directory / f"segment-{self._count:06d}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Reserve the pages now: an error here, not a SIGBUS in the middle of a copy.
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise OutOfSnapshotMemory(
                f"cannot reserve {gib(size)} of shared memory for a snapshot",
                code="E609",
                why=str(error),
                where=str(self.directory),
                fix=_LARGER,
            ) from error
        finally:
            os.close(descriptor)
        self._sizes[path] = size
        pages = np.memmap(path, dtype=np.uint8, mode="r+")
        for start in range(0, size, _TOUCH_BYTES):
            pages[start : start + _TOUCH_BYTES : PAGE] = 0
        return path


def open_arena(
    *,
    run: str,
    node: str,
    budget_bytes: int | None,
    share: float = 0.5,
    root: Path = SHARED_MEMORY,
) -> Arena:
    """This process's arena. Without a budget: a share of what shared memory has free now."""
    for name in (run, node):
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be part of a file name")
    directory = root / f"sailor-{run}-{node}-{os.getpid()}"
    directory.mkdir(mode=0o700)
    owner = f"{os.getpid()} {_started(os.getpid())}"
    (directory / _OWNER).write_text(owner)
    if budget_bytes is None:
        budget_bytes = int(shutil.disk_usage(root).free * share)
    return Arena(directory, budget_bytes=budget_bytes)


def sweep(run: str, *, root: Path = SHARED_MEMORY) -> list[str]:
    """Remove the folders of this run whose agents are gone, killed before they could. Their names.

    Only real folders of this user; a process that merely reused the pid does not count as alive.
    """
    removed = []
    for directory in sorted(root.glob(f"sailor-{run}-*")):
        with contextlib.suppress(OSError, ValueError):
            facts = directory.lstat()
            if directory.is_symlink() or facts.st_uid != os.getuid() or not directory.is_dir():
                continue
            pid, started = (directory / _OWNER).read_text().split()
            if _started(int(pid)) != started:
                shutil.rmtree(directory)
                removed.append(directory.name)
    return removed


def _started(pid: int) -> str:
    """When a process started, in clock ticks since boot; empty when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *rest = stat.rpartition(")")[2].split()
    return "" if state == "Z" else rest[18]
