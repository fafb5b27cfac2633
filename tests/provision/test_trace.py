"""Availability traces: read in every documented format, cut, scaled, merged, and counted."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.trace import SpotEvent, Trace, merge, read_trace, statistics
from sailor.errors import DataError

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "traces"
needs_traces = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the recorded traces (../shared/data/traces) are not here"
)


def event(t: float, delta: int, zone: str = "a", notice: float | None = None) -> SpotEvent:
    return SpotEvent(t=t, zone=zone, machine_type="m", delta=delta, notice_seconds=notice)


def a_trace(*events: SpotEvent, seconds: float = 100.0) -> Trace:
    return Trace(events=events, seconds=seconds, source="made here")


def written(folder: Path, name: str, text: str) -> Trace:
    (folder / name).write_text(text)
    return read_trace(folder / name, zone="a", machine_type="m")


def changes(trace: Trace) -> list[tuple[float, str, int]]:
    return [(e.t, e.zone, e.delta) for e in trace.events]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("nodes.csv",
         "t_s,zone,node,event\n0,x,x/1,add\n0,x,x/2,add\n0,y,y/1,add\n9,x,x/2,preempt\n9,y,y/1,remove\n",
         [(0, "x", 2), (0, "y", 1), (9, "x", -1), (9, "y", -1)]),
        ("millis.csv", "t_ms,event,node\n0,add,n1\n1500,add,n2\n2500,remove,n1\n",
         [(0, "a", 1), (1.5, "a", 1), (2.5, "a", -1)]),
        ("deltas.csv", "t_s,zone,delta\n5,x,-1\n0,x,3\n", [(0, "x", 3), (5, "x", -1)]),
        ("counts.csv", "t_s,zone,count\n10,x,4\n20,x,4\n30,x,1\n10,y,2\n",
         [(0, "x", 4), (0, "y", 2), (20, "x", -3)]),
        ("levels.csv", "t_s,gpus_or_nodes\n0,16\n630,10\n700,12\n",
         [(0, "a", 16), (630, "a", -6), (700, "a", 2)]),
        ("minutes.csv", "minute,nodes,added,removed\n0,18,18,0\n1,19,1,0\n2,17,0,2\n",
         [(0, "a", 18), (60, "a", 1), (120, "a", -2)]),
        ("moments.csv",
         "utc_or_local_time,instances\n2021-12-10T13:08:45,70\n2021-12-10T13:07:45,80\n",
         [(0, "a", 80), (60, "a", -10)]),  # out of order, as recorded ones are
        ("ticks.json", json.dumps({"metadata": {"gap_seconds": 300}, "data": [0, 4, 4, 1]}),
         [(300, "a", 4), (900, "a", -3)]),
        ("list.json", json.dumps([{"Time": 0, "GPUs": 16}, {"Time": 60, "GPUs": 12}]),
         [(0, "a", 16), (60, "a", -4)]),
    ],
)  # fmt: skip
def test_every_documented_format_is_read(
    tmp_path: Path, name: str, text: str, expected: list[tuple[float, str, int]]
) -> None:
    assert changes(written(tmp_path, name, text)) == expected


def test_our_own_format_carries_machine_types_and_notices(tmp_path: Path) -> None:
    trace = written(
        tmp_path, "own.csv", "t_s,zone,machine_type,delta,notice_s\n0,x,a100,2,\n8,x,a100,-1,30\n"
    )
    assert trace.events == (
        SpotEvent(t=0.0, zone="x", machine_type="a100", delta=2),
        SpotEvent(t=8.0, zone="x", machine_type="a100", delta=-1, notice_seconds=30.0),
    )


def test_a_file_that_names_no_zone_gives_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "us-east-2a.csv").write_text("t_s,gpus_or_nodes\n0,3\n")
    assert read_trace(tmp_path / "us-east-2a.csv").places == (("us-east-2a", "spot"),)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", "when,what\n1,2\n", "columns what, when are not known"),
        ("a.csv", "", "columns (none)"),
        ("a.csv", "t_s,delta\n", "no events"),
        ("a.csv", "t_s,delta\n0,2\n5,-3\n", "fewer than no machines at 5 s"),
        ("a.csv", "t_s,delta\n0,two\n", "two"),
        ("a.csv", "t_s,delta\n-4,2\n", "out of order"),
        ("a.csv", "t_s,delta,notice_s\n0,2,\n5,-1,-3\n", "a notice of -3 s at 5 s"),
        ("a.csv", "t_s,zone,delta\n0,x\n4,x,1\n", "a line has 2 of 3 fields: 0,x"),
        ("a.csv", "t_s,delta\n0,2,7\n4,1\n", "fields"),
        ("a.csv", "t_s,delta\nnan,2\n", "nan s is out of order"),
        ("a.csv", "t_ms,event,node\n0,add,n\n0,add,n\n", "add n at 0 s, but it is there"),
        ("a.csv", "t_ms,event,node\n0,remove,n\n", "but it is not there"),
        ("a.csv", "t_ms,event,node\n0,explode,n\n", "'explode'"),
        ("a.json", "{", "Expecting"),
        ("a.json", '{"data": []}', "no metadata"),
        ("a.json", '{"metadata": {"gap_seconds": -300}, "data": [1, 0]}', "gap_seconds -300"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_its_reason(
    tmp_path: Path, name: str, text: str, says: str
) -> None:
    with pytest.raises(DataError) as caught:
        written(tmp_path, name, text)
    assert says in caught.value.why
    assert (caught.value.code, caught.value.exit_code) == ("E506", 5)


def test_lines_out_of_order_are_sorted_with_a_note(tmp_path: Path) -> None:
    trace = written(tmp_path, "a.csv", "t_s,event,node\n0,add,n1\n9,remove,n1\n5,add,n2\n")
    assert changes(trace) == [(0, "a", 1), (5, "a", 1), (9, "a", -1)]
    assert trace.notes == ("1 lines were out of order and are sorted by time",)
    assert trace.cut(1, 9).notes == trace.notes
    assert trace.faster(2).notes == trace.notes


@pytest.mark.parametrize(
    ("end", "left_out"), [("9,remo", "9,remo"), ("9,remove,n", None), ("9", "9"), ("9,", "9,")]
)
def test_a_last_line_that_was_cut_off_is_left_out_with_a_note(
    tmp_path: Path, end: str, left_out: str | None
) -> None:
    """A recording that was copied while it was written. What looks whole is taken for whole."""
    text = f"t_s,event,node\n0,add,n\n4,add,n2\n{end}"
    trace = written(tmp_path, "a.csv", text)
    assert changes(trace)[:2] == [(0, "a", 1), (4, "a", 1)]
    notes = () if left_out is None else (f"its last line was cut off and is left out: {left_out}",)
    assert trace.notes == notes


def test_a_word_that_was_cut_off_at_the_end_is_noticed(tmp_path: Path) -> None:
    trace = written(tmp_path, "a.csv", "t_s,zone,node,event\n0,x,n1,add\n4,x,n2,add\n9,x,n1,pre")
    assert changes(trace) == [(0, "x", 1), (4, "x", 1)]
    assert len(trace.notes) == 1


def test_a_missing_file_is_refused_too(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing.csv"):
        read_trace(tmp_path / "nothing.csv")


def test_capacity_is_known_at_every_moment() -> None:
    trace = a_trace(event(0, 3), event(10, -2), event(10, 1, "b"), event(50, 1))
    assert dict(trace.capacity_at(9.9)) == {("a", "m"): 3, ("b", "m"): 0}
    assert dict(trace.capacity_at(10)) == {("a", "m"): 1, ("b", "m"): 1}
    assert [(begin, end, sum(level.values())) for begin, end, level in trace.levels()] == [
        (0.0, 10, 3), (10, 50, 2), (50, 100.0, 3),
    ]  # fmt: skip


def test_a_cut_begins_with_what_was_there() -> None:
    trace = a_trace(event(0, 3), event(10, -1), event(20, 2), event(90, -4))
    assert changes(trace.cut(10, 30)) == [(0.0, "a", 2), (10, "a", 2)]
    assert trace.cut(10, 30).seconds == 20
    with pytest.raises(ValueError, match="cannot cut"):
        trace.cut(30, 10)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(-3, 3)), max_size=30), st.floats(0, 99))
def test_a_cut_has_the_capacities_of_the_whole(steps: list[tuple[float, int]], at: float) -> None:
    events, level = [], 0
    for t, wanted in sorted(steps):
        delta = max(wanted, -level)
        level += delta
        if delta:
            events.append(event(t, delta))
    trace = a_trace(*events)
    part = trace.cut(at, 100.0)
    for t in (0.0, part.seconds / 3, part.seconds):
        here = {place: n for place, n in part.capacity_at(t).items() if n}
        # At float's resolution the shifted moment may fall just beside an event.
        there = [
            {place: n for place, n in trace.capacity_at(at + t + off).items() if n}
            for off in (-1e-9, 0.0, 1e-9)
        ]
        assert here in there


def test_faster_scales_time_but_not_notices() -> None:
    trace = a_trace(event(0, 2), event(60, -1, notice=30.0)).faster(60)
    assert [(e.t, e.notice_seconds) for e in trace.events] == [(0.0, None), (1.0, 30.0)]


def test_losses_can_be_announced_and_places_renamed() -> None:
    trace = a_trace(event(0, 2), event(60, -1)).announced(5.0)
    assert [e.notice_seconds for e in trace.events] == [None, 5.0]
    moved = trace.placed(lambda place: ("local-" + place[0], "cpu-1"))
    assert moved.places == (("local-a", "cpu-1"),)


def test_merged_traces_run_side_by_side_for_as_long_as_the_shortest() -> None:
    both = merge([a_trace(event(0, 2), event(80, -1)), a_trace(event(5, 1, "b"), seconds=50.0)])
    assert changes(both) == [(0, "a", 2), (5, "b", 1)]
    assert both.seconds == 50.0


def test_losses_within_minutes_of_each_other_are_one_event() -> None:
    trace = a_trace(
        event(0, 4), event(1000, -2), event(1100, -1), event(3000, 3), event(3600, -4),
        seconds=7200.0,
    )  # fmt: skip
    found = statistics(trace)
    assert (found.lost, found.loss_events) == (7, 2)
    assert found.mean_bulk == 3.5
    assert found.empty_share == pytest.approx(0.5)
    up = 4 * 1000 + 2 * 100 + 1 * 1900 + 4 * 600
    assert found.node_hours_per_loss == pytest.approx(up / 3600 / 7)
    assert found.mean_up == pytest.approx(up / 7200)


@needs_traces
def test_all_recorded_traces_can_be_read() -> None:
    names = [path.name for path in sorted(SHARED.glob("*.csv")) if path.name.startswith(
        ("bamboo", "oobleck", "parcae", "sailor_a100", "segment"))]  # fmt: skip
    assert len(names) >= 16
    for name in names:
        trace = read_trace(SHARED / name)
        assert trace.seconds > 3000, name
        assert max(sum(level.values()) for _, _, level in trace.levels()) >= 4, name


@needs_traces
@pytest.mark.parametrize(
    ("name", "mean_up", "lost"),
    [
        ("segment_calm_8node.csv", 7.97, 2),
        ("segment_churny_8node.csv", 6.28, 19),
        ("segment_zone_outage_8node.csv", 6.42, 9),
    ],
)
def test_the_segments_have_the_statistics_they_are_described_with(
    name: str, mean_up: float, lost: int
) -> None:
    """Their page counts 72 ticks of 300 s; the file ends with the last change, so means differ."""
    trace = read_trace(SHARED / name)
    whole = Trace(events=trace.events, seconds=72 * 300.0, source=trace.source)
    assert statistics(whole).lost == lost
    assert statistics(whole).mean_up == pytest.approx(mean_up, abs=0.01)


@needs_traces
def test_the_rates_of_a_recorded_preemption_trace_are_found_again() -> None:
    """Published as 16.7 node-hours per lost node and 1.25 nodes per event, one tick an event."""
    with gzip.open(SHARED / "skypilot_spot_traces.json.gz") as file:
        bundle = json.load(file)["traces"]
    entry = bundle["preemption/4-node/aws-08-03-2023/us-east-2a_v100_1.json"]
    gap = entry["gap_seconds"]
    counts = {("us-east-2a", "v100"): [(i * gap, n) for i, n in enumerate(entry["data"])]}
    from provision.trace import _from_counts

    events, seconds = _from_counts(counts)
    found = statistics(Trace(events=tuple(events), seconds=seconds, source="x"), window=gap / 2)
    assert found.node_hours_per_loss == pytest.approx(16.7, rel=0.02)
    assert found.mean_bulk == pytest.approx(1.25, rel=0.02)


def test_a_large_trace_is_scaled_down_to_the_machines_there_are() -> None:
    changes = [(0.0, "a", 8), (0.0, "b", 8), (5.0, "a", -3), (6.0, "a", -1), (9.0, "b", -8)]
    large = Trace(
        events=tuple(
            SpotEvent(t=t, zone=zone, machine_type="m", delta=delta) for t, zone, delta in changes
        ),
        seconds=10.0,
        source="made here",
    )
    small = large.fitting(4)
    assert small.capacity_at(0.0) == {("a", "m"): 2, ("b", "m"): 2}
    assert small.capacity_at(5.0) == {("a", "m"): 1, ("b", "m"): 2}  # 5 of 16 are 1.25 of 4
    assert small.capacity_at(6.0) == {("a", "m"): 1, ("b", "m"): 2}
    assert small.capacity_at(9.0) == {("a", "m"): 1, ("b", "m"): 0}
    assert large.fitting(16) is large
