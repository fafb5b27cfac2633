"""How fast given machines train, and which part of the model's state each of them then holds.

The simulator asks one question again and again: what do so many machines of these places make of
the job? ``Speeds`` answers it by counts, never by names, and remembers the answer: machines of one
place are alike. Three sources: the planner that the runtime asks (``PlannedSpeeds``), published
tables of samples per second (``TableSpeeds``), and step times measured in a run (``StepTable``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, cast

from sailor.errors import NoFeasiblePlan
from sailor.parallel.layout import Member, WorkerId
from sailor.plan import Plan
from sailor.planner.evidence import Place

Content = tuple[tuple[float, float], ...]
"""Which part of the model a machine holds: stretches of its depth, from 0 to 1, in order."""

WHOLE: Content = ((0.0, 1.0),)


class Role(NamedTuple):
    """``number`` machines of a place that hold the same part of the model."""

    place: Place
    content: Content
    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """What some machines make of a job: the simulator's plan, by counts."""

    text: str
    step_seconds: float  # without snapshots
    roles: tuple[Role, ...]

    def describe(self) -> str:
        """One line for logs, as a Plan has it."""
        return self.text

    @property
    def num_nodes(self) -> int:
        """Machines in use."""
        return sum(role.number for role in self.roles)


Counts = Mapping[Place, int]


class Speeds(Protocol):
    """The best that machines can do; None when they are too few for the job."""

    def best(self, counts: Counts) -> Pace | None: ...


