"""The simulators published with Oobleck (SOSP'23), rule by rule, to check ours against theirs.

Used for that comparison only. They walk the same traces with a queue of events in milliseconds and
report samples per second for Varuna-like checkpointing, Oobleck and Bamboo. Described here in our
own words, peculiarities included, because a few of them decide the published figures:

* A machine that joins is only counted when something else stops training.
* Every loss starts a timer, also during a pause. Training goes on when the first one is up; when a
  later one is up, nobody is waiting for it, and training stops until the next machine event.
* A checkpoint counts as lost when a removal stands before it in the queue's array, which is in heap
  order and not in order of time; the ten steps before it are then lost, and when there were fewer,
  the record of the ones to come is shifted.
* A second checkpoint is taken after the first step that follows a loss. On the recorded traces the
  small models lose no work at all.
* Below the smallest number of machines measured, that number's speed is used.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

CREATION_MS = 45_000
DEPTH = 12  # machines a pipeline needs; with fewer than one pipeline nothing trains
EVERY = 10  # steps between checkpoints

# Kinds of events, in the order they are met in one millisecond.
ADD, REMOVE, READY, TIMER, LOCAL_TIMER, STEP, SAVED = range(1, 8)


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """One system and model as the published simulator describes it. Times in milliseconds."""

    samples_per_step: float
    samples_per_second: Mapping[int, float]  # by machines
    restart_ms: int
    rebalance_ms: int = 0  # Bamboo
    stall_ms: int = 0  # of a checkpoint; 0: none are taken
    loses_work: bool = False  # back to the newest checkpoint
    redundant: bool = False  # Bamboo


class _Event:
    """Ordered by time and kind alone: events that tie keep no order, as in the original."""

    __slots__ = ("at", "kind", "what")

    def __init__(self, at: int, kind: int, what: str | int) -> None:
        self.at, self.kind, self.what = at, kind, what

    def __lt__(self, other: _Event) -> bool:
        return (self.at, self.kind) < (other.at, other.kind)


@dataclass(kw_only=True)
class _Replay:
    """One walk through one trace."""

    published: Published
    queue: list[_Event] = field(default_factory=list)
    ready: dict[str, bool] = field(default_factory=dict)  # machine -> it has booted
    seats: dict[str, list[int]] = field(default_factory=dict)  # positions in the pipelines
    state: str = "stopped"  # stopped, gathering, running
    gathered: list[str] = field(default_factory=list)
    version: int = 0
    pipelines: int = 0
    waiting: int = 0
    step_ms: int = 0
    steps: int = 0
    began: int | None = None
    last_end: int = 0
    spans: list[tuple[int, int]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)  # by step, meant to match ``spans``
    saved_at: int = -1
    save_soon: bool = False
    slowed_at: tuple[int, int] | None = None  # (steps, time) of a loss that is bridged
    slow_paid: bool = False

    def run(self, events: Sequence[tuple[int, bool, str]]) -> float:
        for at, added, name in events:
            self._push(at, ADD if added else REMOVE, name)
        end = self.queue[-1].at  # the array's last entry, taken for the last in time
        act: dict[int, Callable[[int, str | int], None]] = {
            ADD: self._add, REMOVE: self._remove, READY: self._is_ready, TIMER: self._timer,
            LOCAL_TIMER: self._local_timer, STEP: self._step, SAVED: lambda at, what: None,
        }  # fmt: skip
        while self.queue:
            event = heapq.heappop(self.queue)
            if event.at >= end:
                break
            act[event.kind](event.at, event.what)
        if not self.spans or self.began is None:
            return 0.0
        seconds = (self.spans[-1][1] - self.began) / 1000
        pairs = zip(self.spans, self.rates, strict=False)
        return sum((b - a) / 1000 * rate for (a, b), rate in pairs) / seconds

    def _push(self, at: int, kind: int, what: str | int = 0) -> None:
        heapq.heappush(self.queue, _Event(at, kind, what))

    # Machines

    def _add(self, at: int, what: str | int) -> None:
        self.ready[str(what)] = False
        self._push(at + CREATION_MS, READY, what)

    def _is_ready(self, at: int, what: str | int) -> None:
        name = str(what)
        if name not in self.ready:
            return
        self.ready[name] = True
        if self.state == "stopped":
            self._gather(at, TIMER)
        elif self.state == "gathering":
            self.gathered.append(name)
        else:
            self.waiting += 1

    def _remove(self, at: int, what: str | int) -> None:
        name = str(what)
        del self.ready[name]
        seats = self.seats.pop(name, [])
        if self.published.redundant:
            self._bridge(at, seats)
            return
        self.save_soon = True
        if self.published.loses_work:
            first_lost = 0
            if self.saved_at >= 0:
                known = range(min(len(self.spans), len(self.rates)))
                first_lost = next((i for i in known if self.spans[i][0] == self.saved_at),
                                  len(self.spans))  # fmt: skip
            self.rates[first_lost:] = [0.0] * len(self.rates[first_lost:])
        self._gather(at, TIMER)

    def _bridge(self, at: int, seats: list[int]) -> None:
        """Bamboo: the machine before it in the pipeline takes over, unless it did so already."""
        if seats:
            if len(seats) > 1:
                self._gather(at, TIMER)
                return
            before = seats[0] - 1 if seats[0] % DEPTH else seats[0] + DEPTH - 1
            for held in self.seats.values():
                if before in held:
                    if len(held) > 1:
                        self._gather(at, TIMER)
                        return
                    held.append(seats[0])
                    break
        if self.state == "running" and self.slowed_at is None:
            self.slowed_at, self.slow_paid = (self.steps, at), False
            self.step_ms = int(self.step_ms * 1.5)

    # Pauses

    def _gather(self, at: int, timer: int) -> None:
        self.state = "gathering"
        self._set_timer(at, timer)

    def _set_timer(self, at: int, timer: int) -> None:
        self.gathered = [name for name, booted in self.ready.items() if booted]
        local = timer == LOCAL_TIMER
        self._push(
            at + (self.published.rebalance_ms if local else self.published.restart_ms), timer
        )

    def _timer(self, at: int, what: str | int) -> None:
        self._resume(at, TIMER)

    def _local_timer(self, at: int, what: str | int) -> None:
        self._resume(at, LOCAL_TIMER)

    def _resume(self, at: int, timer: int) -> None:
        if any(name not in self.ready for name in self.gathered):
            self._set_timer(at, timer)
            return
        there, self.gathered = self.gathered, []
        self.pipelines = len(there) // DEPTH
        self.seats = {name: [i] for i, name in enumerate(there[: self.pipelines * DEPTH])}
        self.waiting = len(there) - len(self.seats)
        self.version += 1
        self.slowed_at = None
        if not self.pipelines:
            self.state = "stopped"
            return
        self.state = "running"
        table = self.published.samples_per_second
        booted = sum(self.ready.values())
        rate = table[min(max(booted, min(table)), max(table))]
        self.step_ms = (
            int(self.published.samples_per_step / rate * 1000) if rate else 1_000_000_000_000
        )
        if self.began is None:
            self.began = self.last_end = at
        self._push(at + self.step_ms, STEP, self.version)

    # Steps

    def _step(self, at: int, what: str | int) -> None:
        if what != self.version:
            return
        if self.slowed_at is not None and not self.slow_paid and self.slowed_at[0] == self.steps:
            self._push(at + int((at - self.slowed_at[1]) * 0.5), STEP, self.version)
            self.slow_paid = True
            return
        self.steps += 1
        self.spans.append((self.last_end, at))
        length = (at - self.last_end) / 1000
        self.rates.append(self.published.samples_per_step / length if length else 0.0)
        if self.published.stall_ms and (self.steps % EVERY == 0 or self.save_soon):
            at = self._save(at)
        self.last_end = at
        if self.published.redundant and self._should_rebalance():
            self._gather(at, LOCAL_TIMER)
        else:
            self._push(at + self.step_ms, STEP, self.version)

    def _save(self, at: int) -> int:
        self.save_soon = False
        at += self.published.stall_ms
        self._push(at + self.published.stall_ms, SAVED)
        if self.published.loses_work and self._removal_stands_first():
            self.steps = max(0, self.steps - EVERY)
            self.rates[-EVERY:] = [0.0] * EVERY
        else:
            self.saved_at = at
        return at

    def _removal_stands_first(self) -> bool:
        removal = False
        for event in self.queue:
            removal |= event.kind == REMOVE
            if event.kind == SAVED:
                return removal
        return False

    def _should_rebalance(self) -> bool:
        doubled = sum(1 for held in self.seats.values() if len(held) > 1)
        active = self.pipelines * DEPTH - doubled
        if doubled and (self.waiting >= doubled or 2 * doubled / active > 0.05):
            return True
        return (active + self.waiting) // DEPTH > self.pipelines


def published_rate(published: Published, events: Sequence[tuple[int, bool, str]]) -> float:
    """Samples per second over a trace of (millisecond, added, machine), in the file's order."""
    return _Replay(published=published).run(events)
