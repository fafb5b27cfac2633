"""Many futures of a run at once: worked out by hand where that can be done, and what must hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sailor.planner.futures import Response, Setup, Stand, imagine
from sailor.planner.hazard import NEVER, PRIOR, Hazard

QUICK = Response(loss_s=0.0, join_s=0.0, boot_s=0.0)
# So much was seen that the rate is as good as known: one event per ten machine-hours.
KNOWN = replace(PRIOR, shape=1e5, rate=1e6, mean_bulk=1.0, outage_share=0.0)


def a_setup(hazard: Hazard, *, machines: int = 4, hours: float = 10.0, **changes) -> Setup:
    """``hours`` of work for all machines, which train in proportion, at 3 dollars an hour each."""
    fields = {
        "stands": [Stand(place=("a", "m"), machines=machines, price_per_hour=3.0, hazard=hazard)],
        "rates": [float(n) for n in range(machines + 1)],
        "step_s": [10.0] * (machines + 1),
        "samples": machines * hours * 3600.0,
        "response": QUICK,
    }
    return Setup(**{**fields, **changes})


def test_machines_that_stay_end_when_the_work_is_done_and_cost_what_they_cost():
    futures = imagine(a_setup(NEVER), horizon_hours=20.0, number=50)
    assert futures.finish_hours == pytest.approx(np.full(50, 10.0), rel=1e-3)
    assert futures.finish_dollars == pytest.approx(np.full(50, 120.0), rel=1e-3)
    assert futures.chance(dollars=121.0, hours=10.1) == 1.0
    assert futures.chance(dollars=119.0) == 0.0


def test_overhead_start_and_redone_work_stretch_the_time():
    setup = a_setup(
        NEVER, start_s=360.0, response=replace(QUICK, overhead=0.1, redone_share=0.2, boot_s=36.0)
    )
    hours = imagine(setup, horizon_hours=40.0, number=5).hours_at(0.5)
    assert hours == pytest.approx(10.0 / 0.9 / 0.8 + 0.11, rel=5e-3)


def test_the_share_of_machines_that_is_up_is_that_of_losses_and_returns():
    """Lost every ten hours, back after an hour: 10 / 11 of them are up in the long run. The first
    hours begin with all of them, which 2 % more than covers."""
    hazard = replace(KNOWN, return_hours=1.0)
    futures = imagine(a_setup(hazard, hours=60.0), horizon_hours=200.0, number=400, seed=3)
    assert futures.finish_hours.mean() == pytest.approx(60.0 * 11 / 10, rel=0.02)
    # What is taken away is not paid for.
    assert futures.finish_dollars.mean() == pytest.approx(4 * 60.0 * 3.0, rel=0.02)


def test_every_loss_costs_its_pause():
    """One machine lost per ten machine-hours, four machines: 0.4 an hour for ten hours. Each stops
    all of them for 60 s, in which the one that is gone (half of an interval of 60 s, a quarter of
    the speed) would have been missed anyhow. A tenth: what the mean of a Poisson number of four
    varies by over 400 futures, four times."""
    hazard = replace(KNOWN, return_hours=1e-6)
    slow = a_setup(hazard, response=replace(QUICK, loss_s=60.0, spread_s=0.0))
    quick = a_setup(hazard)
    costs = [imagine(s, horizon_hours=40.0, number=400, seed=1).finish_hours.mean()
             for s in (slow, quick)]  # fmt: skip
    assert (costs[0] - costs[1]) * 3600 == pytest.approx(4.0 * (60.0 - 60.0 / 2 / 4), rel=0.1)


def test_a_standby_keeps_the_speed_when_one_is_lost():
    hazard = replace(KNOWN, return_hours=2.0)
    five = a_setup(hazard, machines=5)
    rates = [min(float(n), 4.0) for n in range(6)]
    plain = replace(a_setup(hazard), samples=4 * 36_000.0)
    warm = replace(five, rates=rates, samples=4 * 36_000.0)
    hours = [imagine(s, horizon_hours=60.0, number=300).finish_hours.mean() for s in (plain, warm)]
    assert hours[1] < hours[0]


def test_the_same_seed_draws_the_same_futures_and_another_does_not():
    one, same, other = (
        imagine(a_setup(PRIOR), horizon_hours=40.0, number=100, seed=seed) for seed in (1, 1, 2)
    )
    assert np.array_equal(one.finish_hours, same.finish_hours)
    assert not np.array_equal(one.finish_hours, other.finish_hours)


def test_doubt_about_the_rate_widens_the_fan():
    doubtful = replace(KNOWN, shape=0.5, rate=5.0, return_hours=1.0)
    sure = replace(KNOWN, return_hours=1.0)
    widths = [
        f.hours_at(0.9) - f.hours_at(0.1)
        for f in (imagine(a_setup(h), horizon_hours=60.0, number=500) for h in (sure, doubtful))
    ]
    assert widths[1] > 1.2 * widths[0]


def test_quantiles_and_curves_only_grow():
    futures = imagine(a_setup(PRIOR, machines=8), horizon_hours=40.0, number=300)
    assert (np.diff(futures.done, axis=0) >= -1e-9).all()  # with the quantile
    assert (np.diff(futures.done, axis=1) >= -1e-9).all()  # with time
    assert (np.diff(futures.dollars, axis=1) >= -1e-9).all()


def test_what_does_not_end_within_the_horizon_never_ends():
    futures = imagine(a_setup(NEVER), horizon_hours=5.0, number=10)
    assert np.isinf(futures.finish_hours).all()
    assert futures.chance() == 0.0


@pytest.mark.parametrize(
    "wrong",
    [{"horizon_hours": 0.0}, {"horizon_hours": 1.0, "number": 0},
     {"horizon_hours": 1.0, "most_intervals": 0}],
)  # fmt: skip
def test_futures_without_time_or_number_are_refused(wrong):
    with pytest.raises(ValueError, match="horizon"):
        imagine(a_setup(NEVER), **wrong)
