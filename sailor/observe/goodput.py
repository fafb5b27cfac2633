"""Where the wall time of a run went: every second since its first start has one name.

Goodput is the time spent on steps that were kept, divided by the wall time since the first start
(the definition of Google's ml-goodput-measurement). Everything else is badput, by cause:

    capacity      waiting for machines, booting included, or parked with too few
    start_up      planning, imports, first groups and buffers
    transition_*  training stood still to change its layout; * says why
    redone        work that was set back: whole steps, and the step that a loss cut off
    evaluation    held-out loss
    checkpoint    steps waited for a snapshot or a durable checkpoint
    stopped       between two starts of the run
    shut_down     last saves and releases
    other         between two steps: reporting, scheduling, data

The parts add up to the wall time exactly: the clock is walked once and each piece named as it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sailor.observe.events import Event

# What a step's own ``phases`` may hold that is not work on the step.
_NOT_WORK = {
    "evaluate": "evaluation", "evaluation": "evaluation", "eval": "evaluation",
    "snapshot": "checkpoint", "checkpoint": "checkpoint", "persist": "checkpoint",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A piece of the run's time. ``step`` and ``generation`` are set where ``what`` is "step"."""

    begin: float
    end: float
    what: str
    step: int = 0
    generation: int = 0

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin


def cause_kind(cause: str) -> str:
    """The family of a transition's cause: preempted, node_lost, worker_lost, join or other.

    A cause that was joined from several ("node-2 leaves in 30 s; node-3 lost") counts as its first.
    """
    words = cause.lower().split(";")[0]
    for kind, signs in (
        ("join", ("join", "started", "grow", "unparked")),
        ("worker_lost", ("worker",)),
        ("node_lost", ("lost", "silent", "killed", "died", "fenced", "fail")),
        ("preempted", ("preempt", "notice", "leav")),
    ):
        if any(sign in words for sign in signs):
            return kind
    return "other"


class Accounts:
    """Walks the log once and cuts the time into spans that touch and never overlap."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._cursor = 0.0  # everything before it has a name
        self._last_t = 0.0
        self._begun = False
        self._ended = False
        self._mode = "start_up"  # what un-named time is; "training" between the steps
        self._stepped = False  # since the newest start
        self._generation = 0
        self._last_generation = -1  # of the newest step
        self._seen: set[tuple[int, int]] = set()
        self._cut: float | None = None  # when, since the last step, something was lost
        self._cause = ""  # of a change of layout since the last step
        self._planned_cause = ""  # of one that is prepared while steps go on
        self._stall = 0.0  # longest wait of a rank for a snapshot, since the last step

    def apply(self, event: Event) -> None:
        """Take the next event of the log."""
        t = event.t
        match event.kind:
            case "run_started":
                self._started(t)
            case "node_requested" if not self._stepped and self._mode == "start_up":
                self._fill(t)
                self._mode = "capacity"
            case "transition_started":
                self._transition(event)
            case "transition_dropped":
                self._planned_cause = ""
            case "worker_lost" | "node_lost" | "fenced" if self._cut is None:
                self._cut = t - float(event.get("silent_s") or 0.0)
            case "generation_started":
                self._generation = event.generation
                if not self._stepped:
                    self._fill(t)
                    self._mode = "start_up"
                else:
                    self._cause = self._cause or self._planned_cause or "other"
                self._planned_cause = ""
            case "parked":
                self._fill(t)
                self._mode = "capacity"
            case "unparked":
                self._fill(t)
                self._mode = "transition_join" if self._stepped else "start_up"
            case "snapshot":
                self._stall = max(self._stall, float(event.get("stall_s") or 0.0))
            case "evaluated":
                self._fill(t - float(event.get("seconds") or 0.0))
                self._name(t, "evaluation")
            case "step":
                self._step(event)
            case "run_ended":
                if self._mode == "training":
                    self._mode = "shut_down"
                self._fill(t)
                self._ended = True
        self._last_t = max(self._last_t, t)

    def totals(
        self, *, kept: Callable[[Span], bool], now: float | None = None
    ) -> tuple[float, dict[str, float]]:
        """Seconds of good work, and seconds by cause of everything else, until ``now``.

        ``kept`` says of a step's span whether that execution of the step counts in the end.
        ``now`` defaults to the newest event.
        """
        good, bad = 0.0, dict[str, float]()
        for span in self.spans:
            what = span.what
            if what == "step":
                if kept(span):
                    good += span.seconds
                    continue
                what = "redone"
            bad[what] = bad.get(what, 0.0) + span.seconds
        rest = (self._last_t if now is None else now) - self._cursor
        if rest > 0:
            what = "stopped" if self._ended else self._mode
            what = "other" if what == "training" else what
            bad[what] = bad.get(what, 0.0) + rest
        return good, bad

    def _started(self, t: float) -> None:
        if self._begun:
            if not self._ended:  # the process before this one was killed
                self._fill(self._last_t)
            self._name(t, "stopped")
        elif self._mode == "capacity":  # for the machine of its own controller
            self._fill(t)
        else:
            self._cursor = t
        self._begun, self._ended = True, False
        self._mode, self._stepped = "start_up", False
        self._forget()

    def _transition(self, event: Event) -> None:
        cause = str(event.get("cause", ""))
        planned = bool(event.get("planned"))  # steps go on, the first one of a start included
        if self._mode == "capacity" or not (self._stepped or planned):
            self._fill(event.t)
            self._mode = f"transition_{cause_kind(cause)}" if self._stepped else "start_up"
        elif planned:
            self._planned_cause = cause
        else:
            self._cause = cause or "other"

    def _step(self, event: Event) -> None:
        step = int(event.get("step", 0))
        if (event.generation, step) in self._seen or event.generation < self._generation:
            return  # told twice, or late: its time is part of the transition already
        self._seen.add((event.generation, step))
        phases = event.get("phases") or {}
        not_work = {name: float(s) for name, s in phases.items() if name in _NOT_WORK}
        length = max(float(event.get("seconds") or 0.0), sum(not_work.values()))
        late = bool(self._cause) and self._generation == self._last_generation
        if late:  # told after the halt that its generation is in: it was done before the loss
            end = min(event.t, self._cursor + length)
        else:
            end = event.t
            self._fill(end - length)
        for name, seconds in not_work.items():
            self._name(min(end, self._cursor + seconds), _NOT_WORK[name])
        self._name(end, "step", step=step, generation=event.generation)
        self._last_generation = event.generation
        if not late:
            self._mode, self._stepped = "training", True
            self._forget()

    def _fill(self, until: float) -> None:
        """Name the time up to ``until`` by what was going on."""
        if self._mode != "training":
            self._name(until, self._mode)
        elif self._cause:
            if self._cut is not None:
                self._name(min(self._cut, until), "redone")
            self._name(until, f"transition_{cause_kind(self._cause)}")
        else:
            self._name(min(until, self._cursor + self._stall), "checkpoint")
            self._stall = 0.0
            self._name(until, "other")

    def _name(self, until: float, what: str, *, step: int = 0, generation: int = 0) -> None:
        if until > self._cursor:
            span = Span(begin=self._cursor, end=until, what=what, step=step, generation=generation)
            self.spans.append(span)
            self._cursor = until

    def _forget(self) -> None:
        self._cut, self._cause, self._stall = None, "", 0.0
