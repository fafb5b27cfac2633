"""Spot availability over time: read from recorded traces, cut, scaled and merged. Values only.

A trace says how many machines of a type a zone has to give, as changes over time. It knows no
clock: ``provision/replay.py`` plays it on one, the simulator walks its events. ``docs/traces.md``
has the formats; ``provision/spot_model.py`` makes traces that were never recorded.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from sailor.errors import DataError

Place = tuple[str, str]  # (zone, machine type)


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class SpotEvent:
    """At ``t`` seconds a zone gets ``delta`` machines of a type to give, or takes -delta away.

    ``notice_seconds`` is how long before a loss its machines are told: at ``t`` they are told, and
    they go that much later. None: without a word.
    """

    t: float
    zone: str
    machine_type: str
    delta: int
    notice_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.delta == 0:
            raise ValueError("an event changes something")
        if self.notice_seconds is not None and self.notice_seconds < 0:
            raise ValueError(f"a notice of {self.notice_seconds:g} s at {self.t:g} s")


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """Events in order of time, from 0 to ``seconds``. ``source`` says where it is from, ``notes``
    what had to be mended to read it."""

    events: tuple[SpotEvent, ...]
    seconds: float
    source: str
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        level: dict[Place, int] = {}
        last = 0.0
        for event in self.events:
            place = (event.zone, event.machine_type)
            level[place] = level.get(place, 0) + event.delta
            if level[place] < 0:
                raise ValueError(f"{event.zone} gives fewer than no machines at {event.t:g} s")
            if not last <= event.t <= self.seconds:
                raise ValueError(f"{event.t:g} s is out of order or after the end")
            last = event.t

    @property
    def places(self) -> tuple[Place, ...]:
        """(zone, machine type) of all events, each once, in order of appearance."""
        return tuple(dict.fromkeys((e.zone, e.machine_type) for e in self.events))

    def capacity_at(self, t: float) -> Mapping[Place, int]:
        """Machines each place has to give at ``t``, the events of that moment included."""
        level = dict.fromkeys(self.places, 0)
        for event in self.events:
            if event.t > t:
                break
            level[event.zone, event.machine_type] += event.delta
        return level

    def levels(self) -> Iterator[tuple[float, float, Mapping[Place, int]]]:
        """(begin, end, capacity) of every stretch without a change, from 0 to the end."""
        level = dict.fromkeys(self.places, 0)
        begin = 0.0
        for event in self.events:
            if event.t > begin:
                yield begin, event.t, dict(level)
                begin = event.t
            level[event.zone, event.machine_type] += event.delta
        if self.seconds > begin:
            yield begin, self.seconds, dict(level)

    def cut(self, begin: float, end: float) -> Trace:
        """The stretch from ``begin`` to ``end`` as a trace of its own: what is there at its start
        comes at 0."""
        if not 0 <= begin < end:
            raise ValueError(f"cannot cut from {begin:g} to {end:g} s")
        first = [
            SpotEvent(t=0.0, zone=zone, machine_type=machine_type, delta=level)
            for (zone, machine_type), level in self.capacity_at(begin).items()
            if level
        ]
        rest = [replace(e, t=e.t - begin) for e in self.events if begin < e.t <= end]
        return replace(self, events=tuple(first + rest), seconds=min(end, self.seconds) - begin)

    def faster(self, factor: float) -> Trace:
        """The same trace in 1/factor of the time. Notices keep their length: machines need it."""
        events = tuple(replace(event, t=event.t / factor) for event in self.events)
        return replace(
            self, events=events, seconds=self.seconds / factor,
            source=f"{self.source}, {factor:g}x",
        )  # fmt: skip

    def fitting(self, most: int) -> Trace:
        """The same trace scaled down so that no more than ``most`` machines are ever there.

        Every place's level is multiplied by one factor and rounded down; a change that is too small
        to show is left out, and so is its notice.
        """
        peak = max((sum(level.values()) for _, _, level in self.levels()), default=0)
        if peak <= most:
            return self
        exact, shown = dict.fromkeys(self.places, 0), dict.fromkeys(self.places, 0)
        events = []
        for event in self.events:
            place = (event.zone, event.machine_type)
            exact[place] += event.delta
            level = exact[place] * most // peak
            if level != shown[place]:
                events.append(replace(event, delta=level - shown[place]))
                shown[place] = level
        return replace(self, events=tuple(events), source=f"{self.source}, of {peak} machines")

    def announced(self, notice_seconds: float | None) -> Trace:
        """The same trace with every loss announced so long before, or not at all."""
        events = tuple(
            replace(e, notice_seconds=notice_seconds) if e.delta < 0 else e for e in self.events
        )
        return replace(self, events=events)

    def placed(self, place: Callable[[Place], Place]) -> Trace:
        """The same trace in other places: zones and machine types renamed."""
        events = []
        for event in self.events:
            zone, machine_type = place((event.zone, event.machine_type))
            events.append(replace(event, zone=zone, machine_type=machine_type))
        return replace(self, events=tuple(events))


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistics:
    """What a trace is like. Losses of one place within ``window`` seconds are one event."""

    mean_up: float
    lost: int
    loss_events: int
    node_hours_per_loss: float | None
    mean_bulk: float | None
    empty_share: float  # of the time with nothing to give anywhere


def statistics(trace: Trace, *, window: float = 180.0) -> Statistics:
    """Rates of a trace, to compare one with another.

    The window is 180 s because most interruptions that belong together in one type and zone happen
    within three minutes of each other.
    """
    node_seconds = empty = 0.0
    for begin, end, level in trace.levels():
        total = sum(level.values())
        node_seconds += total * (end - begin)
        empty += (end - begin) if total == 0 else 0.0
    lost = bulks = 0
    opened: dict[Place, float] = {}
    for event in trace.events:
        if event.delta < 0:
            lost -= event.delta
            place = (event.zone, event.machine_type)
            if event.t - opened.get(place, float("-inf")) > window:
                opened[place] = event.t
                bulks += 1
    return Statistics(
        mean_up=node_seconds / trace.seconds if trace.seconds else 0.0,
        lost=lost,
        loss_events=bulks,
        node_hours_per_loss=node_seconds / 3600 / lost if lost else None,
        mean_bulk=lost / bulks if bulks else None,
        empty_share=empty / trace.seconds if trace.seconds else 0.0,
    )


def merge(traces: Sequence[Trace]) -> Trace:
    """Several traces at once, for instance one a zone; as long as the shortest."""
    seconds = min(trace.seconds for trace in traces)
    events = sorted(
        (event for trace in traces for event in trace.events if event.t <= seconds),
        key=lambda event: (event.t, event.zone, event.machine_type),
    )
    return Trace(
        events=tuple(events),
        seconds=seconds,
        source=" + ".join(trace.source for trace in traces),
        notes=tuple(note for trace in traces for note in trace.notes),
    )


def read_trace(path: Path | str, *, zone: str = "", machine_type: str = "spot") -> Trace:
    """The trace in a file, in any of the formats of docs/traces.md.

    ``zone`` and ``machine_type`` are used where the file names none; the zone defaults to the
    file's name. Lines out of order are sorted and a last line that was cut off is left out, both
    with a note in the trace. Raises DataError E506 saying what is wrong and where.
    """
    path = Path(path)
    place = (zone or path.stem, machine_type)
    notes: list[str] = []
    try:
        text = path.read_text()
        if path.suffix == ".json":
            events, seconds = _from_json(json.loads(text), place)
        else:
            events, seconds = _from_csv(*_rows(text, notes), place)
        if not events:
            raise ValueError("it has no events")
        return Trace(events=tuple(events), seconds=seconds, source=path.name, notes=tuple(notes))
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"no {error.args[0]} where one is needed" if isinstance(error, KeyError) else error
        raise DataError(
            f"the availability trace {path} cannot be used",
            code="E506",
            why=str(why),
            where=str(path.absolute()),
            fix="cloud.trace.paths=[]   draws one; docs/traces.md shows the formats",
        ) from error


def _rows(text: str, notes: list[str]) -> tuple[list[str], list[dict[str, str]]]:
    """The columns of a CSV and its lines in order of time; what was mended is noted.

    Only a last line can have been cut off: a short one further up is a mistake, and is refused when
    its fields are read.
    """
    reader = csv.DictReader(text.splitlines())
    columns = list(reader.fieldnames or ())
    rows = list(reader)
    if len(rows) > 1 and _was_cut(rows[-1], rows[-2], ended=text.endswith("\n")):
        notes.append(f"its last line was cut off and is left out: {','.join(_there(rows[-1]))}")
        rows.pop()
    for row in rows:
        if None in row or None in row.values():
            raise ValueError(f"a line has {len(_there(row))} of {len(columns)} fields: "
                             f"{','.join(_there(row))}")  # fmt: skip
    name = next((c for c in ("t_s", "t_ms", "minute", "utc_or_local_time") if c in columns), None)
    if name is not None:
        times = [_seconds(row[name]) for row in rows]
        if any(later < earlier for earlier, later in zip(times, times[1:], strict=False)):
            number = sum(b < a for a, b in zip(times, times[1:], strict=False))
            notes.append(f"{number} lines were out of order and are sorted by time")
            rows = [row for _, row in sorted(zip(times, rows, strict=True), key=lambda e: e[0])]
    return columns, rows


def _was_cut(last: Mapping[str, str], before: Mapping[str, str], *, ended: bool) -> bool:
    """Whether the end of the file fell into a line: fields are missing, or its last one was being
    written and is not of the kind it is in the line before."""
    if any(value is None for value in last.values()) and None not in last:
        return True
    end, usual = list(last.values())[-1], list(before.values())[-1]
    known = ("add", "remove", "preempt")
    return not ended and usual in known and end not in known


def _there(row: Mapping[str | None, str | None]) -> list[str]:
    return [str(value) for value in row.values() if value is not None]


def _from_csv(
    names: Sequence[str], rows: Sequence[dict[str, str]], place: Place
) -> tuple[list[SpotEvent], float]:
    columns = set(names)
    if {"event", "node"} <= columns and columns & {"t_s", "t_ms"}:
        return _from_nodes(rows, place)
    if {"t_s", "delta"} <= columns:
        return _from_deltas(rows, place)
    for time_name, count_name, scale in (
        ("t_s", "count", 1.0),
        ("t_s", "gpus_or_nodes", 1.0),
        ("minute", "nodes", 60.0),
        ("utc_or_local_time", "instances", 1.0),
    ):
        if {time_name, count_name} <= columns:
            counts: dict[Place, list[tuple[float, int]]] = {}
            for row in rows:
                where = (row.get("zone") or place[0], row.get("machine_type") or place[1])
                t = _seconds(row[time_name]) * scale
                counts.setdefault(where, []).append((t, int(row[count_name])))
            return _from_counts(counts)
    raise ValueError(f"its columns {', '.join(sorted(columns)) or '(none)'} are not known")


def _from_nodes(rows: Iterable[Mapping[str, str]], place: Place) -> tuple[list[SpotEvent], float]:
    """add, and remove or preempt, of named machines. Those of one moment become one event."""
    up: set[tuple[str, str]] = set()
    changes: dict[tuple[float, str, int], int] = {}
    last = 0.0
    for row in rows:
        t = float(row["t_s"]) if "t_s" in row else float(row["t_ms"]) / 1000
        zone, node, word = row.get("zone") or place[0], row["node"], row["event"]
        if word not in ("add", "remove", "preempt"):
            raise ValueError(f"{word!r} at {t:g} s is neither add, remove nor preempt")
        if (word == "add") == ((zone, node) in up):
            raise ValueError(
                f"{word} {node} at {t:g} s, but it is{'' if word == 'add' else ' not'} there"
            )
        (up.add if word == "add" else up.remove)((zone, node))
        sign = 1 if word == "add" else -1
        changes[t, zone, sign] = changes.get((t, zone, sign), 0) + sign
        last = max(last, t)
    # Of one moment, losses first: what comes then replaces what went.
    ordered = sorted(changes.items(), key=lambda item: (item[0][0], item[0][2]))
    events = [
        SpotEvent(t=t, zone=zone, machine_type=place[1], delta=delta)
        for (t, zone, _), delta in ordered
    ]
    return events, last


def _from_deltas(rows: Iterable[Mapping[str, str]], place: Place) -> tuple[list[SpotEvent], float]:
    events = [
        SpotEvent(
            t=float(row["t_s"]),
            zone=row.get("zone") or place[0],
            machine_type=row.get("machine_type") or place[1],
            delta=int(row["delta"]),
            notice_seconds=float(row["notice_s"]) if row.get("notice_s") else None,
        )
        for row in rows
    ]
    events.sort(key=lambda event: event.t)
    return events, events[-1].t if events else 0.0


def _from_json(document: Any, place: Place) -> tuple[list[SpotEvent], float]:
    """Counts at equal intervals (metadata.gap_seconds and data), or a list of Time and GPUs."""
    if isinstance(document, dict):
        gap = float(document["metadata"]["gap_seconds"])
        if not gap > 0:
            raise ValueError(f"gap_seconds {gap:g} is no time between two counts")
        counts = [(i * gap, int(level)) for i, level in enumerate(document["data"])]
        events, _ = _from_counts({place: counts})
        return events, len(counts) * gap
    return _from_counts({place: [(float(e["Time"]), int(e["GPUs"])) for e in document]})


def _from_counts(
    counts: Mapping[Place, list[tuple[float, int]]],
) -> tuple[list[SpotEvent], float]:
    """Levels over time as changes. Out-of-order lines are sorted; time begins at 0."""
    begin = min(t for points in counts.values() for t, _ in points) if counts else 0.0
    events, last = [], 0.0
    for (zone, machine_type), points in counts.items():
        level = 0
        for t, count in sorted(points, key=lambda point: point[0]):
            if count != level:
                events.append(
                    SpotEvent(
                        t=t - begin, zone=zone, machine_type=machine_type, delta=count - level
                    )
                )
            level = count
            last = max(last, t - begin)
    events.sort(key=lambda event: event.t)
    return events, last


def _seconds(text: str) -> float:
    """A number of seconds, or an ISO moment as seconds."""
    try:
        return float(text)
    except ValueError:
        return (datetime.fromisoformat(text) - datetime(1970, 1, 1)).total_seconds()
