"""Standbys, moves and who takes over, as tables: one situation, one event, what follows."""

import pytest

from sailor.runtime import commands as c
from sailor.runtime import happenings as h
from sailor.runtime import state as s
from sailor.runtime.lifecycle import advance
from sailor.runtime.reserve import standbys
from tests.helpers.builders import a_member
from tests.helpers.life import drive, layout_on, of_kind


def told(commands, kind):
    return [c.fields for c in of_kind(commands, c.Record) if c.kind == kind]


def a_run_with(*seated, apart=()):
    """Training on ``seated``, having applied step 5, with ``apart`` standing by."""
    everybody = (*seated, *apart)
    limits = s.Limits(initial_nodes=len(everybody), standbys=len(apart))
    run = s.Run(limits=limits, total_steps=100)
    for node in everybody:
        run, commands = advance(run, h.Joined(at=1, member=a_member(node), slots=1))
    (replan,) = of_kind(commands, c.Replan)
    assert [member.node for member in replan.members] == list(seated)
    run, _ = advance(run, h.Planned(at=2, generation=1, layout=layout_on(*seated)))
    for node in seated:
        run, _ = advance(run, h.NodePrepared(at=3, generation=1, node=node))
    run, _ = advance(run, h.Restorable(at=4, generation=1, step=0, redone=0, source="init"))
    for node in seated:
        run, commands = advance(run, h.NodeSwitched(at=5, generation=1, node=node, copy_s=0.1))
    assert [c.nodes for c in of_kind(commands, c.SendWarm)] == ([apart] if apart else [])
    run, _ = advance(run, h.StepApplied(at=6, generation=1, step=5))
    assert standbys(run) == tuple(apart)
    return run


def halted(run, at, *nodes):
    return drive(run, *(h.NodeHalted(at=at, generation=1, node=node) for node in nodes))


@pytest.mark.parametrize("silent_s", [0.1, 5.0])
def test_a_standby_takes_a_dead_machines_seats_and_nobody_plans(silent_s):
    run = a_run_with("n0", "n1", "n2", apart=("n8", "n9"))
    run, commands = drive(run, h.Lost(at=11, node="n1", cause="killed", silent_s=silent_s))
    (halt,) = of_kind(commands, c.SendHalt)
    assert set(halt.nodes) == {"n0", "n2", "n8", "n9"}
    run, commands = halted(run, 11.1, "n0", "n2", "n8", "n9")
    assert not of_kind(commands, c.Replan)
    (prepare,) = of_kind(commands, c.SendPrepare)
    assert prepare.layout.nodes == ("n0", "n8", "n2")
    assert prepare.layout.plan == run.active.plan
    assert told(commands, "standby") == [
        {"node": "n8", "state": "promoted", "why": "takes the seats of n1"}
    ]


def test_a_notice_has_the_standby_prepared_while_all_train():
    run = a_run_with("n0", "n1", apart=("n9",))
    run, commands = drive(run, h.Noticed(at=11, node="n0", seconds=30))
    assert run.training
    assert not of_kind(commands, c.Replan) + of_kind(commands, c.SendHalt)
    (prepare,) = of_kind(commands, c.SendPrepare)
    assert prepare.layout.nodes == ("n9", "n1")
    run, commands = drive(
        run, *(h.NodePrepared(at=12, generation=2, node=node) for node in ("n9", "n1"))
    )
    (halt,) = of_kind(commands, c.SendHalt)
    assert (halt.boundary, halt.nodes) == (True, ("n0", "n1"))
    run, _ = halted(run, 12.1, "n0", "n1")
    run, _ = drive(run, h.Restorable(at=12.2, generation=2, step=6, redone=0, source="peer"))
    run, commands = drive(
        run, *(h.NodeSwitched(at=13, generation=2, node=n, copy_s=0) for n in ("n9", "n1"))
    )
    assert [c.node for c in of_kind(commands, c.Release)] == ["n0"]


