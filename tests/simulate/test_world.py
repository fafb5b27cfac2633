"""The life cycle on a simulated clock: small stories worked out by hand, and what must always hold.

Unless a test says otherwise n machines train n steps in ten seconds (linear speeds), and nothing
costs anything.
"""

from dataclasses import asdict

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sailor.observe.events import Event
from sailor.observe.goodput import Accounts
from sailor.simulate.fleet import rent
from sailor.simulate.goodput import bound_samples
from sailor.simulate.pace import StepTable
from tests.helpers.simulation import (
    Change_ as Capacity,
)
from tests.helpers.simulation import (
    a_fleet,
    a_job,
    linear,
    lived,
    machines,
)


def parts(outcome):
    assert sum(outcome.seconds.values()) == pytest.approx(outcome.wall_s, abs=1e-6)
    return {cause: round(seconds, 6) for cause, seconds in outcome.seconds.items()}


def test_undisturbed_machines_train_all_the_time():
    outcome = lived(a_fleet(*machines("x", "y"), seconds=100.0))
    assert parts(outcome) == {"good": 100.0}
    assert (outcome.steps, outcome.samples, outcome.goodput) == (20, 2000.0, 1.0)
    assert outcome.end == "time is over"


def test_booting_is_capacity_and_what_is_unfinished_at_the_end_counts_for_nothing():
    outcome = lived(a_fleet(*machines("x", t=7.0), seconds=30.0))
    assert parts(outcome) == {"good": 20.0, "capacity": 7.0, "other": 3.0}


def test_a_loss_costs_the_step_under_way_the_detection_and_the_pause():
    """Two machines, five seconds a step. At 52 s two seconds of a step are lost; 3 s later it is
    known, 6 s later one machine goes on with ten seconds a step."""
    fleet = a_fleet(*machines("x", "y"), ("gone", 52.0, "y"), seconds=100.0)
    outcome = lived(fleet, detect_s=3.0, loss=6.0)
    assert parts(outcome) == {
        "good": 80.0, "transition_node_lost": 9.0, "other": 9.0, "redone": 2.0,
    }  # fmt: skip
    assert (outcome.steps, outcome.redone_steps) == (10 + 3, 0)
    (start, pause) = outcome.pauses
    assert start["cause"] == "start"
    assert (pause["detect_s"], pause["prepare_s"], pause["total_s"]) == (3.0, 6.0, 19.0)
    assert outcome.timeline == ((0.0, 2), (61.0, 1))


def test_a_notice_in_time_loses_nothing_and_pauses_between_two_steps():
    """Told at 41 s; prepared within four seconds while training goes on; the step under way ends
    at 45 s, and one machine goes on two seconds later."""
    fleet = a_fleet(*machines("x", "y"), ("told", 41.0, "y", 30.0), ("gone", 71.0, "y"))
    outcome = lived(fleet, hidden=4.0, join=2.0)
    assert outcome.seconds["transition_preempted"] == 2.0
    assert "redone" not in outcome.seconds
    assert outcome.steps == 9 + (1000 - 47) // 10


def test_a_notice_too_short_for_the_preparation_is_a_loss():
    fleet = a_fleet(*machines("x", "y"), ("told", 41.0, "y", 5.0), ("gone", 46.0, "y"))
    outcome = lived(fleet, hidden=60.0, join=2.0, loss=3.0)
    assert outcome.seconds["redone"] == pytest.approx(3.1, abs=0.2)  # halted 3 s before the end
    assert outcome.redone_steps == 0


def test_a_newcomer_is_taken_in_between_two_steps():
    fleet = a_fleet(*machines("x"), ("came", 14.0, "y"), seconds=100.0)
    outcome = lived(fleet, hidden=3.0, join=1.0)
    # Ten-second steps until 20 s, a pause of one, five-second steps from 21 s on.
    assert parts(outcome) == {"good": 95.0, "other": 4.0, "transition_join": 1.0}
    assert outcome.steps == 2 + 15


def test_too_few_machines_are_waited_for():
    speeds = linear(least=2)
    fleet = a_fleet(*machines("x", "y"), ("gone", 50.0, "x"), ("came", 80.0, "z"), seconds=100.0)
    outcome = lived(fleet, speeds=speeds, loss=4.0)
    assert outcome.seconds["capacity"] == 30.0
    assert outcome.seconds["transition_node_lost"] == 4.0  # the pause began with the loss
    assert outcome.steps == 10 + 3


