"""The life cycle as tables: one situation, one event, what follows."""

from dataclasses import replace

import pytest

from sailor.runtime import commands as c
from sailor.runtime import happenings as h
from sailor.runtime import state as s
from sailor.runtime.lifecycle import advance
from tests.helpers.builders import a_member
from tests.helpers.life import LIMITS, a_run, a_training_run, drive, layout_on, of_kind


def test_the_first_plan_is_asked_for_when_enough_nodes_are_there():
    run, commands = drive(a_run(), h.Joined(at=1, member=a_member("n0"), slots=1))
    assert run.phase is s.Phase.assembling
    assert commands == []
    run, commands = drive(run, h.Joined(at=2, member=a_member("n1"), slots=1))
    (replan,) = of_kind(commands, c.Replan)
    assert [member.node for member in replan.members] == ["n0", "n1"]


def test_a_run_that_waited_long_enough_starts_with_what_it_has():
    run, _ = drive(a_run(), h.Joined(at=1, member=a_member("n0"), slots=1))
    run, commands = drive(run, h.Tick(at=LIMITS.assemble_s + 1))
    assert of_kind(commands, c.Replan)


def test_no_node_at_all_ends_the_run_as_interrupted():
    _, commands = drive(a_run(), h.Tick(at=LIMITS.assemble_s + 1))
    (finish,) = of_kind(commands, c.Finish)
    assert finish.end is s.End.interrupted


def test_a_node_that_dies_before_the_first_plan_is_not_waited_for():
    run, _ = drive(a_run(), h.Joined(at=1, member=a_member("n0"), slots=1))
    run, commands = drive(run, h.Lost(at=2, node="n1", cause="its agent ended"))
    (replan,) = of_kind(commands, c.Replan)
    assert [member.node for member in replan.members] == ["n0"]


def test_a_run_none_of_whose_nodes_starts_fails_at_once_and_says_why():
    run, commands = drive(a_run(), h.Lost(at=1, node="n0", cause="no such program"))
    assert commands == []
    run, commands = drive(run, h.Lost(at=2, node="n1", cause="no such program"))
    (finish,) = of_kind(commands, c.Finish)
    assert finish.end is s.End.failed
    assert "n1: no such program" in finish.why


def test_a_lost_node_halts_the_survivors_at_once():
    run = a_training_run("n0", "n1", "n2")
    run, commands = drive(run, h.Lost(at=11, node="n1", cause="killed", silent_s=0.2))
    (halt,) = of_kind(commands, c.SendHalt)
    assert halt.nodes == ("n0", "n2")
    assert not halt.boundary
    assert halt.generation == 1
    assert run.pause.detect_s == pytest.approx(0.2)


def test_a_loss_goes_through_halt_plan_prepare_restore_switch():
    run = a_training_run("n0", "n1", "n2")
    run, _ = drive(run, h.Lost(at=11, node="n1", cause="killed", silent_s=0.5))
    run, commands = drive(
        run,
        h.NodeHalted(at=11.1, generation=1, node="n0"),
        h.NodeHalted(at=11.2, generation=1, node="n2"),
    )
    (replan,) = of_kind(commands, c.Replan)
    assert replan.generation == 2
    run, commands = drive(run, h.Planned(at=11.3, generation=2, layout=layout_on("n0", "n2")))
    assert of_kind(commands, c.SendPrepare)
    run, commands = drive(
        run,
        h.NodePrepared(at=11.5, generation=2, node="n0"),
        h.NodePrepared(at=11.6, generation=2, node="n2"),
    )
    (choose,) = of_kind(commands, c.ChooseSources)
    assert choose.live
    run, commands = drive(run, h.Restorable(at=11.7, generation=2, step=4, redone=1, source="peer"))
    (switch,) = of_kind(commands, c.SendSwitch)
    assert switch.step == 4
    run, commands = drive(
        run,
        h.NodeSwitched(at=12.0, generation=2, node="n0", copy_s=0.1),
        h.NodeSwitched(at=12.1, generation=2, node="n2", copy_s=0.3),
    )
    (go,) = of_kind(commands, c.SendGo)
    assert go.step == 4
    run, commands = drive(run, h.StepApplied(at=12.4, generation=2, step=5))
    (record,) = of_kind(commands, c.Record)
    pause = record.fields
    parts = ("detect_s", "decide_s", "prepare_s", "copy_s", "switch_s", "first_step_s")
    assert pause["total_s"] == pytest.approx(sum(pause[part] for part in parts))
    assert pause["total_s"] == pytest.approx(12.4 - 10.5)
    assert pause["detect_s"] == pytest.approx(0.5)
    assert pause["copy_s"] == pytest.approx(0.3)
    assert pause["steps_redone"] == 1
    assert run.pause is None


