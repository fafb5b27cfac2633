"""The run's event log: one append-only file, ``events.jsonl``, that everything else is drawn from.

Live view, metrics, summary and report are projections of it and can be rebuilt from it alone.
A step that is done again is written again, with its new generation: nothing is ever taken back.
One process writes, from one thread; anybody may read. ``docs/events.md`` explains the kinds.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import msgspec

from sailor.clock import Clock, WallClock
from sailor.observe.redact import redact_fields

log = logging.getLogger(__name__)

KINDS: Mapping[str, tuple[str, ...]] = {
    "run_started": (
        "status", "model", "parameters", "total_steps", "global_batch_size", "sequence_length",
        "deterministic", "config_digest", "command",
    ),
    "plan_chosen": ("plan", "describe", "estimate_step_s", "estimate_usd_per_hour"),
    "node_requested": ("node", "zone", "machine_type", "spot", "price_per_hour"),
    "node_started": ("node",),  # optional: the cloud says that it runs and costs money from now on
    "node_refused": ("node", "code", "why", "retry_s", "lasting"),
    "node_joined": ("node", "zone", "machine_type", "pid", "workers"),
    "worker_up": ("worker", "pid"),
    "worker_lost": ("worker", "cause", "silent_s"),
    "node_lost": ("node", "cause", "silent_s"),
    "notice": ("node", "seconds", "source"),
    "fenced": ("node", "reason"),
    "transition_started": ("cause", "planned"),
    "transition_dropped": ("why",),
    "generation_started": (
        "step", "layout", "world_size", "nodes", "ranks", "kept_groups", "built_groups",
    ),
    "adopted": ("step", "nodes", "trains", "ranks"),  # by a new controller of the same run
    "pause": (
        "cause", "planned", "detect_s", "decide_s", "prepare_s", "copy_s", "switch_s",
        "first_step_s", "total_s", "steps_redone", "source",
    ),
    "step": (
        "step", "loss", "tokens", "grad_norm", "learning_rate", "seconds", "phases",
        "first_sample", "num_samples",
    ),
    "step_refused": ("step", "why", "action"),  # action: skip, rollback or stop
    "quarantined": ("step", "why"),
    "memory": ("ranks",),  # rank, worker, peak_bytes, base_bytes
    "evaluated": ("step", "eval_loss", "seconds"),  # an evaluation outside any step's record
    "snapshot": ("step", "workers", "bytes", "stall_s", "copy_s", "slowest"),  # in own memory
    "snapshot_copied": ("step", "workers", "bytes"),  # in that of peers
    "replicas_agree": ("step", "boxes"),  # only where they are compared
    "replicas_differ": ("step", "box", "holders"),
    "copy_refused": ("copy", "why"),
    "restored": ("step", "sources"),
    "change_progress": ("stage", "done", "total"),  # of machines; only where it takes seconds
    "anchored": ("step", "node", "bytes", "seconds"),
    "committed": ("step",),
    "persisted": ("step", "bytes", "seconds", "path"),
    "persist_failed": ("step", "error"),
    "parked": ("why",),
    "unparked": (),
    "stop_asked": ("end", "why"),
    "node_released": ("node", "proof"),
    "standby": ("node", "state", "why"),  # appointed, warm, cold, promoted
    "move_asked": ("node", "why"),
    "rebalancing": ("decision", "node", "why"),
    "save_asked": ("why",),
    "replan_asked": ("why",),
    "held_up": ("why",),
    "lines_probed": ("nodes", "pairs"),
    "link_measured": (
        "node", "peer", "seconds_per_message", "bytes_per_second", "assumed_seconds_per_message",
        "assumed_bytes_per_second", "times_slower", "far_off",
    ),
    "move_refused": ("node", "why"),
    "recruiting": ("decision", "node", "why"),
    "fault_injected": ("fault", "target", "at"),
    "run_ended": ("end", "why", "exit_code"),
}  # fmt: skip
"""Each kind and the fields it must have; more may follow. All events have a ``generation``."""

# What must survive a power cut: money, durability and how it ended. The rest is flushed to the
# operating system, which is enough when only a process dies.
_SYNCED = frozenset(
    {"run_started", "plan_chosen", "node_requested", "node_released", "persisted",
     "fault_injected", "stop_asked", "run_ended"}
)  # fmt: skip
_OWN = ("seq", "t", "time", "run", "generation", "kind")
_MOST_WAITING = 10_000  # lines kept in memory while the disk is full


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One line of the log.

    ``t`` is seconds since the run first started, counted on over restarts, the time between two
    starts included. ``time`` is the wall clock as ISO 8601 in UTC, for people only.
    """

    seq: int
    t: float
    time: str
    run: str
    generation: int
    kind: str
    fields: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def get(self, name: str, default: Any = None) -> Any:
        """A field, or the default when the event lacks it."""
        return self.fields.get(name, default)

    def to_json(self) -> bytes:
        """One line of JSON without its newline. NaN and infinity become null."""
        own = {name: getattr(self, name) for name in _OWN}
        return msgspec.json.encode({**own, **self.fields})


