"""How long each seat's work takes, and took on machines that stand by now. No torch.

Fed from heartbeats. A generation's newest steps are kept in two halves, so that what held in one of
them only is not taken for a machine's pace. What a machine did before it lost its seat is kept
beside what all others did at that time: whoever compares can tell a slow machine from a busy hour.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from sailor.parallel.layout import Layout, WorkerId
from sailor.parallel.stand_in import without_places
from sailor.plan import Plan
from sailor.runtime.messages import WorkerStatus

NEWEST = 64  # steps of each seat that are remembered
ENOUGH = 16  # steps of each seat before anything is said of it


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """One generation's: rank -> node, and seconds at work in a step (waits left out), the median of
    the earlier and of the later half of the newest steps."""

    nodes: Mapping[int, str]
    seconds: Mapping[int, tuple[float, float]]


class Paces:
    """One run's. Seats are compared only while the plan stays as it is, places aside."""

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._ranks: dict[WorkerId, int] = {}
        self._began = 0
        self._seen: dict[int, int] = {}  # rank -> its newest step here
        self._newest: dict[int, deque[float]] = {}
        self._before: dict[str, Pace] = {}

    def began(self, layout: Layout, *, step: int) -> None:
        """Another generation trains from ``step`` on."""
        if (pace := self.now()) is not None:
            self._before |= dict.fromkeys(pace.nodes.values(), pace)
        plan = without_places(layout.plan)
        if plan != self._plan:
            self._before.clear()
        self._plan, self._began = plan, step
        self._ranks = {worker: rank for rank, worker in enumerate(layout.workers)}
        self._newest = {rank: deque(maxlen=NEWEST) for rank in range(layout.world_size)}
        self._seen.clear()

    def heard(self, statuses: Iterable[WorkerStatus]) -> None:
        """A heartbeat. The first step of a generation is no measure."""
        for status in statuses:
            rank = self._ranks.get(status.worker)
            if rank is None or status.doing != "training" or status.busy_s <= 0:
                continue
            if status.step > self._seen.get(rank, self._began + 1):
                self._seen[rank] = status.step
                self._newest[rank].append(status.busy_s)

    def now(self) -> Pace | None:
        """Of the generation that trains, once enough is known of every seat."""
        newest = {rank: list(values) for rank, values in self._newest.items()}
        if not newest or any(len(values) < ENOUGH for values in newest.values()):
            return None
        return Pace(
            nodes={rank: worker.node for worker, rank in self._ranks.items()},
            seconds={
                rank: (median(values[: len(values) // 2]), median(values[len(values) // 2 :]))
                for rank, values in newest.items()
            },
        )

    def before(self, node: str) -> Pace | None:
        """Of the newest generation of such a plan in which a machine had seats and enough was
        known."""
        return self._before.get(node)
