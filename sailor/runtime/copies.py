"""The copies of boxes that a controller knows of, and what a generation fetches from where.

Which copy serves a box best is ``checkpoint.restore.choose``'s to say. No torch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sailor.checkpoint.restore import Copy, Restore, choose
from sailor.parallel.layout import Layout
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
        self, command: s.ChooseSources, in_memory: Collection[Copy], *, starts: Mapping[int, int]
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

    def sources(self, generation: int, layout: Layout) -> Sources:
        """What was chosen for this generation, as each node is told."""
        by_node: Sources = {}
        fetches_by_rank = self._chosen[generation].fetches
        for worker, fetches in zip(layout.workers, fetches_by_rank, strict=True):
            sources = tuple(_source(fetch.tier, fetch.boxes, fetch.copy) for fetch in fetches)
            by_node.setdefault(worker.node, {})[str(worker)] = sources
        return by_node

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
                boxes=frozenset(box.name for box in active.kept[rank]),
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
    if copy is None or copy.live:
        return m.Source(tier=tier, boxes=boxes)
    if copy.path:
        return m.Source(tier="disk", boxes=boxes, path=copy.path)
    assert copy.worker is not None
    snapshot = m.SnapshotId(generation=copy.generation, step=copy.step, worker=copy.worker)
    return m.Source(tier="memory", boxes=boxes, node=copy.node, snapshot=snapshot)
