"""A new controller of a run that trains, as tables: who has dialled in, and what follows."""

from dataclasses import replace

import pytest

from sailor.runtime import state as s
from sailor.runtime.adoption import to_adopt
from sailor.runtime.journal import Journal, read_journal, write_journal
from sailor.runtime.lifecycle import advance
from sailor.runtime.messages import Hello
from sailor.runtime.roster import Roster
from tests.helpers.builders import a_member
from tests.runtime.test_lifecycle import layout_on, of_kind

LIMITS = s.Limits(initial_nodes=2, adopt_s=10)


def a_run_to_adopt(*nodes, generation=4, heard=4):
    return to_adopt(
        limits=LIMITS, total_steps=100, at=0.0, generation=heard, active=layout_on(*nodes),
        active_generation=generation, awaited=frozenset(nodes),
    )  # fmt: skip


def back(node, *, at=1.0, trains=True, heard=4, step=7):
    member = a_member(node)
    going_on = frozenset(member.workers) if trains else frozenset()
    return s.Rejoined(at=at, member=member, slots=1, going_on=going_on, heard=heard, step=step)


def drive(run, *events):
    commands = []
    for event in events:
        run, commands = advance(run, event)
    return run, commands


def adopted(commands):
    return [c for c in of_kind(commands, s.Record) if c.kind == "adopted"]


def test_nothing_is_decided_before_all_have_dialled_in():
    run, commands = drive(a_run_to_adopt("n0", "n1"), back("n0"))
    assert run.phase is s.Phase.adopting
    assert commands == []


def test_a_run_all_of_whose_workers_train_goes_on_without_a_pause():
    run, commands = drive(a_run_to_adopt("n0", "n1"), back("n0"), back("n1", step=8))
    assert run.phase is s.Phase.training
    assert (run.active_generation, run.step, run.pause) == (4, 8, None)
    (found,) = adopted(commands)
    assert found.fields["trains"]
    assert of_kind(commands, s.SendHalt) == []


def test_a_worker_that_stands_still_is_recovered_from_in_a_generation_never_used():
    run, commands = drive(a_run_to_adopt("n0", "n1"), back("n0"), back("n1", trains=False, heard=6))
    assert run.phase is s.Phase.transition
    assert run.transition.generation == 7
    (halt,) = of_kind(commands, s.SendHalt)
    assert (halt.generation, halt.nodes) == (4, ("n0", "n1"))
    (drop,) = of_kind(commands, s.SendDrop)  # what the earlier controller had begun
    assert drop.generation == 6


def test_who_died_meanwhile_is_not_waited_for():
    run, commands = drive(
        a_run_to_adopt("n0", "n1"), back("n0"), s.Lost(at=2, node="n1", cause="its agent ended")
    )
    (halt,) = of_kind(commands, s.SendHalt)
    assert halt.nodes == ("n0",)


def test_who_does_not_come_in_time_is_shut_out():
    run, commands = drive(a_run_to_adopt("n0", "n1"), back("n0"), s.Tick(at=LIMITS.adopt_s))
    assert commands == []
    run, commands = drive(run, s.Tick(at=LIMITS.adopt_s + 0.1))
    (fence,) = of_kind(commands, s.Fence)
    assert fence.node == "n1"
    assert of_kind(commands, s.SendHalt)


def test_if_nobody_comes_machines_are_asked_for_and_the_run_begins_from_what_is_durable():
    run, commands = drive(a_run_to_adopt("n0", "n1"), s.Tick(at=LIMITS.adopt_s + 0.1))
    assert run.phase is s.Phase.assembling
    assert len(of_kind(commands, s.Provision)) == 1
    run, commands = drive(
        run, s.Joined(at=20, member=a_member("m0"), slots=1),
        s.Joined(at=21, member=a_member("m1"), slots=1),
    )  # fmt: skip
    (replan,) = of_kind(commands, s.Replan)
    assert replan.generation == 5
    assert replan.previous is None