def test_answers_of_an_earlier_generation_change_nothing():
    run = a_training_run("n0", "n1")
    run, _ = drive(run, h.Lost(at=11, node="n1", cause="killed"))
    before = run
    for stale in (
        h.Planned(at=12, generation=1, layout=layout_on("n0")),
        h.NodePrepared(at=12, generation=1, node="n0"),
        h.NodeSwitched(at=12, generation=1, node="n0", copy_s=0),
        h.Restorable(at=12, generation=1, step=3, redone=0, source="live"),
        h.NodeFailed(at=12, generation=1, node="n0", reason="late"),
    ):
        run, commands = advance(before, stale)
        assert run == before
        assert commands == []


def test_a_joiner_is_prepared_while_training_goes_on():
    run = a_training_run("n0", "n1")
    run, commands = drive(run, h.Joined(at=11, member=a_member("n2"), slots=1))
    assert of_kind(commands, c.Replan)
    assert not of_kind(commands, c.SendHalt)
    assert run.training
    run, commands = drive(run, h.Planned(at=12, generation=2, layout=layout_on("n0", "n1", "n2")))
    assert of_kind(commands, c.SendPrepare)
    assert run.training
    run, commands = drive(
        run, *(h.NodePrepared(at=13, generation=2, node=n) for n in ("n0", "n1", "n2"))
    )
    (halt,) = of_kind(commands, c.SendHalt)
    assert halt.boundary
    assert halt.nodes == ("n0", "n1")
    run, commands = drive(run, *(h.NodeHalted(at=14, generation=1, node=n) for n in ("n0", "n1")))
    assert of_kind(commands, c.ChooseSources)
    assert run.pause.planned
    assert run.pause.hidden_s == pytest.approx(2.0)


def test_a_joiner_that_dies_while_preparing_disturbs_nobody():
    run = a_training_run("n0", "n1")
    run, _ = drive(
        run,
        h.Joined(at=11, member=a_member("n2"), slots=1),
        h.Planned(at=12, generation=2, layout=layout_on("n0", "n1", "n2")),
    )
    run, commands = drive(run, h.Lost(at=12.5, node="n2", cause="killed"))
    assert of_kind(commands, c.SendDrop)
    assert not of_kind(commands, c.SendHalt)
    assert run.training
    assert run.pause is None


def test_a_plan_equal_to_the_present_layout_is_dropped():
    run = a_training_run("n0", "n1")
    run, _ = drive(run, h.Joined(at=11, member=a_member("n2"), slots=1))
    run, commands = drive(run, h.Planned(at=12, generation=2, layout=layout_on("n0", "n1")))
    assert run.phase is s.Phase.training
    assert of_kind(commands, c.SendDrop)


def test_a_loss_during_a_transition_starts_one_generation_higher():
    run = a_training_run("n0", "n1", "n2")
    run, _ = drive(
        run,
        h.Lost(at=11, node="n2", cause="killed", silent_s=0.5),
        h.NodeHalted(at=12, generation=1, node="n0"),
        h.NodeHalted(at=12, generation=1, node="n1"),
        h.Planned(at=12, generation=2, layout=layout_on("n0", "n1")),
    )
    run, commands = drive(run, h.Lost(at=13, node="n1", cause="killed"))
    assert run.generation == 3
    assert run.pause.began_at == pytest.approx(10.5)
    (halt,) = of_kind(commands, c.SendHalt)
    assert halt.nodes == ("n0",)
    (drop,) = of_kind(commands, c.SendDrop)
    assert drop.generation == 2


