"""cloud=trace: real machines of this computer come and go as a trace says, and the run lives on."""

from __future__ import annotations

import signal

from sailor.observe.events import Event
from tests.helpers import invariants as check
from tests.helpers.running import Place

# Two zones of two machines. One is taken with notice and its zone has no other; then all at once,
# without a word; then everything is to be had again.
TRACE = """t_s,zone,delta,notice_s
0,east,2,
0,west,2,
4,west,-1,3
16,west,-1,
16,east,-2,
18,east,2,
19,west,2,
"""


def of_kind(log: tuple[Event, ...], kind: str) -> list[Event]:
    return [event for event in log if event.kind == kind]


def after(log: tuple[Event, ...], kind: str) -> tuple[Event, ...]:
    """What came after the first event of a kind; nothing when there was none."""
    return next((log[i + 1 :] for i, event in enumerate(log) if event.kind == kind), ())


def machines_of_layouts(log: tuple[Event, ...]) -> list[int]:
    return [len(event["nodes"]) for event in of_kind(log, "generation_started")]


def test_machines_go_and_come_back_as_the_trace_says_and_training_goes_on(place: Place):
    path = place.root / "two-zones.csv"
    path.write_text(TRACE)
    with place.start(
        "cloud=trace", f"cloud.trace.paths=[{path}]", "cloud.trace.faster=1",
        "cloud.trace.notice=null", "cloud.nodes=4", "train.steps=100000",
    ) as running:  # fmt: skip
        running.until(lambda log: after(log, "parked"), what="no machine is left")
        running.until(
            lambda log: 4 in machines_of_layouts(after(log, "parked")), what="all train again"
        )
        running.until(
            lambda log: of_kind(after(log, "parked"), "step"), what="training goes on after it"
        )
        running.signal(signal.SIGINT)
        ended = running.wait()
    assert ended.code == 75, ended.told()
    log = ended.events
    check.check_one_owner(log)
    check.check_samples(log, batch=8)
    asked = of_kind(log, "recruiting")
    assert all(event["decision"] == "order" and event["why"] for event in asked)
    assert {event["zone"] for event in asked} == {"east", "west"}
    noticed = of_kind(log, "notice")
    assert [event["seconds"] for event in noticed if event["seconds"] > 0] == [3.0]
    assert len(of_kind(log, "node_lost")) >= 3  # those that went without a word
    summary = ended.summary
    assert (summary["lost_samples"], summary["repeated_samples"]) == (0, 0)
    assert summary["released"] is True


def test_a_drawn_trace_is_played_too(place: Place):
    """Nobody has a file: rates measured elsewhere make a future, the same for the same seed."""
    ended = place.train(
        "cloud=trace", "cloud.trace.faster=600", "cloud.trace.length=1h", "cloud.nodes=3",
        "train.steps=40", "cloud.trace.notice=1s",
    )  # fmt: skip
    assert ended.code == 0, ended.told()
    check.check_samples(ended.events, batch=8)
    assert ended.summary["released"] is True