def test_a_node_that_booted_meanwhile_is_planned_with_once_the_others_are_there():
    run, commands = drive(
        a_run_to_adopt("n0", "n1"), s.Joined(at=1, member=a_member("n2"), slots=1), back("n0"),
        back("n1"),
    )  # fmt: skip
    (replan,) = of_kind(commands, s.Replan)
    assert [member.node for member in replan.members] == ["n0", "n1", "n2"]
    assert run.training


def test_a_run_whose_last_step_was_made_meanwhile_is_saved_and_ends():
    finished = [s.NodeFinished(at=1, generation=4, node=node) for node in ("n0", "n1")]
    run, commands = drive(a_run_to_adopt("n0", "n1"), back("n0"), *finished, back("n1"))
    assert run.stop.end is s.End.done
    (halt,) = of_kind(commands, s.SendHalt)
    assert halt.persist


def test_a_wish_to_stop_is_kept_until_the_run_is_found():
    stop = s.StopAsked(at=1, end=s.End.interrupted, why="SIGINT")
    run, commands = drive(a_run_to_adopt("n0", "n1"), stop)
    assert run.phase is s.Phase.adopting
    run, commands = drive(run, back("n0"), back("n1"))
    assert run.phase is s.Phase.stopping
    (halt,) = of_kind(commands, s.SendHalt)
    assert halt.boundary


def test_a_halt_that_the_earlier_controller_had_asked_for_is_recovered_from():
    run, _ = drive(a_run_to_adopt("n0", "n1"), back("n0"), back("n1"))
    run, commands = drive(run, s.NodeHalted(at=2, generation=4, node="n0"))
    assert run.phase is s.Phase.transition
    (halt,) = of_kind(commands, s.SendHalt)
    assert not halt.boundary


@pytest.mark.parametrize("late", [s.NodeFailed(at=1.5, generation=4, node="n0", reason="a peer")])
def test_a_step_that_broke_meanwhile_is_recovered_from_once_all_are_there(late):
    run, _ = drive(a_run_to_adopt("n0", "n1"), back("n0"), late, back("n1"))
    assert run.phase is s.Phase.training
    run, commands = drive(run, s.Tick(at=1.5 + LIMITS.stumble_s + 0.1))
    assert of_kind(commands, s.SendHalt)


# Who is let in


def hello(node="n1", *, start, pid=1):
    return Hello(
        node=node, zone="z", machine_type="m", pid=pid, host="h", port=1, workers=(), start=start
    )


def test_a_start_that_an_earlier_controller_gave_up_is_refused():
    journal = Journal().joined("n1", "one").left("n1")
    roster = Roster(members=journal.members, given_up=journal.fenced)
    assert "given up by an earlier controller" in roster.admit(
        hello(start="one"), link=None, now=0.0
    )
    assert roster.admit(hello(start="two"), link=None, now=0.0) == ""


def test_another_start_does_not_pass_for_a_member_of_the_earlier_controller():
    journal = Journal().joined("n1", "one")
    roster = Roster(members=journal.members, given_up=journal.fenced)
    assert "member already" in roster.admit(hello(start="two"), link=None, now=0.0)
    assert roster.admit(hello(start="one"), link=None, now=0.0) == ""


def test_the_journal_is_read_as_it_was_written(tmp_path):
    layout = layout_on("n0", "n1")
    journal = Journal().started(port=4321).joined("n0", "a").joined("n1", "b").left("n1")
    journal = journal.begun(3, step=12, layout=layout)
    write_journal(tmp_path / "journal.json", journal)
    again = read_journal(tmp_path / "journal.json")
    assert again == journal
    assert again.active.workers == layout.workers
    assert replace(again.alone(), attempt=1) == Journal(
        generation=3, attempt=1, starts={3: 12}, fenced=("b", "a"), port=4321
    )
