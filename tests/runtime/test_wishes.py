"""Changes that come to nothing: what is wished for again, when, and with whom."""

from dataclasses import replace

import pytest

from sailor.runtime import commands as c
from sailor.runtime import happenings as h
from sailor.runtime import state as s
from sailor.runtime.wishes import FIRST_WAIT_S, LONGEST_WAIT_S, due, wished_again
from tests.helpers.builders import a_member
from tests.helpers.life import a_run, a_training_run, drive, layout_on, of_kind

PAIR, ALL = ("n0", "n1"), ("n0", "n1", "n2")


def preparing(at=11.0, run=None):
    """Generation 1 trains on a pair while a third machine is being taken in."""
    run = run or a_training_run(*PAIR)
    return drive(
        run,
        h.Joined(at=at, member=a_member("n2"), slots=1),
        h.Planned(at=at + 1, generation=run.generation + 1, layout=layout_on(*ALL)),
    )[0]


def failing(run, node, *, at):
    return drive(run, h.NodeFailed(at=at, generation=run.generation, node=node, reason="broke"))


def asked(commands):
    return [[member.node for member in each.members] for each in of_kind(commands, c.Replan)]


def test_who_was_being_taken_in_when_a_worker_was_lost_is_taken_in_afterwards():
    run = preparing()
    worker = run.nodes["n0"].member.workers[0]
    run, _ = drive(
        run,
        h.WorkerDied(at=12.1, worker=worker, cause="SIGKILL"),
        *(h.NodeHalted(at=12.2, generation=1, node=n) for n in ALL),
        h.WorkerStarted(at=12.3, worker=replace(worker, incarnation=worker.incarnation + 1)),
    )
    assert run.transition.layout.nodes == PAIR  # the quickest way back is the layout there was
    generation = run.generation
    run, commands = drive(
        run,
        *(h.NodePrepared(at=12.4, generation=generation, node=n) for n in PAIR),
        h.Restorable(at=12.5, generation=generation, step=5, redone=0, source="live"),
        *(h.NodeSwitched(at=12.6, generation=generation, node=n, copy_s=0.0) for n in PAIR),
    )
    assert of_kind(commands, c.SendGo)
    assert asked(commands) == [list(ALL)]
    assert run.training
    assert run.transition.cause == "again: n2 joined"


@pytest.mark.parametrize("node", ["n0", "n2"])
def test_a_change_that_failed_is_tried_again_at_once_and_then_later_each_time(node):
    run, commands = failing(preparing(), node, at=13)
    assert run.training
    assert asked(commands) == [list(ALL)]
    run, _ = drive(run, h.Planned(at=13.5, generation=3, layout=layout_on(*ALL)))
    run, commands = failing(run, node, at=14)
    assert asked(commands) == []
    run, commands = drive(run, h.Tick(at=14 + FIRST_WAIT_S - 0.1))
    assert asked(commands) == []
    run, commands = drive(run, h.Tick(at=14 + FIRST_WAIT_S + 0.1))
    # Without a newcomer that it failed at twice; a machine that trains is needed.
    assert asked(commands) == [list(PAIR) if node == "n2" else list(ALL)]
    run, _ = drive(run, h.Planned(at=20, generation=4, layout=layout_on(*PAIR)))
    assert run.phase is s.Phase.training
    assert not due(run, 1e9)  # the present layout is the best there is without it


def test_a_change_that_takes_too_long_is_tried_again():
    run = preparing()
    late = run.transition.deadline + 0.1
    run, commands = drive(run, h.Tick(at=late))
    assert of_kind(commands, c.SendDrop)
    assert asked(commands) == [list(ALL)]


def test_a_plan_that_is_no_better_is_not_asked_for_again():
    run, _ = drive(a_training_run(*PAIR), h.Joined(at=11, member=a_member("n2"), slots=1))
    run, _ = drive(run, h.Planned(at=12, generation=2, layout=None, why="no better plan"))
    assert run.phase is s.Phase.training
    assert not due(run, 1e9)
    assert run.setbacks == 0


def test_who_joins_while_a_plan_without_it_fails_is_planned_with_at_once():
    """Two machines come a moment apart, and one alone is too few."""
    run, _ = drive(
        a_training_run(*PAIR),
        *(h.Lost(at=11, node=node, cause="gone") for node in PAIR),
    )
    run, _ = drive(run, h.Planned(at=12, generation=run.generation, layout=None, why="nobody"))
    assert run.phase is s.Phase.parked
    run, commands = drive(
        run,
        h.Joined(at=20, member=a_member("n2"), slots=1),
        h.NodeHalted(at=20.1, generation=run.active_generation, node="n2"),
    )
    assert asked(commands) == [["n2"]]
    run, commands = drive(run, h.Joined(at=20.2, member=a_member("n3"), slots=1))
    assert asked(commands) == []
    run, _ = drive(run, h.Planned(at=20.3, generation=run.generation, layout=None, why="too few"))
    active = run.active_generation
    run, commands = drive(
        run, *(h.NodeHalted(at=20.4, generation=active, node=node) for node in ("n2", "n3"))
    )
    (prepare,) = of_kind(commands, c.SendPrepare)
    assert prepare.layout.nodes == ("n2", "n3")  # together they take all seats there were


def test_who_joins_while_all_stand_still_and_is_not_needed_is_planned_with_afterwards():
    run, _ = drive(
        a_training_run(*PAIR),
        h.Lost(at=11, node="n1", cause="gone"),
        h.Joined(at=11.1, member=a_member("n2"), slots=1),
        h.Joined(at=11.1, member=a_member("n3"), slots=1),
        h.NodeHalted(at=11.2, generation=1, node="n0"),
    )
    assert run.transition.layout.nodes == ("n0", "n2")
    nodes, generation = run.transition.layout.nodes, run.generation
    run, commands = drive(
        run,
        *(h.NodePrepared(at=12, generation=generation, node=n) for n in nodes),
        h.Restorable(at=13, generation=generation, step=5, redone=0, source="live"),
        *(h.NodeSwitched(at=14, generation=generation, node=n, copy_s=0.0) for n in nodes),
    )
    assert of_kind(commands, c.SendGo)
    assert asked(commands) == [["n0", "n2", "n3"]]


def test_another_machine_that_joins_is_not_kept_waiting_by_earlier_failures():
    run = a_training_run(*PAIR)
    run = replace(run, setbacks=9, reconsider="again: n2 joined", reconsider_at=500.0)
    run, commands = drive(run, h.Joined(at=11, member=a_member("n2"), slots=1))
    assert asked(commands) == [list(ALL)]
    assert not due(run, 1e9)


def test_a_layout_that_another_takes_the_place_of_ends_the_setbacks():
    run = replace(preparing(), setbacks=3)
    run, _ = drive(
        run,
        *(h.NodePrepared(at=13, generation=2, node=n) for n in ALL),
        *(h.NodeHalted(at=14, generation=1, node=n) for n in PAIR),
        h.Restorable(at=15, generation=2, step=5, redone=0, source="live"),
        *(h.NodeSwitched(at=16, generation=2, node=n, copy_s=0.0) for n in ALL),
    )
    assert run.active.nodes == ALL
    assert run.setbacks == 0


def test_waits_double_up_to_five_minutes():
    run, waits = a_run(), []
    for _ in range(10):
        run = wished_again(replace(run, reconsider=""), 100.0, cause="n2 joined")
        waits.append(run.reconsider_at - 100.0)
    assert waits == [0.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, LONGEST_WAIT_S, 300.0, 300.0]
    assert run.reconsider == "again: n2 joined"
