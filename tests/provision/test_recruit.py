"""Which machines are asked for, and when: the decisions, on a clock that the test moves."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

from provision.outlook import BackOff, Outlook, Place, foreseen
from provision.recruit import (
    Crew,
    GiveBack,
    Order,
    Rules,
    Seat,
    consider_move,
    decide,
    finish_move,
    gone,
    joined,
    noticed,
    opened,
    ordered,
    refused,
)
from provision.spot_model import ZoneModel, draw
from sailor.cluster.gpu import GPU_TYPES
from sailor.cluster.pool import MachineType, Offer, Zone
from sailor.cluster.provisioner import NodeRequest

A, B, C = ("a", "m", True), ("b", "m", True), ("c", "m", True)
HOUR = 3600.0


def an_offer(place: Place, *, price: float = 1.0, count: int = 10) -> Offer:
    zone, machine_type, spot = place
    return Offer(
        machine_type=MachineType(
            name=machine_type, gpu=GPU_TYPES["L4-24"], num_gpus=1, network_bytes_per_second=1e9,
            source="test",
        ),
        zone=Zone(name=zone, region=zone, cloud="test"), spot=spot, price_per_hour=price,
        count=count, source="test", as_of="2026-01-01",
    )  # fmt: skip


def a_crew(prices: dict[Place, float], *, target: int, count: int = 10, **rules: object) -> Crew:
    offers = {place: an_offer(place, price=price, count=count) for place, price in prices.items()}
    return Crew(target=target, offers=offers, rules=Rules(**rules))


def all_alike(place: Place) -> float:
    return 100.0


def places(acts: tuple[object, ...]) -> list[str]:
    return [act.request.zone for act in acts if isinstance(act, Order)]


def with_members(crew: Crew, *there: Place, now: float = 0.0) -> Crew:
    for i, place in enumerate(there, start=1):
        zone, machine_type, spot = place
        request = NodeRequest(
            node=f"node-{i}", zone=zone, machine_type=machine_type, spot=spot,
            price_per_hour=crew.offers[place].price_per_hour,
        )  # fmt: skip
        crew = joined(ordered(crew, request, now=now), request.node, now=now)
    return crew


def no(crew: Crew, node: str, *, now: float, lasting: bool = False) -> Crew:
    return refused(crew, node, now=now, why="none", retry_s=None, lasting=lasting)


def test_what_is_lost_is_asked_for_at_once_and_in_the_same_place() -> None:
    crew = with_members(a_crew({A: 1.0, B: 0.5}, target=2), A, A)
    crew, acts = decide(gone(crew, "node-1", now=50.0, lost=True), now=50.0, gain=all_alike)
    assert places(acts) == ["a"]
    assert acts[0].request.node == "node-3"
    assert "same place" in acts[0].why
    assert decide(crew, now=50.0, gain=all_alike) == (crew, ())


def test_a_notice_is_as_good_as_a_loss_and_the_loss_after_it_asks_for_nothing_more() -> None:
    crew = with_members(a_crew({A: 1.0}, target=2), A, A)
    crew, acts = decide(noticed(crew, "node-1", now=9.0), now=9.0, gain=all_alike)
    assert places(acts) == ["a"]
    crew = gone(crew, "node-1", now=39.0, lost=True)
    assert decide(crew, now=39.0, gain=all_alike)[1] == ()
    assert crew.outlook(A).lost == 1


def test_where_the_place_refuses_the_next_best_is_asked() -> None:
    """Price, what can be expected of the place, and what the run gains there, together."""
    crew = with_members(a_crew({A: 1.0, B: 2.0, C: 4.0}, target=1), A)
    crew, acts = decide(gone(crew, "node-1", now=5.0, lost=True), now=5.0, gain=all_alike)
    crew = no(crew, acts[0].request.node, now=65.0)
    assert places(decide(crew, now=65.0, gain=all_alike)[1]) == ["b"]
    gains = {A: 100.0, B: 100.0, C: 250.0}  # C costs twice what B does, and brings more than that
    assert places(decide(crew, now=65.0, gain=gains.__getitem__)[1]) == ["c"]
    gains[C] = 0.0
    gains[B] = 0.0
    assert decide(crew, now=65.0, gain=gains.__getitem__)[1] == ()


def test_a_place_that_often_loses_machines_is_worth_less() -> None:
    crew = a_crew({A: 1.0, B: 1.0}, target=1)
    crew = replace(crew, outlooks={
        A: Outlook(asked=4, granted=4, lost=4, node_seconds=2 * HOUR),
        B: Outlook(asked=4, granted=4, lost=0, node_seconds=20 * HOUR),
    })  # fmt: skip
    assert places(decide(crew, now=0.0, gain=all_alike)[1]) == ["b"]


def test_a_place_is_left_alone_longer_after_each_refusal_in_a_row() -> None:
    back_off = BackOff(first_s=60.0, longest_s=400.0)
    crew = a_crew({A: 1.0}, target=1, back_off=back_off)
    now, waits = 0.0, []
    for _ in range(5):
        crew, acts = decide(crew, now=now, gain=all_alike)
        assert places(acts) == ["a"]
        crew = no(crew, acts[0].request.node, now=now)
        assert decide(crew, now=crew.opens_at() - 1.0, gain=all_alike)[1] == ()
        waits.append(crew.opens_at() - now)
        now = crew.opens_at()
    assert waits == [60.0, 120.0, 240.0, 400.0, 400.0]
    crew, acts = decide(crew, now=now, gain=all_alike)
    crew = joined(crew, acts[0].request.node, now=now)
    assert crew.outlook(A).refusals == 0


def test_a_place_that_refused_four_is_tried_with_one() -> None:
    crew, acts = decide(a_crew({A: 1.0}, target=4), now=0.0, gain=all_alike)
    assert len(acts) == 4
    for act in acts:
        crew = no(crew, act.request.node, now=10.0)
    crew, acts = decide(crew, now=crew.opens_at(), gain=all_alike)
    assert len(acts) == 1
    crew, acts = decide(joined(crew, acts[0].request.node, now=99.0), now=99.0, gain=all_alike)
    assert len(acts) == 3


def test_whoever_knows_of_capacity_opens_a_place_but_not_one_without_permission() -> None:
    crew, acts = decide(a_crew({A: 1.0}, target=1), now=0.0, gain=all_alike)
    crew = no(crew, acts[0].request.node, now=0.0)
    assert places(decide(opened(crew, A), now=1.0, gain=all_alike)[1]) == ["a"]
    barred = no(crew, "node-1", now=0.0)
    crew, acts = decide(opened(barred, A), now=1.0, gain=all_alike)
    crew = opened(no(crew, acts[0].request.node, now=1.0, lasting=True), A)
    assert crew.closed_for_good
    assert decide(crew, now=1e9, gain=all_alike)[1] == ()


def test_an_order_that_nobody_hears_of_is_given_back_and_placed_elsewhere() -> None:
    crew, first = decide(a_crew({A: 1.0, B: 2.0}, target=1, join_s=900.0), now=0.0, gain=all_alike)
    assert decide(crew, now=900.0, gain=all_alike)[1] == ()
    _, acts = decide(crew, now=901.0, gain=all_alike)
    assert acts[0] == GiveBack(
        node=first[0].request.node, why="did not report within 900 s", withdrawn=True
    )
    assert places(acts) == ["b"]


def test_the_hourly_limit_and_the_number_on_offer_are_never_exceeded() -> None:
    crew, acts = decide(
        a_crew({A: 1.0, B: 2.0}, target=9, count=3, dollars_per_hour=6.0), now=0.0, gain=all_alike
    )
    assert Counter(places(acts)) == {"a": 3, "b": 1}
    assert crew.dollars_per_hour == 5.0


def test_a_machine_is_exchanged_only_when_that_pays() -> None:
    """Saves 0.5 $/h, likely 0.44 of it. The change costs 3 min of 0.5 $/h and 36 s of 1.0 $/h."""
    crew = with_members(a_crew({A: 1.0, B: 0.5}, target=1), A)

    def move(remaining_s: float, crew: Crew = crew) -> list[str]:
        acts = consider_move(
            crew, now=HOUR, gain=all_alike, remaining_s=remaining_s, pause_s=36.0
        )[1]  # fmt: skip
        return places(acts)

    assert move(10 * HOUR) == ["b"]
    assert move(0.1 * HOUR) == []
    cost = 180 / HOUR * 0.5 + 36 / HOUR * 1.0
    breaks_even_s = 180 + 1.2 * cost / (0.5 * Outlook().likelihood()) * HOUR
    assert move(breaks_even_s + 1.0) == ["b"]
    assert move(breaks_even_s - 1.0) == []
    assert move(10 * HOUR, noticed(crew, "node-1", now=0.0)) == []  # busy with a loss
    assert move(10 * HOUR, replace(crew, moved_at=HOUR - 60.0)) == []  # only just moved


def test_an_exchange_gives_the_old_machine_back_when_the_new_one_is_there() -> None:
    crew = with_members(a_crew({A: 1.0, B: 0.5}, target=1), A)
    crew, acts = consider_move(crew, now=HOUR, gain=all_alike, remaining_s=10 * HOUR, pause_s=1.0)
    assert finish_move(crew, now=HOUR)[1] == ()
    crew = joined(crew, acts[0].request.node, now=HOUR + 200.0)
    crew, acts = finish_move(crew, now=HOUR + 200.0)
    assert [act.node for act in acts] == ["node-1"]
    assert decide(crew, now=HOUR + 200.0, gain=all_alike)[1] == ()
    assert finish_move(crew, now=HOUR + 200.0)[1] == ()


def test_an_exchange_that_is_refused_changes_nothing() -> None:
    crew = with_members(a_crew({A: 1.0, B: 0.5}, target=1), A)
    crew, acts = consider_move(crew, now=HOUR, gain=all_alike, remaining_s=10 * HOUR, pause_s=1.0)
    crew = no(crew, acts[0].request.node, now=HOUR + 60.0)
    assert decide(crew, now=HOUR + 60.0, gain=all_alike)[1] == ()
    assert crew.count(Seat.member) == 1


def test_a_place_is_worth_what_is_believed_of_it_beforehand() -> None:
    calm = foreseen(losses=1.0, machine_hours=40.0)
    assert calm.likelihood() > Outlook().likelihood() > foreseen(losses=8.0).likelihood()
    stays = foreseen(losses=0.0, machine_hours=1.0)
    assert stays.likelihood() == 0.5  # of which nothing but the order is in doubt
    assert foreseen(obtainable=1.0).likelihood() > foreseen(obtainable=0.25).likelihood()


def test_likelihood_is_a_share_and_follows_what_happened() -> None:
    blank = Outlook().likelihood()
    assert blank == pytest.approx(0.5 * (1 - math.exp(-0.25)) / 0.25)
    good = Outlook(asked=10, granted=10, node_seconds=100 * HOUR)
    bad = Outlook(asked=10, granted=1, lost=5, node_seconds=2 * HOUR)
    assert 0 < bad.likelihood() < blank < good.likelihood() < 1


class Market:
    """Many zones that give and take machines, on a simulated clock, and one crew that lives there.

    Orders are answered after a minute: filled while the zone has some to give, else refused.
    """

    def __init__(self, zones: list[ZoneModel], *, target: int, seconds: float, seed: int) -> None:
        prices = {(zone.zone, "m", True): 1.0 + 0.1 * i for i, zone in enumerate(zones)}
        self.crew = a_crew(prices, target=target, count=target)
        self.trace = draw(zones, seconds=seconds, seed=seed)
        self.capacity: Counter[str] = Counter()
        self.due: list[tuple[float, str]] = []
        self.up_seconds = 0.0
        self.orders = self.filled = self.lost = 0

    def run(self) -> None:
        events = list(self.trace.events)
        now, step = 0.0, 30.0
        while now < self.trace.seconds:
            while events and events[0].t <= now:
                event = events.pop(0)
                self.capacity[event.zone] += event.delta
                self._take(event.zone, now)
            for at, node in [entry for entry in self.due if entry[0] <= now]:
                self.due.remove((at, node))
                self._answer(node, now)
            self.crew, acts = decide(self.crew, now=now, gain=all_alike)
            for act in acts:
                assert isinstance(act, Order)
                self.orders += 1
                self.due.append((now + 60.0, act.request.node))
            self.up_seconds += step * self.crew.count(Seat.member)
            now += step

    def _held(self, zone: str) -> list[str]:
        return [
            node for node, post in self.crew.posts.items()
            if post.place[0] == zone and post.seat is Seat.member
        ]  # fmt: skip

    def _take(self, zone: str, now: float) -> None:
        held = self._held(zone)
        for node in held[: max(0, len(held) - self.capacity[zone])]:
            self.lost += 1
            self.crew = gone(self.crew, node, now=now, lost=True)

    def _answer(self, node: str, now: float) -> None:
        zone = self.crew.posts[node].place[0]
        if len(self._held(zone)) < self.capacity[zone]:
            self.filled += 1
            self.crew = joined(self.crew, node, now=now)
        else:
            self.crew = no(self.crew, node, now=now)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_thousand_machines_are_kept_up_in_a_rough_market_without_a_storm_of_orders(
    seed: int,
) -> None:
    """Twelve zones of 200 machines, each losing one per 4 node-hours in bulk, some shut for an
    hour; 1,000 wanted for 12 hours. What no policy can have is what all zones together lack."""
    zones = [
        ZoneModel(
            zone=f"z{i:02}", machine_type="m", machines=200, node_hours_per_loss=4.0,
            mean_bulk=20.0, outage_share=0.02, return_minutes=10.0,
        )
        for i in range(12)
    ]  # fmt: skip
    market = Market(zones, target=1000, seconds=12 * HOUR, seed=seed)
    market.run()
    assert market.lost > 1000  # it is rough: every machine is lost more than once on average
    # A lost machine is missed for the 30 s until somebody looks and the minute of the answer:
    # with losses of 250 machines an hour that is 1 % of the time, and a refusal here and there.
    assert market.up_seconds / (1000 * 12 * HOUR) > 0.95
    assert market.orders < 2 * (1000 + market.lost)  # no more than one refusal per order filled
    assert market.crew.count(Seat.member, Seat.ordered) <= 1000
