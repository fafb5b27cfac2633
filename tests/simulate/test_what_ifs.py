"""Curves: rougher and dearer worlds, and what a limit is worth."""

from __future__ import annotations

from sailor.planner.futures import Response, Stand, imagine
from sailor.planner.hazard import NEVER, PRIOR
from sailor.planner.risk import Guard, expect, setup_of
from sailor.simulate.what_ifs import chances, sweep_hazard, sweep_price

GUARD = Guard(
    samples=8 * 10 * 3600.0, machines=8, depth=2, state_bytes=1e9,
    response=Response(loss_s=20.0, join_s=5.0, boot_s=45.0), standby_loss_s=20.0, start_s=0.0,
    snapshot_stall_s=0.1, persist_every=100, link_bytes_per_second=1e9,
    storage_bytes_per_second=1e9,
)  # fmt: skip


def speed(counts):
    number = sum(counts.values())
    return (float(number), 10.0) if number >= 2 else None


def a_choice(hazard=PRIOR):
    stand = Stand(place=("a", "m"), machines=8, price_per_hour=1.0, hazard=hazard)
    return expect((stand,), GUARD, speed, standbys=0, copies=0)


def test_a_rougher_world_takes_longer():
    points = sweep_hazard(a_choice(), GUARD, speed, factors=(0.25, 1.0, 4.0), number=200, seed=0)
    medians = [point.hours[0] for point in points]
    assert medians == sorted(medians)
    assert medians[-1] > medians[0]


def test_a_dearer_world_costs_more_and_takes_as_long():
    points = sweep_price(a_choice(), GUARD, speed, factors=(0.5, 1.0, 2.0), number=100, seed=0)
    assert len({point.hours for point in points}) == 1
    base = points[1].dollars[0]
    assert [p.dollars[0] / base for p in points] == [0.5, 1.0, 2.0]


def test_machines_that_stay_keep_their_price():
    points = sweep_price(a_choice(NEVER), GUARD, speed, factors=(0.5, 2.0), number=10, seed=0)
    assert points[0].dollars == points[1].dollars


def test_chances_grow_with_the_limit_and_are_those_of_the_futures():
    futures = imagine(setup_of(a_choice(), GUARD, speed), horizon_hours=40.0, number=300)
    curves = chances(futures)
    for what in ("hours", "dollars"):
        shares = [share for _, share in curves[what]]
        assert shares == sorted(shares)
    limit, share = curves["hours"][10]
    assert futures.chance(hours=limit) == share
