"""The event log: appended to, counted on over restarts, mended, and free of secrets."""

import json
import logging
import os
import re
from pathlib import Path

import pytest

from sailor.clock import HandClock
from sailor.observe.events import KINDS, Event, EventLog, contract_problems, read_events


class HandWall:
    """Seconds since 1970 that move only when told to."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def open_log(path: Path, clock: HandClock | None = None, wall: HandWall | None = None) -> EventLog:
    return EventLog(path, run="otter", clock=clock or HandClock(), wall=wall or HandWall())


def test_what_is_written_is_read_back_in_order(tmp_path: Path) -> None:
    clock, wall = HandClock(100.0), HandWall()
    with open_log(tmp_path / "events.jsonl", clock, wall) as log:
        log.write("unparked")
        clock.advance(1.5)
        wall.now += 1.5
        log.write("parked", generation=3, why="one node is too few")
    first, second = read_events(tmp_path / "events.jsonl")
    assert (first.seq, first.t, first.kind, first.generation) == (1, 0.0, "unparked", 0)
    assert (second.seq, second.t, second.generation) == (2, 1.5, 3)
    assert second.time == "2027-01-15T08:00:01.500Z"
    assert second["why"] == "one node is too few"
    assert second.get("nothing", "default") == "default"


def test_each_line_is_one_json_object_with_the_fields_at_its_top(tmp_path: Path) -> None:
    with open_log(tmp_path / "events.jsonl") as log:
        log.write("committed", generation=2, step=7)
    assert json.loads((tmp_path / "events.jsonl").read_text()) == {
        "seq": 1, "t": 0.0, "time": "2027-01-15T08:00:00.000Z", "run": "otter",
        "generation": 2, "kind": "committed", "step": 7,
    }  # fmt: skip


def test_a_second_opening_counts_on_and_includes_the_time_in_between(tmp_path: Path) -> None:
    path, wall = tmp_path / "events.jsonl", HandWall()
    clock = HandClock(50.0)
    with open_log(path, clock, wall) as log:
        clock.advance(10.0)
        wall.now += 10.0
        log.write("unparked")
    wall.now += 3600.0
    with open_log(path, HandClock(7.0), wall) as log:  # another boot: another monotonic clock
        event = log.write("unparked")
    assert (event.seq, event.t) == (2, 3610.0)


def test_a_wall_clock_set_back_does_not_turn_the_log_back(tmp_path: Path) -> None:
    path, wall, clock = tmp_path / "events.jsonl", HandWall(), HandClock()
    with open_log(path, clock, wall) as log:
        clock.advance(10.0)
        log.write("unparked")
    wall.now -= 86_400.0
    with open_log(path, HandClock(), wall) as log:
        assert log.write("unparked").t == 10.0


@pytest.mark.parametrize("cut", [1, 2, 20, 60])
def test_a_torn_last_line_is_not_read_and_is_cut_on_reopening(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "events.jsonl"
    with open_log(path) as log:
        log.write("committed", step=1)
        log.write("committed", step=2)
    torn = path.read_bytes()[: -cut - 1]
    path.write_bytes(torn)
    assert [event["step"] for event in read_events(path)] == [1]
    with open_log(path) as log:
        log.write("committed", step=3)
    assert [event["step"] for event in read_events(path)] == [1, 3]
    assert [event.seq for event in read_events(path)] == [1, 2]


def test_a_last_line_that_lacks_only_its_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with open_log(path) as log:
        log.write("committed", step=1)
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    with open_log(path) as log:
        log.write("committed", step=2)
    assert [event["step"] for event in read_events(path)] == [1, 2]


def test_a_torn_line_longer_than_the_first_look_is_cut_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with open_log(path) as log:
        log.write("committed", step=1)
    with path.open("ab") as file:
        file.write(b'{"seq":2,"kind":"' + b"x" * 300_000)
    with open_log(path) as log:
        log.write("committed", step=2)
    assert [(event.seq, event["step"]) for event in read_events(path)] == [(1, 1), (2, 2)]


def test_an_unreadable_line_further_up_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "events.jsonl"
    with open_log(path) as log:
        for step in (1, 2, 3):
            log.write("committed", step=step)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\0" * 40 + b"\n" + lines[2])
    assert [event["step"] for event in read_events(path)] == [1, 3]
    assert "line 2" in caplog.text


def test_opening_an_empty_file_starts_at_one(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.touch()
    with open_log(path) as log:
        assert log.write("unparked").seq == 1


def test_subscribers_hear_every_event_until_they_leave(tmp_path: Path) -> None:
    heard: list[Event] = []
    with open_log(tmp_path / "events.jsonl") as log:
        log.write("unparked")
        leave = log.subscribe(heard.append)
        log.write("committed", step=1)
        leave()
        leave()
        log.write("committed", step=2)
    assert [event["step"] for event in heard] == [1]


def test_an_event_written_by_a_subscriber_reaches_all_of_them_in_file_order(
    tmp_path: Path,
) -> None:
    heard: list[str] = []
    with open_log(tmp_path / "events.jsonl") as log:

        def answer(event: Event) -> None:
            if event.kind == "committed":
                log.write("parked", why="asked by a subscriber")

        log.subscribe(answer)
        log.subscribe(lambda event: heard.append(event.kind))
        log.write("committed", step=1)
    assert heard == ["committed", "parked"]
    assert [event.kind for event in read_events(tmp_path / "events.jsonl")] == heard


def test_a_failing_subscriber_stops_neither_the_run_nor_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Event] = []

    def broken(event: Event) -> None:
        raise RuntimeError("a bug in a view")

    with open_log(tmp_path / "events.jsonl") as log:
        log.subscribe(broken)
        log.subscribe(heard.append)
        log.write("unparked")
    assert len(heard) == 1
    assert "a bug in a view" in caplog.text


def test_a_full_disk_delays_lines_and_leaves_no_half_line(tmp_path: Path) -> None:
    heard: list[Event] = []
    path = tmp_path / "events.jsonl"
    log = open_log(path)
    log.subscribe(heard.append)
    log.write("committed", step=1)
    own = os.dup(log._fd)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, log._fd)  # every write now fails with ENOSPC, as on a full disk
    log.write("committed", step=2)
    log.write("committed", step=3)
    os.dup2(own, log._fd)
    log.write("committed", step=4)
    log.close()
    os.close(own)
    os.close(full)
    assert [event["step"] for event in read_events(path)] == [1, 2, 3, 4]
    assert [event["step"] for event in heard] == [1, 2, 3, 4]


def test_not_a_number_is_written_as_null(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with open_log(path) as log:
        log.write("committed", step=1, loss=float("nan"))
    assert read_events(path)[0]["loss"] is None


def test_the_logs_own_names_cannot_be_used_for_fields(tmp_path: Path) -> None:
    with open_log(tmp_path / "events.jsonl") as log, pytest.raises(ValueError, match="seq, t"):
        log.write("unparked", seq=1, t=2.0)


def test_what_departs_from_the_contract_is_named_and_still_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), open_log(tmp_path / "events.jsonl") as log:
        log.write("persisted", step=1)
        log.write("no_such_kind")
    assert "persisted lacks its field bytes" in caplog.text
    assert "no_such_kind is not a known kind" in caplog.text
    assert len(read_events(tmp_path / "events.jsonl")) == 2
    assert contract_problems("committed", {"step": 1, "more": 2}) == []
    assert not any("kind" in fields or "generation" in fields for fields in KINDS.values())


def test_a_closed_log_refuses_to_lose_an_event(tmp_path: Path) -> None:
    log = open_log(tmp_path / "events.jsonl")
    log.close()
    log.close()
    with pytest.raises(ValueError, match="closed"):
        log.write("unparked")


def test_the_documentation_lists_every_kind_with_its_fields() -> None:
    page = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
    for kind, fields in KINDS.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{kind}` |")]
        for field in fields:
            assert re.search(rf"\b{field}\b", row), f"{kind}: {field}"
