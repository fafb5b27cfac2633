"""The machines of a simulated run: a trace on one side, the runner's own recruiting on the other.

``provision/recruit.py`` decides what to ask for and when, exactly as beside a real run; the trace
answers as ``provision/replay.py`` does in front of local machines: an order is filled while there
is something to give, refused a minute later when there is not. Only exchanging machines for cheaper
ones is left out, for it asks how much of the job is left.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count

from provision.outlook import Place as Offered
from provision.recruit import (
    Crew,
    Gain,
    GiveBack,
    Order,
    Rules,
    decide,
    gone,
    joined,
    noticed,
    opened,
    refused,
)
from provision.trace import SpotEvent, Trace
from sailor.cluster.pool import Offer
from sailor.cluster.provisioner import NodeRequest
from sailor.planner.evidence import Place
from sailor.simulate.fleet import Change, Fleet, Lease, NodeEvent

GainOf = Callable[[Mapping[Place, int]], Gain]

ANSWER_S = 60.0  # a cloud takes about a minute to say that it has nothing


def recruited(
    trace: Trace,
    *,
    offers: Mapping[Offered, Offer],
    target: int,
    boot_s: float,
    gain_of: GainOf = lambda members: lambda place: 1.0,
    rules: Rules | None = None,
    answer_s: float = ANSWER_S,
    seed: int = 0,
) -> Fleet:
    """The fleet of a run that wants ``target`` machines of these offers while the trace lasts.

    On-demand offers, whose place ends in False, are always to be had. ``gain_of`` tells, of the
    machines that are members, what one more is worth by place. Raises ValueError for a target below
    one.
    """
    if target < 1 or boot_s < 0:
        raise ValueError("needs a target, and a boot time that is not negative")
    crew = Crew(target=target, offers=offers, rules=rules or Rules(boot_s=boot_s))
    return _Recruiting(
        trace=trace, crew=crew, boot_s=boot_s, gain_of=gain_of, answer_s=answer_s,
        chance=random.Random(f"{seed}:victims"),
    ).run()  # fmt: skip


@dataclass(kw_only=True)
class _Recruiting:
    """One walk through the trace."""

    trace: Trace
    crew: Crew
    boot_s: float
    gain_of: GainOf
    answer_s: float
    chance: random.Random
    now: float = 0.0
    level: dict[Place, int] = field(default_factory=dict)
    held: dict[Place, list[str]] = field(default_factory=dict)
    waiting: dict[Place, deque[NodeRequest]] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    done: list[Lease] = field(default_factory=list)
    events: list[NodeEvent] = field(default_factory=list)
    agenda: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    number: count[int] = field(default_factory=count)
    there: int = 0  # posts that are ordered or members
    woken_at: float = -1.0

    def run(self) -> Fleet:
        for place in self.trace.places:
            self.level[place], self.held[place], self.waiting[place] = 0, [], deque()
        changes, index = self.trace.events, 0
        end = self.trace.seconds
        while True:
            next_change = changes[index].t if index < len(changes) else float("inf")
            next_due = self.agenda[0][0] if self.agenda else float("inf")
            self.now = min(next_change, next_due)
            if self.now >= end:
                break
            while index < len(changes) and changes[index].t <= self.now:
                self._capacity(changes[index])
                index += 1
            while self.agenda and self.agenda[0][0] <= self.now:
                heapq.heappop(self.agenda)[2]()
            self._recruit()
        for lease in self.leases.values():
            lease.end = end
            if lease.ready is not None and lease.ready >= end:
                lease.ready = None
            self.done.append(lease)
        order = sorted(self.events, key=lambda e: (e.t, e.change, e.node))
        leases = tuple(sorted(self.done, key=lambda lease: (lease.begin, lease.node)))
        return Fleet(events=tuple(order), leases=leases, seconds=end, source=self.trace.source)

    def _at(self, t: float, act: Callable[[], None]) -> None:
        heapq.heappush(self.agenda, (t, next(self.number), act))

    # The trace's side

    def _capacity(self, event: SpotEvent) -> None:
        place = (event.zone, event.machine_type)
        self.level[place] += event.delta
        nodes = self.held[place]
        for _ in range(len(nodes) - self.level[place]):
            at = self.chance.randrange(len(nodes))
            nodes[at], nodes[-1] = nodes[-1], nodes[at]
            self._take(nodes.pop(), place, event.notice_seconds)
        if event.delta > 0:
            self._serve(place)

    def _serve(self, place: Place) -> None:
        orders, nodes = self.waiting[place], self.held[place]
        while orders and len(nodes) < self.level[place]:
            self._start(orders.popleft(), place)
        if self.level[place] > len(nodes):
            self.crew = opened(self.crew, (*place, True))

    def _start(self, request: NodeRequest, place: Place, *, on_demand: bool = False) -> None:
        node = request.node
        ready = self.now + self.boot_s
        self.leases[node] = Lease(
            node=node, place=place, begin=self.now, ready=ready, end=self.trace.seconds
        )
        if not on_demand:
            self.held[place].append(node)
        self._at(ready, lambda: self._booted(node, place))

    def _booted(self, node: str, place: Place) -> None:
        if node in self.leases:
            self.crew = joined(self.crew, node, now=self.now)
            self._happens(Change.came, node, place)

    def _take(self, node: str, place: Place, notice_s: float | None) -> None:
        lease = self.leases[node]
        booted = lease.ready is not None and lease.ready <= self.now
        self.there -= 1
        if notice_s is None or not booted:
            self._gone(node, place)
            return
        self.crew = noticed(self.crew, node, now=self.now)
        self._happens(Change.told, node, place, seconds=notice_s)
        self._at(self.now + notice_s, lambda: self._gone(node, place))

    def _gone(self, node: str, place: Place) -> None:
        lease = self.leases.pop(node)
        lease.end = self.now
        if lease.ready is not None and lease.ready <= self.now:
            self._happens(Change.gone, node, place)
        else:
            lease.ready = None
        self.done.append(lease)
        self.crew = gone(self.crew, node, now=self.now, lost=True)

    def _happens(self, change: Change, node: str, place: Place, *, seconds: float = 0.0) -> None:
        self.events.append(
            NodeEvent(t=self.now, change=change, node=node, place=place, seconds=seconds)
        )

    # The runner's side

    def _recruit(self) -> None:
        """Decide and act, when there is something to decide."""
        if self.there >= self.crew.target:
            return
        self.crew, acts = decide(self.crew, now=self.now, gain=self.gain_of(self._members()))
        for act in acts:
            match act:
                case Order(request=request):
                    self.there += 1
                    self._order(request)
                case GiveBack():
                    self.there -= 1
        if self.there < self.crew.target:
            opens = self.crew.opens_at()
            if self.now < opens < float("inf") and opens != self.woken_at:
                self.woken_at = opens
                self._at(opens, lambda: None)

    def _members(self) -> Counter[Place]:
        """Machines that have booted and are not told to go, by place."""
        return Counter(
            {
                (zone, kind): there - on_order
                for (zone, kind, _), (there, on_order) in self.crew.crowd.items()
            }
        )

    def _order(self, request: NodeRequest) -> None:
        place = (request.zone, request.machine_type)
        if not request.spot:
            self._start(request, place, on_demand=True)
            return
        if len(self.held[place]) < self.level[place]:
            self._start(request, place)
            return
        self.waiting[place].append(request)
        self._at(self.now + self.answer_s, lambda: self._refuse(request, place))

    def _refuse(self, request: NodeRequest, place: Place) -> None:
        if request not in self.waiting[place]:
            return
        self.waiting[place].remove(request)
        self.there -= 1
        self.crew = refused(
            self.crew, request.node, now=self.now, why="nothing to be had", retry_s=None,
            lasting=False,
        )  # fmt: skip
