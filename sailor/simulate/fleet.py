"""Which machines a run holds when: a trace of capacity turned into machines that come and go.

A trace says how many machines each place has to give. Here orders are placed for them, machines
boot, and when a place takes some back, some of those held there are told and go. What comes out, a
``Fleet``, does not depend on what is trained on it, so every policy meets the same machines and the
gain of having more of them is kept apart from the gain of using them better.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from sailor.errors import DataError
from sailor.planner import evidence
from sailor.planner.evidence import Place


class CapacityEvent(evidence.CapacityEvent, Protocol):
    """What a trace is made of; ``provision.trace.SpotEvent`` in real life."""

    @property
    def notice_seconds(self) -> float | None: ...


class Change(IntEnum):
    """What happens to a machine. In one moment, losses come first."""

    gone = 0
    told = 1  # it will go in NodeEvent.seconds
    came = 2  # booted, its agent has dialled in


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeEvent:
    """At ``t`` something happens to a machine."""

    t: float
    change: Change
    node: str
    place: Place
    seconds: float = 0.0


@dataclass(kw_only=True, slots=True)
class Lease:
    """One machine, from its order's grant to its end; ``ready`` None: gone before it had booted."""

    node: str
    place: Place
    begin: float
    ready: float | None
    end: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """All machines of ``seconds`` of time, as events in order and as leases."""

    events: tuple[NodeEvent, ...]
    leases: tuple[Lease, ...]
    seconds: float
    source: str

    @property
    def num_lost(self) -> int:
        """Machines that had come and were taken."""
        return sum(1 for e in self.events if e.change is Change.gone)

    @property
    def node_seconds(self) -> float:
        """Seconds of machines that were usable."""
        return sum(x.end - x.ready for x in self.leases if x.ready is not None)

    @property
    def rented_seconds(self) -> float:
        """Seconds of machines that were paid for, booting included."""
        return sum(lease.end - lease.begin for lease in self.leases)

    def dollars(self, prices: Mapping[Place, float]) -> float:
        """What the leases cost; ``prices`` in US dollars per machine-hour."""
        return sum((x.end - x.begin) / 3600 * prices[x.place] for x in self.leases)

    def levels(self) -> list[tuple[float, float, int]]:
        """(begin, end, usable machines) of every stretch without a change, from 0 to the end."""
        stretches, up, begin = [], 0, 0.0
        for event in self.events:
            if event.change is Change.told:
                continue
            if event.t > begin:
                stretches.append((begin, event.t, up))
                begin = event.t
            up += 1 if event.change is Change.came else -1
        if self.seconds > begin:
            stretches.append((begin, self.seconds, up))
        return stretches


Order = Callable[[Mapping[Place, int], Mapping[Place, int]], Place]
"""Which place to order the next machine from, given machines free and held by place. Only called
when something is free."""


def in_turn(places: Sequence[Place]) -> Order:
    """Fill the first place, then the second: cheapest first when sorted by price."""

    def choose(free: Mapping[Place, int], held: Mapping[Place, int]) -> Place:
        return next(place for place in places if free.get(place, 0) > 0)

    return choose


def spread(places: Sequence[Place]) -> Order:
    """Keep the places as even as capacity allows; earlier ones win ties."""

    def choose(free: Mapping[Place, int], held: Mapping[Place, int]) -> Place:
        usable = [place for place in places if free.get(place, 0) > 0]
        return min(usable, key=lambda place: (held.get(place, 0), places.index(place)))

    return choose


