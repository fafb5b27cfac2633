"""How benchmarks.data reads a run's log."""

from __future__ import annotations

import pytest

from benchmarks.data import GOALS, PERSIST_EVERY, beside_writing, stalls
from benchmarks.snapshot_waits import waited
from tests.observe.run_story import Story


def a_story(*, durable_stall_s: float) -> Story:
    """Ten steps of a second; those that become durable wait longer for their snapshot, and are
    written for half a second."""
    story = Story().start()
    for step in range(1, 11):
        story.steps(step, step, generation=1, seconds=1.5 if step == 6 else 1.0)
        durable = step % PERSIST_EVERY == 0
        stall_s = durable_stall_s if durable else 0.02
        story.say(
            "snapshot",
            generation=1,
            step=step,
            workers=2,
            bytes=1,
            stall_s=stall_s,
            copy_s=0.0,
            slowest="w",
        )
        if durable:
            story.say(
                "persisted", generation=1, after=0.5, step=step, bytes=1, seconds=0.5, path="x"
            )
    return story


def test_what_a_durable_step_waits_beyond_others_is_its_stall():
    usual, extra = stalls(tuple(a_story(durable_stall_s=0.05).events), range(1, 11))
    assert usual == pytest.approx(0.02)
    assert extra == {5: pytest.approx(0.03), 10: pytest.approx(0.03)}
    _, none = stalls(tuple(a_story(durable_stall_s=0.01).events), range(1, 11))
    assert set(none.values()) == {0.0}, "a shorter wait makes up for no other"


def test_what_the_next_update_waits_for_a_copy_is_part_of_its_steps_stall():
    story = Story().start().steps(1, 1, generation=1)
    story.say(
        "snapshot", generation=1, step=1, workers=1, bytes=1, stall_s=0.1, copy_s=0.4, slowest="w"
    )
    story.steps(2, 2, generation=1, phases={"snapshot": 0.2})
    assert waited(story.events, range(1, 2)) == {1: pytest.approx(0.3)}


def test_steps_beside_writing_are_told_from_the_others():
    story = Story().start().steps(1, 5, generation=1)
    at = story.t
    story.steps(6, 6, generation=1, seconds=2.0)
    story.t = at + 1.0
    story.say("persisted", generation=1, step=5, bytes=1, seconds=1.0, path="x")
    story.t = at + 2.0
    story.steps(7, 9, generation=1)
    found = beside_writing(tuple(story.events), range(1, 10))
    assert found == {"writing": 2.0, "not_writing": 1.0}


def test_the_goals_are_those_of_the_figures():
    assert set(GOALS) == {
        "tokenize_ratio", "loader_wait_share", "persist_stall_share", "export_peak_ratio",
    }  # fmt: skip