def test_after_a_switch_was_sent_workers_no_longer_count_as_live():
    run = a_training_run("n0", "n1", "n2")
    run, _ = drive(
        run,
        h.Lost(at=11, node="n2", cause="killed"),
        h.NodeHalted(at=12, generation=1, node="n0"),
        h.NodeHalted(at=12, generation=1, node="n1"),
        h.Planned(at=12, generation=2, layout=layout_on("n0", "n1")),
        h.NodePrepared(at=12, generation=2, node="n0"),
        h.NodePrepared(at=12, generation=2, node="n1"),
        h.Restorable(at=12, generation=2, step=5, redone=0, source="memory"),
        h.NodeFailed(at=12.5, generation=2, node="n0", reason="digest mismatch"),
        h.NodeHalted(at=13, generation=1, node="n0"),
        h.NodeHalted(at=13, generation=1, node="n1"),
        h.Planned(at=13, generation=3, layout=layout_on("n0", "n1")),
        h.NodePrepared(at=13, generation=3, node="n0"),
    )
    run, commands = drive(run, h.NodePrepared(at=13, generation=3, node="n1"))
    (choose,) = of_kind(commands, c.ChooseSources)
    assert not choose.live


def test_a_dead_worker_is_waited_for_before_planning():
    run = a_training_run("n0", "n1")
    worker = a_member("n1").workers[0]
    run, _ = drive(run, h.WorkerDied(at=11, worker=worker, cause="SIGKILL"))
    run, commands = drive(
        run,
        h.NodeHalted(at=11.1, generation=1, node="n0"),
        h.NodeHalted(at=11.1, generation=1, node="n1"),
    )
    assert not of_kind(commands, c.Replan)
    reborn = replace(worker, incarnation=2)
    run, commands = drive(run, h.WorkerStarted(at=11.2, worker=reborn))
    assert not of_kind(commands, c.Replan)
    (prepare,) = of_kind(commands, c.SendPrepare)
    assert prepare.layout.workers == (a_member("n0").workers[0], reborn)


def test_a_notice_plans_without_the_leaver_and_releases_it_after_the_switch():
    run = a_training_run("n0", "n1")
    run, commands = drive(run, h.Noticed(at=11, node="n1", seconds=30))
    (replan,) = of_kind(commands, c.Replan)
    assert [member.node for member in replan.members] == ["n0"]
    run, _ = drive(
        run,
        h.Planned(at=11, generation=2, layout=layout_on("n0")),
        h.NodePrepared(at=12, generation=2, node="n0"),
        h.NodeHalted(at=13, generation=1, node="n0"),
        h.NodeHalted(at=13, generation=1, node="n1"),
        h.Restorable(at=13, generation=2, step=6, redone=0, source="peer"),
    )
    run, commands = drive(run, h.NodeSwitched(at=13, generation=2, node="n0", copy_s=0))
    assert [release.node for release in of_kind(commands, c.Release)] == ["n1"]


def test_a_notice_too_short_to_prepare_halts_in_time():
    run = a_training_run("n0", "n1")
    run, _ = drive(run, h.Noticed(at=11, node="n1", seconds=4))
    run, commands = drive(run, h.Tick(at=11 + 4 - LIMITS.leave_margin_s))
    (halt,) = of_kind(commands, c.SendHalt)
    assert halt.nodes == ("n0", "n1")