@dataclass(kw_only=True)
class _Market:
    """Capacity and holdings at one moment."""

    target: int
    boot_seconds: float
    seconds: float
    order: Order
    chance: random.Random
    level: dict[Place, int]
    held: dict[Place, list[str]]  # not told to go; booting ones included
    events: list[tuple[float, int, int, NodeEvent]] = field(default_factory=list)
    open: dict[str, Lease] = field(default_factory=dict)
    leases: list[Lease] = field(default_factory=list)

    def rent(self, t: float) -> None:
        """Order what is missing, as far as there is capacity."""
        missing = self.target - sum(len(nodes) for nodes in self.held.values())
        if missing <= 0:
            return
        free = {p: n for p in self.level if (n := self.level[p] - len(self.held[p])) > 0}
        while missing > 0 and free:
            place = self.order(free, {p: len(nodes) for p, nodes in self.held.items()})
            free[place] -= 1
            if not free[place]:
                del free[place]
            missing -= 1
            self._start(t, place)

    def _start(self, t: float, place: Place) -> None:
        node = f"n{len(self.leases):06d}"  # of one width: names in order of time sort like numbers
        ready = t + self.boot_seconds
        lease = Lease(node=node, place=place, begin=t, ready=ready, end=self.seconds)
        if ready >= self.seconds:
            lease.ready = None
        else:
            self._happens(ready, Change.came, node, place)
        self.leases.append(lease)
        self.open[node] = lease
        self.held[place].append(node)

    def take(self, t: float, place: Place, notice_seconds: float | None) -> None:
        """Let go what is held beyond the place's level, at once or after a notice."""
        nodes = self.held[place]
        while len(nodes) > self.level[place]:
            at = self.chance.randrange(len(nodes))
            nodes[at], nodes[-1] = nodes[-1], nodes[at]
            lease = self.open.pop(nodes.pop())
            booted = lease.ready is not None and lease.ready < t  # ready and gone at once is no use
            lease.end = min(self.seconds, t + (notice_seconds or 0.0)) if booted else t
            if not booted:
                lease.ready = None  # gone before it could be of use
                continue
            if notice_seconds is not None:
                self._happens(t, Change.told, lease.node, place, seconds=notice_seconds)
            if lease.end < self.seconds:
                self._happens(lease.end, Change.gone, lease.node, place)

    def _happens(
        self, t: float, change: Change, node: str, place: Place, *, seconds: float = 0.0
    ) -> None:
        event = NodeEvent(t=t, change=change, node=node, place=place, seconds=seconds)
        self.events.append((t, change, len(self.events), event))


def rent(
    capacity: Iterable[CapacityEvent],
    *,
    seconds: float,
    target: int,
    boot_seconds: float,
    seed: int = 0,
    order: Order | None = None,
    source: str = "",
) -> Fleet:
    """Hold up to ``target`` machines for ``seconds``, ordering replacements as soon as one goes.

    ``capacity``: changes in order of time. ``order`` says where to ask first (default: spread
    evenly). Who is taken is drawn by ``seed``, for a cloud does not ask who is needed. Raises
    DataError E508 for changes out of order or below nothing, and ValueError for a bad number.
    """
    if target < 1 or boot_seconds < 0 or seconds <= 0:
        raise ValueError("needs a target, a time to fill and a boot time that is not negative")
    changes = list(capacity)
    places = tuple(dict.fromkeys((e.zone, e.machine_type) for e in changes))
    market = _Market(
        target=target,
        boot_seconds=boot_seconds,
        seconds=seconds,
        order=order or spread(places),
        chance=random.Random(f"{seed}:victims"),
        level=dict.fromkeys(places, 0),
        held={place: [] for place in places},
    )
    now = 0.0
    for number, change in enumerate(changes):
        if change.t < now:
            _refuse(f"at {change.t:g} s, after one at {now:g} s", source)
        if change.t >= seconds:
            break
        now = change.t
        place = (change.zone, change.machine_type)
        market.level[place] += change.delta
        if market.level[place] < 0:
            _refuse(f"{change.zone} gives fewer than no machines at {now:g} s", source)
        if change.delta < 0:
            market.take(now, place, change.notice_seconds)
        following = changes[number + 1].t if number + 1 < len(changes) else None
        if following != now:  # several changes of one moment are one
            market.rent(now)
    alive = {lease.node for lease in market.leases if lease.ready is not None}
    events = tuple(e for *_, e in sorted(market.events) if e.node in alive)
    return Fleet(events=events, leases=tuple(market.leases), seconds=seconds, source=source)


def _refuse(why: str, source: str) -> None:
    raise DataError(
        "the capacity changes cannot be walked", code="E508", why=why, where=source,
        fix="cloud.trace.paths=[]   draws one; docs/traces.md shows the formats: sorted by time",
    )  # fmt: skip
