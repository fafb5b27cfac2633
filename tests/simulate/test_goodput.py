"""Policies side by side: nobody beats the bound, and gains are kept apart."""

from math import inf, prod

import pytest

from sailor.simulate.goodput import (
    Scene,
    Size,
    bound_samples,
    contenders,
    gains,
    mean_time_between_losses,
    ours,
    side_by_side,
    table,
    tuned_restart,
)
from sailor.simulate.policies import Restart
from tests.helpers.simulation import a_fleet, a_job, costs, linear, machines

CALM = a_fleet(*machines("x", "y"), ("gone", 600.0, "y"), ("came", 700.0, "z"))


def scene(fleet=CALM, **changes):
    fields = {"speeds": linear(samples=20.0), "job": a_job(samples_per_step=20.0), "detect_s": 1.0}
    return Scene(fleet=fleet, **{**fields, **changes})


def test_the_bound_is_the_best_speed_at_every_moment():
    assert bound_samples(CALM, linear(), samples_per_step=100.0) == 600 * 20 + 100 * 10 + 300 * 20
    few = linear(least=2)
    assert bound_samples(CALM, few, samples_per_step=100.0) == 600 * 20 + 300 * 20


def test_losses_within_minutes_are_one_event():
    fleet = a_fleet(*machines("v", "w", "x", "y"), ("gone", 100.0, "w"), ("gone", 250.0, "x"),
                    ("gone", 600.0, "y"))  # fmt: skip
    assert mean_time_between_losses(fleet) == 500.0
    assert mean_time_between_losses(a_fleet(*machines("x"))) == inf


def test_all_policies_are_there_and_none_beats_the_bound():
    size = Size(parameters=1e9, num_gpus=2, state_bytes=12e9)
    outcomes = contenders(
        scene(), costs(loss=4.0, detect_s=1.0), size=size, storage_bytes_per_second=[1e9],
        sizes=[1, 2],
    )  # fmt: skip
    results = side_by_side(scene(), outcomes)
    assert {r.policy for r in results} == {
        "ours", "ours, 1 standby", "restart, blocking, 1 GB/s", "restart, async, 1 GB/s",
        "parcae-like", "oobleck-like", "bamboo-like", "trainmover-like",
    }  # fmt: skip
    shares = [r.share_of_bound for r in results]
    assert shares == sorted(shares, reverse=True)
    assert 0.0 <= min(shares) <= max(shares) <= 1.0 + 1e-9
    for row in table(results):
        assert sum(row["seconds"].values()) == pytest.approx(1000.0, abs=1e-6)


def test_a_tuned_restart_is_at_least_as_good_as_youngs():
    restart = Restart(framework_s=10.0, bytes_per_gpu=2e9, storage_bytes_per_second=1e9)
    here = scene()
    _, best = tuned_restart(here, restart)
    assert best.samples > 0
    assert best.samples <= bound_samples(here.fleet, here.speeds, samples_per_step=20.0)


def test_gains_from_the_runtime_and_from_more_machines_multiply_to_the_whole():
    one_zone = a_fleet(*machines("x"), ("gone", 400.0, "x"), ("came", 600.0, "z"))
    few = bound_samples(one_zone, linear(samples=20.0), samples_per_step=20.0)
    many = bound_samples(CALM, linear(samples=20.0), samples_per_step=20.0)
    restart = Restart(framework_s=50.0, bytes_per_gpu=5e9, storage_bytes_per_second=1e9)
    _, rival = tuned_restart(scene(one_zone), restart)
    mine = ours(scene(), costs(loss=4.0))
    found = gains(ours_many=mine, bounds=(few, many), rival_few=rival)
    assert found.nodes == many / few
    assert prod((found.runtime, found.nodes)) == pytest.approx(mine.samples / rival.samples)
    assert found.total == pytest.approx(mine.samples / rival.samples)
