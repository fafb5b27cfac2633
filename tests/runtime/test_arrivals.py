"""Newcomers' links: who measures which, what is far off, and what is planned with afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from sailor.checkpoint.replicate import BULK_DECODER, serve_bulk
from sailor.cluster.network import Link, Tier
from sailor.runtime import messages as m
from sailor.runtime.arrivals import (
    MESSAGE_BYTES,
    MOST_PEERS,
    MOST_QUEUE_S,
    QUEUE_BYTES,
    Arrivals,
    talking,
    times_slower,
    to_measure,
)
from sailor.runtime.identity import create_identity
from sailor.runtime.keeper import Keeper
from sailor.runtime.line_rates import measure
from sailor.runtime.transport import listen
from tests.helpers.builders import a_layout, a_member, a_plan
from tests.helpers.delay import a_slow_line
from tests.helpers.snapshots import an_arena

MB = 1e6
FAST = m.Line(seconds_per_message=1e-4, bytes_per_second=500 * MB)
ASSUMED = Link(tier=Tier.zone, seconds_per_message=1e-4, bytes_per_second=1000 * MB, source="sheet")
ADDRESSES = {f"n{i}": ("127.0.0.1", 1000 + i) for i in range(8)}


def a_line(mb_per_second: float, *, seconds: float = 1e-4) -> m.Line:
    return m.Line(seconds_per_message=seconds, bytes_per_second=mb_per_second * MB)


class Known:
    """What plans are made with, remembered."""

    def __init__(self) -> None:
        self.learned: dict[tuple[str, str], Link] = {}

    def assumed(self, one, other) -> Link:
        return ASSUMED

    def learn(self, measured: Mapping[tuple[str, str], Link]) -> None:
        self.learned |= measured


class Log:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict]] = []

    def write(self, kind, *, generation=None, **fields) -> None:
        self.events.append((kind, fields))


def arrivals(*, factor: float | None = 4.0) -> Arrivals:
    return Arrivals(events=Log(), links=Known(), factor=factor)


def answered(some: Arrivals, node: str, **lines: m.Line) -> str:
    return some.hear(m.Measured(node=node, own=FAST, lines=lines))


def prepared(some: Arrivals, plan, zones: str = "aaaa") -> dict[str, m.Measure]:
    members = [a_member(f"n{i}", zone=zone) for i, zone in enumerate(zones)]
    return some.prepared(a_layout(plan), members, {m_.node: ADDRESSES[m_.node] for m_ in members})


def test_those_who_exchange_tensors_are_measured_and_each_pair_once():
    layout = a_layout(a_plan([2], [2]))  # n0-n1 and n2-n3 are pipelines
    assert talking(layout) == {("n0", "n1"), ("n2", "n3"), ("n0", "n2"), ("n1", "n3")} | (
        {("n0", "n3"), ("n1", "n2")} & talking(layout)  # tied embeddings join first and last
    )
    some = arrivals()
    asks = prepared(some, a_plan([2], [2]))
    pairs = [tuple(sorted((node, peer))) for node, ask in asks.items() for peer in ask.peers]
    assert sorted(pairs) == sorted(talking(layout))
    assert all(ask.own == ADDRESSES[node] for node, ask in asks.items())
    assert prepared(some, a_plan([2], [2])) == {}, "nobody has arrived since"


def test_a_newcomer_alone_is_measured_when_it_arrives():
    some = arrivals()
    prepared(some, a_plan([2]), "aa")
    asks = prepared(some, a_plan([1, 3]), "aaa")
    pairs = {tuple(sorted((node, peer))) for node, ask in asks.items() for peer in ask.peers}
    assert pairs
    assert all("n2" in pair for pair in pairs)


def test_one_machine_measures_few_lines_to_many_zones():
    zones = {f"n{i}": "ab"[i % 2] for i in range(1, 31)} | {"n0": "a"}
    pairs = frozenset(tuple(sorted(("n0", f"n{i}"))) for i in range(1, 31))
    wanted = to_measure(pairs, known=(), zones=zones)
    others = {node if peer == "n0" else peer for node, peers in wanted.items() for peer in peers}
    assert len(others) == MOST_PEERS
    assert {zones[other] for other in others} == {"a", "b"}


@pytest.mark.parametrize(
    ("line", "slower"),
    [
        (FAST, 1.0),  # all that our code manages: the line may be as fast as assumed
        (a_line(250), 2.0),
        (a_line(50), 10.0),
        (a_line(500, seconds=0.0777), 10.0),  # another continent: the rate is the same
        (a_line(5000), 0.109),
    ],
)
def test_a_line_is_judged_by_what_a_message_takes_and_not_by_what_our_own_code_takes(line, slower):
    # A message of 4 MiB takes 8.6 ms with both start-ups; of that 0.2 ms are theirs.
    assert MESSAGE_BYTES / FAST.bytes_per_second == pytest.approx(8.4e-3, rel=0.01)
    assert times_slower(line, own=FAST, assumed=ASSUMED) == pytest.approx(slower, rel=0.05)


def test_a_line_as_assumed_is_written_down_and_changes_nothing():
    some = arrivals()
    prepared(some, a_plan([2]), "ab")
    assert answered(some, "n0", n1=a_line(300)) == ""
    ((kind, fields),) = some.events.events
    assert kind == "link_measured"
    assert (fields["node"], fields["peer"], fields["far_off"]) == ("n0", "n1", False)
    assert fields["bytes_per_second"] == 300 * MB
    assert fields["assumed_bytes_per_second"] == 1000 * MB
    assert some.links.learned == {}


def test_a_line_far_off_is_learned_for_its_zones_and_planned_anew_for():
    some = arrivals()
    prepared(some, a_plan([2]), "ab")
    why = answered(some, "n0", n1=a_line(10))
    assert why.startswith("a message between n0 and n1 takes 48")
    ((zones, link),) = some.links.learned.items()
    assert zones == ("a", "b")
    assert (link.bytes_per_second, link.tier) == (10 * MB, Tier.zone)
    assert link.source == "measured between n0 and n1"


def test_one_bad_line_among_good_ones_is_a_machines_and_changes_no_plan():
    some = arrivals()
    prepared(some, a_plan([2], [2]))
    assert answered(some, "n0", n1=a_line(400), n2=a_line(10)) == ""
    assert answered(some, "n3", n2=a_line(400), n1=a_line(400)) == ""
    assert [fields["far_off"] for _, fields in some.events.events] == [False, True, False, False]
    assert some.links.learned == {}


def test_an_answer_may_stand_in_line_as_long_as_the_best_line_of_a_machine_is_slow():
    some = arrivals()
    prepared(some, a_plan([], []))
    assert some.queue_s("n0") == 0.0, "nothing is known"
    answered(some, "n0", n1=a_line(0.1), n2=a_line(1.0), n3=a_line(0.05))
    assert some.queue_s("n0") == pytest.approx(QUEUE_BYTES / MB)
    assert some.queue_s("n1") == pytest.approx(QUEUE_BYTES / (0.1 * MB))
    assert some.queue_s("n3") == MOST_QUEUE_S, "it is silent for good some time"
    assert arrivals(factor=None).queue_s("n0") == 0.0


def test_how_far_is_far_off_is_for_the_user_to_say():
    for factor, asks in ((60.0, False), (20.0, True)):
        some = arrivals(factor=factor)
        prepared(some, a_plan([2]), "ab")
        assert bool(answered(some, "n0", n1=a_line(10))) is asks
    assert prepared(arrivals(factor=None), a_plan([2]), "ab") == {}


def test_an_answer_about_a_machine_that_has_left_is_forgotten():
    some = arrivals()
    prepared(some, a_plan([2], [2]))
    prepared(some, a_plan([2]), "aa")  # n2 and n3 are gone
    assert answered(some, "n0", n3=a_line(1)) == ""
    assert answered(some, "n3", n0=a_line(1)) == ""
    assert some.events.events == []


@pytest.fixture
def identity(tmp_path):
    return create_identity(tmp_path / "identity", run="otter")


async def bulk_port(identity, tmp_path):
    """An agent's, with nothing on its shelf."""
    keeper = Keeper(an_arena(tmp_path), node="a", grant=lambda *_: None)

    async def serve(link):
        await serve_bulk(link, keeper)

    return await listen("127.0.0.1", 0, identity=identity, decoder=BULK_DECODER, on_link=serve)


LONG_S = 4.0  # for one line: this computer may be busy


def test_a_narrow_and_a_long_line_are_measured_as_they_are_within_their_time(identity, tmp_path):
    async def seen():
        async with (
            await bulk_port(identity, tmp_path) as server,
            a_slow_line(server.address[1], seconds=0.0, bytes_per_second=4 * MB) as narrow,
            a_slow_line(server.address[1], seconds=0.03) as long,
        ):
            peers = {
                "narrow": ("127.0.0.1", narrow), "long": ("127.0.0.1", long),
                "gone": ("127.0.0.1", 9),
            }  # fmt: skip
            began = asyncio.get_running_loop().time()
            own, lines = await measure(peers, own=server.address, identity=identity, seconds=LONG_S)
            return own, lines, asyncio.get_running_loop().time() - began

    own, lines, took_s = asyncio.run(seen())
    assert set(lines) == {"narrow", "long"}
    # Half and double: what comes back shares this one process with what goes there.
    assert 2 * MB < lines["narrow"].bytes_per_second < 8 * MB
    assert own.bytes_per_second > 3 * lines["narrow"].bytes_per_second
    assert 0.03 <= lines["long"].seconds_per_message < 0.12
    assert took_s < 5 * LONG_S
