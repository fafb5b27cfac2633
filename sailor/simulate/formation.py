"""A layout as the life cycle needs it, without ranks: who takes part, and who holds which part.

``lifecycle.advance`` treats layouts as opaque; of ``sailor.parallel.layout.Layout`` it uses
``nodes``, ``workers``, ``world_size``, ``plan.describe()`` and equality. A ``Formation`` has those
and no more, so that a thousand machines cost microseconds instead of the second that seating ranks
and cutting boxes takes. What it leaves out (ranks, groups, boxes) does not decide when anything
happens in the simulated world; what does, which parts of the model still have a live owner, is kept
by stretches of the model's depth: a machine's loss loses its stretch unless another one holds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from sailor.simulate.fleet import Place
from sailor.simulate.pace import Content, Pace, merged


@dataclass(frozen=True, kw_only=True)
class Formation:
    """One pace laid over named machines. ``holds``: machine -> the part of the model it has."""

    plan: Pace
    holds: Mapping[str, Content]

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

    @cached_property
    def owners(self) -> Counter[Content]:
        """How many machines hold each part."""
        return Counter(self.holds.values())


def seat(
    pace: Pace, members: Iterable[tuple[str, Place]], previous: Formation | None
) -> Formation:
    """Give every role machines of its place; a machine keeps the part it holds where it can.

    Raises ValueError when the members cannot fill the pace.
    """
    before = previous.holds if previous is not None else {}
    free: dict[Place, dict[Content | None, list[str]]] = {}
    for node, place in members:
        free.setdefault(place, {}).setdefault(before.get(node), []).append(node)
    holds: dict[str, Content] = {}
    short: list[tuple[Place, Content, int]] = []
    for role in pace.roles:
        same = free.get(role.place, {}).get(role.content, [])
        kept = same[: role.count]
        del same[: role.count]
        holds.update(dict.fromkeys(kept, role.content))
        if len(kept) < role.count:
            short.append((role.place, role.content, role.count - len(kept)))
    for place, content, number in short:
        others = free.get(place, {})
        # New machines first: they have nothing to give up.
        for key in sorted(others, key=lambda k: (k is not None, k or ())):
            taken = others[key][:number]
            del others[key][: len(taken)]
            holds.update(dict.fromkeys(taken, content))
            number -= len(taken)
            if not number:
                break
        else:
            if number:
                raise ValueError(f"{place} has {number} machines too few for {pace.text}")
    return Formation(plan=pace, holds=holds)


def covered(parts: Iterable[Content]) -> bool:
    """Whether the parts together are the whole model."""
    return merged([stretch for content in parts for stretch in content]) == ((0.0, 1.0),)


def missing_share(new: Content, old: Content | None) -> float:
    """How much of the model a machine must fetch to go from one part to another."""
    total = sum(end - begin for begin, end in new)
    if old is None:
        return total
    have = sum(
        max(0.0, min(end, stop) - max(begin, start)) for begin, end in new for start, stop in old
    )
    return total - have


def farthest_move(new: Formation, old: Formation | None) -> float:
    """The largest share of the model that one machine has to fetch."""
    before = old.holds if old is not None else {}
    moves = {(content, before.get(node)) for node, content in new.holds.items()}
    return max((missing_share(content, had) for content, had in moves), default=0.0)