def test_without_a_standby_a_spare_machine_takes_over():
    run = a_run_with("n0", "n1")
    run, commands = drive(run, h.Joined(at=10, member=a_member("n2"), slots=1))
    run, _ = drive(run, h.Planned(at=10.1, generation=2, layout=None, why="no gain"))
    run, _ = drive(run, h.Lost(at=11, node="n1", cause="killed"))
    run, commands = halted(run, 11.1, "n0", "n2")
    (prepare,) = of_kind(commands, c.SendPrepare)
    assert prepare.layout.nodes == ("n0", "n2")


def test_two_leavers_and_one_standby_plan_again_with_the_standby():
    run = a_run_with("n0", "n1", "n2", apart=("n9",))
    run, _ = drive(
        run, h.Lost(at=11, node="n1", cause="killed"), h.Lost(at=11, node="n2", cause="killed")
    )
    run, commands = halted(run, 11.1, "n0", "n9")
    (replan,) = of_kind(commands, c.Replan)
    assert [member.node for member in replan.members] == ["n0", "n9"]


def test_with_nobody_left_the_run_plans_and_with_no_plan_it_parks():
    run = a_run_with("n0", "n1")
    run, _ = drive(run, h.Lost(at=11, node="n1", cause="killed"))
    run, commands = halted(run, 11.1, "n0")
    assert of_kind(commands, c.Replan)
    run, _ = drive(run, h.Planned(at=12, generation=2, layout=None, why="too few"))
    assert run.phase is s.Phase.parked


def test_a_newcomer_stands_by_when_the_crew_is_complete_and_joins_it_when_it_is_not():
    run = a_run_with("n0", "n1", apart=("n9",))
    run, commands = drive(run, h.Lost(at=11, node="n9", cause="killed"))
    assert run.phase is s.Phase.training
    run, commands = drive(run, h.Joined(at=12, member=a_member("n10"), slots=1))
    assert not of_kind(commands, c.Replan)
    assert standbys(run) == ("n10",)
    (warm,) = of_kind(commands, c.SendWarm)
    assert warm.nodes == ("n10",)
    _, commands = drive(run, h.Joined(at=13, member=a_member("n11"), slots=1))
    (replan,) = of_kind(commands, c.Replan)
    assert [member.node for member in replan.members] == ["n0", "n1", "n11"]


def test_an_operators_move_swaps_two_machines_and_the_one_moved_stands_by():
    run = a_run_with("n0", "n1", apart=("n9",))
    run, commands = drive(run, h.MoveAsked(at=11, node="n0", why="maintenance"))
    (prepare,) = of_kind(commands, c.SendPrepare)
    assert prepare.layout.nodes == ("n9", "n1")
    run, _ = drive(run, *(h.NodePrepared(at=12, generation=2, node=node) for node in ("n9", "n1")))
    run, _ = halted(run, 12.1, "n0", "n1")
    run, _ = drive(run, h.Restorable(at=12.2, generation=2, step=6, redone=0, source="peer"))
    run, commands = drive(
        run, *(h.NodeSwitched(at=13, generation=2, node=n, copy_s=0) for n in ("n9", "n1"))
    )
    assert not of_kind(commands, c.Release)
    assert standbys(run) == ("n0",)
    assert not any(node.moving for node in run.nodes.values())
    _, commands = drive(run, h.MoveAsked(at=14, node="n1", why="maintenance"))
    (prepare,) = of_kind(commands, c.SendPrepare)
    assert prepare.layout.nodes == ("n9", "n0")


def test_a_slow_machine_that_was_moved_from_takes_nobodys_seats():
    run = a_run_with("n0", "n1", apart=("n9",))
    run, _ = drive(
        run,
        h.MoveAsked(at=11, node="n0", why="slow", keep_out=True),
        *(h.NodePrepared(at=12, generation=2, node=node) for node in ("n9", "n1")),
        *(h.NodeHalted(at=12, generation=1, node=node) for node in ("n0", "n1")),
        h.Restorable(at=12.2, generation=2, step=6, redone=0, source="peer"),
        *(h.NodeSwitched(at=13, generation=2, node=n, copy_s=0) for n in ("n9", "n1")),
    )
    _, commands = drive(run, h.MoveAsked(at=14, node="n1", why="slow"))
    assert told(commands, "move_refused") == [
        {"node": "n1", "why": "no machine can take its seats"}
    ]