FIVE_SECONDS = dict.fromkeys(range(2, 9), 5.0)


def two_deep(*happened, seconds=1000.0, **changes):
    """Pipelines of two machines each; five-second steps whoever is there."""
    fleet = a_fleet(*happened, seconds=seconds)
    return lived(fleet, speeds=StepTable(FIVE_SECONDS, depth=2), **changes)


def test_a_part_with_another_live_owner_is_not_redone():
    outcome = two_deep(*machines("x", "y", "z", "w"), ("gone", 501.0, "x"))
    assert outcome.redone_steps == 0


def test_a_part_with_one_owner_comes_from_its_copy_one_snapshot_back():
    """One pipeline of two, so each is copied to the other; a third machine takes the place. The
    loss is at 501 s, in step 101, beside which the copy of step 100 was still made."""
    job = a_job(snapshot_every=1)
    outcome = two_deep(*machines("x", "y"), ("came", 400.0, "s"), ("gone", 501.0, "x"), job=job)
    assert outcome.redone_steps == 1
    rare = two_deep(
        *machines("x", "y"), ("came", 400.0, "s"), ("gone", 501.0, "x"),
        job=a_job(snapshot_every=30),
    )  # fmt: skip
    assert rare.redone_steps == 100 - 90


def test_losses_on_the_heels_of_another_cost_no_further_step():
    """While the others wait for a machine, the copies they fall back on are complete."""
    outcome = two_deep(
        *machines("x", "y"), ("came", 400.0, "s"), ("gone", 501.0, "x"), ("gone", 503.0, "s"),
        ("came", 510.0, "t"), ("gone", 512.0, "t"), ("came", 520.0, "u"),
    )  # fmt: skip
    assert outcome.redone_steps == 1


def test_what_nobody_holds_any_more_comes_from_the_durable_checkpoint():
    job = a_job(persist_every=30)
    gone = [("gone", 501.0, "x"), ("gone", 501.0, "y"), ("came", 520.0, "z"), ("came", 520.0, "w")]
    outcome = two_deep(*machines("x", "y"), *gone, job=job)
    assert outcome.redone_steps == 100 - 90
    never = two_deep(*machines("x", "y"), *gone, job=a_job(persist_every=0))
    assert never.redone_steps == 100


def test_copies_in_another_zone_survive_the_whole_zone():
    names = ("a/x", "a/y", "b/z", "b/w")
    gone = [("gone", 501.0, "a/x"), ("gone", 501.0, "a/y")]
    # Pipelines of two fill a zone each: the other zone has a live owner of everything.
    assert two_deep(*machines(*names), *gone).redone_steps == 0
    # One pipeline of four over both zones: only copies in the other zone save it.
    for copies, redone in ((0, 1), (1, 1)):
        outcome = lived(
            a_fleet(*machines(*names), *gone),
            speeds=StepTable(FIVE_SECONDS, depth=4),
            job=a_job(copies=copies),
        )
        assert outcome.redone_steps == redone


def test_moving_state_takes_its_bytes_over_the_link():
    """Half of 8 GB to a newcomer at 1 GB/s."""
    outcome = two_deep(
        *machines("x", "y"), ("came", 400.0, "s"), ("gone", 501.0, "x"),
        job=a_job(state_bytes=8e9), link_bytes_per_second=1e9,
    )  # fmt: skip
    assert outcome.pauses[-1]["copy_s"] == 4.0


def test_a_job_that_is_done_is_saved_and_ended():
    outcome = lived(a_fleet(*machines("x", "y")), job=a_job(total_steps=6), save_s=2.0)
    assert (outcome.end, outcome.steps, outcome.wall_s) == ("done", 6, 32.0)
    assert parts(outcome) == {"good": 30.0, "shut_down": 2.0}


def test_snapshots_and_gaps_are_booked_beside_the_work():
    job = a_job(snapshot_every=2)
    fleet = a_fleet(*machines("x"), seconds=112.0)
    outcome = lived(fleet, job=job, snapshot_stall_s=2.0, between_steps_s=0.2)
    assert parts(outcome) == {"good": 100.0, "checkpoint": 10.0, "other": 2.0}


