"""Links of machines that have just arrived, measured and held against what the plan took them for.

When a generation is prepared, each newcomer in it measures its lines to some of those it is to talk
to (``sailor/runtime/line_rates.py``): before it trains, so that its own traffic does not count.
What was measured is an event. Where a line is so much slower that the plan rests on a mistake, the
planner learns of it and is asked again; whether another plan pays is decided as for every change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Protocol

from sailor.cluster.network import Link
from sailor.parallel.layout import GroupKind, Layout, Member
from sailor.runtime import messages as m
from sailor.runtime.event_sink import EventSink

MESSAGE_BYTES = 4 << 20  # what lines are compared by: about a boundary's or a bucket's worth
QUEUE_BYTES = 256 << 10  # that a machine's line may hold in front of the next word
MOST_QUEUE_S = 3.0
MOST_PEERS = 4  # that one newcomer measures: seconds, not minutes, on a thousand machines

Pair = tuple[str, str]  # in order of name: of nodes, or of zones


class KnownLinks(Protocol):
    """What plans are made with, and who learns better."""

    def assumed(self, one: Member, other: Member) -> Link:
        """The line between two machines, as plans have it now."""

    def learn(self, measured: Mapping[Pair, Link]) -> None:
        """Between machines of these zones lines are like this: plan with it from now on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """One line: as measured, as assumed, and how many times longer a message takes than was
    planned with. ``own``: what our code manages without any line, at the same time."""

    one: str
    other: str
    measured: m.Line
    own: m.Line
    assumed: Link
    times_slower: float