def test_a_node_without_which_there_is_no_plan_is_used_again_when_it_does_not_leave():
    """It has a notice, nothing fits without it, and then nobody takes it away."""
    run = a_training_run("n0", "n1")
    run, _ = drive(
        run,
        h.Noticed(at=20, node="n1", seconds=5),
        h.Planned(at=21, generation=2, layout=None, why="too few"),
        h.WorkerDied(at=22, worker=a_member("n0").workers[0], cause="killed"),
        h.WorkerStarted(at=23, worker=a_member("n0", incarnation=2).workers[0]),
        *(h.NodeHalted(at=23, generation=1, node=node) for node in ("n0", "n1")),
        h.Planned(at=24, generation=3, layout=None, why="too few"),
    )
    assert run.phase is s.Phase.parked
    run, commands = drive(run, h.Tick(at=25 + LIMITS.overstay_s))
    assert not commands
    run, commands = drive(
        run,
        h.Tick(at=25.1 + LIMITS.overstay_s),
        *(h.NodeHalted(at=56, generation=1, node=node) for node in ("n0", "n1")),
    )
    (prepare,) = of_kind(commands, c.SendPrepare)
    assert prepare.layout.nodes == ("n0", "n1")
    assert run.pause.parked_s == pytest.approx(1.1 + LIMITS.overstay_s)


def test_no_feasible_plan_parks_until_a_node_comes():
    run = a_training_run("n0", "n1")
    run, _ = drive(
        run,
        h.Lost(at=11, node="n1", cause="killed"),
        h.NodeHalted(at=11, generation=1, node="n0"),
    )
    run, commands = drive(run, h.Planned(at=12, generation=2, layout=None, why="too big"))
    assert run.phase is s.Phase.parked
    run, commands = drive(run, h.Joined(at=20, member=a_member("n2"), slots=1))
    assert run.generation == 3
    (halt,) = of_kind(commands, c.SendHalt)
    assert halt.nodes == ("n0", "n2")


def test_a_node_that_does_not_halt_in_time_is_fenced():
    run = a_training_run("n0", "n1", "n2")
    run, _ = drive(
        run,
        h.Lost(at=11, node="n2", cause="killed"),
        h.NodeHalted(at=11.1, generation=1, node="n0"),
    )
    run, commands = drive(run, h.Tick(at=11 + LIMITS.halt_s + 1))
    (fence,) = of_kind(commands, c.Fence)
    assert fence.node == "n1"
    assert set(run.nodes) == {"n0"}


def test_when_most_nodes_are_late_nobody_is_blamed():
    run = a_training_run("n0", "n1", "n2")
    run, _ = drive(run, h.Lost(at=11, node="n2", cause="killed"))
    run, commands = drive(run, h.Tick(at=11 + LIMITS.halt_s + 1))
    assert not of_kind(commands, c.Fence)
    assert run.generation == 3


def test_a_connection_that_breaks_in_a_recovery_starts_it_over_at_once():
    """What it was told, or has answered, may be lost: without this a deadline is waited for, and
    the node is given up for it."""
    run = a_training_run("n0", "n1", "n2")
    run, _ = drive(run, h.Lost(at=11, node="n2", cause="killed"))
    run, commands = drive(run, h.Returned(at=11.1, node="n0"))
    assert run.generation == 3
    (halt,) = of_kind(commands, c.SendHalt)
    assert set(halt.nodes) == {"n0", "n1"}
    assert of_kind(commands, c.Fence) == []


def test_a_connection_that_breaks_while_a_joiner_is_prepared_asks_again_and_all_train_on():
    run = a_training_run("n0", "n1")
    run, _ = drive(
        run,
        h.Joined(at=11, member=a_member("n2"), slots=1),
        h.Planned(at=12, generation=2, layout=layout_on("n0", "n1", "n2")),
    )
    run, commands = drive(run, h.Returned(at=12.5, node="n1"))
    assert run.training
    assert of_kind(commands, c.SendDrop)
    (replan,) = of_kind(commands, c.Replan)
    assert (replan.generation, len(replan.members)) == (3, 3)


