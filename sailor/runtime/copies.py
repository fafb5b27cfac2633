"""The copies of boxes that a controller knows of, and what a generation fetches from where.

Which copy serves a box best is ``checkpoint.restore.choose``'s to say. No torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from sailor.checkpoint.restore import Copy, Restore, choose, on_history
from sailor.parallel.layout import Layout
from sailor.runtime import commands as c
from sailor.runtime import messages as m
from sailor.runtime import state as s
from sailor.runtime.durable import Durable
from sailor.runtime.event_sink import EventSink
from sailor.runtime.roster import AgentRecord

Sources = dict[str, dict[str, tuple[m.Source, ...]]]  # node -> worker -> where its boxes are


class Copies:
    """One controller's knowledge of them, in the nodes' memory and in the durable tier."""

    def __init__(self, durable: Durable, *, events: EventSink) -> None:
        self._durable = durable
        self._events = events
        self._spoiled: set[tuple[str, m.SnapshotId | None]] = set()  # (node, snapshot)
        self._chosen: dict[int, Restore] = {}  # of the newest generation only

    def refuse(self, failed: m.TransitionFailed) -> None:
        """Never choose these again: what they hold is not what was written there."""
        for source in failed.spoiled:
            copy = source.path
            if source.snapshot is not None:
                at = source.snapshot
                copy = f"{at.worker}@{at.step} on {source.node}"
            at_node = (source.node, source.snapshot)
            if copy in self._durable.spoiled or at_node in self._spoiled:
                continue
            if source.path:
                self._durable.spoiled.add(source.path)
            else:
                self._spoiled.add(at_node)
            self._events.write(
                "copy_refused", generation=failed.generation, copy=copy, why=failed.reason
            )

    async def choose(
        self, command: c.ChooseSources, in_memory: Collection[Copy], *, starts: Mapping[int, int]
    ) -> Restore:
        """Where every box of the coming generation comes from. ``starts``: generation -> step.

        Raises CheckpointFailed when the durable tier does not say what it has.
        """
        below = command.below
        copies = list(in_memory)
        durable = await self._durable.best(below=below)
        if durable is not None:
            copies.append(durable)
        if below is not None:
            copies = [copy for copy in copies if copy.step < below]
        restore = choose(command.layout, copies, starts=starts)
        self._chosen = {command.generation: restore}
        return restore

    async def expected(self, layout: Layout, run: s.Run) -> dict[str, tuple[m.Expected, ...]]:
        """What each node will have to fetch of others in the switch, if the active generation halts
        with a snapshot on each of its nodes, so that it can be made ready for."""
        active = run.active
        if active is None or not run.training:
            return {}
        return await asyncio.to_thread(_expected, active, layout)

    def sources(self, generation: int, layout: Layout) -> Sources:
        """What was chosen for this generation, as each node is told."""
        return _by_node(layout, self._chosen[generation])

    def foreseen(
        self, layout: Layout, in_memory: Collection[Copy], *, starts: Mapping[int, int],
        below: int | None,
    ) -> Sources:  # fmt: skip
        """What will most likely be chosen for a layout, of what is in memory; nothing is noted."""
        copies = [copy for copy in in_memory if below is None or copy.step < below]
        return _by_node(layout, choose(layout, copies, starts=starts))

    def told(self, generation: int, layout: Layout) -> list[dict[str, Any]]:
        """For the log: where each worker has its boxes from; of those it has kept, how many."""
        lines: list[dict[str, Any]] = []
        for worker, fetches in zip(layout.workers, self._chosen[generation].fetches, strict=True):
            for fetch in fetches:
                line: dict[str, Any] = {"worker": str(worker), "tier": fetch.tier}
                if fetch.tier == "live":
                    line["kept"] = len(fetch.boxes)
                else:
                    line |= {"boxes": list(fetch.boxes), "from": _place(fetch.copy)}
                lines.append(line)
        return lines

    def in_memory(
        self, agents: Mapping[str, AgentRecord], run: s.Run, *, live: bool
    ) -> tuple[list[Copy], int]:
        """Everything in memory anywhere, and the newest step known to be committed.

        ``live``: what workers of the active generation have in use counts as well.
        """
        copies = [copy for agent in agents.values() for copy in self._held(agent)]
        if run.active is None or not live:
            return copies, run.step
        in_use = _in_use(agents, run.active, run.active_generation)
        return copies + in_use, min((copy.step for copy in in_use), default=run.step)

    def held_whole(
        self, in_memory: Collection[Copy], *, boxes: Collection[str], starts: Mapping[int, int],
        below: int | None,
    ) -> tuple[int, dict[str, tuple[m.Source, ...]]]:  # fmt: skip
        """The newest step that memory has all boxes of, and which node has which of them to give;
        -1 and nobody where there is none."""
        held = [
            copy
            for copy in in_memory
            if not copy.live and on_history(copy, starts) and (below is None or copy.step < below)
        ]
        for step in sorted({copy.step for copy in held}, reverse=True):
            left = set(boxes)
            by_node: dict[str, list[m.Source]] = {}
            for copy in (copy for copy in held if copy.step == step):
                if mine := tuple(sorted(left & copy.boxes)):
                    by_node.setdefault(copy.node, []).append(_source("memory", mine, copy))
                    left -= copy.boxes
            if not left:
                return step, {node: tuple(sources) for node, sources in by_node.items()}
        return -1, {}

    def of_anchor(self, agents: Mapping[str, AgentRecord], node: str) -> list[Copy]:
        """What the anchor has, as it last said; nothing if it is not there."""
        agent = agents.get(node)
        return [] if agent is None else self._held(agent, anchor=True)

    def _held(self, agent: AgentRecord, *, anchor: bool = False) -> list[Copy]:
        return [
            Copy(
                step=holding.snapshot.step,
                boxes=frozenset(holding.boxes),
                generation=holding.snapshot.generation,
                worker=holding.snapshot.worker,
                node=agent.node,
                anchor=anchor,
            )
            for holding in agent.holdings
            if (agent.node, holding.snapshot) not in self._spoiled
        ]


def _expected(active: Layout, layout: Layout) -> dict[str, tuple[m.Expected, ...]]:
    copies = [
        Copy(step=1, boxes=names, generation=1, worker=worker, node=worker.node, live=live)
        for worker, names in zip(active.workers, active.kept_names, strict=True)
        for live in (True, False)
    ]
    sizes = {box.name: box.num_bytes for boxes in layout.kept for box in boxes}
    expected: dict[str, tuple[m.Expected, ...]] = {}
    fetches_by_rank = choose(layout, copies, starts={}).fetches
    for worker, fetches in zip(layout.workers, fetches_by_rank, strict=True):
        expected[worker.node] = expected.get(worker.node, ()) + tuple(
            m.Expected(
                node=fetch.copy.node, num_boxes=len(fetch.boxes),
                num_bytes=sum(sizes[name] for name in fetch.boxes),
            )
            for fetch in fetches
            if fetch.copy is not None and fetch.tier == "peer"
        )  # fmt: skip
    return {node: transfers for node, transfers in expected.items() if transfers}


def _by_node(layout: Layout, restore: Restore) -> Sources:
    by_node: Sources = {}
    for worker, fetches in zip(layout.workers, restore.fetches, strict=True):
        sources = tuple(_source(fetch.tier, fetch.boxes, fetch.copy) for fetch in fetches)
        by_node.setdefault(worker.node, {})[str(worker)] = sources
    return by_node


def _in_use(agents: Mapping[str, AgentRecord], active: Layout, generation: int) -> list[Copy]:
    copies = []
    for rank, worker in enumerate(active.workers):
        agent = agents.get(worker.node)
        status = agent.statuses.get(worker) if agent is not None else None
        if status is None or status.step < 0:
            continue
        if status.generation != generation:
            continue  # it has switched already, for a controller that ended
        copies.append(
            Copy(
                step=status.step,
                boxes=active.kept_names[rank],
                generation=generation,
                worker=worker,
                node=worker.node,
                live=True,
            )
        )
    return copies


def _place(copy: Copy | None) -> str:
    if copy is None:
        return "the seed"
    return copy.path or f"{copy.node}, snapshot of {copy.worker}"


def _source(tier: str, boxes: tuple[str, ...], copy: Copy | None) -> m.Source:
    if copy is None:
        return m.Source(tier=tier, boxes=boxes)
    if copy.live:
        return m.Source(tier=tier, boxes=())
    if copy.path:
        return m.Source(tier="disk", boxes=boxes, path=copy.path)
    assert copy.worker is not None
    snapshot = m.SnapshotId(generation=copy.generation, step=copy.step, worker=copy.worker)
    return m.Source(tier="memory", boxes=boxes, node=copy.node, snapshot=snapshot)