CHURN = st.lists(
    st.tuples(st.integers(0, 900), st.sampled_from("ab"), st.integers(-3, 4)), max_size=25
)


def churned(steps, *, notice, seed):
    level, changes = {"a": 2, "b": 2}, [Capacity(0, "a", 2), Capacity(0, "b", 2)]
    for t, zone, delta in sorted(steps):
        delta = max(delta, -level[zone])
        if delta:
            level[zone] += delta
            changes.append(Capacity(float(t), zone, delta, notice_seconds=notice))
    return rent(changes, seconds=1000, target=6, boot_seconds=5, seed=seed)


@given(CHURN, st.sampled_from([None, 2.0, 40.0]), st.integers(0, 2), st.integers(1, 3))
@settings(deadline=None)
def test_whatever_happens_every_second_has_a_cause_and_the_bound_holds(steps, notice, seed, depth):
    fleet = churned(steps, notice=notice, seed=seed)
    speeds = linear(least=depth, depth=depth, samples=37.0)
    job = a_job(samples_per_step=37.0, state_bytes=3e9, persist_every=7)
    args = {
        "speeds": speeds, "job": job, "detect_s": 1.5, "loss": 4.0, "join": 1.0, "hidden": 6.0,
        "link_bytes_per_second": 1e9, "snapshot_stall_s": 0.1,
    }  # fmt: skip
    outcome = lived(fleet, **args)
    assert sum(outcome.seconds.values()) == pytest.approx(outcome.wall_s, abs=1e-6)
    assert all(seconds >= 0 for seconds in outcome.seconds.values())
    assert outcome.samples == pytest.approx(37.0 * outcome.steps)
    assert outcome.samples <= bound_samples(fleet, speeds, samples_per_step=37.0) + 1e-6
    again = lived(fleet, **args)
    assert repr(asdict(again)) == repr(asdict(outcome))  # the same fleet gives the same bytes


@given(CHURN, st.sampled_from([None, 40.0]))
@example([(0, "a", -2), (1, "a", 1), (7, "a", -1)], 40.0)  # a notice before the first step
@example([(0, "a", -2), (2, "a", 2), (7, "b", -2)], None)  # a step that is set back
@settings(deadline=None, max_examples=40)
def test_time_is_named_as_the_event_log_of_a_real_run_names_it(steps, notice):
    """What the simulator books and what the projection of its events gives must agree: goodput
    exactly, and all that is not work in sum. Steps of different lengths, so that none is mistaken
    for another."""
    fleet = churned(steps, notice=notice, seed=0)
    log = []
    lived(
        fleet, sink=lambda t, kind, fields: log.append((t, kind, dict(fields))), detect_s=1.5,
        loss=4.0, join=1.0, hidden=6.0, speeds=linear(least=2, samples=37.0),
        job=a_job(samples_per_step=37.0),
    )  # fmt: skip
    outcome = lived(
        fleet, detect_s=1.5, loss=4.0, join=1.0, hidden=6.0, speeds=linear(least=2, samples=37.0),
        job=a_job(samples_per_step=37.0),
    )  # fmt: skip
    accounts, newest = Accounts(), {}
    log.insert(0, (0.0, "run_started", {}))
    # Steps are told in one go when training stops: put them where they ended.
    log.sort(key=lambda entry: entry[0])
    for seq, (t, kind, fields) in enumerate(log, start=1):
        generation = fields.pop("generation", 0)
        if kind == "step":
            newest[fields["step"]] = generation
        if kind == "generation_started":  # what came after its step is set back
            newest = {step: g for step, g in newest.items() if step <= fields["step"]}
        accounts.apply(
            Event(seq=seq, t=t, time="", run="", generation=generation, kind=kind, fields=fields)
        )
    good, bad = accounts.totals(
        kept=lambda span: newest.get(span.step) == span.generation, now=outcome.wall_s
    )
    assert good == pytest.approx(outcome.seconds.get("good", 0.0), abs=0.1)
    assert sum(bad.values()) == pytest.approx(outcome.wall_s - good, abs=1e-6)
