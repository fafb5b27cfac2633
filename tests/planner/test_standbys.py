"""How many machines should stand by."""

from dataclasses import replace

import pytest

from sailor.planner.hazard import NEVER, PRIOR
from sailor.planner.standbys import advise, simultaneous


def a_hazard(per_hour, bulk=1.0):
    return replace(PRIOR, shape=per_hour, rate=1.0, mean_bulk=bulk)


def advice(hazard, *, machines=8, standbys=1, price=1.0, hours=1 / 3):
    return advise(
        hazard, machines=machines, standbys=standbys, price_per_hour=price, replacement_hours=hours
    )


@pytest.mark.parametrize(
    ("per_hour", "machines", "hours", "number"),
    [
        (0.0, 100, 1.0, 0),
        (0.001, 8, 0.1, 0),  # P(none) = 0.9992
        (0.05, 8, 0.5, 2),  # mean 0.2: P(<=1) = 0.982, P(<=2) = 0.999
        (1.0, 1024, 0.01, 18),  # mean 10.24: the 99th percentile of a Poisson
    ],
)
def test_enough_is_the_99th_percentile_of_losses_in_a_replacement_time(
    per_hour, machines, hours, number
):
    assert simultaneous(a_hazard(per_hour), machines=machines, hours=hours) == number


def test_losses_that_come_together_need_more_at_once():
    alone = simultaneous(a_hazard(0.05), machines=8, hours=0.5)
    together = simultaneous(a_hazard(0.05, bulk=2.0), machines=8, hours=0.5)
    assert together == 2 * alone


def test_machines_that_are_never_taken_need_nobody():
    found = advice(NEVER)
    assert (found.wanted, found.enough, found.saved_per_hour) == (0, 0, 0.0)


def test_a_large_crew_that_is_often_hurt_wants_some_and_a_small_quiet_one_none():
    assert advice(a_hazard(0.1), machines=256).wanted >= 1
    assert advice(a_hazard(0.01), machines=4).wanted == 0


def test_the_next_standby_saves_less_than_the_last():
    saved = [advice(a_hazard(0.3), standbys=n).saved_per_hour for n in range(5)]
    gains = [b - a for a, b in zip(saved, saved[1:], strict=False)]
    assert saved[0] == 0.0
    assert gains == sorted(gains, reverse=True)
    assert all(gain > 0 for gain in gains)


def test_it_is_told_in_one_line():
    text = advice(a_hazard(0.1)).describe()
    assert text.startswith("1 stands by: $1.00/h")
    assert "\n" not in text
