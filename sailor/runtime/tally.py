"""Word of every rank's snapshot becomes one line of the log a step. Pure, no torch.

In a large world each step brings two messages a rank, its own snapshot and its copy at a peer: as
events they would be most of the log. A step's snapshots are told once all ranks have one, its
copies once all have one or a newer step's snapshots are complete. What comes late is told by
itself: readers add up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sailor.parallel.layout import WorkerId
from sailor.runtime.messages import Snapshotted

Line = tuple[str, dict[str, Any]]  # kind and fields of an event


@dataclass(kw_only=True, slots=True)
class _Heard:
    """Of one step, so far."""

    workers: set[WorkerId] = field(default_factory=set)
    bytes: int = 0
    stall_s: float = 0.0
    copy_s: float = 0.0
    slowest: str = ""

    def add(self, told: Snapshotted) -> None:
        self.workers.add(told.snapshot.worker)
        self.bytes += told.bytes
        self.stall_s = max(self.stall_s, told.stall_s)
        if not self.slowest or told.copy_s > self.copy_s:
            self.copy_s, self.slowest = told.copy_s, str(told.snapshot.worker)


class SnapshotTally:
    """One generation's. ``world_size``: of how many ranks a step has snapshots when it has all."""

    def __init__(self, *, generation: int, world_size: int) -> None:
        self.generation = generation
        self._world_size = world_size
        self._own: dict[int, _Heard] = {}
        self._copies: dict[int, _Heard] = {}

    def hear(self, told: Snapshotted) -> list[Line]:
        """Take one message; the lines that are complete with it."""
        step = told.snapshot.step
        steps = self._copies if told.peer else self._own
        heard = steps.setdefault(step, _Heard())
        heard.add(told)
        if len(heard.workers) < self._world_size:
            return []
        if told.peer:
            return list(self._told_copies(up_to=step))
        return [*self._told_copies(up_to=step - 1), self._told_own(step)]

    def rest(self) -> list[Line]:
        """What has not been told: nothing more will come, or it does not matter."""
        lines = [self._told_own(step) for step in sorted(self._own)]
        return [*lines, *self._told_copies(up_to=max(self._copies, default=0))]

    def _told_own(self, step: int) -> Line:
        heard = self._own.pop(step)
        return "snapshot", {
            "step": step, "workers": len(heard.workers), "bytes": heard.bytes,
            "stall_s": heard.stall_s, "copy_s": heard.copy_s, "slowest": heard.slowest,
        }  # fmt: skip

    def _told_copies(self, *, up_to: int) -> Iterator[Line]:
        for step in sorted(step for step in self._copies if step <= up_to):
            heard = self._copies.pop(step)
            fields = {"step": step, "workers": len(heard.workers), "bytes": heard.bytes}
            yield "snapshot_copied", fields
