"""Which peer keeps a copy of which node's snapshots. Pure, no torch.

Pairs, not rings: with two copies and two simultaneous losses among 16 nodes, pairs keep every shard
in 93.3 % of cases and a ring in 86.7 % (closed form: a ring has n fatal pairs of n(n-1)/2, pairs
have n/2). Partners are chosen in different failure domains wherever there are two, for spot
machines of one zone go together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sailor.parallel.boxes import Box
from sailor.parallel.layout import Layout, Member


def domain(member: Member) -> tuple[str, str]:
    """The failure domain of a node: machines of one type in one zone are reclaimed together."""
    return member.zone, member.machine_type


def peers(members: Sequence[Member]) -> dict[str, tuple[str, ...]]:
    """node -> the nodes that keep copies of its snapshots.

    Nodes are paired across domains, largest domains first, so that as few pairs as possible are
    left inside one domain. With an odd count the last node joins a pair: it copies to one member of
    it, outside its own domain if there is one. A node on its own has nobody.
    """
    left = sorted(members, key=lambda m: (domain(m), m.node))
    pairs: list[tuple[Member, Member]] = []
    while len(left) > 1:
        counts: dict[tuple[str, str], int] = {}
        for member in left:
            counts[domain(member)] = counts.get(domain(member), 0) + 1
        ranked = sorted(counts, key=lambda d: (-counts[d], d))
        first = next(m for m in left if domain(m) == ranked[0])
        other = ranked[1] if len(ranked) > 1 else ranked[0]
        second = next(m for m in left if domain(m) == other and m is not first)
        pairs.append((first, second))
        left = [m for m in left if m is not first and m is not second]
    keeps: dict[str, tuple[str, ...]] = {}
    for a, b in pairs:
        keeps[a.node], keeps[b.node] = (b.node,), (a.node,)
    for member in left:  # the odd one
        others = [m for pair in pairs for m in pair]
        foreign = [m for m in others if domain(m) != domain(member)]
        keeps[member.node] = ((foreign or others)[0].node,) if others else ()
    return keeps


def needing_copies(layout: Layout) -> Mapping[int, tuple[Box, ...]]:
    """rank -> boxes that live on no other node, which a peer must therefore keep a copy of.

    A box with keepers on two nodes survives the loss of either: its replicas step in lockstep. Of
    several keepers on one node only the first copies. With optimizer sharding that is every box.
    """
    wanted: dict[int, list[Box]] = {}
    for box, ranks in layout.keepers.items():
        nodes = {layout.workers[rank].node for rank in ranks}
        if len(nodes) == 1:
            wanted.setdefault(ranks[0], []).append(box)
    return {rank: tuple(boxes) for rank, boxes in wanted.items()}
