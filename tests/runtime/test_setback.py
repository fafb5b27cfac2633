"""A step that was refused: the run ends, or goes back to a saved state, the next time further."""

from __future__ import annotations

from dataclasses import replace

from sailor.runtime import commands as c
from sailor.runtime import happenings as h
from sailor.runtime import state as s
from sailor.runtime.lifecycle import advance
from tests.helpers.life import a_training_run, drive, layout_on, of_kind

NODES = ("n0", "n1")


def a_forgiving_run() -> s.Run:
    """Generation 1 trains, having applied step 5; it may roll back."""
    run = a_training_run(*NODES)
    return replace(run, limits=replace(run.limits, roll_back=True))


def refuse(run: s.Run, step: int, *, at: float = 11.0) -> tuple[s.Run, list[c.Command]]:
    return advance(run, h.StepRefused(at=at, generation=run.active_generation, step=step))


def told(commands: list[c.Command], kind: str) -> list[dict[str, object]]:
    return [dict(c.fields) for c in of_kind(commands, c.Record) if c.kind == kind]


def go_on(run: s.Run, *, step: int, at: float = 12.0) -> tuple[s.Run, c.ChooseSources]:
    """Through the transition under way, to training again after ``step``."""
    old, new = run.active_generation, run.transition.generation
    for node in NODES:
        run, commands = advance(run, h.NodeHalted(at=at, generation=old, node=node))
    planned = h.Planned(at=at, generation=new, layout=layout_on(*NODES))
    run, _ = advance(run, planned)
    for node in NODES:
        run, commands = advance(run, h.NodePrepared(at=at, generation=new, node=node))
    (choose,) = of_kind(commands, c.ChooseSources)
    run, _ = advance(run, h.Restorable(at=at, generation=new, step=step, redone=0, source="memory"))
    for node in NODES:
        run, _ = advance(run, h.NodeSwitched(at=at, generation=new, node=node, copy_s=0.0))
    assert run.phase is s.Phase.training
    return run, choose


def test_the_first_time_the_newest_saved_state_is_taken_and_none_that_is_live():
    run, commands = refuse(a_forgiving_run(), 6)
    assert told(commands, "step_refused")[0]["action"] == "rollback"
    assert told(commands, "quarantined") == []
    _, choose = go_on(run, step=5)
    assert not choose.live
    assert choose.below is None


def test_the_second_time_a_state_before_the_one_that_led_to_it_is_taken():
    run, _ = refuse(a_forgiving_run(), 6)
    run, _ = go_on(run, step=5)
    run, commands = refuse(run, 6)
    assert [event["step"] for event in told(commands, "quarantined")] == [5]
    run, choose = go_on(run, step=4)
    assert choose.below == 5
    assert run.below is None  # what is done from there on is as good as any


def test_a_failure_on_the_way_back_does_not_lift_the_quarantine():
    run, _ = refuse(a_forgiving_run(), 6)
    run, _ = go_on(run, step=5)
    run, _ = refuse(run, 6)
    failed = h.NodeFailed(at=13, generation=run.transition.generation, node="n0", reason="no")
    run, _ = advance(run, failed)
    _, choose = go_on(run, step=4, at=14.0)
    assert choose.below == 5


def test_the_third_time_the_run_ends_and_says_why():
    run, _ = refuse(a_forgiving_run(), 6)
    run, _ = go_on(run, step=5)
    run, _ = refuse(run, 6)
    run, _ = go_on(run, step=4)
    run, _ = drive(run, h.StepApplied(at=13, generation=run.active_generation, step=5))
    run, commands = refuse(run, 6, at=14.0)
    assert run.stop.end is s.End.diverged
    assert "step 6 was refused 3 times: its loss is not finite" in run.stop.why
    assert of_kind(commands, c.SendHalt)[0].persist


def test_once_the_step_is_applied_its_refusals_are_forgiven():
    run, _ = refuse(a_forgiving_run(), 6)
    run, _ = go_on(run, step=5)
    run, _ = drive(run, h.StepApplied(at=13, generation=run.active_generation, step=6))
    run, commands = refuse(run, 7, at=14.0)
    assert told(commands, "quarantined") == []
    assert run.refusals == 1


def test_every_rank_says_it_and_it_counts_once():
    run, _ = refuse(a_forgiving_run(), 6)
    again, commands = refuse(run, 6)
    assert (again.refusals, commands) == (1, [])


def test_a_run_that_may_not_roll_back_ends_at_once():
    run, commands = refuse(a_training_run(*NODES), 6)
    assert told(commands, "step_refused")[0]["action"] == "stop"
    assert run.stop.end is s.End.diverged
