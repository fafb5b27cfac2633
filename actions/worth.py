"""What machines are worth to a run, asked by whoever rents them and answered by the planner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from actions.planning import Question
from provision.outlook import Place
from sailor.cluster.provisioner import NodeRequest
from sailor.errors import NoFeasiblePlan
from sailor.parallel.layout import Member, WorkerId
from sailor.plan import Plan
from sailor.units import duration

_SOME_USE = 1e-6  # tokens per second: less than any real gain, and more than none
_MARGIN = 1.2  # a change must bring this times what it costs


class Worth:
    """Speeds of sets of machines, each worked out once. ``plan`` is the run's first one."""

    def __init__(self, asked: Question, plan: Plan) -> None:
        self._asked, self._plan = asked, plan
        self._replan = asked.replanner(plan)
        self._wanted = {machine_type for _, machine_type in plan.gpus_by_pool()}
        self._speeds: dict[tuple[tuple[tuple[str, str], int], ...], float] = {}

    def learn(self, asked: Question) -> None:
        """Things are known better now."""
        self._asked, self._replan = asked, asked.replanner(self._plan)
        self._speeds = {}

    def gain(self, members: Sequence[tuple[str, str]]) -> Callable[[Place], float]:
        """Tokens per second that one more machine in a place adds to these (zone, machine type).

        A machine of a type the plan was made for is of some use even where one alone adds nothing:
        two may.
        """
        here = self._speed(members)

        def of(place: Place) -> float:
            zone, machine_type, _ = place
            more = self._speed([*members, (zone, machine_type)]) - here
            least = _SOME_USE if machine_type in self._wanted else 0.0
            return max(more, least)

        return of

    def not_worth(self, old: Plan, new: Plan, *, steps_left: int, pause_s: float) -> str:
        """Why changing from one plan to another, both possible now, does not pay; or nothing.

        What it gains over the steps left must be more than a margin times the pause of the change.
        """
        before, after = self._asked.step_seconds(old), self._asked.step_seconds(new)
        gained_s = (before - after) * steps_left
        if gained_s > _MARGIN * pause_s:
            return ""
        return (
            f"{steps_left:,} steps of {after:.3g} s instead of {before:.3g} s gain "
            f"{duration(max(0.0, gained_s))}, the change costs {duration(pause_s)}"
        )

    def step_seconds(self, plan: Plan) -> float:
        """What one step of a plan takes, as links are known by now."""
        return self._asked.step_seconds(plan)

    def losses_per_s(self, request: NodeRequest) -> float:
        """How often a machine like this is taken away: never, unless it is a preemptible one."""
        believed = self._asked.believed.get((request.zone, request.machine_type))
        if believed is None or not request.spot:
            return 0.0
        return believed.events_per_machine_hour * believed.mean_bulk / 3600.0

    def _speed(self, machines: Sequence[tuple[str, str]]) -> float:
        key = tuple(sorted(Counter(machines).items()))
        if key not in self._speeds:
            types = self._asked.catalogue.network.machine_types
            members = [
                Member(
                    node=f"machine-{i}",
                    zone=zone,
                    machine_type=machine_type,
                    workers=tuple(
                        WorkerId(node=f"machine-{i}", slot=slot, incarnation=1)
                        for slot in range(types[machine_type].num_gpus)
                    ),
                )
                for i, (zone, machine_type) in enumerate(machines)
            ]
            try:
                plan = self._replan(members)
            except NoFeasiblePlan:
                self._speeds[key] = 0.0
            else:
                self._speeds[key] = plan.tokens_per_step / self._asked.step_seconds(plan)
        return self._speeds[key]