class EventLog:
    """The writing end. Opening an existing file mends a torn last line and counts on from it.

    ``wall`` gives seconds since 1970; it is read for the ``time`` field and once on opening, to
    learn how long the run lay still. A full disk does not stop the run: lines wait in memory and
    are written when it has room again; what had to be dropped shows as a gap in ``seq``.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        run: str,
        clock: Clock | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.path = Path(path)
        self.run = run
        self._clock = clock or WallClock()
        self._wall = wall
        self._subscribers: list[Callable[[Event], None]] = []
        self._to_deliver: deque[Event] = deque()
        self._delivering = False
        self._waiting: deque[bytes] = deque(maxlen=_MOST_WAITING)
        self._failing = False
        self.path.parent.mkdir(parents=True, exist_ok=True)
        last = _mend(self.path)
        self._seq = last.seq if last else 0
        still = max(0.0, wall() - _unix(last.time)) if last else 0.0
        self._base = (last.t + still if last else 0.0) - self._clock.now()
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._end = os.fstat(self._fd).st_size

    @property
    def t(self) -> float:
        """Seconds since the run first started, now."""
        return self._base + self._clock.now()

    def write(self, kind: str, *, generation: int = 0, **fields: Any) -> Event:
        """Append one event, make it as durable as its kind asks, then tell the subscribers.

        Field values are anything msgspec can turn into JSON; secrets in them are blanked.
        Raises ValueError for a field with one of the log's own names, TypeError for a value that
        has no JSON form. A kind or field outside the contract is written, with a warning.
        """
        if clash := sorted(set(fields) & set(_OWN)):
            raise ValueError(f"event {kind}: {', '.join(clash)} are the log's own fields")
        for problem in contract_problems(kind, fields):
            log.warning("event log: %s", problem)
        self._seq += 1
        moment = datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec="milliseconds")
        event = Event(
            seq=self._seq,
            t=round(self.t, 6),
            time=moment.replace("+00:00", "Z"),
            run=self.run,
            generation=generation,
            kind=kind,
            fields=redact_fields(msgspec.to_builtins(fields)),
        )
        self._waiting.append(event.to_json() + b"\n")
        self._flush(sync=kind in _SYNCED)
        self._deliver(event)
        return event

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call back after each event from now on, in order; returns how to stop that.

        A callback may write further events. One that raises is logged and kept: looking at a run
        must not end it.
        """
        self._subscribers.append(callback)

        def unsubscribe() -> None:
            if callback in self._subscribers:
                self._subscribers.remove(callback)

        return unsubscribe

    def close(self) -> None:
        """Write what waits, make it durable and close the file. Harmless when closed already."""
        if self._fd < 0:
            return
        self._flush(sync=True)
        os.close(self._fd)
        self._fd = -1
        self._subscribers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _flush(self, *, sync: bool) -> None:
        """Write the waiting lines; on failure cut the file back to its last whole line."""
        if self._fd < 0:
            raise ValueError(f"{self.path} is closed")
        try:
            while self._waiting:
                data = self._waiting[0]
                if os.write(self._fd, data) != len(data):
                    raise OSError("only part of a line was written")
                self._end += len(data)
                self._waiting.popleft()
            if sync:
                os.fsync(self._fd)
        except OSError as error:
            if not self._failing:
                log.warning("event log %s cannot be written, trying again: %s", self.path, error)
            self._failing = True
            with suppress(OSError):  # a device that cannot even do this fails again next time
                os.ftruncate(self._fd, self._end)
        else:
            if self._failing:
                log.warning("event log %s is written again", self.path)
            self._failing = False

    def _deliver(self, event: Event) -> None:
        self._to_deliver.append(event)
        if self._delivering:  # a subscriber wrote it: its turn comes after the present one
            return
        self._delivering = True
        try:
            while self._to_deliver:
                current = self._to_deliver.popleft()
                for callback in tuple(self._subscribers):
                    try:
                        callback(current)
                    except Exception:  # a broken view must not end a run
                        log.exception("a subscriber failed on event %s", current.kind)
        finally:
            self._delivering = False


