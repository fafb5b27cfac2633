"""Other systems' rules, worked out by hand on small fleets, and against Daly's formula."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sailor.simulate.goodput import bound_samples
from sailor.simulate.pace import StepTable
from sailor.simulate.policies import (
    Restart,
    bamboo_like,
    bamboo_seconds,
    checkpoint_restart,
    daly_efficiency,
    framework_seconds,
    oobleck_like,
    oobleck_seconds,
    parcae_like,
    parcae_seconds,
    trainmover_like,
    tuned,
    young_interval,
)
from sailor.simulate.rivals import Checkpointing, Newcomers, follow
from tests.helpers.simulation import a_fleet, linear, machines
from tests.simulate.test_world import CHURN, churned, parts


def followed(fleet, rules, **changes):
    arguments = {"speeds": linear(), "samples_per_step": 100.0, **changes}
    return follow(fleet, rules=rules, **arguments)


def test_a_restart_goes_back_to_the_last_checkpoint():
    """Two machines, five seconds a step, a stall of one after every four steps: checkpoints are
    done at 21 s and 42 s. At 57 s three steps are lost; eleven seconds later one machine trains on,
    ten seconds a step: two steps by 88 s."""
    fleet = a_fleet(*machines("x", "y"), ("gone", 57.0, "y"), seconds=90.0)
    rules = checkpoint_restart(10.0, Checkpointing(every=4, stall_s=1.0))
    outcome = followed(fleet, rules, detect_s=1.0)
    assert parts(outcome) == {
        "good": 60.0, "redone": 15.0, "transition_node_lost": 11.0, "checkpoint": 2.0, "other": 2.0,
    }  # fmt: skip
    assert (outcome.steps, outcome.redone_steps) == (10, 3)


def test_a_checkpoint_that_is_still_being_written_is_no_help():
    fleet = a_fleet(*machines("x", "y"), ("gone", 25.0, "y"), seconds=26.0)
    for write_s, left in ((3.0, 4), (6.0, 0)):
        rules = checkpoint_restart(5.0, Checkpointing(every=4, stall_s=0.0, write_s=write_s))
        assert followed(fleet, rules).steps == left


def test_a_notice_buys_one_more_checkpoint():
    fleet = a_fleet(*machines("x", "y"), ("told", 26.0, "y", 20.0), ("gone", 46.0, "y"),
                    seconds=50.0)  # fmt: skip
    rules = checkpoint_restart(3.0, Checkpointing(every=100, stall_s=1.0))
    # Steps end at 30 s, then the stall until 31 s, then three more steps until 46 s are lost.
    assert followed(fleet, rules).redone_steps == 3


def test_losses_during_a_restart_begin_it_anew():
    fleet = a_fleet(
        *machines("x", "y", "z"), ("gone", 10.0, "y"), ("gone", 16.0, "z"), seconds=40.0
    )
    outcome = followed(fleet, oobleck_like(reconfigure_s=8.0))
    assert outcome.seconds["transition_node_lost"] == 14.0


def test_newcomers_wait_or_are_taken_in_at_the_end_of_a_step():
    fleet = a_fleet(*machines("x"), ("came", 14.0, "y"), ("gone", 54.0, "y"), seconds=70.0)
    waits = followed(fleet, oobleck_like(reconfigure_s=2.0, newcomers=Newcomers.wait))
    assert waits.steps == 7  # y never took part, so its end is nobody's loss
    joins = followed(fleet, oobleck_like(reconfigure_s=2.0))
    # 20 s alone; two seconds; five-second steps until 52 s; y is gone at 54 s; ten more seconds.
    assert joins.steps == 2 + 6 + 1


def test_redundancy_bridges_one_loss_and_stops_at_the_second():
    rules = bamboo_like(rendezvous_s=3.0, rebalance_s=4.0, step_factor=1.0)
    one = a_fleet(*machines(*"wxyz"), ("gone", 11.0, "z"), seconds=30.0)
    outcome = followed(one, rules)
    # The step under way takes half as long again, then four seconds of rebalancing.
    assert outcome.seconds["redundancy"] == pytest.approx(1.25)
    assert outcome.seconds["transition_node_lost"] == 4.0
    two = a_fleet(*machines(*"wxyz"), ("gone", 11.0, "z"), ("gone", 11.5, "y"), seconds=30.0)
    assert followed(two, rules).seconds["transition_node_lost"] == 7.0


def test_a_system_of_fixed_size_waits_for_as_many():
    rules = trainmover_like(size=2, swap_s=5.0)
    fleet = a_fleet(*machines("x", "y"), ("gone", 20.0, "y"), ("came", 60.0, "z"), seconds=100.0)
    outcome = followed(fleet, rules)
    assert outcome.seconds["capacity"] == 35.0  # from the end of the swap that found nobody
    spare = a_fleet(*machines("x", "y", "s"), ("gone", 20.0, "y"), seconds=100.0)
    assert parts(followed(spare, rules)) == {"good": 95.0, "transition_node_lost": 5.0}


def test_leaving_in_time_loses_nothing():
    fleet = a_fleet(*machines("x", "y"), ("told", 41.0, "y", 30.0), ("gone", 71.0, "y"),
                    seconds=100.0)  # fmt: skip
    outcome = followed(fleet, parcae_like(add_s=9.0, remove_s=5.0))
    assert parts(outcome) == {"good": 95.0, "transition_preempted": 5.0}


def test_finished_steps_are_lost_when_nobody_holds_a_copy():
    """Depth four on four machines: any loss loses the state, steps since the 100th are redone."""
    fleet = a_fleet(*machines(*"wxyz", "s"), ("gone", 131.0, "z"), seconds=140.0)
    speeds = StepTable({4: 1.0}, depth=4)
    outcome = followed(fleet, oobleck_like(reconfigure_s=1.0), speeds=speeds)
    assert outcome.redone_steps == 31


@given(CHURN, st.sampled_from([None, 40.0]), st.integers(0, 5))
@example([(5, "a", -1)], None, 1)  # taken the moment it has booted
@settings(deadline=None, max_examples=60)
def test_whatever_happens_every_second_has_a_cause_and_the_bound_holds(steps, notice, which):
    fleet = churned(steps, notice=notice, seed=0)
    rules = [
        checkpoint_restart(20.0, Checkpointing(every=3, stall_s=1.0)),
        checkpoint_restart(20.0, Checkpointing(every=3, stall_s=0.1, write_s=4.0),
                           newcomers=Newcomers.join),
        oobleck_like(reconfigure_s=4.0),
        bamboo_like(rendezvous_s=3.0, rebalance_s=6.0, step_factor=1.2),
        trainmover_like(size=3, swap_s=4.0, planned_s=2.0),
        parcae_like(add_s=6.0, remove_s=3.0),
    ][which]  # fmt: skip
    speeds = linear(samples=37.0)
    outcome = follow(fleet, speeds=speeds, rules=rules, samples_per_step=37.0, detect_s=1.0)
    assert sum(outcome.seconds.values()) == pytest.approx(outcome.wall_s, abs=1e-6)
    assert outcome.samples <= bound_samples(fleet, speeds, samples_per_step=37.0) + 1e-6


@pytest.mark.parametrize("interval_steps", [3, 8, 20])
def test_losses_without_memory_cost_what_dalys_model_says(interval_steps):
    """One machine out of many dies every 400 s on average and is replaced at once. Within 4 %: some
    1,000 losses, of which the interval's share is random; and a step is lost whole, which the model
    does not know, so steps are short."""
    chance, t, happened, number = random.Random(5), 0.0, machines("m0", "n0"), 0
    while t < 400_000:
        t += chance.expovariate(1 / 400)
        happened += [("gone", t, f"m{number}"), ("came", t + 0.01, f"m{number + 1}")]
        number += 1
    fleet = a_fleet(*happened, seconds=t)
    step, stall, restart = 2.0, 3.0, 20.0
    rules = checkpoint_restart(restart, Checkpointing(every=interval_steps, stall_s=stall))
    outcome = follow(
        fleet, speeds=StepTable({1: step}), rules=rules, samples_per_step=1.0
    )  # fmt: skip
    losses = sum(1 for what, *_ in happened if what == "gone")
    assert losses > 900
    # StepTable uses one machine of the two: every other loss hits it.
    hit = outcome.generations - 1
    between = fleet.seconds / hit
    modelled = daly_efficiency(
        interval_s=interval_steps * step, stall_s=stall, restart_s=restart,
        mean_time_between_losses_s=between,
    )  # fmt: skip
    assert outcome.goodput == pytest.approx(modelled, rel=0.04)


def test_youngs_interval_is_near_the_best_of_dalys_curve():
    stall, between = 12.0, 1800.0
    young = young_interval(stall, between)

    def efficiency(interval_s):
        return daly_efficiency(
            interval_s=interval_s, stall_s=stall, restart_s=60.0,
            mean_time_between_losses_s=between,
        )  # fmt: skip

    best = max(range(10, 1000), key=efficiency)
    assert young == pytest.approx(207.8, abs=0.1)
    assert best == pytest.approx(young, rel=0.1)
    assert young_interval(stall, float("inf")) == 1e9


def test_efficiency_without_losses_is_the_stalls_share_and_nothing_when_hopeless():
    assert daly_efficiency(interval_s=90, stall_s=10, restart_s=5,
                           mean_time_between_losses_s=float("inf")) == 0.9  # fmt: skip
    assert daly_efficiency(interval_s=90, stall_s=10, restart_s=5000,
                           mean_time_between_losses_s=10.0) == 0.0  # fmt: skip


def test_a_blocking_save_stalls_and_an_asynchronous_one_limits_the_interval():
    slow = Restart(framework_s=80.0, bytes_per_gpu=10e9, storage_bytes_per_second=0.25e9)
    assert (slow.transfer_s, slow.restart_s) == (40.0, 120.0)
    blocking = slow.checkpoints(mean_time_between_losses_s=2000.0, step_s=10.0)
    assert blocking == Checkpointing(every=40, stall_s=40.0)
    async_ = Restart(framework_s=80.0, bytes_per_gpu=10e9, storage_bytes_per_second=0.25e9,
                     snapshot_s=0.2)  # fmt: skip
    assert async_.checkpoints(mean_time_between_losses_s=2000.0, step_s=10.0) == Checkpointing(
        every=4, stall_s=0.2, write_s=40.0
    )


def test_tuning_takes_the_best_interval_there_is():
    rules = checkpoint_restart(1.0, Checkpointing(every=1, stall_s=1.0))
    best, value = tuned(
        rules, candidates=[1, 2, 3, 9], score=lambda r: -abs(r.checkpoints.every - 3)
    )
    assert (best.checkpoints.every, value) == (3, 0)


def test_published_costs_are_met_at_their_published_points():
    assert [framework_seconds(n) for n in (8, 32, 128, 256, 512, 1024, 9999)] == [
        80.0, 80.0, 190.0, 230.0, 260.0, 300.0, 300.0,
    ]  # fmt: skip
    assert [oobleck_seconds(p) for p in (0.34e9, 2.7e9, 6.7e9)] == pytest.approx([2.96, 6.0, 10.0])
    assert [bamboo_seconds(p) for p in (0.3e9, 2.7e9, 6.7e9)] == [76.0, 230.0, 450.0]
    assert parcae_seconds(1.5e9) == (67.0, 40.0)
    assert parcae_seconds(6.7e9) == pytest.approx((138.0, 115.0))


@pytest.mark.parametrize("bad", [{"every": 0}, {"stall_s": -1.0}, {"write_s": -2.0}])
def test_checkpoints_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match="checkpoints come"):
        Checkpointing(**{"every": 1, "stall_s": 0.0, **bad})
