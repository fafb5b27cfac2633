"""What a run plans with while it goes on: the question it began with, and what was learned since.

Implements ``sailor.runtime.arrivals.KnownLinks``. Links are learned in the controller's thread and
planned with in others; what they see is the old question or the new one, never half of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from actions.planning import Question
from sailor.cluster.network import Link
from sailor.parallel.layout import Member
from sailor.plan import Plan


class Terrain:
    """``plan`` is the run's first one. ``changed`` are told when something was learned."""

    def __init__(self, asked: Question, plan: Plan) -> None:
        self.asked = asked
        self._plan = plan
        self._replan = asked.replanner(plan)
        self.changed: list[Callable[[Question], None]] = []

    def replan(self, members: Sequence[Member]) -> Plan:
        """The plan for these members, as things are known now. Raises NoFeasiblePlan."""
        return self._replan(members)

    def assumed(self, one: Member, other: Member) -> Link:
        """The line between two machines, as plans have it."""
        network = self.asked.catalogue.network
        return network.between(one.zone, one.machine_type, other.zone, other.machine_type)

    def learn(self, measured: Mapping[tuple[str, str], Link]) -> None:
        """Lines between machines of these zones are like this."""
        catalogue = self.asked.catalogue
        network = catalogue.network
        paths = {**network.paths, **measured}
        catalogue = replace(catalogue, network=replace(network, paths=paths))
        self.asked = replace(self.asked, catalogue=catalogue)
        self._replan = self.asked.replanner(self._plan)
        for tell in self.changed:
            tell(self.asked)
