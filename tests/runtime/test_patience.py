"""Waits that grow with what machines hold."""

from dataclasses import replace

from sailor.runtime import happenings as h
from sailor.runtime import state as s
from sailor.runtime.patience import SLOW_BYTES_PER_S, extra_s
from tests.helpers.builders import a_layout, a_member, a_plan, a_spec
from tests.helpers.life import LIMITS, a_training_run, drive

LARGE = a_spec(hidden_size=4096, ffn_hidden_size=16384)


def test_nobody_is_waited_for_longer_where_there_is_nothing_to_carry():
    assert extra_s(None) == 0.0
    assert extra_s(object()) == 0.0
    assert extra_s(a_layout(a_plan([2]))) < 0.01


def test_it_is_the_machine_that_holds_the_most_that_counts():
    even, uneven = (a_layout(a_plan([cut]), spec=LARGE) for cut in (2, 1))
    held = [sum(box.num_bytes for box in boxes) for boxes in uneven.kept]
    assert extra_s(uneven) == max(held) / SLOW_BYTES_PER_S
    assert extra_s(even, uneven) == extra_s(uneven) > extra_s(even) > 1.0


def test_a_large_model_is_waited_for_in_every_stage_that_carries_it():
    """Two machines that each hold gigabytes were given up before they could have been ready."""
    layout = replace(
        a_layout(a_plan([], []), spec=LARGE), workers=a_training_run("n0", "n1").active.workers
    )
    more = extra_s(layout)
    run = replace(a_training_run("n0", "n1"), active=layout)
    run, _ = drive(run, h.Joined(at=20, member=a_member("n2"), slots=1))
    run, _ = drive(run, h.Planned(at=20, generation=2, layout=a_layout(a_plan([]), spec=LARGE)))
    assert run.transition.deadline == 20 + LIMITS.prepare_s + more
    run, _ = drive(run, h.Lost(at=21, node="n1", cause="killed"))
    assert run.transition.deadline == 21 + LIMITS.halt_s + more
    run, _ = drive(
        replace(run, transition=None, phase=s.Phase.training),
        h.StopAsked(at=30, end=s.End.interrupted, why="Ctrl-C"),
    )
    assert run.stop_deadline == 30 + LIMITS.boundary_s + LIMITS.save_s + more
