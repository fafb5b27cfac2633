"""Whether a machine that stands by should have another one's seats, for the run's good. Pure.

Nobody must go: the question is asked every so often, and a placement is left as it is unless
another one is better by more than the change costs. Three things count, in seconds of a step:

* **pace** as measured. In each replica's pipeline a step takes the sum of its stages' work on one
  microbatch and, for each further one, that of the slowest stage (1F1B and GPipe alike); the
  slowest replica counts. What a machine that stands by would do is known from when it had such
  seats, set right by what those who trained then and train now took in both; one that never
  trained is expected to do what others of its type do in such seats.
* **lines**, as the planner's evaluator has them for the zones that the machines would then be in.
* **losses**: seats on machines that are taken away less often break fewer steps.

What a machine costs is no reason here: one that stands by is paid for like one with seats, and of
machines that are too many the dearest is given back by whoever rents them (provision/recruit.py).
Two machines with seats are not exchanged: each would need memory for two roles at once.

Nothing flaps: a better pace must show in both halves of the newest steps and be more than noise,
all gains over the steps left must be a multiple of the pause, and a machine that has just been
moved away from for this takes no seat for some looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from sailor.parallel.layout import Layout
from sailor.runtime.paces import Pace
from sailor.runtime.straggler import pays


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What counts as better."""

    least: float = 0.05  # of a step: a better pace of less is noise
    margin: float = 2.0  # a move must gain this times its pause
    rest_looks: int = 6  # that a machine moved away from takes no seat


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """``to`` could take all seats of ``node``. ``step_ratio``: the planner's step with it, as a
    multiple of the present one. ``losses_per_s``: of ``node`` less those of ``to``."""

    node: str
    to: str
    step_ratio: float = 1.0
    losses_per_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """How things are. Seconds. ``before``: of machines that stand by, when they had seats last.
    ``loss_s``: what an unforeseen loss of a machine costs."""

    layout: Layout
    pace: Pace
    before: Mapping[str, Pace]
    step_s: float
    steps_left: int
    pause_s: float
    loss_s: float
    options: tuple[Option, ...] = ()
    resting: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What to do, and why. ``node`` "" leaves everything as it is."""

    why: str
    node: str = ""
    to: str = ""
    gained_s_per_step: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Gain:
    """Of one option: seconds a step, and the shares of a step that come of each reason."""

    option: Option
    seconds: float
    pace: float
    lines: float
    losses: float

    def words(self) -> str:
        """Its reasons, as shares of a step."""
        parts = {
            f"{self.pace:.1%} by its pace": self.pace,
            f"{self.lines:.1%} by its lines": self.lines,
            f"{self.losses:.2%} by being lost less often": self.losses,
        }
        told = " and ".join(words for words, share in parts.items() if share > 0)
        return f"{self.option.to} saves of a step {told}"


def decide(standing: Standing, *, rules: Rules) -> Verdict:
    """The one move that gains most, if it pays; else why nothing is moved."""
    if not standing.options:
        return Verdict(why="no machine that stands by fits anybody's seats")
    awake = [option for option in standing.options if option.to not in standing.resting]
    if not awake:
        return Verdict(why="whoever could take seats was itself moved away from not long ago")
    work = _Work(standing.layout, standing.pace)
    gains = [_gain(standing, work, option, rules) for option in awake]
    best = max(gains, key=lambda gain: gain.seconds)  # the first of equals
    if best.seconds <= 0:
        return Verdict(why="no other placement is better by more than noise")
    option, left_s = best.option, best.seconds * standing.steps_left
    balance = (
        f"{standing.steps_left:,} steps gain {left_s:.3g} s, a move costs {standing.pause_s:.3g} s"
    )
    if not pays(
        best.seconds, steps_left=standing.steps_left, pause_s=standing.pause_s, margin=rules.margin
    ):
        return Verdict(
            why=f"{option.to} instead of {option.node} does not pay: {balance}",
            gained_s_per_step=best.seconds,
        )
    return Verdict(
        why=f"{best.words()}: {balance}",
        node=option.node, to=option.to, gained_s_per_step=best.seconds,
    )  # fmt: skip


def _gain(standing: Standing, work: _Work, option: Option, rules: Rules) -> _Gain:
    pace = standing.before.get(option.to)
    past = None if pace is None else _Past(node=option.to, pace=pace)
    shares = [work.gained(option.node, past, half=half) for half in (0, 1)]
    # Worse counts as seen in the worse half; better only as far as both halves show it.
    faster = min(shares)
    if 0 < faster < rules.least:
        faster = 0.0
    lines = 1.0 - option.step_ratio
    losses = option.losses_per_s * standing.loss_s
    share = 1.0 - (1.0 - faster) * (1.0 - lines) + losses
    return _Gain(
        option=option, seconds=share * standing.step_s, pace=faster, lines=lines, losses=losses
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Past:
    """A machine when it had seats last."""

    node: str
    pace: Pace


class _Work:
    """Seconds of work on one microbatch, by half and rank, and what steps they make."""

    def __init__(self, layout: Layout, pace: Pace) -> None:
        self._layout, self._pace = layout, pace
        self._roles = [_role(layout, rank) for rank in range(layout.world_size)]
        count = [layout.plan.replicas[at.replica].num_microbatches for at in layout.coordinates]
        self._each = [
            [pace.seconds[rank][half] / count[rank] for rank in range(layout.world_size)]
            for half in (0, 1)
        ]
        self._count = count
        self._ranks: dict[str, list[int]] = {}
        for rank, node in pace.nodes.items():
            self._ranks.setdefault(node, []).append(rank)
        self._with_role: dict[tuple[object, ...], list[int]] = {}
        for rank, role in enumerate(self._roles):
            self._with_role.setdefault(role, []).append(rank)
        self._steps = [
            [self._replica_s(r, each) for r in range(len(layout.plan.replicas))]
            for each in self._each
        ]

    def gained(self, node: str, past: _Past | None, *, half: int) -> float:
        """What share of a step is gained when a machine of that past has the node's seats."""
        each, steps = self._each[half], self._steps[half]
        ranks = self._ranks.get(node, [])
        then = {rank: self._expected(rank, node, past, half) for rank in ranks}
        changed = {self._layout.coordinates[rank].replica for rank in ranks}
        after = [each[r] if r not in then else then[r] for r in range(len(each))] if then else each
        longest = max(
            self._replica_s(r, after) if r in changed else steps[r] for r in range(len(steps))
        )
        return 1.0 - longest / max(steps)

    def _replica_s(self, replica: int, each: list[float]) -> float:
        """A replica's step: once through its pipeline, and its slowest stage for all but one."""
        layout, plan = self._layout, self._layout.plan.replicas[replica]
        stages = [
            max(
                each[layout.ranks[replica, number, t]] for t in range(stage.tensor_parallel)
            )
            for number, stage in enumerate(plan.stages)
        ]  # fmt: skip
        return sum(stages) + (plan.num_microbatches - 1) * max(stages)

    def _expected(self, rank: int, node: str, past: _Past | None, half: int) -> float:
        """What a machine of that past would take for a microbatch at a rank that ``node`` has."""
        known = None if past is None else self._as_before(rank, past, half)
        return self._usual(rank, half, but=node) if known is None else known

    def _usual(self, rank: int, half: int, *, but: str = "") -> float:
        """What work like a rank's takes: of other machines than one, where there are any."""
        alike = self._with_role[self._roles[rank]]
        others = [r for r in alike if self._pace.nodes[r] != but]
        return median(self._each[half][r] for r in others or alike)

    def _as_before(self, rank: int, past: _Past, half: int) -> float | None:
        """The same, from what it took then, as hours are now; None where nobody who trained then
        has the same seat now, so that hours cannot be compared."""
        each, then = self._each[half], past.pace
        took = {r: median(seconds) / self._count[r] for r, seconds in then.seconds.items()}
        stayed = [r for r, name in then.nodes.items() if name == self._pace.nodes[r]]
        if not stayed:
            return None
        hour = median(each[r] / took[r] for r in stayed)
        own = [r for r, name in then.nodes.items() if name == past.node]
        if alike := [r for r in own if self._roles[r] == self._roles[rank]]:
            return hour * median(took[r] for r in alike)
        pace = median(hour * took[r] / self._usual(r, half) for r in own)
        return pace * self._usual(rank, half)


def _role(layout: Layout, rank: int) -> tuple[object, ...]:
    """What makes the work of two ranks comparable."""
    stage, at = layout.stage_of(rank), layout.coordinates[rank]
    replica = layout.plan.replicas[at.replica]
    return (
        len(stage.layers), layout.is_first(rank), layout.is_last(rank), stage.tensor_parallel,
        stage.machine_type, replica.microbatch_size,
    )  # fmt: skip