@pytest.mark.parametrize("node", ["n7", "n9"])
def test_a_move_of_a_machine_without_a_seat_is_refused(node):
    run = a_run_with("n0", "n1", apart=("n9",))
    after, commands = drive(run, h.MoveAsked(at=11, node=node, why="asked"))
    assert after == run
    assert told(commands, "move_refused")


def better_placed(to, node="n0"):
    return h.MoveAsked(at=11, node=node, why="better placed", to=to)


def test_a_move_to_a_certain_machine_goes_to_no_other():
    run = a_run_with("n0", "n1", apart=("n8", "n9"))
    run, commands = drive(run, better_placed("n9"))
    (prepare,) = of_kind(commands, c.SendPrepare)
    assert prepare.layout.nodes == ("n9", "n1")
    run, _ = drive(
        run,
        *(h.NodePrepared(at=12, generation=2, node=node) for node in ("n9", "n1")),
        *(h.NodeHalted(at=12, generation=1, node=node) for node in ("n0", "n1")),
        h.Restorable(at=12.2, generation=2, step=6, redone=0, source="peer"),
        *(h.NodeSwitched(at=13, generation=2, node=n, copy_s=0) for n in ("n9", "n1")),
    )
    assert set(standbys(run)) == {"n0", "n8"}
    assert not any(node.moving or node.moving_to for node in run.nodes.values())


@pytest.mark.parametrize(
    ("event", "of"),
    [
        (h.Lost(at=11.5, node="n9", cause="killed"), "n9"),
        (h.NodeFailed(at=11.5, generation=2, node="n9", reason="no memory"), "n9"),
    ],
)
def test_where_that_machine_cannot_the_seats_stay_where_they_are(event, of):
    run = a_run_with("n0", "n1", apart=("n8", "n9"))
    run, _ = drive(run, better_placed("n9"))
    run, commands = drive(run, event)
    assert run.training
    assert not of_kind(commands, c.SendPrepare)
    assert not any(node.moving or node.moving_to for node in run.nodes.values()), of


def test_such_a_wish_yields_to_a_machine_that_must_go():
    run = a_run_with("n0", "n1", apart=("n9",))
    run, _ = drive(run, better_placed("n9"))
    run, commands = drive(run, h.Noticed(at=11.5, node="n1", seconds=30))
    (prepare,) = of_kind(commands, c.SendPrepare)
    assert prepare.layout.nodes == ("n0", "n9")
    assert not run.nodes["n0"].moving
    after, commands = drive(run, better_placed("n9"))
    assert after == run
    assert told(commands, "move_refused") == [{"node": "n0", "why": "another change is under way"}]


def test_a_machine_lost_meanwhile_is_stood_in_for_and_the_wish_forgotten():
    run = a_run_with("n0", "n1", apart=("n9",))
    run, _ = drive(run, better_placed("n9"))
    run, _ = drive(run, h.Lost(at=11.5, node="n1", cause="killed"))
    run, commands = halted(run, 11.6, "n0", "n9")
    (prepare,) = of_kind(commands, c.SendPrepare)
    assert prepare.layout.nodes == ("n0", "n9")


@pytest.mark.parametrize("to", ["n1", "n7"])
def test_a_wish_for_a_machine_that_has_a_seat_or_is_not_there_is_refused(to):
    run = a_run_with("n0", "n1", apart=("n9",))
    after, commands = drive(run, better_placed(to))
    assert after == run
    assert told(commands, "move_refused") == [{"node": "n0", "why": f"{to} cannot take its seats"}]


def test_a_standby_that_dies_while_being_promoted_is_followed_by_the_next():
    run = a_run_with("n0", "n1", apart=("n8", "n9"))
    run, _ = drive(run, h.Noticed(at=11, node="n0", seconds=30))
    run, commands = drive(run, h.Lost(at=11.5, node="n8", cause="killed"))
    assert run.training
    (prepare,) = of_kind(commands, c.SendPrepare)
    assert (prepare.generation, prepare.layout.nodes) == (3, ("n9", "n1"))


