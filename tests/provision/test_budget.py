"""When to stop for money or time: early enough that what stopping takes still fits."""

from __future__ import annotations

import pytest

from provision.budget import Budget, Standing, Wait, reason_to_stop
from sailor.observe.events import Event
from tests.observe.run_story import demo

HOUR = 3600.0


def a_standing(**changes: float) -> Standing:
    fields = {
        "step": 100,
        "total_steps": 1000,
        "step_s": 2.0,
        "slowest_step_s": 3.0,
        "save_s": 10.0,
    }
    return Standing(**{**fields, **changes})


def why(budget: Budget, *, spent: float = 0.0, rate: float = 36.0, now: float = 0.0) -> str:
    return reason_to_stop(
        budget, a_standing(), spent=spent, dollars_per_hour=rate, now=now, release_s=30.0
    )


def test_a_run_stops_when_what_is_left_pays_for_stopping():
    """At $36 an hour, a cent a second, step, save twice and release are 53 s and $0.53."""
    budget = Budget(total_dollars=10.0)
    assert why(budget, spent=9.46) == ""
    assert "stopping costs $0.53" in why(budget, spent=9.47)
    assert why(Budget(), spent=1e9) == ""
    assert why(budget, spent=20.0, rate=0.0) == ""  # nothing is paid for: nothing is saved


def test_the_cap_is_never_exceeded_by_more_than_a_step():
    """A run of random prices that looks once a second, stops as told, and takes what it said to
    take: what is spent in the end stays below the cap, and less than a step above it if the last
    step is twice the slowest so far."""
    budget = Budget(total_dollars=3.0)
    standing = a_standing()
    for rate in (5.0, 40.0, 97.0):
        spent = 0.0
        while not reason_to_stop(
            budget, standing, spent=spent, dollars_per_hour=rate, now=0.0, release_s=30.0
        ):
            spent += rate / HOUR
        said = rate * standing.closing_s(release_s=30.0) / HOUR
        look = rate / HOUR
        assert spent + said <= 3.0 + look
        late_step = rate * standing.slowest_step_s / HOUR
        assert spent + said + late_step <= 3.0 + look + late_step


def test_a_controllers_machine_that_waits_for_its_results_to_be_fetched_stays_within_the_cap():
    """It costs $0.36 an hour; wished are 24 h, and 15 min pass until an idle one is ended."""
    wait = Wait(price_per_hour=0.36, wish_s=24 * HOUR, idle_s=900.0)
    assert wait.dollars_kept(1000.0) == pytest.approx(0.36 * 24.25), "the whole wait"
    assert wait.dollars_kept(20.0) == pytest.approx(1.0), "a small share of a small budget"
    assert wait.dollars_kept(0.5) == pytest.approx(0.36 * 1500 / HOUR), "ten minutes, whatever"
    assert wait.seconds_paid(1000.0) == 24 * HOUR
    assert wait.seconds_paid(0.0) == 60.0
    budget, standing = Budget(total_dollars=20.0), a_standing()
    spent, kept = 0.0, wait.dollars_kept(20.0)
    while not reason_to_stop(
        budget, standing, spent=spent, dollars_per_hour=40.36, now=0.0, release_s=30.0, kept=kept
    ):
        spent += 40.36 / HOUR
    spent += 40.36 * standing.closing_s(release_s=30.0) / HOUR
    stays_s = wait.seconds_paid(20.0 - spent)
    assert stays_s > 2 * HOUR
    assert spent + 0.36 * (stays_s + 900.0) / HOUR <= 20.0 + 1e-6


def test_a_free_one_waits_as_long_as_wished():
    wait = Wait(price_per_hour=0.0, wish_s=HOUR, idle_s=900.0)
    assert (wait.dollars_kept(10.0), wait.seconds_paid(-5.0)) == (0.0, HOUR)


def test_the_deadline_leaves_time_to_save():
    budget = Budget(deadline_s=HOUR)
    assert why(budget, now=HOUR - 54.0) == ""
    assert "stopping takes 53 s" in why(budget, now=HOUR - 53.0)


def test_a_standing_is_read_from_the_log():
    standing = Standing()
    for event in demo().events:
        standing = standing.after(event)
    assert (standing.step, standing.total_steps) == (20, 20)
    assert standing.remaining_s() == 0.0
    assert standing.step_s > 0
    assert standing.slowest_step_s >= standing.step_s


def a_step(number: int, seconds: float) -> Event:
    return Event(
        seq=number, t=float(number), time="", run="r", generation=1, kind="step",
        fields={"step": number, "seconds": seconds},
    )  # fmt: skip


def test_one_slow_step_is_remembered_and_slowly_forgotten():
    standing = Standing(total_steps=1000)
    assert standing.remaining_s() is None
    for number, seconds in enumerate([1.0] * 5 + [9.0] + [1.0] * 3, start=1):
        standing = standing.after(a_step(number, seconds))
    assert 4.0 < standing.slowest_step_s < 9.0
    for number in range(10, 60):
        standing = standing.after(a_step(number, 1.0))
    assert standing.slowest_step_s == pytest.approx(1.0, abs=0.1)
    assert standing.remaining_s() == pytest.approx(941.0, rel=0.05)
