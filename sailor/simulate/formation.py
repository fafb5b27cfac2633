"""A layout as the life cycle needs it, without ranks: who takes part, and who holds which part.

``lifecycle.advance`` treats layouts as opaque; of ``sailor.parallel.layout.Layout`` it uses
``nodes``, ``workers``, ``world_size``, ``plan.describe()`` and equality. A ``Formation`` has those
and no more, so that a thousand machines cost microseconds instead of the second that seating ranks
and cutting boxes takes. What it leaves out (ranks, groups, boxes) does not decide when anything
happens in the simulated world; what does, which parts of the model still have a live owner, is kept
by stretches of the model's depth: a machine's loss loses its stretch unless another one holds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import cached_property

from sailor.planner.evidence import Place
from sailor.simulate.pace import Content, Pace, merged

Post = tuple[Place, Content]
"""What a machine is there for: where it stands and which part of the model it holds."""


@dataclass(frozen=True, kw_only=True)
class Formation:
    """One pace laid over named machines.

    ``holds``: machine -> its post; ``posts``: the machines of each post. ``moves``: which parts
    machines had to fetch for it, as (part, part they had before), each once.
    """

    plan: Pace
    holds: Mapping[str, Post]
    posts: Mapping[Post, Mapping[str, None]]
    moves: frozenset[tuple[Content, Content | None]]

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """Machines in use."""
        return tuple(self.holds)

    @property
    def workers(self) -> tuple[str, ...]:
        """Stands in for worker ids: the simulated world has one worker a machine."""
        return self.nodes

    @property
    def world_size(self) -> int:
        """Number of machines."""
        return len(self.holds)

    def parts_without(self, gone: Iterable[str]) -> dict[Content, int]:
        """Machines by part of the model they hold, some of them left out."""
        parts: dict[Content, int] = {}
        for (_, content), nodes in self.posts.items():
            parts[content] = parts.get(content, 0) + len(nodes)
        for node in gone:
            parts[self.holds[node][1]] -= 1
        return {content: number for content, number in parts.items() if number}


def seat(
    pace: Pace, members: Set[str], *, places: Mapping[str, Place], previous: Formation | None
) -> Formation:
    """Give every role machines of its place; a machine keeps the part it holds where it can.

    Only what changes is touched, so that a loss among thousands costs little. Raises ValueError
    when the members cannot fill the pace.
    """
    before: Mapping[str, Post] = previous.holds if previous is not None else {}
    holds = dict(before)
    posts: dict[Post, Mapping[str, None]] = dict(previous.posts) if previous is not None else {}
    own: dict[Post, dict[str, None]] = {}  # posts that are our copy already

    def at(post: Post) -> dict[str, None]:
        if post not in own:
            own[post] = dict(posts.get(post, {}))
            posts[post] = own[post]
        return own[post]

    for node in before.keys() - members:
        del at(holds.pop(node))[node]
    wanted: dict[Post, int] = {}
    for place, content, number in pace.roles:
        wanted[place, content] = number
    for post in list(posts):
        for _ in range(len(posts[post]) - wanted.get(post, 0)):
            node, _nothing = at(post).popitem()
            del holds[node]
    free: dict[Place, list[str]] = {}
    # Those that hold nothing first: they have nothing to give up.
    for node in sorted(members - holds.keys(), key=lambda name: (name in before, name)):
        free.setdefault(places[node], []).append(node)
    moves = set()
    for post, number in wanted.items():
        missing = number - len(posts.get(post, ()))
        if missing <= 0:
            continue
        there = free.get(post[0], [])
        if len(there) < missing:
            raise ValueError(f"{post[0]} has {missing} machines too few for {pace.text}")
        for node in there[:missing]:
            holds[node] = post
            at(post)[node] = None
            moves.add((post[1], before[node][1] if node in before else None))
        del there[:missing]
    return Formation(
        plan=pace,
        holds=holds,
        posts={post: nodes for post, nodes in posts.items() if nodes},
        moves=frozenset(moves),
    )


def covered(parts: Iterable[Content]) -> bool:
    """Whether the parts together are the whole model."""
    return merged([stretch for content in parts for stretch in content]) == ((0.0, 1.0),)


def size(content: Content) -> float:
    """Which share of the model a part is."""
    return sum(end - begin for begin, end in content)


def missing_share(new: Content, old: Content | None) -> float:
    """How much of the model a machine must fetch to go from one part to another."""
    have = sum(
        max(0.0, min(end, stop) - max(begin, start))
        for begin, end in new
        for start, stop in old or ()
    )
    return size(new) - have


def farthest_move(formation: Formation, *, afresh: bool = False) -> float:
    """The largest share of the model that one machine has to fetch; ``afresh``: all it holds."""
    if afresh:
        return max((size(content) for _, content in formation.posts), default=0.0)
    return max((missing_share(new, old) for new, old in formation.moves), default=0.0)
