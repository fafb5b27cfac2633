"""What the life cycle decides, done: its commands become words to agents, machines and plans."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import msgspec

from sailor.checkpoint import store
from sailor.checkpoint.placement import peers
from sailor.parallel.boxes import all_boxes
from sailor.runtime import commands as c
from sailor.runtime import happenings as h
from sailor.runtime import messages as m
from sailor.runtime.anchoring import trained
from sailor.runtime.hiring import Hiring
from sailor.runtime.parts import Parts
from sailor.runtime.planning import Planning
from sailor.runtime.watchdog import exchange_timeout_s

log = logging.getLogger(__name__)


class Orders:
    """Carries out one run's commands. ``outcome`` is there when the run has ended."""

    def __init__(self, parts: Parts, *, hiring: Hiring, planning: Planning) -> None:
        self._parts = parts
        self._hiring = hiring
        self._planning = planning
        self.outcome: c.Finish | None = None
        self._begun: asyncio.Future[None] | None = None  # the newest switch's line in the journal

    async def execute(self, command: c.Command) -> None:
        """Do it, or start it beside the loop where it takes long."""
        parts = self._parts
        match command:
            case c.Record():
                self._record(command)
            case c.Replan():
                parts.beside(self._planning.plan(command))
            case c.SendPrepare():
                await self._prepare(command)
            case c.SendWarm():
                parts.rehearsals.stand_by(command.generation, command.layout, command.nodes)
                await self.warm()
            case c.SendHalt(generation=generation, boundary=boundary, persist=persist):
                logged = parts.chronicle.newest
                halt = m.Halt(
                    generation=generation, boundary=boundary, persist=persist, logged=logged
                )
                await parts.tell(command.nodes, halt)
            case c.SaveHeld():
                await self._save_held(command)
            case c.ChooseSources():
                await self._choose(command)
            case c.SendSwitch():
                await self._switch(command)
            case c.SendGo():
                await self._go(command)
            case c.SendDrop():
                await parts.store.drop_before(command.generation + 1)
                await parts.tell(command.nodes, m.Drop(generation=command.generation))
            case c.Fence():
                parts.events.write("fenced", node=command.node, reason=command.reason)
                await parts.roster.send(command.node, m.Refused(reason=command.reason))
                self._hiring.shut_out(command.node, command.reason, 0.0)
            case c.Release():
                await self._hiring.dismiss(command.node, command.reason)
            case c.Provision():
                await self._provision()
            case c.Finish():
                self.outcome = command

    async def warm(self) -> None:
        """Tell those who stand by what they can rehearse by now."""
        for node, warm in self._parts.rehearsals.due().items():
            await self._parts.roster.send(node, warm)

    def _record(self, command: c.Record) -> None:
        run = self._parts.run
        self._parts.chronicle.life_cycle(command, run)
        if command.kind in ("generation_started", "adopted") and run.active:
            step = int(command.fields["step"])
            self._parts.lookout.began(step=step, nodes=run.active.nodes)
            self._parts.paces.began(run.active, step=step)

    async def _provision(self) -> None:
        """All the machines the run began with, under new names where the old are given up."""
        parts = self._parts
        fenced, attempt = parts.roster.fenced, parts.notebook.journal.attempt
        await self._hiring.order(
            *(
                replace(r, node=f"{r.node}-{attempt}") if r.node in fenced else r
                for r in parts.settings.nodes
            )
        )

    async def _prepare(self, command: c.SendPrepare) -> None:
        parts, layout = self._parts, command.layout
        members = tuple(
            node.member for name, node in sorted(parts.run.nodes.items()) if name in layout.nodes
        )
        keepers = [n.member for n in parts.run.nodes.values() if n.leaves_at is None]
        prepare = m.Prepare(
            generation=command.generation,
            plan=layout.plan,
            members=members,
            workers=layout.workers,
            peers={a.node: a.address for a in parts.roster.agents.values()},
            copies=peers(keepers),
            timeout_s=exchange_timeout_s(parts.chronicle.step_seconds),
            warm_up=parts.settings.rehearse,
            rehearse=self._time_to_rehearse(),
            expected=await parts.copies.expected(layout, parts.run),
        )
        ahead = self._foreseen(command)
        await asyncio.gather(
            *(
                parts.roster.send(node, msgspec.structs.replace(prepare, ahead=ahead.get(node, ())))
                for node in layout.nodes
            )
        )
        addresses = {a.node: a.address for a in parts.roster.agents.values()}
        for node, measure in parts.arrivals.prepared(layout, members, addresses).items():
            await parts.roster.send(node, measure)
        await asyncio.to_thread(parts.rehearsals.learn, layout)
        parts.beside(self._planning.foretell(command.generation, layout.plan))

    def _foreseen(self, command: c.SendPrepare) -> dict[str, tuple[m.Source, ...]]:
        """Node -> what its workers will most likely take: known where all stand still already."""
        parts, t = self._parts, self._parts.run.transition
        if t is None or t.planned:
            return {}
        run, agents = parts.run, trained(parts.roster.agents)
        copies, _ = parts.copies.in_memory(agents, run, live=run.intact)
        foreseen = parts.copies.foreseen(
            command.layout, copies, starts=parts.notebook.journal.starts, below=run.below
        )
        return {
            node: tuple(source for sources in by_worker.values() for source in sources)
            for node, by_worker in foreseen.items()
        }

    def _time_to_rehearse(self) -> bool:
        """Whether a change that all train through has time for a newcomer's step in the sandbox."""
        parts = self._parts
        t, step_s, settings = parts.run.transition, parts.median_step_s(), parts.settings
        if not settings.rehearse or t is None or not t.planned or step_s is None:
            return False
        left_s = settings.limits.prepare_s / 4
        if t.halt_due is not None:
            left_s = min(left_s, (t.halt_due - parts.now()) / 4)
        return step_s < left_s

    async def _choose(self, command: c.ChooseSources) -> None:
        """From which copies the generation takes which step."""
        parts = self._parts
        copies, committed = parts.copies.in_memory(
            trained(parts.roster.agents), parts.run, live=command.live
        )
        parts.events.write("committed", generation=parts.run.active_generation, step=committed)
        starts = parts.notebook.journal.starts
        try:
            restore = await parts.copies.choose(command, copies, starts=starts)
            # An anchor is asked only where it can help: nobody waits for one that cannot.
            lacking = restore.step < committed or restore.farthest_tier in ("disk", "init")
            if lacking and (more := await parts.anchoring.copies()):
                copies += more
                restore = await parts.copies.choose(command, copies, starts=starts)
        except store.CheckpointFailed as error:
            log.error("%s", error.render())
            return  # the stage passes its deadline, and all is tried again
        parts.put(
            h.Restorable(
                at=parts.now(),
                generation=command.generation,
                step=restore.step,
                redone=max(0, committed - restore.step),
                source=restore.farthest_tier,
            )
        )

    async def _save_held(self, command: c.SaveHeld) -> None:
        """Whoever has something of the newest whole step writes it; the others just say so."""
        parts, generation = self._parts, command.generation
        run = parts.settings.run
        there = {n: a for n, a in parts.roster.agents.items() if n in command.nodes}
        copies, _ = parts.copies.in_memory(there, parts.run, live=False)
        copies += await parts.anchoring.copies()
        step, by_node = parts.copies.held_whole(
            copies,
            boxes={box.name for box in all_boxes(run.spec, pieces=run.pieces)},
            starts=parts.notebook.journal.starts,
            below=command.below,
        )
        if step <= parts.durable.newest_step:
            why = f"memory has nothing newer than the durable step {parts.durable.newest_step}"
            if parts.durable.newest_step < 0:
                why = "nothing is durable and no step is whole in memory"
            parts.put(h.NothingToSave(at=parts.now(), generation=generation, why=why))
            return
        for node in dict.fromkeys((*command.nodes, *by_node)):
            asked = m.SaveHeld(generation=generation, step=step, sources=by_node.get(node, ()))
            await parts.roster.send(node, asked)

    async def _switch(self, command: c.SendSwitch) -> None:
        parts, generation, step = self._parts, command.generation, command.step
        # Written while state moves. Whoever takes over before Go finds nobody training in what the
        # journal calls active, and recovers from the snapshots that all have of this step.
        begun = parts.notebook.journal.begun(generation, step=step, layout=command.layout)
        self._begun = asyncio.ensure_future(parts.notebook.note(begun))
        by_node = parts.copies.sources(generation, command.layout)
        parts.events.write(
            "restored",
            generation=generation,
            step=step,
            sources=parts.copies.told(generation, command.layout),
        )
        await asyncio.gather(
            *(
                parts.roster.send(node, m.Switch(generation=generation, step=step, sources=sources))
                for node, sources in by_node.items()
            )
        )

    async def _go(self, command: c.SendGo) -> None:
        parts, nodes = self._parts, command.layout.nodes
        assert self._begun is not None
        await self._begun  # a later controller must find who trains
        go = m.Go(
            generation=command.generation,
            step=command.step,
            losses=parts.chronicle.losses.until(command.step),
            record=parts.rehearsals.to_record(command.layout),
            losses_per_s=parts.hazard.per_machine_s * len(nodes),
        )
        parts.anchoring.interrupted()
        parts.told_go |= dict.fromkeys(nodes, command.generation)
        await parts.tell(nodes, go)
        await parts.store.drop_before(command.generation)
