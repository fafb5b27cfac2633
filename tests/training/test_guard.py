"""Which steps are not fit to be applied. Same losses, same verdict: there is nothing else in it."""

from __future__ import annotations

import math

import pytest

from sailor.training.guard import MOST_SKIPPED, Guard


def a_guard(*losses: float, factor: float = 2.0) -> Guard:
    guard = Guard(spike_factor=factor)
    guard.recall(losses)
    return guard


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_not_fit(value):
    guard = a_guard(factor=0.0)
    assert guard.fault(loss=value, grad_norm=1.0) == "loss is not finite"
    assert guard.fault(loss=1.0, grad_norm=value) == "gradient norm is not finite"
    assert guard.fault(loss=1.0, grad_norm=1.0) == ""


def test_a_spike_is_measured_by_the_median_of_recent_losses():
    guard = a_guard(*[3.0] * 20, 1000.0)
    assert guard.fault(loss=5.9, grad_norm=1.0) == ""
    assert guard.fault(loss=6.1, grad_norm=1.0) == "loss 6.1 is 2.03 times the usual 3"


def test_without_a_factor_no_loss_is_too_large():
    assert a_guard(*[3.0] * 20, factor=0.0).fault(loss=1e9, grad_norm=1.0) == ""


def test_before_enough_losses_are_known_there_is_no_spike():
    guard = a_guard(*[3.0] * 7)
    assert guard.fault(loss=100.0, grad_norm=1.0) == ""
    guard.applied(3.0)
    assert guard.fault(loss=100.0, grad_norm=1.0) != ""


def test_a_step_that_was_left_out_does_not_become_the_usual():
    guard = a_guard(*[3.0] * 8)
    for _ in range(MOST_SKIPPED):
        assert guard.may_skip()
    assert guard.fault(loss=7.0, grad_norm=1.0) != ""


def test_after_ten_steps_left_out_in_a_row_it_is_not_the_step_that_is_wrong():
    guard = a_guard()
    assert [guard.may_skip() for _ in range(MOST_SKIPPED + 1)] == [True] * MOST_SKIPPED + [False]


def test_who_comes_new_and_is_told_the_losses_judges_like_the_others():
    old = a_guard(*[3.0] * 40)
    told = []
    for loss in [3.0] * 30 + [2.0] * 9:
        old.applied(loss)
        told.append(loss)
    assert old.may_skip()
    new = a_guard(*[*told, math.nan][-32:])
    for loss in (3.9, 4.1, 6.1):
        assert new.fault(loss=loss, grad_norm=1.0) == old.fault(loss=loss, grad_norm=1.0)
