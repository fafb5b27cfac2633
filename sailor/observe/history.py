"""What a run has been so far, drawn from its events one by one: the projection under all others.

``RunHistory.apply`` takes the next event; ``replay`` takes a whole log. Live view, metrics, summary
and report read the result and never the file. Where the time went is in ``goodput``, what the
machines cost in ``ledger``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sailor.observe.events import Event
from sailor.observe.goodput import Accounts
from sailor.observe.ledger import Ledger
from sailor.observe.standbys import Standbys

_MOST_INCOMPLETE = 64  # steps of which not all snapshots are copied, remembered at a time


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPoint:
    """One applied step as logged. ``first_sample`` counts all samples of the run from 0."""

    t: float
    step: int
    generation: int
    loss: float | None
    tokens: int
    grad_norm: float | None
    learning_rate: float | None
    seconds: float
    first_sample: int
    num_samples: int
    phases: Mapping[str, float] = field(default_factory=dict)
    skipped: str = ""  # what was wrong with it, where it was left out


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalPoint:
    """Held-out loss after ``step`` (0: before training)."""

    t: float
    step: int
    loss: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """One layout that trained. ``step`` is the step it continued from."""

    t: float
    generation: int
    step: int
    layout: str
    world_size: int
    nodes: tuple[str, ...]
    ranks: tuple[Mapping[str, Any], ...]
    kept_groups: int
    built_groups: int
    held_twice: bool = False  # every part of the state is on two machines or more


@dataclass(frozen=True, kw_only=True, slots=True)
class PausePoint:
    """One interruption of training, measured and split (invariant I7). Durations in seconds.

    ``parked_s`` is a wait for machines. ``hidden_s`` is preparation that went on while the old
    generation trained: no part of the pause.
    """

    t: float  # when it was over
    cause: str
    planned: bool
    generation: int
    detect_s: float
    decide_s: float
    prepare_s: float
    copy_s: float
    switch_s: float
    first_step_s: float
    parked_s: float
    hidden_s: float
    total_s: float
    steps_redone: int
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Durable:
    """One finished durable checkpoint."""

    t: float
    step: int
    bytes: int
    seconds: float
    path: str


@dataclass(kw_only=True, slots=True)
class Snapshots:
    """In-memory snapshots so far. ``safe``: (t, step), whenever a step became one that no loss of
    a single machine can set back: its snapshots are in another machine's memory as well, or every
    part of them is, for replicas on several machines hold the same."""

    count: int = 0
    bytes: int = 0
    copies: int = 0
    copied_bytes: int = 0
    stall_by_step: dict[tuple[int, int], float] = field(default_factory=dict)
    held_s: float = 0.0  # that updates waited for copies of what they change, on rank 0
    safe: list[tuple[float, int]] = field(default_factory=list)
    _workers: dict[tuple[int, int], int] = field(default_factory=dict)  # of a step, so far

    def count_workers(self, event: Event, *, world_size: int) -> None:
        """Count those of whom a step is safe, and note the moment when all are."""
        key = (event.generation, int(event.get("step", -1)))
        workers = self._workers.pop(key, 0) + event.get("workers", 0)
        if 0 < world_size <= workers:
            self.safe.append((event.t, key[1]))
        else:
            self._workers[key] = workers
            while len(self._workers) > _MOST_INCOMPLETE:
                del self._workers[next(iter(self._workers))]

    @property
    def begun_s(self) -> float:
        """Seconds between steps that beginning snapshots took: per step, its slowest rank."""
        return sum(self.stall_by_step.values())

    @property
    def stall_s(self) -> float:
        """Seconds that training waited for snapshots, between steps and in them."""
        return self.begun_s + self.held_s


@dataclass(kw_only=True, slots=True)
class AnchorCopies:
    """Steps that an anchor had all of, and the newest of them."""

    count: int = 0
    step: int | None = None


class RunHistory:
    """Everything the projections need, kept up to date event by event. Read it, do not write it."""

    def __init__(self) -> None:
        self.run = ""
        self.now = 0.0  # time of the newest event; of a run that has ended, of its end
        self.heard_at = 0.0  # time of the newest event, though a machine's end came after the run's
        self.num_events = 0
        self.missing_events = 0  # gaps in seq: lines that were lost
        self.starts: list[Event] = []
        self.plans: list[Event] = []
        self.ends: list[Event] = []
        self.kept: dict[int, StepPoint] = {}
        self.discarded = 0  # step executions that a later generation replaced
        self.evals: dict[int, EvalPoint] = {}
        self.generations: list[Generation] = []
        self.pauses: list[PausePoint] = []  # interruptions of training
        self.start_ups: list[PausePoint] = []  # the same measures of each start's first generation
        self.world: list[tuple[float, int]] = []  # (t, GPUs in the layout), at each change
        self.snapshots = Snapshots()
        self.anchored = AnchorCopies()
        self.durable: list[Durable] = []
        self.persist_failures: list[Event] = []
        self.faults: list[Event] = []
        self.memory: Event | None = None  # the newest word on what ranks have held
        self.refusals: list[Event] = []  # of steps that were not fit to be applied
        self.quarantined: list[int] = []  # steps whose states are not used again
        self.committed = 0
        self.adopted_at = -1.0  # by the newest controller that found the run alive
        self.adoptions = 0  # controllers that found it so
        self.parked = False
        self.parked_at = 0.0
        self.stop_asked: Event | None = None
        self.save_asked = False
        self.saved_as_asked = False  # the newest durable step is what was asked for
        self.changing: Event | None = None  # the change of layout that is under way
        self.restoring: Event | None = None  # where its state comes from, once that is known
        self.progress: Event | None = None  # how many machines are through with its stage
        self.ledger = Ledger()
        self.standbys = Standbys()
        self.accounts = Accounts()
        self._seq = 0
        self._done: set[tuple[int, int]] = set()  # (generation, step) already counted
        self._dropped: dict[int, int] = {}  # generation -> steps it set back, seen in the log

    def apply(self, event: Event) -> None:
        """Take the next event of the log. Fields it lacks count as unknown, not as an error."""
        self.run = event.run
        self.heard_at = max(self.heard_at, event.t)
        if event.kind != "node_released" or self.status in ("running", "not started"):
            self.now = max(self.now, event.t)  # else the run has ended: that machine outlived it
        self.num_events += 1
        self.missing_events += max(0, event.seq - self._seq - 1)
        self._seq = event.seq
        match event.kind:
            case "run_started":
                self.starts.append(event)
                self.parked = False
                self.stop_asked = None
            case "plan_chosen":
                self.plans.append(event)
            case "step":
                self._step(event)
            case "evaluated":
                self._evaluated(event)
            case "generation_started":
                self._generation(event)
            case "adopted":
                self.adopted_at = event.t
                self.adoptions += 1
            case "pause":
                pauses = self.start_ups if event.get("cause") == "start" else self.pauses
                pauses.append(_pause(event))
            case "snapshot":
                self._snapshot(event)
            case "snapshot_copied":
                self._count_safe(event, copied=True)
                self.snapshots.copies += event.get("workers", 0)
                self.snapshots.copied_bytes += event.get("bytes", 0)
            case "anchored":
                self.anchored.count += 1
                self.anchored.step = event.get("step")
            case "committed":
                self.committed = max(self.committed, event.get("step", 0))
            case "save_asked":
                newest = self.durable[-1].step if self.durable else -1
                self.save_asked = newest < max(self.kept, default=0)
            case "persisted":
                self._persisted(event)
            case "transition_started":
                self._change(event)
            case "restored":
                self.restoring = event
            case "change_progress":
                self.progress = event
            case "transition_dropped":
                self._change(None)
            case "persist_failed":
                self.persist_failures.append(event)
            case "parked":
                self.parked = True
                self.parked_at = event.t
                self._change(None)
                self.world.append((event.t, 0))
            case "unparked":
                self.parked = False
            case "memory":
                self.memory = event
            case "step_refused":
                self.refusals.append(event)
            case "quarantined":
                self.quarantined.append(int(event.get("step", 0)))
            case "fault_injected":
                self.faults.append(event)
            case "stop_asked":
                self.stop_asked = event
            case "run_ended":
                self.ends.append(event)
                self.world.append((event.t, 0))
        self.standbys.apply(event, self.ledger)
        self.ledger.apply(event)
        self.accounts.apply(event)

    @property
    def last_step(self) -> StepPoint | None:
        """The newest kept step."""
        return self.kept[max(self.kept)] if self.kept else None

    @property
    def status(self) -> str:
        """ "running", or how the newest start ended: done, interrupted, diverged, limit, failed.

        A run that was killed without a word also reads "running": a log cannot tell.
        """
        if not self.starts:
            return "not started"
        if self.ends and self.ends[-1].seq > self.starts[-1].seq:
            return str(self.ends[-1].get("end", "failed"))
        return "running"

    @property
    def trains(self) -> bool:
        """Whether the newest start has begun to train: what comes before is its assembly."""
        if not self.generations or not self.starts:
            return False
        return max(self.generations[-1].t, self.adopted_at) >= self.starts[-1].t

    def start(self, name: str, default: Any = None) -> Any:
        """A field of the newest ``run_started``."""
        return self.starts[-1].get(name, default) if self.starts else default

    @property
    def steps_redone(self) -> int:
        """Step executions that had to be done again.

        A step may have been applied without its record reaching the log before the loss; the
        controller knows of it (``pause.steps_redone``). So per generation the larger count holds.
        """
        told: dict[int, int] = {}
        for pause in self.pauses:
            told[pause.generation] = told.get(pause.generation, 0) + pause.steps_redone
        generations = told.keys() | self._dropped.keys()
        return sum(max(told.get(g, 0), self._dropped.get(g, 0)) for g in generations)

    def _step(self, event: Event) -> None:
        step, generation = int(event["step"]), event.generation
        if (loss := event.get("eval_loss")) is not None:
            self.evals[step] = EvalPoint(t=event.t, step=step, loss=loss)
        if (generation, step) in self._done or not event.get("num_samples", 1):
            return  # told twice, or a record of an evaluation only
        self._done.add((generation, step))
        current = self.generations[-1] if self.generations else None
        if current is not None and generation < current.generation and step > current.step:
            self._drop(current.generation)  # a late word of a step that was set back
            return
        older = self.kept.get(step)
        if older is not None:
            self._drop(generation)
            if older.generation > generation:
                return
        self.kept[step] = StepPoint(
            t=event.t,
            step=step,
            generation=generation,
            loss=event.get("loss"),
            tokens=event.get("tokens", 0),
            grad_norm=event.get("grad_norm"),
            learning_rate=event.get("learning_rate"),
            seconds=event.get("seconds") or 0.0,
            first_sample=event.get("first_sample", 0),
            num_samples=event.get("num_samples", 0),
            phases=event.get("phases") or {},
            skipped=str(event.get("skipped", "")),
        )
        self.snapshots.held_s += self.kept[step].phases.get("snapshot", 0.0)
        self.parked = False

    def _drop(self, generation: int) -> None:
        self.discarded += 1
        self._dropped[generation] = self._dropped.get(generation, 0) + 1

    def _evaluated(self, event: Event) -> None:
        if (loss := event.get("eval_loss")) is not None:
            step = int(event["step"])
            self.evals[step] = EvalPoint(t=event.t, step=step, loss=loss)

    def _change(self, event: Event | None) -> None:
        self.changing, self.restoring, self.progress = event, None, None

    def _generation(self, event: Event) -> None:
        step = int(event.get("step", 0))
        for ahead in [kept for kept in self.kept if kept > step]:
            del self.kept[ahead]
            self.evals.pop(ahead, None)
            self._drop(event.generation)
        self.committed = step
        self.parked = False
        self._change(None)
        self.generations.append(
            Generation(
                t=event.t,
                generation=event.generation,
                step=step,
                layout=str(event.get("layout", "")),
                world_size=event.get("world_size", 0),
                nodes=tuple(event.get("nodes", ())),
                ranks=tuple(event.get("ranks", ())),
                kept_groups=_count(event.get("kept_groups", 0)),
                built_groups=_count(event.get("built_groups", 0)),
                held_twice=_held_twice(event, self.plans),
            )
        )
        self.world.append((event.t, event.get("world_size", 0)))

    def _count_safe(self, event: Event, *, copied: bool) -> None:
        """Replicas are copies of each other, and are not copied once more."""
        if self.generations and self.generations[-1].held_twice is not copied:
            size = self.generations[-1].world_size
            self.snapshots.count_workers(event, world_size=size)

    def _snapshot(self, event: Event) -> None:
        self._count_safe(event, copied=False)
        self.snapshots.count += event.get("workers", 0)
        self.snapshots.bytes += event.get("bytes", 0)
        key = (event.generation, int(event.get("step", -1)))
        stall = max(self.snapshots.stall_by_step.get(key, 0.0), event.get("stall_s", 0.0))
        self.snapshots.stall_by_step[key] = stall

    def _persisted(self, event: Event) -> None:
        known = self.durable[-1].step if self.durable else -1
        if event.get("found") and event.get("step", 0) <= known:
            return  # a new controller tells again what the log has
        self.saved_as_asked, self.save_asked = self.save_asked, False
        self.committed = max(self.committed, event.get("step", 0))
        self.durable.append(
            Durable(
                t=event.t,
                step=event.get("step", 0),
                bytes=event.get("bytes", 0),
                seconds=event.get("seconds", 0.0),
                path=str(event.get("path", "")),
            )
        )


def replay(events: Iterable[Event]) -> RunHistory:
    """The history of a whole log."""
    history = RunHistory()
    for event in events:
        history.apply(event)
    return history


def _pause(event: Event) -> PausePoint:
    seconds = {
        name: float(event.get(name) or 0.0)
        for name in (
            "detect_s", "decide_s", "prepare_s", "copy_s", "switch_s", "first_step_s",
            "parked_s", "hidden_s", "total_s",
        )
    }  # fmt: skip
    return PausePoint(
        t=event.t,
        cause=str(event.get("cause", "")),
        planned=bool(event.get("planned", False)),
        generation=event.generation,
        steps_redone=event.get("steps_redone") or 0,
        source=str(event.get("source", "")),
        **seconds,
    )


def _count(groups: Any) -> int:
    """Groups as a number, whether the event lists them or counts them."""
    return groups if isinstance(groups, int) else len(groups)


def _held_twice(event: Event, plans: Sequence[Event]) -> bool:
    """Whether the layout holds every part of the state on two machines: equal replicas, whole
    optimizer state in each, on machines of their own."""
    found = [plan for plan in plans if plan.generation in (0, event.generation)]
    told = found[-1].get("plan") if found else None
    plan: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
    replicas = plan.get("replicas", [])
    if not replicas or plan.get("optimizer_sharding"):
        return False
    cuts = [[stage.get("layers") for stage in replica.get("stages", ())] for replica in replicas]
    if any(cut != cuts[0] for cut in cuts):
        return False
    machines: dict[tuple[int, int], set[str]] = {}
    for rank in event.get("ranks", ()):
        seat = int(rank.get("stage", 0)), int(rank.get("tensor_rank", 0))
        machines.setdefault(seat, set()).add(str(rank.get("worker", "")).partition("/")[0])
    return bool(machines) and all(len(holders) > 1 for holders in machines.values())
