"""Learning rates, as functions of the step alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sailor.training.schedule import learning_rate
from sailor.training.settings import OptimizerSettings

TOTAL = 100


def some_settings(schedule="cosine", **changes):
    fields = {
        "learning_rate": 1.0, "min_learning_rate": 0.1, "schedule": schedule, "warmup_steps": 10,
        "decay_steps": 20, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1,
        "clip_norm": 1.0,
    }  # fmt: skip
    return OptimizerSettings(**{**fields, **changes})


def rate(step, schedule="cosine", **changes):
    return learning_rate(step, settings=some_settings(schedule, **changes), total_steps=TOTAL)


@pytest.mark.parametrize(
    ("schedule", "step", "expected"),
    [
        ("cosine", 1, 0.1),
        ("cosine", 10, 1.0),
        ("cosine", 55, 0.55),  # half of the way: the mean of peak and floor
        ("cosine", 100, 0.1),
        ("wsd", 5, 0.5),
        ("wsd", 80, 1.0),
        ("wsd", 90, 0.55),
        ("wsd", 100, 0.1),
        ("constant", 3, 0.3),
        ("constant", 100, 1.0),
    ],
)
def test_rates_at_the_corners(schedule, step, expected):
    assert rate(step, schedule) == pytest.approx(expected)


def test_without_warm_up_the_first_step_has_nearly_the_peak():
    assert rate(1, warmup_steps=0) == pytest.approx(1.0, abs=1e-3)
    assert rate(1, "constant", warmup_steps=0) == 1.0


def test_wsd_without_a_decay_stays_up():
    assert rate(100, "wsd", decay_steps=0) == 1.0


@given(st.sampled_from(["cosine", "wsd", "constant"]), st.integers(1, 300))
def test_no_rate_is_above_the_peak_or_after_warm_up_below_the_floor(schedule, step):
    assert 0.0 < rate(step, schedule) <= 1.0
    if step > 10:
        assert rate(step, schedule) >= 0.1 - 1e-12


def test_an_unknown_schedule_is_refused():
    with pytest.raises(ValueError, match="linear"):
        rate(50, "linear")