def pipelines(counts: Counts, *, depth: int) -> tuple[Role, ...]:
    """Equal pipelines of ``depth`` machines, place by place; the rest of a place makes pipelines
    with the rest of the next. What is left over at the very end widens the last stage."""
    total = sum(counts.values())
    whole = total - total % depth
    roles: Counter[tuple[Place, int]] = Counter()
    at = 0
    for place, number in sorted(counts.items()):
        inside = max(0, min(number, whole - at))
        for stage in range(depth):
            first_turn = (stage - at) % depth
            roles[place, stage] += max(0, -(-(inside - first_turn) // depth))
        roles[place, depth - 1] += number - inside
        at += number
    parts: list[Content] = [((stage / depth, (stage + 1) / depth),) for stage in range(depth)]
    return tuple(
        Role(place, parts[stage], count) for (place, stage), count in sorted(roles.items()) if count
    )


class TableSpeeds:
    """Published samples per second by number of machines, for a job with a fixed batch.

    Counts beyond the table use its largest row; counts below its smallest cannot train. ``depth``
    is the number of machines that hold one copy of the state.
    """

    def __init__(
        self, samples_per_second: Mapping[int, float], *, samples_per_step: float, depth: int
    ) -> None:
        self._table = {n: rate for n, rate in samples_per_second.items() if rate > 0}
        if not self._table:
            raise ValueError("a table without a single speed")
        self._samples, self._depth = samples_per_step, depth
        # Of so many machines, how many are worth using: a larger row may be a slower one.
        self._use: dict[int, int] = {}
        best = 0
        for number in sorted(self._table):
            if not best or self._table[number] > self._table[best]:
                best = number
            self._use[number] = best
        self._known: dict[tuple[tuple[Place, int], ...], Pace | None] = {}

    def best(self, counts: Counts) -> Pace | None:
        """The fastest row that these machines, or some of them, can fill."""
        key = tuple(sorted(counts.items()))
        if key not in self._known:
            self._known[key] = self._make(counts)
        return self._known[key]

    def _make(self, counts: Counts) -> Pace | None:
        total = sum(counts.values())
        row = total if total in self._use else max((n for n in self._use if n <= total), default=0)
        if not row:
            return None
        number = self._use[row]
        return Pace(
            text=f"{number} machines",
            step_seconds=self._samples / self._table[number],
            roles=pipelines(first(counts, number), depth=min(self._depth, number)),
        )


class StepTable:
    """Step seconds by number of machines as a run measured them; nearest smaller row counts."""

    def __init__(self, step_seconds: Mapping[int, float], *, depth: int = 1) -> None:
        if not step_seconds:
            raise ValueError("no step was measured")
        self._rows = dict(step_seconds)
        self._depth = depth

    def best(self, counts: Counts) -> Pace | None:
        """The row for these machines, or for the most of them that was measured."""
        total = sum(counts.values())
        rows = [n for n in self._rows if n <= total]
        if not rows:
            return None
        number = max(rows)
        return Pace(
            text=f"{number} machines",
            step_seconds=self._rows[number],
            roles=pipelines(first(counts, number), depth=min(self._depth, number)),
        )


class PlannedSpeeds:
    """Asks the planner of the run, once for every set of counts.

    ``replan`` is the very function the controller is handed; ``step_seconds`` the evaluator's
    estimate of its plan. ``gpus`` says how many a machine type has. Two things keep a planner that
    takes a tenth of a second from being asked thousands of times. Zones for which ``twin`` gives
    the same zone are planned as one: inside a region links differ in latency, not in bandwidth.
    Counts above ``grain`` are rounded down to a multiple of it: at most grain - 1 machines of a
    place stand idle.
    """

    def __init__(
        self,
        replan: Callable[[Sequence[Member]], Plan],
        *,
        step_seconds: Callable[[Plan], float],
        gpus: Mapping[str, int],
        num_layers: int,
        twin: Mapping[str, str] | None = None,
        grain: int = 1,
    ) -> None:
        self._replan, self._step_seconds = replan, step_seconds
        self._gpus, self._num_layers, self._grain = gpus, num_layers, max(1, grain)
        self._twin = twin or {}
        self._plans: dict[tuple[tuple[Place, int], ...], Pace | None] = {}
        self._known: dict[tuple[tuple[Place, int], ...], Pace | None] = {}

    def best(self, counts: Counts) -> Pace | None:
        """The plan for these machines, remembered by their counts."""
        key = tuple(sorted((place, number) for place, number in counts.items() if number))
        if key not in self._known:
            self._known[key] = self._laid_over(key)
        return self._known[key]

    @property
    def num_asked(self) -> int:
        """How often the planner had to think."""
        return len(self._plans)

    def _laid_over(self, key: tuple[tuple[Place, int], ...]) -> Pace | None:
        """The plan for the twins' counts, its roles given to the places there are."""
        together: Counter[Place] = Counter()
        for (zone, kind), number in key:
            together[self._twin.get(zone, zone), kind] += number
        grain = self._grain
        asked = tuple(
            (place, number - number % grain if number > grain else number)
            for place, number in sorted(together.items())
        )
        if asked not in self._plans:
            self._plans[asked] = self._ask(asked)
        pace = self._plans[asked]
        if pace is None or not self._twin:
            return pace
        free = [(self._twin.get(zone, zone), zone, kind, number) for (zone, kind), number in key]
        return replace(pace, roles=_shared_out(pace.roles, free))

    def _ask(self, key: tuple[tuple[Place, int], ...]) -> Pace | None:
        members = [
            Member(
                node=node,
                zone=zone,
                machine_type=kind,
                workers=tuple(
                    WorkerId(node=node, slot=slot, incarnation=1)
                    for slot in range(self._gpus[kind])
                ),
            )
            for (zone, kind), number in key
            for node in (f"{zone}/{kind}/{i}" for i in range(number))
        ]
        try:
            plan = self._replan(members)
        except NoFeasiblePlan:
            return None
        return Pace(
            text=plan.describe(),
            step_seconds=self._step_seconds(plan),
            roles=roles_of(plan, gpus=self._gpus, num_layers=self._num_layers),
        )


def _shared_out(
    roles: Sequence[Role], free: Sequence[tuple[str, str, str, int]]
) -> tuple[Role, ...]:
    """Roles of twins given to real zones: (twin, zone, machine type, machines) are what is free.

    Pipelines stay together: each zone takes one machine of every part in turn.
    """
    shared: Counter[tuple[Place, Content]] = Counter()
    for twin, kind in dict.fromkeys(role.place for role in roles):
        parts = [[role.content, role.number] for role in roles if role.place == (twin, kind)]
        zones = [[zone, n] for t, zone, k, n in free if (t, k) == (twin, kind)]
        at = 0
        while any(left for _, left in parts) and zones:
            for part in parts:
                content, left = cast("tuple[Content, int]", part)
                while at < len(zones) and not zones[at][1]:
                    at += 1
                if left and at < len(zones):
                    part[1] = left - 1
                    zones[at][1] = cast(int, zones[at][1]) - 1
                    shared[(cast(str, zones[at][0]), kind), content] += 1
    return tuple(Role(p, c, n) for (p, c), n in sorted(shared.items()))


class WithStandbys:
    """The same speeds with ``number`` machines kept out of the layout, warm, to step in.

    They are taken from the place with the most machines. When what is left cannot train, all do.
    """

    def __init__(self, speeds: Speeds, *, number: int) -> None:
        self._speeds, self._number = speeds, number

    def best(self, counts: Counts) -> Pace | None:
        """The best of all but the standbys."""
        left = dict(counts)
        for _ in range(min(self._number, sum(left.values()))):
            left[max(left, key=lambda place: (left[place], place))] -= 1
        return self._speeds.best(left) or self._speeds.best(counts)


def first(counts: Counts, number: int) -> dict[Place, int]:
    """The first ``number`` machines in order of place."""
    taken: dict[Place, int] = {}
    for place, there in sorted(counts.items()):
        take = min(there, number - sum(taken.values()))
        if take > 0:
            taken[place] = take
    return taken


def roles_of(plan: Plan, *, gpus: Mapping[str, int], num_layers: int) -> tuple[Role, ...]:
    """Which parts of the model the machines of a plan hold, stages seated in plan order.

    A machine is filled with the stages of its (zone, machine type) until its GPUs are taken.
    """
    open_: dict[Place, tuple[int, list[tuple[float, float]]]] = {}
    roles: Counter[tuple[Place, Content]] = Counter()
    for _, _, stage in plan.stages():
        place = (stage.zone, stage.machine_type)
        free, parts = open_.get(place, (gpus[stage.machine_type], []))
        if free < stage.tensor_parallel:
            roles[place, merged(parts)] += 1
            free, parts = gpus[stage.machine_type], []
        begin, end = stage.layers.start / num_layers, stage.layers.stop / num_layers
        parts = [*parts, (begin, end)]
        free -= stage.tensor_parallel
        if free:
            open_[place] = (free, parts)
        else:
            roles[place, merged(parts)] += 1
            open_.pop(place, None)
    for place, (_, parts) in open_.items():
        roles[place, merged(parts)] += 1
    return tuple(Role(place=p, content=c, number=n) for (p, c), n in sorted(roles.items()))


def merged(parts: Sequence[tuple[float, float]]) -> Content:
    """Stretches in order, touching and overlapping ones joined."""
    joined: list[tuple[float, float]] = []
    for begin, end in sorted(parts):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return tuple(joined)
