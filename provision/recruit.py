"""Which machines to ask for, and when: decisions over values, no clock, no cloud.

A run wants a number of machines. Whenever fewer are there or on their way, one is asked for at
once: in the place that lost it, else where a dollar buys most. A place that refused is left alone
for a while; an order nobody hears of is given back. A machine is exchanged for a cheaper one only
when that pays for itself over the time that is left, with a margin, and not twice in a row:
membership must not flap. ``provision/recruiter.py`` carries it out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

from provision.outlook import BackOff, Outlook, Place
from sailor.cluster.pool import Offer
from sailor.cluster.provisioner import NodeRequest

Gain = Callable[[Place], float]
"""Tokens per second that one more machine there would add to the machines there are; 0: no use."""


class Seat(Enum):
    """How far a machine of the run has come."""

    ordered = "ordered"
    member = "member"
    leaving = "leaving"  # told to go, by its cloud or by us


@dataclass(frozen=True, kw_only=True, slots=True)
class Post:
    """One machine: where, at what price (dollars an hour), and since when in its present state."""

    place: Place
    price_per_hour: float
    seat: Seat
    since: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """Seconds, dollars, and how much better is better."""

    join_s: float = 1200.0  # an order that has not dialled in by then is given back
    back_off: BackOff = field(default_factory=BackOff)
    dollars_per_hour: float | None = None
    margin: float = 1.2  # a move must save this times its cost
    settle_s: float = 1800.0  # between two moves
    boot_s: float = 180.0  # a machine costs money this long before it is of use


@dataclass(frozen=True, kw_only=True)
class Crew:
    """Everything the decisions know. Small and frozen."""

    target: int
    offers: Mapping[Place, Offer]
    rules: Rules = field(default_factory=Rules)
    posts: Mapping[str, Post] = field(default_factory=dict)
    outlooks: Mapping[Place, Outlook] = field(default_factory=dict)
    vacancies: tuple[Place, ...] = ()  # where machines were lost that are not replaced yet
    next_number: int = 1
    moved_at: float = -math.inf

    def outlook(self, place: Place) -> Outlook:
        """What is known of a place; a blank sheet at first."""
        return self.outlooks.get(place, Outlook())

    @cached_property
    def crowd(self) -> Mapping[Place, tuple[int, int]]:
        """(machines, those of them only ordered) by place. Counted once: decisions ask for every
        place in turn."""
        crowd: dict[Place, tuple[int, int]] = {}
        for post in self.posts.values():
            there, on_order = crowd.get(post.place, (0, 0))
            crowd[post.place] = (there + 1, on_order + (post.seat is Seat.ordered))
        return crowd

    def count(self, *seats: Seat) -> int:
        """Machines in any of these states."""
        return sum(1 for post in self.posts.values() if post.seat in seats)

    @property
    def dollars_per_hour(self) -> float:
        """What runs or may run at any moment now."""
        return sum(post.price_per_hour for post in self.posts.values())

    @property
    def missing(self) -> int:
        """Machines to ask for."""
        return max(0, self.target - self.count(Seat.ordered, Seat.member))

    @property
    def closed_for_good(self) -> bool:
        """Whether every place has refused for a reason that waiting does not mend."""
        return bool(self.offers) and all(
            self.outlook(place).closed_until == math.inf for place in self.offers
        )

    def overdue(self, now: float) -> bool:
        """Whether an order has waited for its machine for too long."""
        return any(
            post.seat is Seat.ordered and now - post.since > self.rules.join_s
            for post in self.posts.values()
        )

    def opens_at(self) -> float:
        """When the next closed place may be asked again; inf when none will."""
        return min((self.outlook(place).closed_until for place in self.offers), default=math.inf)


# What happened


def ordered(crew: Crew, request: NodeRequest, *, now: float) -> Crew:
    """An order was placed, by these decisions or by somebody else."""
    place = (request.zone, request.machine_type, request.spot)
    if request.node in crew.posts:
        return crew
    post = Post(
        place=place, price_per_hour=request.price_per_hour, seat=Seat.ordered, since=now
    )  # fmt: skip
    vacancies = list(crew.vacancies)
    if vacancies:
        vacancies.remove(place if place in vacancies else vacancies[0])
    crew = replace(
        crew,
        posts={**crew.posts, request.node: post},
        vacancies=tuple(vacancies),
        next_number=max(crew.next_number, _number(request.node) + 1),
    )
    return _learned(crew, place, crew.outlook(place).ordered())


def joined(crew: Crew, node: str, *, now: float) -> Crew:
    """Its agent dialled in."""
    post = crew.posts.get(node)
    if post is None or post.seat is not Seat.ordered:
        return crew
    crew = _with_post(crew, node, replace(post, seat=Seat.member, since=now))
    return _learned(crew, post.place, crew.outlook(post.place).came())


def noticed(crew: Crew, node: str, *, now: float) -> Crew:
    """It will be taken away: its place is vacant from now on, not only when it is gone."""
    post = crew.posts.get(node)
    if post is None or post.seat is Seat.leaving:
        return crew
    crew = replace(crew, vacancies=(*crew.vacancies, post.place))
    crew = _with_post(crew, node, replace(post, seat=Seat.leaving))
    outlook = crew.outlook(post.place).went(after_s=now - post.since, preempted=True)
    return _learned(crew, post.place, outlook)


def gone(crew: Crew, node: str, *, now: float, lost: bool) -> Crew:
    """It is not there any more: lost, or given back."""
    post = crew.posts.get(node)
    if post is None:
        return crew
    posts = {name: kept for name, kept in crew.posts.items() if name != node}
    crew = replace(crew, posts=posts)
    if post.seat is Seat.leaving:
        return crew  # booked when it was told to go
    if lost or post.seat is Seat.ordered:
        crew = replace(crew, vacancies=(*crew.vacancies, post.place))
    if post.seat is Seat.ordered:
        return crew
    outlook = crew.outlook(post.place).went(after_s=now - post.since, preempted=lost)
    return _learned(crew, post.place, outlook)


def refused(
    crew: Crew, node: str, *, now: float, why: str, retry_s: float | None, lasting: bool
) -> Crew:
    """Its order came to nothing."""
    post = crew.posts.get(node)
    if post is None:
        return crew
    crew = gone(crew, node, now=now, lost=False)
    outlook = crew.outlook(post.place).refused(
        now=now, back_off=crew.rules.back_off, why=why, retry_s=retry_s, lasting=lasting
    )
    return _learned(crew, post.place, outlook)


def opened(crew: Crew, place: Place) -> Crew:
    """There is something to be had in a place after all."""
    return _learned(crew, place, crew.outlook(place).opened())


# What to do


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """Ask for a machine. ``why`` is for the log."""

    request: NodeRequest
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GiveBack:
    """Release a machine, or withdraw its order. ``withdrawn``: it counts as a refusal."""

    node: str
    why: str
    withdrawn: bool = False


Act = Order | GiveBack


def decide(crew: Crew, *, now: float, gain: Gain) -> tuple[Crew, tuple[Act, ...]]:
    """What to do now, and the crew with that done. The same crew again has nothing to do."""
    acts: list[Act] = []
    for node, post in sorted(crew.posts.items()):
        if post.seat is Seat.ordered and now - post.since > crew.rules.join_s:
            why = f"did not report within {crew.rules.join_s:.0f} s"
            crew = refused(crew, node, now=now, why=why, retry_s=None, lasting=False)
            acts.append(GiveBack(node=node, why=why, withdrawn=True))
    while crew.missing:
        act = _next_order(crew, now=now, gain=gain)
        if act is None:
            break
        acts.append(act)
        crew = ordered(crew, act.request, now=now)
    return crew, tuple(acts)


def consider_move(
    crew: Crew, *, now: float, gain: Gain, remaining_s: float, pause_s: float
) -> tuple[Crew, tuple[Act, ...]]:
    """Exchange one machine for a cheaper one that adds as much, if it pays; else nothing.

    What it saves over the remaining time must be more than a margin times what it costs: paying
    twice while the new machine boots, and everybody's time while training pauses for the change.
    The old machine is given back when the new one has joined (``finish_move``).
    """
    settled = now - crew.moved_at >= crew.rules.settle_s
    if crew.missing or crew.count(Seat.ordered, Seat.leaving) or not settled:
        return crew, ()
    dearest = max(
        ((post.price_per_hour, node) for node, post in crew.posts.items()), default=(0.0, "")
    )
    price, node = dearest
    if not node:
        return crew, ()
    here = crew.posts[node].place
    pause_dollars = pause_s / 3600.0 * crew.dollars_per_hour
    best: tuple[float, Place] | None = None
    for place, offer in sorted(crew.offers.items()):
        if place == here or not _can_give(crew, place, now=now):
            continue
        if gain(place) < gain(here):
            continue
        cost = crew.rules.boot_s / 3600.0 * offer.price_per_hour + pause_dollars
        left_s = remaining_s - crew.rules.boot_s
        saving = (price - offer.price_per_hour) * left_s / 3600.0 * crew.outlook(place).likelihood()
        if saving > crew.rules.margin * cost and (best is None or saving - cost > best[0]):
            best = (saving - cost, place)
    if best is None:
        return crew, ()
    saved, place = best
    request = _request(crew, place)
    why = (
        f"in place of {node} at ${price:.2f}/h: saves ${saved:.2f} over the "
        f"{remaining_s / 3600:.1f} h left, the change paid"
    )
    crew = ordered(crew, request, now=now)
    crew = replace(crew, moved_at=now)
    return crew, (Order(request=request, why=why),)


def finish_move(crew: Crew, *, now: float) -> tuple[Crew, tuple[Act, ...]]:
    """Give back what is too much, the dearest first, once nothing is on its way any more."""
    if crew.count(Seat.ordered) or crew.count(Seat.member) <= crew.target:
        return crew, ()
    members = [
        (p.price_per_hour, p.since, n) for n, p in crew.posts.items() if p.seat is Seat.member
    ]
    _, _, node = max(members)
    return gone(crew, node, now=now, lost=False), (
        GiveBack(node=node, why=f"{crew.target} machines are wanted, this one is the dearest"),
    )


def _next_order(crew: Crew, *, now: float, gain: Gain) -> Order | None:
    """The best place for one more machine now, or None: every place is closed, full or no use."""
    for place in crew.vacancies:
        if _can_give(crew, place, now=now) and gain(place) > 0:
            return Order(request=_request(crew, place), why="replaces one lost in the same place")
    scored = [
        (_score(crew, place, gain), place)
        for place in sorted(crew.offers)
        if _can_give(crew, place, now=now) and gain(place) > 0
    ]
    if not scored:
        return None
    _, place = max(scored, key=lambda entry: entry[0])
    closed = sorted({p[0] for p in crew.vacancies if not crew.outlook(p).is_open(now)})
    instead = f", {', '.join(closed)} being closed" if closed else ""
    return Order(request=_request(crew, place), why=f"most for its price{instead}")


def _score(crew: Crew, place: Place, gain: Gain) -> tuple[bool, float]:
    """Tokens for a dollar, by what can be expected of the place; what is free comes first."""
    worth = gain(place) * crew.outlook(place).likelihood()
    price = crew.offers[place].price_per_hour
    return price == 0.0, worth / (price or 1.0)


def _can_give(crew: Crew, place: Place, *, now: float) -> bool:
    """Whether one more may be asked for there. A place that has just refused is tried with one
    machine at a time: it may have one where it did not have four."""
    offer = crew.offers.get(place)
    outlook = crew.outlook(place)
    if offer is None or not outlook.is_open(now):
        return False
    there, on_order = crew.crowd.get(place, (0, 0))
    if there >= offer.count or (outlook.refusals and on_order):
        return False
    limit = crew.rules.dollars_per_hour
    return limit is None or crew.dollars_per_hour + offer.price_per_hour <= limit


def _request(crew: Crew, place: Place) -> NodeRequest:
    zone, machine_type, spot = place
    return NodeRequest(
        node=f"node-{crew.next_number}",
        zone=zone,
        machine_type=machine_type,
        spot=spot,
        price_per_hour=crew.offers[place].price_per_hour,
    )


def _with_post(crew: Crew, node: str, post: Post) -> Crew:
    return replace(crew, posts={**crew.posts, node: post})


def _learned(crew: Crew, place: Place, outlook: Outlook) -> Crew:
    return replace(crew, outlooks={**crew.outlooks, place: outlook})


def _number(node: str) -> int:
    """The number in a name like node-7; 0 in others."""
    _, _, number = node.rpartition("-")
    return int(number) if number.isdigit() else 0
