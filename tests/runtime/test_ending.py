"""How a run ends, as tables: parked too long, stopped, finished; what its last save may meet."""

from dataclasses import replace

from sailor.runtime import commands as c
from sailor.runtime import happenings as h
from sailor.runtime import state as s
from tests.helpers.builders import a_member
from tests.helpers.life import LIMITS, a_training_run, drive, layout_on, of_kind


def a_parked_run():
    """n1 was lost, and n0 alone cannot hold the model."""
    run, _ = drive(
        a_training_run("n0", "n1"),
        h.Lost(at=11, node="n1", cause="killed"),
        h.NodeHalted(at=11, generation=1, node="n0"),
        h.Planned(at=12, generation=2, layout=None, why="too big"),
    )
    assert run.phase is s.Phase.parked
    return run


def test_parking_too_long_saves_what_memory_has_and_ends_resumable():
    run, commands = drive(a_parked_run(), h.Tick(at=13 + LIMITS.park_s))
    (save,) = of_kind(commands, c.SaveHeld)
    assert save.nodes == ("n0",)
    assert of_kind(commands, c.SendHalt) == []  # it stands still since it was parked
    _, commands = drive(run, h.NodeSaved(at=700, generation=1, node="n0"))
    (finish,) = of_kind(commands, c.Finish)
    assert finish.end is s.End.interrupted


def a_stopping_run():
    run, _ = drive(
        a_training_run("n0", "n1"), h.StopAsked(at=11, end=s.End.interrupted, why="Ctrl-C")
    )
    assert run.phase is s.Phase.stopping
    return run


def test_a_node_that_does_not_save_while_others_do_is_as_good_as_lost():
    run, commands = drive(
        a_stopping_run(),
        h.NodeSaved(at=12, generation=1, node="n0"),
        h.Tick(at=13 + LIMITS.boundary_s + LIMITS.save_s),
    )
    assert [fence.node for fence in of_kind(commands, c.Fence)] == ["n1"]
    assert of_kind(commands, c.Finish) == []
    assert "n1" not in run.nodes
    assert of_kind(commands, c.SendHalt), "what n1 had is saved from elsewhere"


def test_where_nobody_saves_it_is_the_store_and_the_run_ends():
    _, commands = drive(a_stopping_run(), h.Tick(at=13 + LIMITS.boundary_s + LIMITS.save_s))
    assert of_kind(commands, c.Fence) == []
    (finish,) = of_kind(commands, c.Finish)
    assert (finish.end, finish.why) == (s.End.failed, "Ctrl-C; not saved in time by n0, n1")


def test_a_stop_while_parked_does_not_wait_for_what_nobody_has():
    """It once waited for the lost machine's boxes until all patience was at an end, and failed."""
    run, commands = drive(a_parked_run(), h.StopAsked(at=20, end=s.End.interrupted, why="Ctrl-C"))
    assert of_kind(commands, c.SaveHeld)
    early = h.NothingToSave(at=20, generation=0, why="of another life")
    assert drive(run, early) == (run, [])
    answer = h.NothingToSave(at=20, generation=1, why="memory has nothing newer")
    _, commands = drive(run, answer)
    (finish,) = of_kind(commands, c.Finish)
    assert (finish.end, finish.why) == (s.End.interrupted, "Ctrl-C; memory has nothing newer")


def test_a_save_while_parked_is_asked_for_anew_when_its_node_comes_back_or_another_is_lost():
    run, _ = drive(a_parked_run(), h.Joined(at=15, member=a_member("n2", zone="far"), slots=1))
    run, _ = drive(run, h.NodeHalted(at=15, generation=1, node="n0"))
    run, _ = drive(run, h.NodeHalted(at=15, generation=1, node="n2"))
    run, _ = drive(run, h.Planned(at=16, generation=3, layout=None, why="too big"))
    run, commands = drive(run, h.StopAsked(at=20, end=s.End.interrupted, why="Ctrl-C"))
    (save,) = of_kind(commands, c.SaveHeld)
    assert save.nodes == ("n0", "n2")  # whoever has no seat may have copies
    _, commands = drive(run, h.Returned(at=21, node="n0"))
    assert of_kind(commands, c.SaveHeld) == [save]
    run, commands = drive(
        run,
        h.Lost(at=22, node="n2", cause="killed"),
        h.NodeHalted(at=22, generation=1, node="n0"),
        h.Planned(at=23, generation=4, layout=None, why="too big"),
    )
    (save,) = of_kind(commands, c.SaveHeld)
    assert save.nodes == ("n0",)


