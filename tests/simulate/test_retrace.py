"""A real log's machines become a fleet, and costs are read from its pauses."""

import pytest

from sailor.observe.events import Event
from sailor.observe.history import replay
from sailor.simulate.costs import Costs, Pauses, measured, stated, usual_step_seconds
from sailor.simulate.fleet import Change
from sailor.simulate.retrace import fleet_of, until_stopped


def log(*entries):
    return [
        Event(
            seq=i, t=t, time="2026-01-01T00:00:00+00:00", run="r",
            generation=fields.pop("generation", 0), kind=kind, fields=fields,
        )
        for i, (t, kind, fields) in enumerate(entries, start=1)
    ]  # fmt: skip


def joined(t, node):
    return (t, "node_joined", {"node": node, "zone": "a", "machine_type": "m", "pid": 1,
                               "workers": []})  # fmt: skip


def step(t, number, seconds, generation=1):
    return (t, "step", {"step": number, "seconds": seconds, "generation": generation, "tokens": 16,
                        "num_samples": 1, "first_sample": number - 1, "phases": {}})  # fmt: skip


def started(t, generation, nodes, at):
    return (t, "generation_started", {"generation": generation, "step": at, "layout": "x",
                                      "world_size": len(nodes), "nodes": nodes})  # fmt: skip


def pause(t, generation, cause, planned, **parts):
    zero = dict.fromkeys(("detect_s", "decide_s", "prepare_s", "copy_s", "switch_s",
                          "first_step_s", "hidden_s", "total_s"), 0.0)  # fmt: skip
    return (t, "pause", {"generation": generation, "cause": cause, "planned": planned,
                         "steps_redone": 0, "source": "live", **zero, **parts})  # fmt: skip


LOG = log(
    (0.0, "run_started", {"status": "fresh", "total_steps": 9}),
    (2.0, "node_requested", {"node": "n1", "zone": "a", "machine_type": "m"}),
    (2.0, "node_requested", {"node": "n2", "zone": "a", "machine_type": "m"}),
    joined(5.0, "n1"), joined(6.0, "n2"),
    started(8.0, 1, ["n1", "n2"], 0),
    step(11.0, 1, 2.5), pause(11.0, 1, "start", False, prepare_s=1.5, first_step_s=3.0),
    step(12.1, 2, 1.0), step(13.2, 3, 1.0),
    (15.0, "node_lost", {"node": "n2", "cause": "preempted", "silent_s": 0.5}),
    started(17.0, 2, ["n1"], 3),
    step(19.2, 4, 2.1, 2),
    pause(19.2, 2, "n2 lost", False, detect_s=0.5, decide_s=0.4, prepare_s=1.0, first_step_s=2.2),
    step(21.3, 5, 2.0, 2),
    (25.0, "stop_asked", {"end": "interrupted", "why": "SIGTERM"}),
    (30.0, "run_ended", {"end": "interrupted", "why": "", "exit_code": 75}),
)  # fmt: skip


def test_a_machine_dies_at_its_last_sign_of_life():
    fleet = fleet_of(until_stopped(LOG))
    assert [(e.t, e.change, e.node) for e in fleet.events] == [
        (5.0, Change.came, "n1"), (6.0, Change.came, "n2"), (14.5, Change.gone, "n2"),
    ]  # fmt: skip
    assert fleet.seconds == 21.3
    assert {lease.node: lease.begin for lease in fleet.leases} == {"n1": 2.0, "n2": 2.0}


def test_who_was_told_to_go_is_there_until_then_even_if_given_back_earlier():
    events = log(
        joined(1.0, "n1"), joined(1.0, "n2"),
        (4.0, "notice", {"node": "n2", "seconds": 10.0, "source": "x"}),
        (6.0, "node_lost", {"node": "n2", "cause": "released", "silent_s": 0.0}),
        step(40.0, 1, 1.0),
    )  # fmt: skip
    assert [(e.t, e.change, e.seconds) for e in fleet_of(events).events if e.node == "n2"] == [
        (0.0, Change.came, 0.0), (3.0, Change.told, 10.0), (13.0, Change.gone, 0.0),
    ]  # fmt: skip


def test_an_empty_log_is_refused():
    with pytest.raises(ValueError, match="without an event"):
        fleet_of([])


def test_costs_are_the_means_of_what_the_log_says():
    history = replay(until_stopped(LOG))
    found = measured(history)
    assert (found.launch_s, found.boot_s) == (2.0, 3.5)
    assert found.detect_s == 0.5
    assert (found.unplanned.decide_s, found.unplanned.prepare_s) == (0.4, 1.0)
    assert found.unplanned.gap_s == pytest.approx(0.1)
    assert found.unplanned.extra_s == pytest.approx(0.1)
    assert found.start.extra_s == pytest.approx(1.5)
    assert found.planned == found.unplanned  # there was no planned one to measure
    assert found.between_steps_s == pytest.approx(0.1)
    assert usual_step_seconds(history) == {1: 2.0, 2: 1.0}
    with pytest.raises(ValueError, match="no step"):
        measured(replay(log((0.0, "run_started", {}))))


def test_stated_costs_name_a_source_for_every_figure_and_grow_with_the_groups():
    small, large = stated(num_nodes=4), stated(num_nodes=1000)
    assert small.unplanned.prepare_s == pytest.approx(0.24 + 0.0393 * 9)
    assert large.unplanned.prepare_s == 7.0
    said = " ".join(small.sources)
    figures = (
        "boot_s", "detect_s", "notice_delay_s", "link_bytes", "storage_bytes", "snapshot_stall_s",
        "persist_stall_s", "prepare_s", "switch_s", "extra_s",
    )  # fmt: skip
    assert [name for name in figures if name not in said] == []


@pytest.mark.parametrize(
    "bad", [{"detect_s": -1.0}, {"boot_s": -0.1}, {"link_bytes_per_second": 0.0}]
)
def test_negative_durations_and_dead_links_are_refused(bad):
    fields = {
        "boot_s": 0.0, "launch_s": 0.0, "detect_s": 0.0, "notice_delay_s": 0.0, "start": Pauses(),
        "planned": Pauses(), "unplanned": Pauses(), "link_bytes_per_second": 1.0,
        "storage_bytes_per_second": 1.0,
    }  # fmt: skip
    with pytest.raises(ValueError, match="negative duration|more than nothing"):
        Costs(**{**fields, **bad})
