"""Agents' words, turned into events of the life cycle and into what the controller knows.

Answers of other generations are sorted out by ``lifecycle.advance``.
"""

from __future__ import annotations

import logging
from typing import Any

from sailor.cluster.provisioner import is_anchor
from sailor.runtime import happenings as h
from sailor.runtime import messages as m
from sailor.runtime import state as s
from sailor.runtime.lookout import ProbeAll, Wish
from sailor.runtime.orders import Orders
from sailor.runtime.parts import Parts
from sailor.runtime.transport import Link, LinkClosed

log = logging.getLogger(__name__)

_PATIENCE_S = 2.0  # a shorter stage of a change is over before its progress is read
STORE_WAIT_S = 60.0  # at most, for a key that somebody is still to set


class Hearing:
    """Hears the members of one run."""

    def __init__(self, parts: Parts, *, orders: Orders) -> None:
        self._parts = parts
        self._orders = orders

    async def hear(self, node: str, link: Link, message: Any) -> None:
        """One message of one node."""
        parts, now, generation = self._parts, self._parts.now(), message.generation
        match message:
            case m.Heartbeat():
                await link.send(m.Beat())  # what its lease goes on by
                self._note_statuses(node, message.workers)
                if not is_anchor(node):
                    await self._mind_pace(node, message.workers)
            case m.Probed():
                self._mind_lines(message)
            case m.Measured():
                if why := parts.arrivals.hear(message):
                    parts.events.write("replan_asked", why=why)
                    parts.put(h.ReplanAsked(at=now, why=why))
            case m.StoreSet():
                await parts.store.set(generation, message.key, message.value)
            case m.StoreGet():
                parts.beside(self._answer_store(link, message))
            case m.Stepped():
                parts.chronicle.step(message.record)
                parts.put(h.StepApplied(at=now, generation=generation, step=message.record.step))
            case m.WorkerLost():
                self._hear_worker_lost(message)
            case m.WorkerUp():
                parts.rehearsals.forget(node)
                parts.events.write("worker_up", worker=str(message.worker), pid=message.pid)
                parts.put(h.WorkerStarted(at=now, worker=message.worker))
            case m.Prepared():
                self._tell_progress(node, generation, stage=s.TransitionStage.prepare)
                parts.put(h.NodePrepared(at=now, generation=generation, node=node))
            case m.Halted():
                self._hear_halted(node, message)
            case m.Switched():
                parts.chronicle.switched(message)
                self._tell_progress(node, generation, stage=s.TransitionStage.switch)
                parts.put(
                    h.NodeSwitched(at=now, generation=generation, node=node, copy_s=message.copy_s)
                )
            case m.TransitionFailed():
                parts.copies.refuse(message)
                parts.put(
                    h.NodeFailed(at=now, generation=generation, node=node, reason=message.reason)
                )
            case m.Recorded():
                parts.rehearsals.keep(message)
                await self._orders.warm()
            case m.Warmed():
                self._hear_warmed(node, message)
            case m.Finished():
                parts.put(h.NodeFinished(at=now, generation=generation, node=node))
            case m.Snapshotted():
                parts.chronicle.snapshot(message, active_generation=parts.run.active_generation)
            case m.Persisted():
                await parts.hear_durable(node, message)
            case m.CopiedOut():
                await parts.anchoring.hear(message)
            case m.NoticeSeen(seconds=seconds, source=source):
                parts.events.write("notice", node=node, seconds=seconds, source=source)
                parts.put(h.Noticed(at=now, node=node, seconds=seconds))
            case m.Diverged():
                parts.put(
                    h.StepRefused(at=now, generation=generation, step=message.step, why=message.why)
                )

    def _tell_progress(self, node: str, generation: int, *, stage: s.TransitionStage) -> None:
        """Of a stage that takes longer than people like to wait: how many machines are through."""
        t = self._parts.run.transition
        if t is None or t.layout is None or (t.generation, t.stage) != (generation, stage):
            return
        if node not in t.waiting or self._parts.now() - t.entered_at < _PATIENCE_S:
            return
        total = len(t.layout.nodes)
        self._parts.events.write(
            "change_progress", generation=generation, stage=stage.name,
            done=total - len(t.waiting) + 1, total=total,
        )  # fmt: skip

    def _hear_worker_lost(self, told: m.WorkerLost) -> None:
        worker, cause, silent_s = told.worker, told.cause, told.silent_s
        self._parts.events.write("worker_lost", worker=str(worker), cause=cause, silent_s=silent_s)
        self._parts.put(
            h.WorkerDied(at=self._parts.now(), worker=worker, cause=cause, silent_s=silent_s)
        )

    def _hear_halted(self, node: str, told: m.Halted) -> None:
        parts = self._parts
        parts.chronicle.halted()
        self._note_statuses(node, told.workers)
        if (agent := parts.roster.agents.get(node)) is not None:  # else lost meanwhile
            agent.holdings = told.holdings
        for record in told.records:  # whose own words were lost, with a connection perhaps
            parts.chronicle.step(record)
            applied = h.StepApplied(at=parts.now(), generation=record.generation, step=record.step)
            parts.put(applied)
        if is_anchor(node):
            parts.anchoring.told_holdings()
        else:
            parts.put(h.NodeHalted(at=parts.now(), generation=told.generation, node=node))

    def _hear_warmed(self, node: str, told: m.Warmed) -> None:
        self._parts.events.write(
            "standby",
            generation=told.generation,
            node=node,
            state="cold" if told.error else "warm",
            why=told.error or f"rehearsed role {told.role}",
            role=told.role,
            seconds=told.seconds,
        )

    def _note_statuses(self, node: str, statuses: tuple[m.WorkerStatus, ...]) -> None:
        agent = self._parts.roster.agents.get(node)
        if agent is not None:
            agent.statuses = {status.worker: status for status in statuses}

    async def _answer_store(self, link: Link, request: m.StoreGet) -> None:
        values = await self._parts.store.get(
            request.generation, request.keys, seconds=min(request.seconds, STORE_WAIT_S)
        )
        try:
            await link.send(
                m.StoreValues(generation=request.generation, request=request.request, values=values)
            )
        except LinkClosed:
            log.debug("%s went before its store answer", link.peer)

    # Who holds the others up

    async def _mind_pace(self, node: str, statuses: tuple[m.WorkerStatus, ...]) -> None:
        """Find out who holds the others up, and have it moved where that pays."""
        parts, run = self._parts, self._parts.run
        steps = parts.chronicle.step_seconds
        if run.phase is not s.Phase.training or run.active is None or not steps:
            return
        parts.paces.heard(statuses)
        verdict = parts.lookout.heard(
            node,
            statuses,
            step_s=steps[-1],
            steps_left=run.total_steps - run.step,
            pause_s=parts.chronicle.planned_pause_s,
        )
        match verdict:
            case Wish():
                self._wish_moved(verdict)
            case ProbeAll():
                parts.events.write("held_up", why=verdict.why)
                there = parts.roster.agents
                addresses = {n: there[n].address for n in verdict.nodes if n in there}
                for at in addresses:
                    peers = {n: address for n, address in addresses.items() if n != at}
                    await parts.roster.send(at, m.Probe(peers=peers))

    def _mind_lines(self, answer: m.Probed) -> None:
        parts, run = self._parts, self._parts.run
        links, wish = parts.lookout.probed(
            answer, steps_left=run.total_steps - run.step, pause_s=parts.chronicle.planned_pause_s
        )
        if links is not None:
            parts.events.write(
                "lines_probed", nodes=list(links.nodes), pairs=[list(p) for p in links.pairs]
            )
        if wish is not None:
            self._wish_moved(wish)

    def _wish_moved(self, wish: Wish) -> None:
        """A slow machine is not to stand in for others afterwards."""
        parts = self._parts
        parts.events.write("move_asked", node=wish.node, why=wish.why)
        parts.put(h.MoveAsked(at=parts.now(), node=wish.node, why=wish.why, keep_out=True))