def test_a_stop_finishes_the_step_saves_and_ends():
    run = a_training_run("n0", "n1")
    run, commands = drive(run, h.StopAsked(at=11, end=s.End.interrupted, why="Ctrl-C"))
    (halt,) = of_kind(commands, c.SendHalt)
    assert halt.boundary
    assert halt.persist
    run, commands = drive(run, h.NodeSaved(at=12, generation=1, node="n0"))
    assert commands == []
    run, commands = drive(run, h.NodeSaved(at=12, generation=1, node="n1"))
    (finish,) = of_kind(commands, c.Finish)
    assert finish.end is s.End.interrupted


def test_a_save_of_an_earlier_generation_is_not_the_last_one():
    """Told again by a node that came back: the run has gone on since, and has newer steps."""
    run = replace(a_training_run("n0", "n1"), generation=4, active_generation=4)
    run, _ = drive(run, h.StopAsked(at=11, end=s.End.interrupted, why="Ctrl-C"))
    early = [h.NodeSaved(at=12, generation=3, node=node) for node in ("n0", "n1")]
    same, commands = drive(run, *early)
    assert (same, commands) == (run, [])


def test_a_stop_during_a_transition_is_carried_out_after_it():
    run = a_training_run("n0", "n1")
    run, _ = drive(
        run,
        h.Lost(at=11, node="n1", cause="killed"),
        h.StopAsked(at=11, end=s.End.interrupted, why="Ctrl-C"),
        h.NodeHalted(at=12, generation=1, node="n0"),
        h.Planned(at=12, generation=2, layout=layout_on("n0")),
        h.NodePrepared(at=12, generation=2, node="n0"),
        h.Restorable(at=12, generation=2, step=5, redone=0, source="live"),
    )
    run, commands = drive(run, h.NodeSwitched(at=12, generation=2, node="n0", copy_s=0))
    assert of_kind(commands, c.SendGo)
    (halt,) = of_kind(commands, c.SendHalt)
    assert halt.persist


def test_all_nodes_finished_saves_and_ends_done():
    run = a_training_run("n0", "n1")
    run, commands = drive(
        run,
        h.NodeFinished(at=90, generation=1, node="n0"),
        h.NodeFinished(at=90, generation=1, node="n1"),
    )
    assert of_kind(commands, c.SendHalt)
    _, commands = drive(
        run,
        h.NodeSaved(at=91, generation=1, node="n0"),
        h.NodeSaved(at=91, generation=1, node="n1"),
    )
    (finish,) = of_kind(commands, c.Finish)
    assert finish.end is s.End.done


def test_a_node_lost_before_the_last_save_is_recovered_from_first():
    run = a_training_run("n0", "n1")
    run, _ = drive(
        run,
        h.NodeFinished(at=90, generation=1, node="n0"),
        h.NodeFinished(at=90, generation=1, node="n1"),
        h.NodeSaved(at=91, generation=1, node="n0"),
    )
    run, commands = drive(run, h.Lost(at=91, node="n1", cause="killed"))
    assert run.phase is s.Phase.transition
    assert of_kind(commands, c.SendHalt)
    assert run.stop.end is s.End.done


def test_a_connection_that_breaks_during_the_last_save_has_the_node_told_again():
    run = a_training_run("n0", "n1")
    run, _ = drive(run, h.StopAsked(at=11, end=s.End.interrupted, why="SIGTERM"))
    run, commands = drive(run, h.Returned(at=11.2, node="n0"))
    (halt,) = of_kind(commands, c.SendHalt)
    assert (halt.nodes, halt.boundary, halt.persist) == (("n0",), True, True)
    run, _ = drive(run, h.NodeSaved(at=12, generation=1, node="n0"))
    _, commands = drive(run, h.Returned(at=12.1, node="n0"))
    assert commands == []
