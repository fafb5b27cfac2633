"""What is rented and how it is guarded when machines may vanish."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest

from sailor.planner.futures import Response, Stand
from sailor.planner.hazard import NEVER, PRIOR
from sailor.planner.risk import Guard, Pay, choose, expect, needs, options, rank, up_share

CALM = replace(PRIOR, shape=2.0, rate=200.0, outage_share=0.0)
ROUGH = replace(PRIOR, shape=100.0, rate=200.0, outage_share=0.0)
STEP_S = 10.0


def a_guard(**changes) -> Guard:
    fields = {
        "samples": 1e6, "machines": 8, "depth": 2, "state_bytes": 1e10,
        "response": Response(loss_s=20.0, join_s=5.0, boot_s=45.0), "standby_loss_s": 20.0,
        "start_s": 60.0, "snapshot_stall_s": 0.5, "persist_every": 100,
        "link_bytes_per_second": 1e9, "storage_bytes_per_second": 1e9, "most_standbys": 1,
    }  # fmt: skip
    return Guard(**{**fields, **changes})


def speed(counts):
    number = sum(counts.values())
    return (float(number), STEP_S) if number >= 2 else None


def a_pay(zone: str, hazard=CALM, price: float = 1.0, machines: int = 8) -> Pay:
    return Pay(place=(zone, "m"), machines=machines, price_per_hour=price, hazard=hazard)


def stands(*hazards, machines: int = 4):
    return tuple(
        Stand(place=(zone, "m"), machines=machines, price_per_hour=1.0, hazard=hazard)
        for zone, hazard in zip("abcd", hazards, strict=False)
    )


def test_machines_that_stay_train_all_the_time_and_are_paid_for_all_the_time():
    found = expect(stands(NEVER, NEVER), a_guard(snapshot_stall_s=0.0), speed, standbys=0, copies=0)
    assert found.samples_per_second == pytest.approx(8.0)
    assert found.dollars_per_hour == pytest.approx(8.0)
    assert (found.redone_share, found.pause_share) == (0.0, 0.0)


def test_losses_cost_pauses_machines_and_what_they_would_have_trained():
    """One loss event per two machine-hours of 1.5 machines each, back after 20 minutes."""
    found = expect(stands(ROUGH, ROUGH), a_guard(), speed, standbys=0, copies=0)
    up = up_share(ROUGH)
    assert up == pytest.approx(1 / (1 + 0.75 / 3))
    losses = 8 * up * 0.75
    assert found.pause_share == pytest.approx(losses * (20 + 5 + 5) / 3600, rel=1e-6)
    assert found.samples_per_second < 8.0 * up * (1 - found.pause_share)


def test_too_few_machines_for_part_of_the_time_train_for_the_rest_of_it():
    """Two machines that only train together: whichever is away, nobody trains."""
    two = stands(ROUGH, machines=2)
    found = expect(two, a_guard(machines=2, snapshot_stall_s=0.0), speed, standbys=0, copies=1)
    assert 0.0 < found.samples_per_second < 2.0 * up_share(ROUGH)


def test_a_copy_is_needed_only_where_a_loss_takes_every_owner():
    spread = stands(ROUGH, ROUGH)
    up = {0: 4.0, 1: 4.0}
    assert needs(spread, up, 2, copies=0) == (0.0, 0.0)  # either place holds a whole copy
    single = stands(ROUGH, machines=2)
    in_memory, from_disk = needs(single, {0: 2.0}, 2, copies=1)
    assert in_memory > 0.0
    assert from_disk == 0.0  # no outages here
    shut = (replace(single[0], hazard=replace(ROUGH, outage_share=0.2)),)
    assert needs(shut, {0: 2.0}, 2, copies=1)[1] > 0.0  # an outage takes the copies along


def test_snapshots_come_as_often_as_young_has_it():
    """k = sqrt(2 stall / need) / step, within what copies can travel and durable ones are apart."""
    guard = a_guard(persist_every=10_000, depth=4, machines=4)
    single = stands(CALM, machines=4)
    found = expect(single, guard, speed, standbys=0, copies=1)
    up = {0: 4 * up_share(CALM)}
    in_memory, _ = needs(single, up, 4, copies=1)
    young = sqrt(2 * guard.snapshot_stall_s * 3600 / in_memory) / STEP_S
    assert found.snapshot_every == pytest.approx(young, rel=0.02)
    slow = replace(guard, link_bytes_per_second=1e6)  # 2,500 s to copy a machine's share
    assert expect(single, slow, speed, standbys=0, copies=1).snapshot_every >= 250
    often = replace(guard, persist_every=3)
    assert expect(single, often, speed, standbys=0, copies=1).snapshot_every == 3


def test_options_are_one_place_many_places_machines_that_stay_and_one_copy_that_stays():
    offers = [a_pay("a"), a_pay("b"), a_pay("a", NEVER, price=3.0)]
    found = {
        tuple((s.place[0], bool(s.hazard.shape), s.machines) for s in way)
        for way in options(offers, machines=8, depth=2)
    }
    assert found == {
        (("a", True, 8),), (("b", True, 8),), (("a", True, 4), ("b", True, 4)),
        (("a", False, 8),), (("a", False, 2), ("a", True, 6)), (("a", False, 2), ("b", True, 6)),
        (("a", False, 2), ("a", True, 3), ("b", True, 3)),
    }  # fmt: skip


def test_the_cheapest_useful_sample_comes_first():
    ranked = rank([a_pay("calm"), a_pay("rough", ROUGH)], a_guard(), speed)
    prices = [choice.dollars_per_sample for choice in ranked]
    assert prices == sorted(prices)
    assert {s.place[0] for s in ranked[0].stands} == {"calm"}


def test_a_rough_place_is_taken_when_it_is_cheap_enough_and_not_before():
    def first(price: float) -> set[str]:
        offers = [a_pay("calm"), a_pay("rough", ROUGH, price=price)]
        return {s.place[0] for s in rank(offers, a_guard(), speed)[0].stands}

    assert first(1.0) == {"calm"}
    assert first(0.3) == {"rough"}


def test_the_choice_is_lived_through_and_ordered_by_its_mean_price():
    judged = choose([a_pay("a"), a_pay("b", ROUGH, price=0.9)], a_guard(), speed, number=100)
    means = [float(j.futures.finish_dollars.mean()) for j in judged]
    assert means == sorted(means)
    for entry in judged:
        assert entry.dollars[0] <= entry.dollars[1]
        assert entry.hours[0] <= entry.hours[1]


def test_nowhere_to_train_is_said():
    with pytest.raises(ValueError, match="no way to place"):
        choose([a_pay("a", machines=1)], a_guard(machines=1), speed)