def test_a_connection_that_breaks_while_all_train_changes_nothing_unless_a_go_was_lost():
    run = a_training_run("n0", "n1")
    same, commands = drive(run, h.Returned(at=11, node="n0"))
    assert (same, commands) == (run, [])
    run, commands = drive(run, h.Returned(at=11, node="n0", missed_go=True))
    assert commands == []
    _, commands = drive(run, h.Tick(at=11.1 + LIMITS.stumble_s))
    assert of_kind(commands, c.SendHalt)


def test_a_step_broken_for_no_known_reason_is_recovered_from():
    """A link that went silent kills nobody: its two ends would have waited for ever."""
    run = a_training_run("n0", "n1")
    broke = h.NodeFailed(at=11, generation=1, node="n0", reason="left step 6: timed out")
    run, commands = drive(run, broke, h.Tick(at=11.5))
    assert commands == []
    run, commands = drive(run, h.Tick(at=11.1 + LIMITS.stumble_s))
    (halt,) = of_kind(commands, c.SendHalt)
    assert (halt.nodes, halt.boundary) == (("n0", "n1"), False)
    assert run.pause.cause == "n0: left step 6: timed out"


def test_a_loss_that_explains_a_broken_step_is_what_counts():
    run = a_training_run("n0", "n1", "n2")
    broke = h.NodeFailed(at=11, generation=1, node="n0", reason="left step 6: closed by peer")
    run, _ = drive(run, broke, h.Lost(at=11.2, node="n2", cause="killed"))
    assert run.generation == 2
    assert run.pause.cause == "n2 lost: killed"
    run, commands = drive(run, h.Tick(at=13))
    assert run.generation == 2
    assert commands == []


def parts(commands):
    """The fields of the one pause that was recorded."""
    (pause,) = [c.fields for c in of_kind(commands, c.Record) if c.kind == "pause"]
    return pause


PARTS = ("detect_s", "decide_s", "prepare_s", "copy_s", "switch_s", "first_step_s", "parked_s")


def test_the_parts_of_a_pause_are_all_of_it_whatever_was_tried_in_vain():
    """A loss during the recovery from another, parking, a first step that never came: the time of
    attempts that came to nothing once belonged to no part."""
    run = a_training_run("n0", "n1", "n2", "n3")
    run, _ = drive(
        run,
        h.Lost(at=20, node="n3", cause="killed", silent_s=0.5),
        h.Lost(at=21, node="n2", cause="killed"),
        h.NodeHalted(at=22, generation=1, node="n0"),
        h.NodeHalted(at=23, generation=1, node="n1"),
        h.Planned(at=25, generation=3, layout=None, why="too few"),
        h.Joined(at=65, member=a_member("n4"), slots=1),
    )
    halting = [h.NodeHalted(at=66, generation=1, node=node) for node in ("n0", "n1", "n4")]
    layout = layout_on("n0", "n4")
    going = [
        h.Planned(at=67, generation=4, layout=layout),
        *(h.NodePrepared(at=70, generation=4, node=node) for node in layout.nodes),
        h.Restorable(at=71, generation=4, step=5, redone=0, source="peer"),
        *(h.NodeSwitched(at=75, generation=4, node=n, copy_s=3) for n in layout.nodes),
    ]
    run, commands = drive(run, *halting, *going)
    assert run.phase is s.Phase.training
    run, _ = drive(run, h.Lost(at=77, node="n4", cause="killed"))
    halting = [h.NodeHalted(at=78, generation=4, node=node) for node in ("n0", "n1")]
    layout = layout_on("n0", "n1")
    going = [
        h.Planned(at=79, generation=5, layout=layout),
        *(h.NodePrepared(at=80, generation=5, node=node) for node in layout.nodes),
        h.Restorable(at=81, generation=5, step=5, redone=0, source="peer"),
        *(h.NodeSwitched(at=82, generation=5, node=n, copy_s=1) for n in layout.nodes),
    ]
    run, _ = drive(run, *halting, *going)
    run, commands = drive(run, h.StepApplied(at=84, generation=5, step=6))
    pause = parts(commands)
    assert pause["total_s"] == 84 - 19.5 == sum(pause[part] for part in PARTS)
    assert (pause["detect_s"], pause["parked_s"], pause["first_step_s"]) == (0.5, 40, 2)
    assert pause["copy_s"] == 4


