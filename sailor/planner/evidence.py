"""What was seen of spot machines, by place: how many hours they ran, and how often some were taken.

Gathered from a stretch of capacity (``observe``: a trace) or from machines one had (``lived``: the
runs of one's own). ``hazard`` makes beliefs of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Protocol

Place = tuple[str, str]  # (zone, machine type)

BULK_S = 180.0
"""Losses of a place within three minutes are one event: over 92 % of interruptions that belong
together are (Spot-and-Scoot, 2026)."""


class CapacityEvent(Protocol):
    """A change of a trace: what ``provision.trace.SpotEvent`` is."""

    @property
    def t(self) -> float: ...
    @property
    def zone(self) -> str: ...
    @property
    def machine_type(self) -> str: ...
    @property
    def delta(self) -> int: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What was seen of a place. Hours are machine-hours, but for waits, which are hours.

    ``outages`` are events that took all machines there were, ``outage_lost`` those machines.
    """

    machine_hours: float = 0.0
    events: int = 0
    lost: int = 0
    outages: int = 0
    outage_lost: int = 0
    outage_hours: float = 0.0  # with nothing to give after them, summed
    returns: int = 0
    return_hours: float = 0.0  # waits of machines that came back, summed; outages left out

    def __post_init__(self) -> None:
        if min(self.machine_hours, self.outage_hours, self.return_hours) < 0:
            raise ValueError("hours of evidence are negative")
        if self.lost < self.events or self.outages > self.events:
            raise ValueError("an event loses at least one machine, and an outage is an event")

    def __add__(self, other: Evidence) -> Evidence:
        return Evidence(**{f.name: getattr(self, f.name) + getattr(other, f.name)
                           for f in fields(Evidence)})  # fmt: skip


NOTHING = Evidence()


def observe(changes: Iterable[CapacityEvent], *, seconds: float) -> dict[Place, Evidence]:
    """What a stretch of capacity tells of its places. Changes in order of time.

    Machine-hours count what the place gave. Losses within three minutes are one event. A return is
    matched with the loss that has waited longest.
    """
    watched: dict[Place, _Watch] = {}
    for change in changes:
        place = (change.zone, change.machine_type)
        watched.setdefault(place, _Watch()).see(min(change.t, seconds), change.delta)
    return {place: watch.until(seconds) for place, watch in watched.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Stay:
    """One machine that was ours. Seconds on any one clock; ``until`` None: it is there still.
    ``taken``: it was taken away, and not given back by us."""

    place: Place
    since: float
    until: float | None = None
    taken: bool = False


def lived(stays: Iterable[Stay], *, seconds: float) -> dict[Place, Evidence]:
    """What the machines of one run tell of their places, until ``seconds`` on their clock.

    As ``observe``, but machines that we gave back are no losses, and nobody waits for them.
    """
    moments: list[tuple[float, int, Stay]] = []
    for stay in stays:
        moments.append((stay.since, 1, stay))
        if stay.until is not None:
            moments.append((max(stay.until, stay.since), -1, stay))
    watched: dict[Place, _Watch] = {}
    for t, delta, stay in sorted(moments, key=lambda moment: moment[:2]):
        watch = watched.setdefault(stay.place, _Watch())
        if delta < 0 and not stay.taken:
            watch.give_back(min(t, seconds))
        else:
            watch.see(min(t, seconds), delta)
    return {place: watch.until(seconds) for place, watch in watched.items()}


@dataclass(slots=True)
class _Watch:
    """One place's books."""

    level: int = 0
    since: float = 0.0
    machine_seconds: float = 0.0
    began: float = float("-inf")  # the present event
    at_first: int = 0  # machines when it began
    taken: int = 0
    emptied_at: float | None = None
    waiting: list[tuple[float, bool]] = field(default_factory=list)  # (since, in an outage)
    sums: Evidence = NOTHING

    def see(self, t: float, delta: int) -> None:
        self.machine_seconds += self.level * (t - self.since)
        self.since = t
        if delta < 0:
            if t - self.began > BULK_S:
                self._finish_event()
                self.began, self.at_first, self.taken = t, self.level, 0
            self.taken -= delta
            self.waiting += [(t, False)] * -delta
        self.level += delta
        if delta < 0 and self.level <= 0 and self.at_first > 1:
            self.emptied_at = t
            self.waiting = [(gone, gone >= self.began) for gone, _ in self.waiting]
        if delta > 0:
            self._returned(t, delta)

    def give_back(self, t: float) -> None:
        """One machine less, by our own will."""
        self.machine_seconds += self.level * (t - self.since)
        self.since = t
        self.level -= 1

    def _returned(self, t: float, number: int) -> None:
        if self.emptied_at is not None:
            self.sums += Evidence(outage_hours=(t - self.emptied_at) / 3600)
            self.emptied_at = None
        back, self.waiting = self.waiting[:number], self.waiting[number:]
        waits = [t - gone for gone, outage in back if not outage]
        self.sums += Evidence(returns=len(waits), return_hours=sum(waits) / 3600)

    def _finish_event(self) -> None:
        if self.taken:
            outage = self.at_first > 1 and self.taken >= self.at_first
            self.sums += Evidence(
                events=1, lost=self.taken, outages=int(outage),
                outage_lost=self.taken if outage else 0,
            )  # fmt: skip
            self.taken = 0

    def until(self, seconds: float) -> Evidence:
        self._finish_event()
        hours = (self.machine_seconds + self.level * max(0.0, seconds - self.since)) / 3600
        return self.sums + Evidence(machine_hours=hours)
