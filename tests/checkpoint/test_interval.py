"""The interval between snapshots is the one that loses the least time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sailor.checkpoint.interval import MOST_STEPS, LossRate, steps_between

SECONDS = st.floats(1e-4, 1e3)


def lost_share(every: int, *, stall_s: float, step_s: float, losses_per_s: float) -> float:
    """Of the time, by snapshots and by steps done again: half an interval a loss."""
    return stall_s / (every * step_s) + losses_per_s * every * step_s / 2


@given(stall_s=SECONDS, step_s=SECONDS, losses_per_s=st.floats(1e-7, 1.0))
def test_no_other_interval_loses_less_time(stall_s, step_s, losses_per_s):
    costs = {"stall_s": stall_s, "step_s": step_s, "losses_per_s": losses_per_s}
    chosen = steps_between(**costs)
    least = min(lost_share(every, **costs) for every in range(1, MOST_STEPS + 1))
    # Rounding to whole steps may prefer the neighbour: of 1 and 2, by a sixteenth at most.
    assert lost_share(chosen, **costs) <= least * (1 + 1 / 16)


def test_what_was_never_measured_is_taken_every_step_and_what_is_never_lost_seldom():
    assert steps_between(stall_s=0.0, step_s=1.0, losses_per_s=1e-4) == 1
    assert steps_between(stall_s=1.0, step_s=0.0, losses_per_s=1e-4) == 1
    assert steps_between(stall_s=1.0, step_s=1.0, losses_per_s=0.0) == MOST_STEPS


def test_losses_shorten_and_quiet_time_lengthens_it():
    prior = LossRate(losses=1.0, machine_s=36000.0)
    costs = {"stall_s": 0.5, "step_s": 1.0}
    usual = steps_between(**costs, losses_per_s=8 * prior.per_machine_s)
    hard = prior.lost().lost().lost()
    calm = prior.watched(10 * 36000.0)
    assert steps_between(**costs, losses_per_s=8 * hard.per_machine_s) < usual
    assert steps_between(**costs, losses_per_s=8 * calm.per_machine_s) > usual
    assert calm.per_machine_s == pytest.approx(prior.per_machine_s / 11)
