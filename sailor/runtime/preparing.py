"""A generation that is coming, on one node: its workers build, their snapshots get memory, lines
are opened; or it is dropped."""

from __future__ import annotations

import logging

from sailor.checkpoint.arena import OutOfSnapshotMemory
from sailor.checkpoint.lines import Lines
from sailor.checkpoint.segment import shapes_of
from sailor.parallel.layout import Layout, WorkerId
from sailor.parallel.stand_in import same_seat
from sailor.runtime import messages as m
from sailor.runtime.ahead import Ahead
from sailor.runtime.nursery import Child
from sailor.runtime.part import STANDING_BY, Household, Part
from sailor.runtime.worker_link import Build

log = logging.getLogger(__name__)


class Preparing:
    """One node's."""

    def __init__(self, home: Household) -> None:
        self._home = home

    def open_part(self, prepare: m.Prepare) -> Part:
        """At once, so that a Drop right behind the Prepare finds it."""
        home, run = self._home, self._home.run
        layout = Layout(
            plan=prepare.plan, spec=run.spec, pieces=run.pieces, workers=prepare.workers
        )
        mine = tuple(w for w in layout.workers if w.node == home.facts.node)
        ahead = Ahead(node=home.facts.node, identity=home.facts.identity, keeper=home.keeper)
        part = Part(
            prepare=prepare, layout=layout, workers=mine, ahead=ahead,
            lines=Lines(home.facts.identity),
        )  # fmt: skip
        home.parts[prepare.generation] = part
        return part

    async def prepare(self, prepare: m.Prepare, part: Part) -> None:
        """Have workers build, lay out memory, open lines; answered when all of it is done."""
        home, layout, mine = self._home, part.layout, part.workers
        missing = [w for w in mine if w not in home.nursery.children]
        if missing:
            await home.fail(prepare.generation, f"worker {missing[0]} does not live")
            return
        part.kept = frozenset(w for w in mine if self._keeps_its_seat(w, layout))
        expected = prepare.expected.get(home.facts.node, ())
        addresses = [prepare.peers[e.node] for e in expected if e.node in prepare.peers]
        home.beside(part.lines.open(addresses))
        for worker in mine:
            build = Build(
                generation=prepare.generation,
                settings=home.run,
                plan=prepare.plan,
                workers=prepare.workers,
                host=home.facts.host,
                timeout_s=prepare.timeout_s,
                kept=worker in part.kept,
                warm_up=prepare.warm_up,
                rehearse=prepare.rehearse,
            )
            await home.send(worker, build)
        if prepare.generation in home.parts:  # else dropped meanwhile
            part.ahead.begin(prepare.ahead, peers=prepare.peers)
        # Faulting memory in takes as long as building does: both at once, in two processes.
        try:
            for worker in mine:
                if worker not in part.kept:
                    shapes = shapes_of(layout.kept[part.rank_of(worker)])
                    if not home.keeper.move_in(worker, STANDING_BY, prepare.generation, shapes):
                        await home.keeper.allocate(worker, prepare.generation, shapes)
                if prepare.generation not in home.parts:  # dropped meanwhile
                    home.keeper.close_seat(worker, prepare.generation)
                    return
        except OutOfSnapshotMemory as error:
            log.error("%s", error.render())
            await home.fail(prepare.generation, str(error))
            return
        await home.keeper.reserve((e.num_bytes, e.num_boxes) for e in expected)
        part.roomy = True
        await self._tell_prepared(part)

    async def _tell_prepared(self, part: Part) -> None:
        """If all have built and their snapshots have room: say so."""
        home = self._home
        if part.roomy and part.built >= set(part.workers):
            generation = part.prepare.generation
            await home.tell(m.Prepared(generation=generation, node=home.facts.node))

    def _keeps_its_seat(self, worker: WorkerId, layout: Layout) -> bool:
        """Whether a worker goes on with the trainer, state and snapshot memory that it has."""
        home = self._home
        present = home.parts.get(home.nursery.children[worker].generation)
        if present is None or (before := present.layout.rank_of(worker)) is None:
            return False
        after = layout.rank_of(worker)
        return after is not None and same_seat(present.layout, before, layout, after)

    async def drop(self, drop: m.Drop) -> None:
        """It does not come, or is over."""
        home = self._home
        part = home.parts.pop(drop.generation, None)
        if part is None:
            return
        part.close()
        for worker in part.workers:
            await home.send(worker, drop)
            child = home.nursery.children.get(worker)
            if child is None or child.generation != drop.generation:
                home.keeper.close_seat(worker, drop.generation)

    async def on_built(self, part: Part, child: Child) -> None:
        """A worker has its groups and buffers."""
        part.built.add(child.worker)
        await self._tell_prepared(part)
