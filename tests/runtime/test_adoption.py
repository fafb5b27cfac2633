"""A new controller of a run that trains, as tables: who has dialled in, and what follows."""

from dataclasses import replace

import pytest

from sailor.parallel.layout import WorkerId
from sailor.runtime import commands as c
from sailor.runtime import happenings as h
from sailor.runtime import state as s
from sailor.runtime.adoption import to_adopt
from sailor.runtime.journal import Journal, read_journal, write_journal
from sailor.runtime.messages import Hello, WorkerStatus
from sailor.runtime.roster import Roster
from tests.helpers.builders import a_member
from tests.helpers.life import drive, layout_on, of_kind

LIMITS = s.Limits(initial_nodes=2, adopt_s=10)


def a_run_to_adopt(*nodes, generation=4, heard=4):
    return to_adopt(
        limits=LIMITS, total_steps=100, at=0.0, generation=heard, active=layout_on(*nodes),
        active_generation=generation, awaited=frozenset(nodes),
    )  # fmt: skip


def back(node, *, at=1.0, trains=True, heard=4, step=7):
    member = a_member(node)
    going_on = frozenset(member.workers) if trains else frozenset()
    return h.Rejoined(at=at, member=member, slots=1, going_on=going_on, heard=heard, step=step)


def adopted(commands):
    return [c for c in of_kind(commands, c.Record) if c.kind == "adopted"]


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
    assert of_kind(commands, c.SendHalt) == []


def test_a_worker_that_stands_still_is_recovered_from_in_a_generation_never_used():
    run, commands = drive(a_run_to_adopt("n0", "n1"), back("n0"), back("n1", trains=False, heard=6))
    assert run.phase is s.Phase.transition
    assert run.transition.generation == 7
    (halt,) = of_kind(commands, c.SendHalt)
    assert (halt.generation, halt.nodes) == (4, ("n0", "n1"))
    (drop,) = of_kind(commands, c.SendDrop)  # what the earlier controller had begun
    assert drop.generation == 6


def test_who_died_meanwhile_is_not_waited_for():
    run, commands = drive(
        a_run_to_adopt("n0", "n1"), back("n0"), h.Lost(at=2, node="n1", cause="its agent ended")
    )
    (halt,) = of_kind(commands, c.SendHalt)
    assert halt.nodes == ("n0",)


def test_who_does_not_come_in_time_is_shut_out():
    run, commands = drive(a_run_to_adopt("n0", "n1"), back("n0"), h.Tick(at=LIMITS.adopt_s))
    assert commands == []
    run, commands = drive(run, h.Tick(at=LIMITS.adopt_s + 0.1))
    (fence,) = of_kind(commands, c.Fence)
    assert fence.node == "n1"
    assert of_kind(commands, c.SendHalt)


def test_if_nobody_comes_machines_are_asked_for_and_the_run_begins_from_what_is_durable():
    run, commands = drive(a_run_to_adopt("n0", "n1"), h.Tick(at=LIMITS.adopt_s + 0.1))
    assert run.phase is s.Phase.assembling
    assert len(of_kind(commands, c.Provision)) == 1
    run, commands = drive(
        run, h.Joined(at=20, member=a_member("m0"), slots=1),
        h.Joined(at=21, member=a_member("m1"), slots=1),
    )  # fmt: skip
    (replan,) = of_kind(commands, c.Replan)
    assert replan.generation == 5
    assert replan.previous is None


def test_a_node_that_booted_meanwhile_is_planned_with_once_the_others_are_there():
    run, commands = drive(
        a_run_to_adopt("n0", "n1"), h.Joined(at=1, member=a_member("n2"), slots=1), back("n0"),
        back("n1"),
    )  # fmt: skip
    (replan,) = of_kind(commands, c.Replan)
    assert [member.node for member in replan.members] == ["n0", "n1", "n2"]
    assert run.training


def test_a_run_whose_last_step_was_made_meanwhile_is_saved_and_ends():
    finished = [h.NodeFinished(at=1, generation=4, node=node) for node in ("n0", "n1")]
    run, commands = drive(a_run_to_adopt("n0", "n1"), back("n0"), *finished, back("n1"))
    assert run.stop.end is s.End.done
    (halt,) = of_kind(commands, c.SendHalt)
    assert halt.persist


def test_a_wish_to_stop_is_kept_until_the_run_is_found():
    stop = h.StopAsked(at=1, end=s.End.interrupted, why="SIGINT")
    run, commands = drive(a_run_to_adopt("n0", "n1"), stop)
    assert run.phase is s.Phase.adopting
    run, commands = drive(run, back("n0"), back("n1"))
    assert run.phase is s.Phase.stopping
    (halt,) = of_kind(commands, c.SendHalt)
    assert halt.boundary


def test_a_halt_that_the_earlier_controller_had_asked_for_is_recovered_from():
    run, _ = drive(a_run_to_adopt("n0", "n1"), back("n0"), back("n1"))
    run, commands = drive(run, h.NodeHalted(at=2, generation=4, node="n0"))
    assert run.phase is s.Phase.transition
    (halt,) = of_kind(commands, c.SendHalt)
    assert not halt.boundary


@pytest.mark.parametrize("late", [h.NodeFailed(at=1.5, generation=4, node="n0", reason="a peer")])
def test_a_step_that_broke_meanwhile_is_recovered_from_once_all_are_there(late):
    run, _ = drive(a_run_to_adopt("n0", "n1"), back("n0"), late, back("n1"))
    assert run.phase is s.Phase.training
    run, commands = drive(run, h.Tick(at=1.5 + LIMITS.stumble_s + 0.1))
    assert of_kind(commands, c.SendHalt)


# Who is let in


def hello(node="n1", *, start, pid=1, host="h", workers=()):
    return Hello(
        node=node, zone="z", machine_type="m", pid=pid, host=host, port=1, workers=workers,
        start=start,
    )  # fmt: skip


def test_a_machine_known_by_ipv6_cannot_join_those_known_by_ipv4_but_an_anchor_may():
    """Their groups would never be built; copies go over a connection that anybody may dial."""
    roster = Roster()
    worker = WorkerId(node="n1", slot=0, incarnation=1)
    works = (WorkerStatus(worker=worker, pid=1, step=-1, doing="idle"),)

    def let_in(node, host, workers=works):
        return roster.admit(hello(node, start=node, host=host, workers=workers), None, now=0.0)

    assert let_in("n1", "10.0.0.7") == ""
    assert let_in("n2", "10.0.0.8") == ""
    refusal = let_in("n3", "fd00::7")
    assert "n3 is known by an IPv6 address (fd00::7), n1 by an IPv4 one (10.0.0.7)" in refusal
    assert "n3" not in roster.agents
    assert let_in("anchor-1", "fd00::9", workers=()) == ""
    assert let_in("n4", "10.0.0.9") == "", "nor does the anchor keep anybody out"


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