def test_a_standby_that_cannot_prepare_is_followed_by_the_next_then_by_a_plan():
    run = a_run_with("n0", "n1", apart=("n8", "n9"))
    run, _ = drive(run, h.Noticed(at=11, node="n0", seconds=300))
    run, commands = drive(run, h.NodeFailed(at=12, generation=2, node="n8", reason="no memory"))
    (prepare,) = of_kind(commands, c.SendPrepare)
    assert prepare.layout.nodes == ("n9", "n1")
    run, _ = drive(run, h.NodePrepared(at=13, generation=3, node="n1"))
    run, commands = drive(run, h.Tick(at=13 + run.limits.prepare_s))
    assert run.training
    (replan,) = of_kind(commands, c.Replan)
    assert [member.node for member in replan.members] == ["n1", "n8", "n9"]


def test_a_standby_nobody_needs_may_die_in_the_middle_of_a_change():
    run = a_run_with("n0", "n1", apart=("n8", "n9"))
    run, _ = drive(run, h.Lost(at=11, node="n1", cause="killed"))
    run, _ = halted(run, 11.1, "n0", "n8")
    run, commands = drive(run, h.Lost(at=11.2, node="n9", cause="killed"))
    assert run.generation == 2
    (prepare,) = of_kind(commands, c.SendPrepare)
    assert prepare.layout.nodes == ("n0", "n8")


def test_a_leaver_that_dies_during_its_hand_over_is_recovered_from_with_the_same_standby():
    run = a_run_with("n0", "n1", apart=("n9",))
    run, _ = drive(
        run,
        h.Noticed(at=11, node="n0", seconds=30),
        *(h.NodePrepared(at=12, generation=2, node=node) for node in ("n9", "n1")),
    )
    run, commands = drive(run, h.Lost(at=12.1, node="n0", cause="preempted"))
    assert (run.generation, run.training) == (3, False)
    run, commands = halted(run, 12.2, "n1", "n9")
    (prepare,) = of_kind(commands, c.SendPrepare)
    assert prepare.layout.nodes == ("n9", "n1")


def test_a_notice_too_short_to_prepare_halts_in_time_and_the_standby_still_takes_over():
    run = a_run_with("n0", "n1", apart=("n9",))
    run, _ = drive(run, h.Noticed(at=11, node="n0", seconds=4))
    run, commands = drive(run, h.Tick(at=11 + 4 - run.limits.leave_margin_s))
    assert of_kind(commands, c.SendHalt)
    run, commands = halted(run, 12.1, "n0", "n1", "n9")
    (prepare,) = of_kind(commands, c.SendPrepare)
    assert prepare.layout.nodes == ("n9", "n1")


def test_two_notices_at_once_move_both_in_one_change():
    run = a_run_with("n0", "n1", "n2", apart=("n8", "n9"))
    run, _ = drive(run, h.Noticed(at=11, node="n0", seconds=60))
    run, commands = drive(run, h.Noticed(at=11.1, node="n1", seconds=60))
    (prepare,) = of_kind(commands, c.SendPrepare)
    assert prepare.layout.nodes == ("n8", "n9", "n2")


def test_a_standby_with_a_notice_is_given_back_and_nothing_else_happens():
    run = a_run_with("n0", "n1", apart=("n9",))
    run, commands = drive(run, h.Noticed(at=11, node="n9", seconds=30))
    assert [c.node for c in of_kind(commands, c.Release)] == ["n9"]
    assert run.phase is s.Phase.training


def test_a_run_that_comes_short_at_the_start_takes_its_standbys_in():
    limits = s.Limits(initial_nodes=3, standbys=1)
    run = s.Run(limits=limits, total_steps=100)
    run, _ = drive(run, *(h.Joined(at=1, member=a_member(node), slots=1) for node in ("n0", "n1")))
    _, commands = drive(run, h.Tick(at=limits.assemble_s + 1))
    (replan,) = of_kind(commands, c.Replan)
    assert [member.node for member in replan.members] == ["n0", "n1"]
