"""Where a simulated run's state is: in machines' memory, in copies at others, on disk; and which
step can still be had when some of it is gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sailor.checkpoint.placement import peers
from sailor.parallel.layout import Member, WorkerId
from sailor.planner.evidence import Place
from sailor.simulate.costs import Costs
from sailor.simulate.formation import Formation, covered, farthest_move
from sailor.simulate.job import Job
from sailor.simulate.pace import Content
from sailor.simulate.stepping import Stepping

Alive = Mapping[str, Place]  # machines that live


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The newest step that every part of the model can reach, and the farthest place it is in."""

    step: int
    source: str


@dataclass(kw_only=True)
class Memory:
    """One run's. ``last`` is the newest formation whose machines hold state."""

    job: Job
    costs: Costs
    last: Formation | None = None
    _keepers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    _copied: int = 0  # newest step of which all copies in memory were complete
    _durable: int = 0

    def holds(self, formation: Formation, *, alive: Alive) -> None:
        """A formation is told to go: its machines hold the state from here on."""
        self.last = formation
        self._keepers = self._keepers_of(formation, alive)

    def stepped(self, training: Stepping, *, until: float) -> None:
        """Steps were done: what of them was copied and written in time."""
        every, persist = self.job.snapshot_every, self.job.persist_every
        formation, costs = training.formation, self.costs
        travel_s = self._travel_seconds(formation, costs.link_bytes_per_second)
        # Copies are made beside the next step, and told of after it.
        seconds = max(travel_s, training.step_s)
        self._copied = max(self._copied, _complete(training, until, every=every, seconds=seconds))
        if persist:
            write_s = self._travel_seconds(formation, costs.storage_bytes_per_second)
            durable = _complete(training, until, every=persist, seconds=write_s)
            self._durable = max(self._durable, durable - durable % persist)

    def choose(self, alive: Alive, *, applied: int) -> Choice:
        """What to go on from, ``applied`` being the newest step."""
        if self.last is None:
            return Choice(step=0, source="init")
        if covered(self._surviving(self.last, alive)):
            return Choice(step=applied, source="live")
        if covered(self._surviving(self.last, alive, copies=True)):
            return Choice(step=min(applied, max(self._copied, self._durable)), source="peer")
        return Choice(step=self._durable, source="disk")

    def _surviving(self, last: Formation, alive: Alive, *, copies: bool = False) -> set[Content]:
        """Parts of the model in the memory of machines that live: their own, and copies kept."""
        gone = last.holds.keys() - alive.keys()
        parts = set(last.parts_without(gone))
        if copies:
            for node in gone:
                if any(keeper in alive for keeper in self._keepers.get(node, ())):
                    parts.add(last.holds[node][1])
        return parts

    def _travel_seconds(self, formation: Formation, bandwidth: float) -> float:
        """Of all that any one machine holds."""
        return farthest_move(formation, afresh=True) * self.job.state_bytes / bandwidth

    def _keepers_of(self, formation: Formation, alive: Alive) -> Mapping[str, tuple[str, ...]]:
        """Who keeps copies of whose snapshots: by the runtime's own rule of placement.

        Parts with two live owners on different machines are copied only when the job asks for it.
        """
        owners = formation.parts_without(())
        if not self.job.copies and min(owners.values()) > 1:
            return {}
        members = [
            Member(node=node, zone=alive[node][0], machine_type=alive[node][1],
                   workers=(WorkerId(node=node, slot=0, incarnation=1),))
            for node in formation.holds
            if node in alive
        ]  # fmt: skip
        kept = peers(members)
        if self.job.copies:
            return kept
        return {n: k for n, k in kept.items() if owners[formation.holds[n][1]] == 1}


def _complete(training: Stepping, t: float, *, every: int, seconds: float) -> int:
    """The newest of every so many steps, and the one it began with, that had ``seconds`` to
    travel before ``t``; 0 when none had."""
    if t - training.began < seconds:
        return 0
    done = training.base + training.steps_by(t - seconds)
    return max(training.base, done - done % every)