def test_a_first_step_that_comes_in_while_the_next_change_halts_ends_its_pause():
    run = a_training_run("n0", "n1")
    run, _ = drive(run, h.Noticed(at=20, node="n1", seconds=60))
    layout = layout_on("n0")
    run, _ = drive(
        run,
        h.Planned(at=21, generation=2, layout=layout),
        h.NodePrepared(at=22, generation=2, node="n0"),
        *(h.NodeHalted(at=23, generation=1, node=node) for node in ("n0", "n1")),
        h.Restorable(at=24, generation=2, step=7, redone=0, source="peer"),
        h.NodeSwitched(at=25, generation=2, node="n0", copy_s=1),
        h.Joined(at=25.1, member=a_member("n2"), slots=1),
        h.Planned(at=25.2, generation=3, layout=layout_on("n0", "n2")),
        *(h.NodePrepared(at=25.3, generation=3, node=node) for node in ("n0", "n2")),
    )
    run, commands = drive(run, h.StepApplied(at=26, generation=2, step=8))
    pause = parts(commands)
    assert (pause["total_s"], pause["first_step_s"]) == (3, 1)
    run, _ = drive(run, h.NodeHalted(at=26.1, generation=2, node="n0"))
    assert run.pause.began_at == 26.1


def test_a_first_step_that_comes_in_while_the_run_is_saved_ends_its_pause():
    run = a_training_run("n0", "n1")
    run, _ = drive(
        run,
        h.Noticed(at=20, node="n1", seconds=60),
        h.Planned(at=21, generation=2, layout=layout_on("n0")),
        h.NodePrepared(at=22, generation=2, node="n0"),
        *(h.NodeHalted(at=23, generation=1, node=node) for node in ("n0", "n1")),
        h.Restorable(at=24, generation=2, step=7, redone=0, source="peer"),
        h.NodeSwitched(at=25, generation=2, node="n0", copy_s=1),
        h.StopAsked(at=25.1, end=s.End.interrupted, why="Ctrl-C"),
    )
    assert run.phase is s.Phase.stopping
    run, commands = drive(run, h.StepApplied(at=26, generation=2, step=8))
    assert parts(commands)["total_s"] == 3


def test_transitions_that_never_reach_a_step_end_the_run():
    run = a_training_run("n0", "n1")
    run, _ = drive(run, h.Lost(at=11, node="n1", cause="killed"))
    for _ in range(LIMITS.max_restarts):
        assert run.phase is s.Phase.transition
        run, commands = advance(
            run,
            h.NodeFailed(at=12, generation=run.generation, node="n0", reason="no memory"),
        )
    (finish,) = of_kind(commands, c.Finish)
    assert finish.end is s.End.failed


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_step():
    run = a_training_run("n0", "n1")
    run, commands = drive(run, h.StepRefused(at=11, generation=1, step=6))
    (halt,) = of_kind(commands, c.SendHalt)
    assert halt.persist
    assert run.stop.end is s.End.diverged


def test_who_asks_for_another_plan_gets_one_while_training_goes_on():
    run, commands = drive(a_training_run("n0", "n1"), h.ReplanAsked(at=20, why="key r"))
    (replan,) = of_kind(commands, c.Replan)
    assert [member.node for member in replan.members] == ["n0", "n1"]
    assert run.training
    run, commands = drive(run, h.Planned(at=21, generation=2, layout=run.active))
    assert run.phase is s.Phase.training  # the present layout is the best: nothing changes
    assert run.active_generation == 1


def test_a_wish_for_another_plan_during_a_change_waits_for_its_end():
    run, _ = drive(a_training_run("n0", "n1"), h.Lost(at=20, node="n1", cause="gone"))
    run, commands = drive(run, h.ReplanAsked(at=20.1, why="key r"))
    assert run.phase is s.Phase.transition
    assert not of_kind(commands, c.Replan)