@dataclass(kw_only=True)
class Arrivals:
    """The lines of one run. ``factor``: how many times slower is far off; None measures nothing."""

    events: EventSink
    links: KnownLinks | None
    factor: float | None
    _asked: set[Pair] = field(default_factory=set, init=False)
    _members: dict[str, Member] = field(default_factory=dict, init=False)
    _found: dict[Pair, Found] = field(default_factory=dict, init=False)

    def prepared(
        self, layout: Layout, members: Iterable[Member], addresses: Mapping[str, tuple[str, int]]
    ) -> dict[str, m.Measure]:
        """Whom to ask for which lines, now that a layout is prepared."""
        if self.factor is None or self.links is None:
            return {}
        self._forget(self._members.keys() - addresses.keys())
        self._members |= {member.node: member for member in members}
        zones = {node: member.zone for node, member in self._members.items()}
        wanted = to_measure(talking(layout), known=self._asked, zones=zones)
        asks = {}
        for node, peers in wanted.items():
            if node not in addresses:
                continue
            there = {peer: addresses[peer] for peer in peers if peer in addresses}
            self._asked |= {_pair(node, peer) for peer in there}
            asks[node] = m.Measure(own=addresses[node], peers=there)
        return asks

    def hear(self, answer: m.Measured) -> str:
        """Write down what was measured. Why the planner is to be asked again, or ""."""
        if self.links is None:
            return ""
        zones = set()
        for peer, line in answer.lines.items():
            one, other = self._members.get(answer.node), self._members.get(peer)
            if one is None or other is None:
                continue  # it has left meanwhile
            assumed = self.links.assumed(one, other)
            found = Found(
                one=one.node, other=peer, measured=line, own=answer.own, assumed=assumed,
                times_slower=times_slower(line, own=answer.own, assumed=assumed),
            )  # fmt: skip
            self._write(found)
            self._found[_pair(one.node, peer)] = found
            zones.add(_pair(one.zone, other.zone))
        usual = {pair: self._usual(pair) for pair in sorted(zones)}
        wrong = {pair: found for pair, found in usual.items() if self.is_far_off(found)}
        if not wrong:
            return ""
        self.links.learn({pair: learned(found) for pair, found in wrong.items()})
        worst = max(wrong.values(), key=lambda found: found.times_slower)
        return (
            f"a message between {worst.one} and {worst.other} takes {worst.times_slower:.1f} times "
            "as long as was planned with"
        )

    def queue_s(self, node: str) -> float:
        """How long an answer of a machine may wait behind what else it sends, over the best of its
        lines. 0 where none was measured."""
        rates = [f.measured.bytes_per_second for pair, f in self._found.items() if node in pair]
        return min(MOST_QUEUE_S, QUEUE_BYTES / max(rates)) if rates else 0.0

    def _forget(self, gone: Iterable[str]) -> None:
        """One of the same name would be another machine."""
        for node in gone:
            del self._members[node]
            self._asked = {pair for pair in self._asked if node not in pair}
            self._found = {pair: f for pair, f in self._found.items() if node not in pair}

    def _usual(self, zones: Pair) -> Found:
        """The middle one of what was measured between two zones: one bad line among good ones is a
        machine's, and no reason to plan differently for all."""
        between = [
            found
            for (one, other), found in self._found.items()
            if _pair(self._members[one].zone, self._members[other].zone) == zones
        ]
        return sorted(between, key=lambda found: found.times_slower)[(len(between) - 1) // 2]

    def is_far_off(self, found: Found) -> bool:
        """Whether a plan that rests on the assumption rests on a mistake."""
        return self.factor is not None and found.times_slower > self.factor

    def _write(self, found: Found) -> None:
        self.events.write(
            "link_measured",
            node=found.one,
            peer=found.other,
            seconds_per_message=found.measured.seconds_per_message,
            bytes_per_second=found.measured.bytes_per_second,
            assumed_seconds_per_message=found.assumed.seconds_per_message,
            assumed_bytes_per_second=found.assumed.bytes_per_second,
            own_bytes_per_second=found.own.bytes_per_second,
            times_slower=found.times_slower,
            far_off=self.is_far_off(found),
        )


def learned(found: Found) -> Link:
    """What to plan with instead of the assumption."""
    own_s = found.own.seconds_per_message
    return Link(
        tier=found.assumed.tier,
        seconds_per_message=max(
            found.assumed.seconds_per_message, found.measured.seconds_per_message - own_s
        ),
        bytes_per_second=found.measured.bytes_per_second,
        source=f"measured between {found.one} and {found.other}",
    )


def talking(layout: Layout) -> frozenset[Pair]:
    """The pairs of machines that a layout has exchange more than votes."""
    pairs = set()
    for group in layout.groups:
        if group.kind is not GroupKind.world:
            nodes = sorted({layout.workers[rank].node for rank in group.ranks})
            pairs |= set(combinations(nodes, 2))
    return frozenset(pairs)


def to_measure(
    pairs: frozenset[Pair], *, known: Iterable[Pair], zones: Mapping[str, str]
) -> dict[str, list[str]]:
    """Who measures the lines to whom: pairs nobody asked about, from one side of each. A machine is
    in at most MOST_PEERS of them; between which zones is tried in turn, so that each is covered."""
    between: dict[Pair, list[Pair]] = {}
    for pair in sorted(pairs - set(known)):
        between.setdefault(_pair(*(zones.get(node, "") for node in pair)), []).append(pair)
    turns = sorted((turn, pair) for some in between.values() for turn, pair in enumerate(some))
    wanted: dict[str, list[str]] = {}
    busy: Counter[str] = Counter()
    for _, pair in turns:
        if max(busy[node] for node in pair) < MOST_PEERS:
            busy.update(pair)
            node, peer = sorted(pair, key=lambda n: (len(wanted.get(n, ())), n))
            wanted.setdefault(node, []).append(peer)
    return wanted


def times_slower(line: m.Line, *, own: m.Line, assumed: Link) -> float:
    """How many times longer a message takes than it was planned to.

    What our code needs without any line is no fault of the line: the plan's rate counts for no more
    than that, and the start-up of both is taken along.
    """
    rate = min(assumed.bytes_per_second, own.bytes_per_second)
    planned_s = assumed.seconds_per_message + own.seconds_per_message + MESSAGE_BYTES / rate
    took_s = line.seconds_per_message + MESSAGE_BYTES / line.bytes_per_second
    return took_s / planned_s


def _pair(one: str, other: str) -> Pair:
    return (one, other) if one <= other else (other, one)
