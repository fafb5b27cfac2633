"""A node's snapshots: whose they are, who may write which segment, what is held and for how long.

The rules are those of ``checkpoint.retention``; this is their bookkeeping over real segments, on
the agent's loop. Work that takes time (page faults, hashing) runs in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

from sailor.checkpoint.arena import Arena, OutOfSnapshotMemory
from sailor.checkpoint.retention import (
    KEPT_VERSIONS,
    SegmentView,
    abandoned,
    next_to_write,
    outlived,
    superseded,
)
from sailor.checkpoint.segment import PAGE, CorruptSnapshot, Segment, SegmentState
from sailor.parallel.layout import WorkerId
from sailor.runtime.messages import Holding, SnapshotId

log = logging.getLogger(__name__)

PER_BOX_BYTES = 256  # of a segment's header, at most, and of its alignment
SEGMENTS_PER_WORKER = 2
ANCHORED_SEGMENTS = 3  # with one that a copy for an anchor is slowly read from

Boxes = Sequence[tuple[str, tuple[int, ...]]]


class Use(Enum):
    """What a segment is for."""

    own = "own"  # one of this node's workers writes it
    copy = "copy"  # of another node's worker
    passing = "passing"  # boxes on their way into a worker


@dataclass(kw_only=True, eq=False, slots=True)
class Entry:
    """One segment in use. ``seat`` is (worker, generation) of the one who may write it."""

    segment: Segment
    use: Use
    seat: tuple[WorkerId, int] | None = None
    granted: bool = False
    sealing: bool = False
    safe: bool = False  # verified, and copied where it must be
    pins: int = 0
    doomed: bool = False  # to be freed when nobody reads it any more
    stale: bool = False  # to be forgotten, its memory kept, when nobody reads it any more

    @property
    def held(self) -> bool:
        """Whether it can be restored from."""
        return (
            self.use is not Use.passing
            and not (self.doomed or self.stale)
            and self.segment.state is SegmentState.verified
        )


class Keeper:
    """Everything in this node's snapshot memory. Satisfies checkpoint.replicate.Shelf."""

    def __init__(
        self,
        arena: Arena,
        *,
        node: str,
        grant: Callable[[WorkerId, int, str], None],
        versions: int = KEPT_VERSIONS,
    ) -> None:
        """``versions``: so many of each writer's copies are kept, whoever else wants fewer."""
        self.segments = SEGMENTS_PER_WORKER  # of each worker
        self._arena = arena
        self._versions = versions
        self._node = node
        self._grant = grant  # (worker, generation, segment): tell the worker
        self._entries: list[Entry] = []
        self._seats: dict[tuple[WorkerId, int], bool] = {}  # -> whether it needs one urgently

    # Segments of own workers

    async def allocate(self, worker: WorkerId, generation: int, boxes: Boxes) -> tuple[str, ...]:
        """Segments for a seat that is being prepared. Raises OutOfSnapshotMemory; then none."""
        made: list[Entry] = []
        try:
            for _ in range(self.segments):
                made.append(await self._new(worker, boxes, Use.own, seat=(worker, generation)))
        except OutOfSnapshotMemory:
            for entry in made:
                self._free(entry)
            raise
        return tuple(str(entry.segment.path) for entry in made)

    def open_seat(self, worker: WorkerId, generation: int) -> None:
        """The worker sits in that generation now: it may snapshot. Its older seats are closed."""
        for seat in [s for s in self._seats if s[0] == worker]:
            self.close_seat(*seat)
        self._seats[worker, generation] = False
        self._offer()

    def inherit(self, worker: WorkerId, old: int, new: int) -> None:
        """The worker goes on in another generation with the same segments and what they hold.

        It must stand still: a grant that it has not used is void.
        """
        self._seats.pop((worker, old), None)
        for entry in self._of_seat((worker, old)):
            entry.seat = (worker, new)
            entry.granted = False
            if entry.segment.state is not SegmentState.verified and not entry.sealing:
                entry.segment.release()

    def move_in(self, worker: WorkerId, old: int, new: int, boxes: Boxes) -> bool:
        """Give the empty segments of one seat to another that wants the same boxes. Whether there
        were any; what does not fit is freed."""
        mine = self._of_seat((worker, old))
        fits = len(mine) == self.segments and all(
            [(at.name, at.shape) for at in entry.segment.manifest.boxes] == list(boxes)
            for entry in mine
        )
        if not fits:
            self.close_seat(worker, old)
            return False
        for entry in mine:
            entry.seat = (worker, new)
        return True

    def close_seat(self, worker: WorkerId, generation: int) -> None:
        """The worker is dead, moved on, or never came: what it did not finish is void."""
        self._seats.pop((worker, generation), None)
        for entry in self._of_seat((worker, generation)):
            entry.granted = False
            if entry.segment.state is not SegmentState.verified and not entry.sealing:
                self._free(entry)

    async def want(self, worker: WorkerId, generation: int) -> None:
        """A snapshot must be made: one segment beyond the usual ones, if there is no other."""
        seat = (worker, generation)
        if seat not in self._seats:
            return
        self._seats[seat] = True
        self._offer()
        mine = self._of_seat(seat)
        if any(entry.granted for entry in mine) or len(mine) > self.segments:
            return
        boxes = [(at.name, at.shape) for at in mine[0].segment.manifest.boxes]
        with contextlib.suppress(OutOfSnapshotMemory):  # then the next one that comes free
            await self._new(worker, boxes, Use.own, seat=seat)
            self._offer()

    async def seal(self, worker: WorkerId, generation: int, path: str, step: int) -> SnapshotId:
        """The worker has written: hash and commit. Raises CorruptSnapshot."""
        entry = self._find(path)
        if entry is None or entry.seat != (worker, generation):
            raise CorruptSnapshot("not a segment of that worker", where=path)
        entry.granted = False
        snapshot = entry.segment.snapshot
        if (snapshot.generation, snapshot.step) != (generation, step):
            self._free(entry)
            raise CorruptSnapshot("written for another step than told", where=path)
        entry.sealing, entry.safe = True, False
        try:
            await asyncio.to_thread(entry.segment.seal)
        except CorruptSnapshot:
            self._free(entry)
            raise
        finally:
            entry.sealing = False
        self._offer()
        return snapshot

    def mark_safe(self, snapshot: SnapshotId) -> None:
        """It is where it must be (or cannot get there): the next one may be written."""
        for entry in self._entries:
            if entry.held and entry.segment.snapshot == snapshot:
                entry.safe = True
        self._offer()

    # What is held

    def holdings(self) -> tuple[Holding, ...]:
        """All verified snapshots and copies, for the controller to choose from."""
        return tuple(
            Holding(
                node=self._node,
                snapshot=entry.segment.snapshot,
                boxes=tuple(entry.segment.places),
            )
            for entry in self._entries
            if entry.held
        )

    def held(self, snapshot: SnapshotId) -> Entry | None:
        """The verified segment of a snapshot; the fullest when there are several."""
        found = [e for e in self._entries if e.held and e.segment.snapshot == snapshot]
        return max(found, key=lambda e: len(e.segment.places), default=None)

    @contextlib.contextmanager
    def pinned(self, snapshot: SnapshotId) -> Iterator[Segment]:
        """A verified snapshot, kept as it is while inside. Raises KeyError."""
        entry = self.held(snapshot)
        if entry is None:
            raise KeyError(f"{snapshot.worker} step {snapshot.step}")
        entry.pins += 1
        try:
            yield entry.segment
        finally:
            entry.pins -= 1
            if entry.doomed and not entry.pins:
                self._free(entry)
            self._let_go(entry)
            self._offer()

    def tidy(self, generation: int, *, current: Iterable[WorkerId]) -> None:
        """Forget what newer snapshots have made superfluous."""
        held = [e for e in self._entries if e.held]
        gone = set(
            outlived(
                [e.segment.snapshot for e in held],
                generation=generation,
                current=current,
            )
        )
        copies = [e.segment.snapshot for e in held if e.use is Use.copy]
        for writer in {snapshot.worker for snapshot in copies}:
            gone |= superseded([s for s in copies if s.worker == writer], newest=self._versions)
        self._forget(gone)
        self._offer()

    def abandon(self, *, generation: int, step: int) -> None:
        """Generation starts from ``step``: later steps of earlier ones never happened."""
        held = [e.segment.snapshot for e in self._entries if e.held]
        self._forget(abandoned(held, generation=generation, step=step))

    # Shelf: segments for what comes from other nodes

    async def room(self, *, writer: WorkerId, boxes: Boxes) -> Segment:
        """A free segment for boxes that come over the wire. Raises OutOfSnapshotMemory."""
        return (await self._new(writer, boxes, Use.passing)).segment

    def keep(self, segment: Segment) -> None:
        """It is a verified copy now; older versions of the same writer may go."""
        entry = self._find(str(segment.path))
        assert entry is not None
        for other in self._entries:
            if other.held and other.segment.snapshot == segment.snapshot:
                self._doom(other)  # sent twice: the newer counts
        entry.use = Use.copy
        versions = [
            e.segment.snapshot
            for e in self._entries
            if e.use is Use.copy and e.held and e.segment.snapshot.worker == segment.snapshot.worker
        ]
        self._forget(superseded(versions, newest=self._versions))

    def retain(self, *, generation: int, step: int) -> None:
        """Of the copies held here, only those of one step are wanted still; none if ``step`` is -1.
        For an anchor: somebody else knows which step it has all of."""
        copies = [e.segment.snapshot for e in self._entries if e.use is Use.copy and e.held]
        self._forget(s for s in copies if (s.generation, s.step) != (generation, step))

    def discard(self, segment: Segment) -> None:
        """It has served, or came to nothing."""
        entry = self._find(str(segment.path))
        if entry is not None:
            self._free(entry)

    async def reserve(self, expected: Iterable[tuple[int, int]]) -> None:
        """Fault in memory for boxes that are to come over the wire: (bytes, number of boxes) of
        each transfer. As far as there is room."""
        sizes = [
            num_bytes + num_boxes * PER_BOX_BYTES + 2 * PAGE for num_bytes, num_boxes in expected
        ]
        try:
            await asyncio.to_thread(self._arena.reserve, sizes)
        except OutOfSnapshotMemory as error:
            log.warning("what is to be fetched finds no memory ready: %s", error)

    # Bookkeeping

    async def _new(
        self,
        writer: WorkerId,
        boxes: Boxes,
        use: Use,
        *,
        seat: tuple[WorkerId, int] | None = None,
    ) -> Entry:
        make = partial(self._arena.segment, writer=writer, boxes=boxes)
        entry = Entry(segment=await asyncio.to_thread(make), use=use, seat=seat)
        self._entries.append(entry)
        return entry

    def _offer(self) -> None:
        """Grant every seat that has no grant a segment, where the rules allow one."""
        for seat, urgent in self._seats.items():
            mine = self._of_seat(seat)
            chosen = next_to_write([_view(entry) for entry in mine], urgent=urgent)
            entry = self._find(chosen) if chosen is not None else None
            if entry is not None:
                entry.granted = True
                self._seats[seat] = False
                self._grant(*seat, str(entry.segment.path))

    def _of_seat(self, seat: tuple[WorkerId, int]) -> list[Entry]:
        return [e for e in self._entries if e.seat == seat and e.use is Use.own and not e.doomed]

    def _find(self, path: str) -> Entry | None:
        wanted = Path(path)
        return next((e for e in self._entries if e.segment.path == wanted), None)

    def _forget(self, snapshots: Iterable[SnapshotId]) -> None:
        gone = frozenset(snapshots)
        for entry in list(self._entries):
            if entry.held and entry.segment.snapshot in gone:
                self._doom(entry)

    def _doom(self, entry: Entry) -> None:
        if entry.seat is not None and entry.seat in self._seats:
            # Its worker still writes there: overwritten in its turn. What an earlier generation
            # left behind must not be mistaken for a step of this one until then.
            if entry.segment.snapshot.generation < entry.seat[1] and not entry.granted:
                entry.stale = True
                self._let_go(entry)
            return
        if entry.pins:
            entry.doomed = True
        else:
            self._free(entry)

    def _let_go(self, entry: Entry) -> None:
        """Make a stale segment free to be written, unless somebody reads it."""
        if entry.stale and not entry.pins:
            entry.segment.release()
            entry.stale = False

    def _free(self, entry: Entry) -> None:
        if entry in self._entries:
            self._entries.remove(entry)
            self._arena.free(entry.segment)


def _view(entry: Entry) -> SegmentView:
    return SegmentView(
        name=str(entry.segment.path),
        snapshot=entry.segment.snapshot,
        state=entry.segment.state,
        pins=entry.pins,
        granted=entry.granted,
        safe=entry.safe and entry.held,
    )