def read_events(path: Path | str) -> tuple[Event, ...]:
    """All events of a log, in order. A torn last line is left out; so is an unreadable line
    further up, with a warning. Raises FileNotFoundError."""
    events = []
    for number, line in enumerate(_lines(Path(path)), start=1):
        event = parse_event(line)
        if event is not None:
            events.append(event)
        elif line.endswith(b"\n"):
            log.warning("%s: line %d is not an event and was left out", path, number)
    return tuple(events)


def contract_problems(kind: str, fields: Mapping[str, Any]) -> list[str]:
    """What an event lacks of the contract in KINDS; empty when it keeps it."""
    if kind not in KINDS:
        return [f"{kind} is not a known kind of event"]
    return [f"{kind} lacks its field {name}" for name in KINDS[kind] if name not in fields]


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file


def parse_event(line: bytes) -> Event | None:
    """The event on a line, or None when the line is not a whole one."""
    try:
        document = msgspec.json.decode(line, type=dict[str, Any])
        own = {name: document.pop(name) for name in _OWN}
        _unix(own["time"])
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError, ValueError):
        return None
    return Event(**own, fields=document)


def _mend(path: Path) -> Event | None:
    """Leave the file ending in a whole line and return its last event, if it has one.

    A last line without newline is completed if it is an event, else cut.
    """
    if not path.exists():
        return None
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        lines = _tail(file, size, wanted=lambda tail: b"\n" in tail)
        torn = lines[-1] if lines and not lines[-1].endswith(b"\n") else b""
        if torn:
            whole = parse_event(torn) is not None
            log.warning("%s: its last line was torn: %s", path, "completed" if whole else "cut off")
            if whole:
                file.seek(size)
                file.write(b"\n")
            else:
                size -= len(torn)
                file.truncate(size)
            file.flush()
        lines = _tail(file, size, wanted=lambda tail: any(map(parse_event, tail.splitlines())))
        return next((event for line in reversed(lines) if (event := parse_event(line))), None)


def _tail(file: BinaryIO, size: int, *, wanted: Callable[[bytes], bool]) -> list[bytes]:
    """The last lines of a file, as few as hold what is wanted; all when nothing does.

    The first of them may be the end of a longer line.
    """
    span = 1 << 16
    while True:
        file.seek(max(0, size - span))
        tail = file.read(min(span, size))
        if wanted(tail) or span >= size:
            return tail.splitlines(keepends=True)
        span *= 4


def unix(event: Event) -> float:
    """Seconds since 1970 at which an event was written, by its writer's clock."""
    return _unix(event.time)


def _unix(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
