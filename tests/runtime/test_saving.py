"""A wish to save: when agents are told, told again, and when it is fulfilled."""

from sailor.runtime.saving import AGAIN_S, Saving


def asked(step=10, step_seconds=0.1):
    saving = Saving()
    saving.ask(step=step, step_seconds=step_seconds)
    return saving


def test_nobody_is_told_of_a_wish_that_nobody_has():
    assert Saving().due(at=0.0, generation=1, durable_step=0) is None


def test_agents_are_told_once_of_a_step_they_have_time_to_hear_of():
    saving = asked()
    assert saving.due(at=0.0, generation=1, durable_step=0) == 16  # half a second ahead
    assert saving.due(at=0.1, generation=1, durable_step=0) is None


def test_a_new_generation_is_told_of_the_same_wish():
    saving = asked()
    first = saving.due(at=0.0, generation=1, durable_step=0)
    assert saving.due(at=0.1, generation=2, durable_step=0) == first


def test_who_heard_too_late_is_told_again():
    saving = asked()
    first = saving.due(at=0.0, generation=1, durable_step=0)
    assert saving.due(at=AGAIN_S, generation=1, durable_step=9) == first


def test_a_run_without_any_durable_step_has_not_saved_its_first_one():
    saving = asked(step=0)
    assert saving.due(at=0.0, generation=1, durable_step=-1) == 6


def test_a_wish_ends_with_any_durable_step_that_is_new_enough():
    saving = asked(step=10)
    saving.due(at=0.0, generation=1, durable_step=0)
    assert saving.due(at=AGAIN_S, generation=1, durable_step=10) is None
    assert saving.asked_at_step is None
    saving.ask(step=40, step_seconds=1.0)
    assert saving.due(at=AGAIN_S, generation=1, durable_step=10) == 42


def test_a_second_wish_while_one_is_under_way_changes_nothing():
    saving = asked(step=10)
    saving.ask(step=12, step_seconds=0.1)
    assert saving.asked_at_step == 10
