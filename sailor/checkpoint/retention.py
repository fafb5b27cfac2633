"""Which snapshots must be kept and which segment may be written next. Pure.

A worker is granted a segment only when its newest snapshot is *safe*: verified, and copied to the
peers that keep copies of it. Ranks take a snapshot of a step together or not at all (they vote in
the step's last collective, see Trainer.step). So while any rank writes one, every rank's previous
one is safe: whoever dies, there is a step that every box can be had at. No word of the controller
is needed for it. "Newer" is by (generation, step).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sailor.checkpoint.segment import SegmentState
from sailor.parallel.layout import WorkerId
from sailor.runtime.messages import SnapshotId

KEPT_VERSIONS = 2  # of each writer's copies: one complete while the next arrives
ANCHOR_VERSIONS = 3  # the one it has all of must outlive an attempt that others did not complete


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentView:
    """What a decision needs to know of one segment. ``pins`` counts those who are reading it."""

    name: str
    snapshot: SnapshotId
    state: SegmentState
    pins: int = 0
    granted: bool = False  # its worker may be writing it
    safe: bool = False  # verified, and copied where it must be


def next_to_write(segments: Sequence[SegmentView], *, urgent: bool) -> str | None:
    """Name of the segment a worker may overwrite now, or None.

    ``segments`` are one worker's, of one generation. ``urgent``: the snapshot must be (a halt, a
    step to be durable) and need not wait for the last one to be safe.
    """
    if any(segment.granted for segment in segments):
        return None
    used = [s for s in segments if s.state is not SegmentState.free]
    newest = max(used, key=lambda s: _age(s.snapshot), default=None)
    if newest is not None and not newest.safe and not urgent:
        return None
    for segment in segments:
        if segment.state is SegmentState.free:
            return segment.name
    safe = [s for s in used if s.safe]
    if not safe:
        return None
    newest_safe = max(safe, key=lambda s: _age(s.snapshot))
    older = [s for s in safe if s is not newest_safe and s.pins == 0]
    return min(older, key=lambda s: _age(s.snapshot)).name if older else None


def superseded(snapshots: Iterable[SnapshotId], *, newest: int) -> frozenset[SnapshotId]:
    """Of one writer's snapshots, all but the newest few."""
    by_age = sorted(set(snapshots), key=_age)
    return frozenset(by_age[:-newest])


def outlived(
    snapshots: Iterable[SnapshotId], *, generation: int, current: Iterable[WorkerId]
) -> frozenset[SnapshotId]:
    """Snapshots of earlier generations that the present one has made superfluous.

    Once each of ``current``, this node's workers of ``generation``, has two verified snapshots of
    it: the first of them is then safe on every rank.
    """
    everything = frozenset(snapshots)
    counts = [
        sum(s.worker == worker and s.generation == generation for s in everything)
        for worker in set(current)
    ]
    if not counts or min(counts) < 2:
        return frozenset()
    return frozenset(s for s in everything if s.generation < generation)


def abandoned(
    snapshots: Iterable[SnapshotId], *, generation: int, step: int
) -> frozenset[SnapshotId]:
    """What a generation that starts at ``step`` makes untrue: later steps of earlier generations.

    They would be mistaken for the steps this generation is about to redo.
    """
    return frozenset(s for s in snapshots if s.generation < generation and s.step > step)


def _age(snapshot: SnapshotId) -> tuple[int, int]:
    return snapshot.generation, snapshot.step
