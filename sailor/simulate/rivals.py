"""What other systems do with the same machines: one clockwork, many rules.

A ``Rules`` value says how a system keeps, loses and regains its work; ``follow`` walks a fleet with
it and books every second, as ``world.py`` does for ours. The clockwork is the same for all, so that
two systems differ in their rules and costs and in nothing else. Which rules belong to whom, and
where each cost is from, is in ``policies.py``.

A machine that is lost stops training at once; after ``detect_s`` and the rule's pause it goes on
with whoever is there. Losses during a pause begin it anew. What was begun and not finished of a
step is lost with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from sailor.planner.evidence import Place
from sailor.simulate.account import Account
from sailor.simulate.fleet import Change, Fleet, NodeEvent
from sailor.simulate.formation import size
from sailor.simulate.job import Outcome
from sailor.simulate.pace import Pace, Speeds

_EPSILON = 1e-6


class Keeps(Enum):
    """What is left of the work after a loss."""

    steps = "steps"  # every finished step: a live replica or redundant copy has it
    checkpoint = "checkpoint"  # what the newest finished checkpoint holds


class Newcomers(Enum):
    """What becomes of machines that arrive."""

    wait = "wait"  # taken in when something else stops training
    join = "join"  # taken in at the end of a step, if that is faster
    stand_by = "stand_by"  # kept warm to take a lost machine's place


class Warned(Enum):
    """What a notice is good for."""

    nothing = "nothing"
    checkpoint = "checkpoint"  # one more checkpoint before the machine goes
    leave = "leave"  # the machine is taken out at the end of a step


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpointing:
    """A durable checkpoint after every ``every`` steps.

    Steps wait ``stall_s`` for each; it can be restored from ``write_s`` after that (0: at once).
    """

    every: int
    stall_s: float
    write_s: float = 0.0

    def __post_init__(self) -> None:
        if self.every < 1 or self.stall_s < 0 or self.write_s < 0:
            raise ValueError("checkpoints come every so many steps and take their time")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """A system. Pauses are functions of (machines after the change, machines that changed)."""

    name: str
    keeps: Keeps
    newcomers: Newcomers
    warned: Warned
    loss_s: Callable[[int, int], float]
    join_s: Callable[[int, int], float] = lambda machines, changed: 0.0
    leave_s: Callable[[int, int], float] = lambda machines, changed: 0.0
    checkpoints: Checkpointing | None = None
    last_resort_every: int = 100
    """Steps between durable checkpoints of a system that keeps finished steps in live memory: it
    goes back to one when the machines that are left do not hold a whole copy between them."""
    step_factor: float = 1.0  # a step takes so much longer than the speeds say
    size: int | None = None  # trains with exactly so many machines, or not at all
    bridges_s: Callable[[int, int], float] | None = None
    """Redundancy: a single loss is bridged at once; the step under way takes half as long again,
    and after it the machines are rebalanced in so many seconds. A second loss before that stops."""
    sources: tuple[str, ...] = ()


@dataclass(kw_only=True)
class _Follower:
    """One system on one fleet."""

    fleet: Fleet
    speeds: Speeds
    rules: Rules
    samples_per_step: float
    detect_s: float
    account: Account = field(default_factory=Account)
    ready: dict[str, Place] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)  # by the pace that trains or last trained
    one_copy: float = 1.0  # machines that hold one copy of the state between them
    pace: Pace | None = None  # None: training stands still
    until: float | None = None  # when the present pause is over
    cause: str = "capacity"
    at: float = 0.0  # the cursor of time
    into_s: float = 0.0  # of the step or stall under way
    stalled: bool = False  # a checkpoint's stall, not a step, is under way
    in_cycle: int = 0  # steps since the newest checkpoint was begun
    writing: list[tuple[float, int]] = field(default_factory=list)  # (done at, steps it holds)
    extra_checkpoint: bool = False
    slow: bool = False  # a loss is bridged: the step under way takes longer
    at_step_end: list[tuple[str, float]] = field(default_factory=list)  # (cause, pause)
    stops: int = 0
    pauses: list[dict[str, float | str]] = field(default_factory=list)
    timeline: list[tuple[float, int]] = field(default_factory=list)
    began_pause: float = 0.0
    started: bool = False

    def run(self) -> Outcome:
        for event in self.fleet.events:
            if event.t > self.at + _EPSILON:  # what happens in one moment is met as one
                self._pass(event.t)
            self._see(event)
        self._pass(self.fleet.seconds)
        if self.pace is not None and self.into_s:
            self.account.book(self.at, "other")
        self.account.book(self.fleet.seconds, self.cause)
        return Outcome(
            wall_s=self.fleet.seconds,
            seconds=self.account.parts(),
            steps=self.account.kept_steps,
            samples=self.account.samples,
            redone_steps=self.account.redone_steps,
            generations=self.stops + 1,
            pauses=tuple(self.pauses),
            end="time is over",
            timeline=tuple(self.timeline),
        )

    # Time

    def _pass(self, t: float) -> None:
        """Train, stand still or wait until ``t``."""
        while self.at < t - _EPSILON:
            if self.pace is not None:
                self._train(t)
            elif self.until is not None and self.until <= t:
                self.at = max(self.at, self.until)
                self.account.book(self.at, self.cause)
                self.until = None
                self._begin()
            else:
                self.at = t

    def _train(self, t: float) -> None:
        """Whole steps and stalls up to ``t``, then the beginning of the next."""
        assert self.pace is not None
        step_s = self.pace.step_seconds * self.rules.step_factor
        checkpoints = self.rules.checkpoints
        if self.stalled:
            assert checkpoints is not None
            left = checkpoints.stall_s - self.into_s
            if self.at + left > t + _EPSILON:
                self.into_s += t - self.at
                self.at = t
                return
            self.at += left
            self.account.book(self.at, "checkpoint")
            self.into_s, self.stalled = 0.0, False
            self._write(self.at + checkpoints.write_s)
            return
        length = step_s * (1.5 if self.slow else 1.0)
        left = length - self.into_s
        if self.at + left > t + _EPSILON:
            self.into_s += t - self.at
            self.at = t
            return
        # Several at once where nothing is due after a single one.
        count = 1
        if not (self.slow or self.into_s or self.at_step_end or self.extra_checkpoint):
            count = max(1, int((t + _EPSILON - self.at) // step_s))
            if checkpoints is not None:
                count = min(count, checkpoints.every - self.in_cycle)
        whole = left if count == 1 else count * step_s
        self.at += whole
        pure = self.pace.step_seconds
        over = (length if count == 1 else step_s) - pure
        self.account.steps(
            count, good_seconds=pure, samples=self.samples_per_step, others={"redundancy": over}
        )
        self.into_s, self.slow = 0.0, False
        self.in_cycle += count
        if checkpoints is not None and (
            self.in_cycle >= checkpoints.every or self.extra_checkpoint
        ):
            self.in_cycle, self.extra_checkpoint = 0, False
            self.stalled = True
        if self.at_step_end and not self.stalled:
            cause, seconds = self.at_step_end[0]
            self.at_step_end.clear()
            self._stand_still(seconds, cause)

    # Machines

    def _see(self, event: NodeEvent) -> None:
        rules = self.rules
        match event.change:
            case Change.came:
                self.ready[event.node] = event.place
                if self.pace is None and self.until is None:
                    if self._next_pace() is not None:
                        wait = rules.loss_s(len(self.ready), 1) if self.started else 0.0
                        self._stand_still(wait, "transition_join" if self.started else "start_up")
                elif self.pace is not None and rules.newcomers is Newcomers.join:
                    better = self._next_pace()
                    if better is not None and better.step_seconds < self.pace.step_seconds:
                        seconds = rules.join_s(better.num_nodes, 1)
                        self.at_step_end.append(("transition_join", seconds))
            case Change.told:
                self._warned(event)
            case Change.gone:
                self.ready.pop(event.node, None)
                self.leaving.discard(event.node)
                if event.node in self.used:
                    self._lost(event.node)

    def _warned(self, event: NodeEvent) -> None:
        rules = self.rules
        if event.node not in self.used or self.pace is None:
            return
        if rules.warned is Warned.checkpoint and rules.checkpoints is not None:
            self.extra_checkpoint = True
        if rules.warned is Warned.leave:
            self.leaving.add(event.node)
            step_s = self.pace.step_seconds * rules.step_factor
            if self.at + step_s - self.into_s <= event.t + event.seconds:
                seconds = rules.leave_s(len(self.ready) - 1, 1)
                self.at_step_end.append(("transition_preempted", seconds))

    def _lost(self, node: str) -> None:
        """A machine in use is gone."""
        self.used.discard(node)
        rules = self.rules
        if self.pace is None and self.until is None:
            return  # nobody trains: too few machines already
        if self.pace is not None and rules.bridges_s is not None and not self.slow:
            self.slow = True
            seconds = rules.bridges_s(len(self.ready), 1)
            self.at_step_end.append(("transition_node_lost", seconds))
            return
        if self.pace is not None:
            self._drop_step()
            if rules.keeps is Keeps.checkpoint:
                self._go_back()
            elif len(self.used) < self.one_copy:
                self.account.undo(self.account.kept_steps % rules.last_resort_every)
        self._stand_still(self.detect_s + rules.loss_s(len(self.ready), 1), "transition_node_lost")

    def _write(self, done_at: float) -> None:
        """One more checkpoint; of the finished ones only the newest matters."""
        finished = [w for w in self.writing if w[0] <= self.at]
        unfinished = [w for w in self.writing if w[0] > self.at]
        self.writing = [*finished[-1:], *unfinished, (done_at, self.account.kept_steps)]

    def _drop_step(self) -> None:
        self.account.book(self.at, "checkpoint" if self.stalled else "redone")
        self.into_s, self.stalled, self.slow = 0.0, False, False

    def _go_back(self) -> None:
        """To the newest checkpoint that is finished by now."""
        finished = [steps for done_at, steps in self.writing if done_at <= self.at + _EPSILON]
        saved = max(finished, default=0)
        self.account.undo(self.account.kept_steps - saved)
        self.in_cycle, self.writing = 0, [(self.at, saved)]

    def _stand_still(self, seconds: float, cause: str) -> None:
        if self.pace is None and self.until is None:
            self.account.book(self.at, self.cause)  # the wait for machines is over
        if self.pace is not None or self.until is None:
            self.began_pause = self.at
        self.pace, self.until, self.cause = None, self.at + seconds, cause
        self.at_step_end.clear()
        self.slow = False
        self.stops += 1

    def _next_pace(self) -> Pace | None:
        """What the machines that stay can do; of a fixed size, exactly that."""
        staying = [place for node, place in self.ready.items() if node not in self.leaving]
        size = self.rules.size
        if size is not None:
            if len(staying) < size:
                return None
            staying = staying[:size]
        return self.speeds.best(Counter(staying))

    def _begin(self) -> None:
        """Training goes on, or waits for more machines."""
        pace = self._next_pace()
        if pace is None:
            self.cause = "capacity"
            return
        self.pace = pace
        copies = sum(role.number * size(role.content) for role in pace.roles)
        self.one_copy = pace.num_nodes / max(1.0, copies)
        free = Counter({role.place: 0 for role in pace.roles})
        for role in pace.roles:
            free[role.place] += role.number
        kept = [n for n in self.ready if n in self.used and n not in self.leaving]
        others = [n for n in self.ready if n not in self.used and n not in self.leaving]
        self.used = set()
        for node in kept + others:
            if free[self.ready[node]] > 0:
                free[self.ready[node]] -= 1
                self.used.add(node)
        self.into_s = 0.0
        if self.started:
            seconds = self.at - self.began_pause
            self.pauses.append({"t": self.at, "cause": self.cause, "total_s": seconds})
        self.started = True
        self.cause = "other"
        self.timeline.append((self.at, len(self.used)))


def follow(
    fleet: Fleet,
    *,
    speeds: Speeds,
    rules: Rules,
    samples_per_step: float,
    detect_s: float = 0.0,
) -> Outcome:
    """What a system with these rules makes of a fleet."""
    return _Follower(
        fleet=fleet, speeds=speeds, rules=rules, samples_per_step=samples_per_step,
        detect_s=detect_s,
    ).run()  # fmt: skip
