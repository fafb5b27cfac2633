"""What the migration benchmark makes of a log."""

import pytest

from benchmarks.migration_beyond import beyond
from benchmarks.migration_figures import Work, changes, losses, usual_interval
from sailor.observe.events import Event
from sailor.simulate.costs import stated


def a_log(*entries):
    return [
        Event(seq=i, t=float(t), time="", run="r", generation=g, kind=kind, fields=fields)
        for i, (t, g, kind, fields) in enumerate(entries, start=1)
    ]


def a_step(t, generation, step, *, seconds=1.0, loss=None):
    fields = {"step": step, "seconds": seconds, "num_samples": 8, "loss": loss or float(step)}
    return t, generation, "step", fields


def a_pause(t, generation, *, planned, redone=0, cause="node-1 is to be moved"):
    fields = {"cause": cause, "planned": planned, "steps_redone": redone, "total_s": 1.0}
    return t, generation, "pause", fields


BEFORE = [a_step(t, 1, t) for t in range(1, 11)]


def test_a_planned_pause_is_what_lies_between_two_steps_less_a_usual_one():
    after = [a_step(12.5, 2, 11, seconds=1.5), *(a_step(12.5 + t, 2, 11 + t) for t in range(1, 9))]
    (change,) = changes(a_log(*BEFORE, a_pause(12.5, 2, planned=True), *after))
    assert change.gap_s == pytest.approx(1.5)  # 2.5 s between steps that usually take 1 s
    assert change.gap_steps == pytest.approx(1.5)
    assert change.first_step == pytest.approx(1.5)
    assert change.after_detection_s is None
    assert usual_interval(a_log(*BEFORE)) == pytest.approx(1.0)


def test_after_a_loss_time_counts_from_its_detection_and_a_step_redone_shows_in_the_losses():
    lost = (11.0, 0, "node_lost", {"node": "node-1"})
    began = (13.0, 2, "generation_started", {"step": 9})
    after = [a_step(14.0 + t, 2, 10 + t, loss=100.0 + t) for t in range(8)]
    log = a_log(*BEFORE, lost, began, a_pause(14, 2, planned=False, redone=1), *after)
    (change,) = changes(log)
    assert change.after_detection_s == pytest.approx(3.0)
    assert change.steps_redone == 1
    kept = losses(log)
    assert (kept[9], kept[10], kept[11]) == (9.0, 100.0, 101.0)


def test_who_came_is_counted_and_what_the_switch_took_of_each_is_read_from_its_pause():
    def began(t, generation, *nodes):
        return t, generation, "generation_started", {"step": 0, "nodes": list(nodes)}

    seconds = {"stayer_cpu_s": 0.01, "newcomer_cpu_s": 0.03, "controller_cpu_s": 0.02}
    seconds |= {"decide_s": 0.25, "copy_s": 0.5, "switch_s": 0.25, "first_step_s": 9.0}
    t, generation, kind, fields = a_pause(13, 2, planned=True)
    after = [a_step(13 + t, 2, 11 + t) for t in range(8)]
    log = a_log(
        began(0, 1, "a", "b", "c"), *BEFORE, began(12, 2, "a", "d", "e"),
        (t, generation, kind, fields | seconds), *after,
    )  # fmt: skip
    (change,) = changes(log)
    assert change.moved == 2
    assert change.stood_s == pytest.approx(1.0)
    assert change.work == Work(stayer_s=0.01, newcomer_s=0.03, controller_s=0.02)


def test_the_start_is_no_change():
    assert changes(a_log(a_pause(1, 1, planned=False, cause="start"), *BEFORE)) == []


def test_a_simulated_move_costs_the_same_among_more_machines_and_together_with_others():
    costs = stated(num_nodes=32)
    found = beyond(costs, step_s=2.0, state_bytes_per_machine=1e9, sizes=(16, 256))
    pauses = {moved["pause_steps"] for size in found.values() for moved in size.values()}
    assert len(pauses) == 1
    # In steps of 2 s: what is copied, at the speed of the line, and the flip.
    (pause,) = pauses
    flip_s = costs.planned.decide_s + costs.planned.switch_s
    assert 0.0 < pause - (1e9 / costs.link_bytes_per_second + flip_s) / 2.0 < 0.1
    assert all(moved["pauses"] == 1 for size in found.values() for moved in size.values())
