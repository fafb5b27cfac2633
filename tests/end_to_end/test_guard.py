"""A NaN among a worker's numbers: the run stops, leaves the step out, or goes back and is as if
nothing had been. Real processes; the NaN is put there from outside."""

from __future__ import annotations

from tests.end_to_end.test_losses import BATCH, STEPS, Undisturbed, of_kind
from tests.helpers import invariants as check
from tests.helpers.running import Ended, Place

FOUR = ("cloud.nodes=4", f"train.steps={STEPS}")


def refusals(ended: Ended) -> list[str]:
    return [event["action"] for event in of_kind(ended.events, "step_refused")]


def hold_to_reference(ended: Ended, reference: Ended) -> None:
    """The same training to the last bit of weights and moments."""
    assert ended.code == 0, ended.told()
    check.check_one_owner(ended.events)
    check.check_samples(ended.events, batch=BATCH)
    check.check_same_training(ended.events, reference.events)
    check.check_pauses(ended.events)
    assert check.weights(ended.folder, step=STEPS) == check.weights(reference.folder, step=STEPS)


def test_by_default_the_run_ends_with_6_and_its_last_good_step_is_saved(place: Place):
    name = place.named("nan")
    script = [{"kind": "nan_step", "at": 12, "target": "last"}]
    ended = place.train(*FOUR, script=script, name=name)
    assert ended.code == 6, ended.told()
    assert ended.err.startswith("error[E701] training diverged at step "), ended.err
    assert refusals(ended) == ["stop"]
    (refused,) = of_kind(ended.events, "step_refused")
    last = check.kept(ended.events).steps
    assert max(last) == refused["step"] - 1
    assert ended.summary["status"] == "diverged"
    assert f"step {refused['step']} was refused: its loss is not finite" in ended.summary["why"]
    assert ended.summary["refusals"][0]["action"] == "stop"
    check.weights(ended.folder, step=refused["step"] - 1)


def test_a_step_left_out_changes_nothing_and_reads_its_samples_once(place: Place):
    script = [{"kind": "nan_step", "at": 12, "target": "node-2/0"}]
    ended = place.train(*FOUR, "train.guard=skip", script=script)
    assert ended.code == 0, ended.told()
    assert refusals(ended) == ["skip"]
    check.check_one_owner(ended.events)
    check.check_samples(ended.events, batch=BATCH)
    check.check_replicas(ended.events, at_least=check.enough(STEPS))
    steps = check.kept(ended.events).steps
    (skipped,) = [step for step, event in steps.items() if event.get("skipped")]
    assert steps[skipped]["loss"] is None
    assert steps[skipped + 1]["loss"] is not None
    assert len(of_kind(ended.events, "generation_started")) == 1
    assert ended.summary["skipped_steps"] == 1


def test_after_a_miscalculation_the_run_goes_back_and_is_as_if_nothing_had_been(
    place: Place, undisturbed: Undisturbed
):
    script = [{"kind": "nan_step", "at": 12, "target": "leader"}]
    ended = place.train(*FOUR, "train.guard=rollback", script=script)
    hold_to_reference(ended, undisturbed(STEPS))
    assert refusals(ended) == ["rollback"]
    assert of_kind(ended.events, "quarantined") == []


def test_a_state_that_leads_to_nan_twice_is_not_used_a_third_time(
    place: Place, undisturbed: Undisturbed
):
    script = [{"kind": "nan_state", "at": 12, "target": "leader"}]
    ended = place.train(*FOUR, "train.guard=rollback", script=script)
    hold_to_reference(ended, undisturbed(STEPS))
    assert refusals(ended) == ["rollback", "rollback"]
    (quarantined,) = of_kind(ended.events, "quarantined")
    started = [event["step"] for event in of_kind(ended.events, "generation_started")]
    assert started[-1] < quarantined["step"]
    assert ended.summary["quarantined"] == [quarantined["step"]]


def test_a_recipe_that_diverges_by_itself_is_given_up_after_the_third_time(place: Place):
    ended = place.train(
        *FOUR, "train.guard=rollback", "optim.learning_rate=1e30", "optim.warmup_steps=0",
        "optim.clip_norm=0",
    )  # fmt: skip
    assert ended.code == 6, ended.told()
    assert refusals(ended) == ["rollback", "rollback", "stop"]
    assert "3 times" in ended.summary["why"]
