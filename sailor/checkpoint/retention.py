"""Which snapshots must be kept and which segment may be written next. Pure.

A snapshot may be forgotten only when a newer one of the same writer is verified and, as far as the
controller has told, every box of the model can be had at a newer step as well: a state that some
other node still has to fall back to is not ours to drop. "Newer" is by (generation, step).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sailor.checkpoint.segment import SegmentState
from sailor.parallel.layout import WorkerId
from sailor.runtime.messages import SnapshotId

KEPT_VERSIONS = 2  # of each writer's copies: one complete while the next arrives


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentView:
    """What a decision needs to know of one segment. ``pins`` counts those who are reading it."""

    name: str
    snapshot: SnapshotId
    state: SegmentState
    pins: int = 0
    granted: bool = False  # its worker may be writing it


def next_to_write(segments: Sequence[SegmentView], *, committed: int | None) -> str | None:
    """Name of the segment a worker may overwrite now, or None: then the snapshot is skipped.

    ``segments`` are one worker's. A free one first, else the oldest verified one that may go.
    """
    if any(segment.granted for segment in segments):
        return None
    for segment in segments:
        if segment.state is SegmentState.free:
            return segment.name
    verified = [s for s in segments if s.state is SegmentState.verified]
    kept = _must_keep([s.snapshot for s in verified], newest=1, committed=committed)
    spare = [s for s in verified if s.snapshot not in kept and s.pins == 0]
    return min(spare, key=lambda s: _age(s.snapshot)).name if spare else None


def forgettable(
    snapshots: Iterable[SnapshotId], *, newest: int, committed: int | None
) -> frozenset[SnapshotId]:
    """Of one writer's verified snapshots (or copies of them): those that may be dropped."""
    all_of_them = frozenset(snapshots)
    return all_of_them - _must_keep(list(all_of_them), newest=newest, committed=committed)


def outlived(
    snapshots: Iterable[SnapshotId],
    *,
    generation: int,
    committed: int | None,
    current: Iterable[WorkerId],
) -> frozenset[SnapshotId]:
    """Snapshots of earlier generations that the present one has made superfluous.

    ``current`` are this node's workers of ``generation``. With the controller's word: everything of
    an earlier generation at an earlier step than the committed one. Without: once each of
    ``current`` has two verified snapshots of this generation.
    """
    everything = frozenset(snapshots)
    old = {s for s in everything if s.generation < generation}
    if committed is not None:
        return frozenset(s for s in old if s.step < committed)
    workers = set(current)
    counts = {
        worker: sum(s.worker == worker and s.generation == generation for s in everything)
        for worker in workers
    }
    settled = bool(workers) and all(count >= 2 for count in counts.values())
    return frozenset(old) if settled else frozenset()


def abandoned(
    snapshots: Iterable[SnapshotId], *, generation: int, step: int
) -> frozenset[SnapshotId]:
    """What a generation that starts at ``step`` makes untrue: later steps of earlier generations.

    They would be mistaken for the steps this generation is about to redo.
    """
    return frozenset(s for s in snapshots if s.generation < generation and s.step > step)


def _must_keep(
    snapshots: list[SnapshotId], *, newest: int, committed: int | None
) -> frozenset[SnapshotId]:
    by_age = sorted(snapshots, key=_age)
    kept = set(by_age[-newest:])
    if committed is not None:
        reachable = [s for s in by_age if s.step <= committed]
        kept.update(reachable[-1:])
    return frozenset(kept)


def _age(snapshot: SnapshotId) -> tuple[int, int]:
    return snapshot.generation, snapshot.step
