"""How long a run will take still, told from how it has gone."""

import random

import pytest

from sailor.observe.history import replay
from sailor.observe.outlook import _ahead, outlook
from tests.observe.run_story import Story


def of_gaps(gaps, *, total):
    story = Story().start(total_steps=total).nodes("node-1").generation(1, "node-1")
    for step, gap in enumerate(gaps, start=1):
        story.steps(step, step, generation=1, seconds=gap)
    return outlook(replay(story.events))


def test_even_steps_leave_no_doubt():
    ahead = of_gaps([2.0] * 10, total=30)
    assert ahead is not None
    assert ahead.p50_s == pytest.approx(40.0)
    assert ahead.p90_s == pytest.approx(40.0)


def test_nothing_is_said_of_a_run_that_has_hardly_begun_or_is_done():
    assert of_gaps([1.0] * 3, total=10) is None
    assert of_gaps([1.0] * 10, total=10) is None


def test_the_stop_between_two_starts_is_no_gap():
    story = Story().start(total_steps=30).nodes("node-1").generation(1, "node-1")
    story.steps(1, 5, generation=1).end("interrupted", 75)
    story.t += 5000.0
    story.start("resumed", total_steps=30).nodes("node-1").generation(2, "node-1", step=5)
    story.steps(6, 10, generation=2)
    ahead = outlook(replay(story.events))
    assert ahead is not None
    assert ahead.p90_s == pytest.approx(20.0)


@pytest.mark.parametrize(("seen", "left"), [(100, 200), (300, 50)])
def test_nine_of_ten_runs_take_no_longer_than_the_cautious_guess(seen, left):
    """Steps of a second, and now and then ten more, as a run that loses machines has. Of 300 runs a
    share of 0.9 has a standard error of 0.017; what is asked for is within three of them."""
    chance = random.Random(3)

    def gap():
        return 1.0 + (chance.expovariate(0.1) if chance.random() < 0.05 else 0.0)

    within = 0
    for _ in range(300):
        ahead = _ahead([gap() for _ in range(seen)], left=left)
        within += sum(gap() for _ in range(left)) <= ahead.p90_s
    assert 0.85 <= within / 300 <= 0.95
