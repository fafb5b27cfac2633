"""Which step to resume from, and where each worker gets each box. Pure, no torch.

The newest step that *every* box can reach wins; within it each worker takes each box from the
nearest tier that has it: kept live, its own node's memory, another node's memory, that of an anchor
(a machine that keeps copies and does not train), a durable file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sailor.parallel.layout import Layout, WorkerId

TIERS = ("live", "memory", "peer", "anchor", "disk", "init")  # nearest first
# What a node serves before another one is asked as well: one more sender costs either side some
# milliseconds, which is what so many bytes take on a fast line.
PORTION_BYTES = 8 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """Some boxes at one step, in one place.

    ``worker`` wrote it in ``generation``; ``node`` holds it in memory now. ``live`` means the
    worker still has them as its own tensors. ``anchor``: the node holds copies and does not train.
    A durable checkpoint has a ``path`` and no node.
    """

    step: int
    boxes: frozenset[str]
    generation: int = 0
    worker: WorkerId | None = None
    node: str = ""
    live: bool = False
    anchor: bool = False
    path: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetch:
    """Boxes that one worker takes from one copy; no copy means initial values from the seed."""

    tier: str
    boxes: tuple[str, ...]
    copy: Copy | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Restore:
    """The decision: the step, and per rank of the new layout its fetches."""

    step: int
    fetches: tuple[tuple[Fetch, ...], ...]

    @property
    def farthest_tier(self) -> str:
        """The worst tier any box comes from: what the pause is told to have cost."""
        used = {fetch.tier for fetches in self.fetches for fetch in fetches}
        return max(used, key=TIERS.index, default="live")


def on_history(copy: Copy, starts: Mapping[int, int]) -> bool:
    """Whether a copy belongs to the line of steps that was kept.

    ``starts``: generation -> step it resumed from. A state that a later generation went back
    behind was given up: mixing it in would join two histories.
    """
    return all(
        copy.step <= start for generation, start in starts.items() if generation > copy.generation
    )


def reachable_step(layout: Layout, copies: Iterable[Copy]) -> int:
    """The newest step at which every worker of the layout can have every box it keeps; 0 is
    always reachable. What a worker holds live serves itself alone."""
    shared: dict[int, set[str]] = {}
    own: dict[tuple[int, WorkerId | None], set[str]] = {}
    for copy in copies:
        boxes = (
            own.setdefault((copy.step, copy.worker), set())
            if copy.live
            else (shared.setdefault(copy.step, set()))
        )
        boxes.update(copy.boxes)
    for step in sorted(shared.keys() | {step for step, _ in own}, reverse=True):
        anybody = shared.get(step, set())
        if all(
            names - own.get((step, worker), set()) <= anybody
            for worker, names in zip(layout.workers, layout.kept_names, strict=True)
        ):
            return step
    return 0


def choose(layout: Layout, copies: Sequence[Copy], *, starts: Mapping[int, int]) -> Restore:
    """The newest reachable step and the nearest source of every box for every rank.

    Memory reads are spread over the nodes that have a box, a portion each in turn, so that one
    survivor does not serve everybody; those that leave come first, for they have nothing else to
    do. A box without any copy at step 0 is made from the seed.
    """
    kept = [copy for copy in copies if on_history(copy, starts)]
    step = reachable_step(layout, kept)
    present = [copy for copy in kept if copy.step == step]
    # In most changes most workers stay as they are: nothing is looked up box by box for them.
    staying = {copy.worker: copy for copy in present if copy.live}
    homes = [staying.get(worker) for worker in layout.workers]
    homes = [home if home is not None and names <= home.boxes else None
             for home, names in zip(homes, layout.kept_names, strict=True)]  # fmt: skip
    moving = frozenset[str]().union(
        *(n for home, n in zip(homes, layout.kept_names, strict=True) if home is None)
    )
    by_box: dict[str, list[Copy]] = {}
    for copy in present:
        for name in copy.boxes & moving:
            by_box.setdefault(name, []).append(copy)
    served: dict[str, int] = {}
    seated = frozenset(layout.nodes)
    fetches: list[tuple[Fetch, ...]] = []
    for rank, (worker, home) in enumerate(zip(layout.workers, homes, strict=True)):
        if home is not None:
            names = tuple(layout.kept_names[rank])
            fetches.append((Fetch(tier="live", boxes=names, copy=home),))
            continue
        chosen: dict[tuple[str, Copy | None], list[str]] = {}
        for box in layout.kept[rank]:
            tier, source = _nearest(by_box.get(box.name, ()), worker, served, seated)
            if tier == "peer" and source is not None:
                served[source.node] = served.get(source.node, 0) + box.num_bytes
            chosen.setdefault((tier, source), []).append(box.name)
        fetches.append(
            tuple(
                Fetch(tier=tier, boxes=tuple(boxes), copy=source)
                for (tier, source), boxes in chosen.items()
            )
        )
    return Restore(step=step, fetches=tuple(fetches))


def _nearest(
    copies: Iterable[Copy], worker: WorkerId, served: Mapping[str, int], seated: Collection[str]
) -> tuple[str, Copy | None]:
    # A worker's own tensors serve only itself; its snapshot of the same step serves the others.
    usable = [copy for copy in copies if not copy.live or copy.worker == worker]
    if not usable:
        return "init", None
    best = min(
        usable,
        key=lambda copy: (
            TIERS.index(_tier(copy, worker)),
            served.get(copy.node, 0) // PORTION_BYTES,
            copy.node in seated,
            copy.node,
            str(copy.worker),
            -copy.generation,
        ),
    )
    return _tier(best, worker), best


def _tier(copy: Copy, worker: WorkerId) -> str:
    if copy.path:
        return "disk"
    if copy.live:
        return "live"
    if copy.anchor:
        return "anchor"
    return "memory" if copy.node == worker.node else "peer"
