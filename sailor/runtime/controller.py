"""The controller: feeds what happens to ``lifecycle.advance`` and has its answers done. No torch.

One loop takes events from one queue; everything that waits (planning, agents, disks) runs beside
it and reports back as an event. It is handed a Provisioner, a way to plan and an event log; it
knows no cloud and no planner. ``parts`` names its rooms.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from sailor.clock import Clock, WallClock
from sailor.cluster.provisioner import NodeRequest, Provisioner, Released
from sailor.parallel.layout import Layout
from sailor.runtime import happenings as h
from sailor.runtime import messages as m
from sailor.runtime import state as s
from sailor.runtime.adoption import to_adopt
from sailor.runtime.anchoring import Anchoring
from sailor.runtime.arrivals import Arrivals, KnownLinks
from sailor.runtime.chronicle import Chronicle
from sailor.runtime.controller_settings import (
    ControllerSettings,
    Foretold,
    NotWorth,
    Outcome,
    Prospect,
    Replanner,
)
from sailor.runtime.copies import Copies
from sailor.runtime.durable import Durable
from sailor.runtime.event_sink import EventSink
from sailor.runtime.hearing import Hearing
from sailor.runtime.hiring import Hiring
from sailor.runtime.identity import Identity
from sailor.runtime.lifecycle import advance
from sailor.runtime.lookout import Lookout
from sailor.runtime.notebook import Notebook
from sailor.runtime.orders import Orders
from sailor.runtime.parts import Parts
from sailor.runtime.planning import Planning
from sailor.runtime.rebalancing import Rebalancing
from sailor.runtime.reception import Reception
from sailor.runtime.requests import Migrate, Replan, Request, Save, Stop, take
from sailor.runtime.roster import Roster
from sailor.runtime.saving import HEARD_S, Saving
from sailor.runtime.standby import Rehearsals
from sailor.runtime.transport import listen

log = logging.getLogger(__name__)

TICK_S = 0.1

T = TypeVar("T")


class Controller:
    """One run's controller. ``run()`` returns when the run has ended and all is released."""

    def __init__(
        self,
        settings: ControllerSettings,
        *,
        identity: Identity,
        replan: Replanner,
        events: EventSink,
        not_worth: NotWorth | None = None,
        foretold: Foretold | None = None,
        links: KnownLinks | None = None,
        prospect: Prospect | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings
        self._identity = identity
        self._saving = Saving()
        self._adopts = False
        self._parts = parts = self._make_parts(events, clock or WallClock(), links)
        self._hiring = Hiring(parts)
        planning = Planning(parts, replan=replan, not_worth=not_worth, foretold=foretold)
        self._orders = Orders(parts, hiring=self._hiring, planning=planning)
        self._rebalancing = Rebalancing(parts, hiring=self._hiring, prospect=prospect)
        hearing = Hearing(parts, orders=self._orders)
        self._reception = Reception(parts, hiring=self._hiring, on_message=hearing.hear)

    def _make_parts(self, events: EventSink, clock: Clock, links: KnownLinks | None) -> Parts:
        settings = self.settings
        notebook = Notebook(settings.directory / "journal.json")
        journal = notebook.journal
        durable = Durable(
            settings.run, keep=settings.keep, keep_every=settings.keep_every, events=events,
            clock=clock,
        )  # fmt: skip
        copies = Copies(durable, events=events)
        return Parts(
            settings=settings,
            clock=clock,
            events=events,
            notebook=notebook,
            roster=Roster(members=journal.members, given_up=journal.fenced),
            run=s.Run(
                limits=settings.limits,
                total_steps=settings.run.train.total_steps,
                started_at=clock.now(),
                generation=journal.generation,
            ),
            hazard=settings.hazard,
            chronicle=Chronicle(events, recorded=settings.recorded, losses=settings.losses),
            durable=durable,
            copies=copies,
            lookout=Lookout(settings.stragglers if settings.limits.standbys else None),
            rehearsals=Rehearsals(
                settings.directory / "recordings",
                train=settings.run.train,
                wanted=settings.limits.standbys > 0 and settings.rehearse,
            ),
            anchoring=Anchoring(
                settings.anchor, join_s=settings.anchor_join_s, run=settings.run, events=events,
                clock=clock, roster=lambda: self._parts.roster, copies=copies,
                order=self.add_nodes, refused=lambda news: self._hiring.note_refused(news),
                lose=lambda node, cause: self._hiring.lose(node, cause, 0.0),
            ),
            arrivals=Arrivals(events=events, links=links, factor=settings.link_factor),
        )  # fmt: skip

    # For the people around it

    @property
    def members(self) -> tuple[str, ...]:
        """Nodes that an earlier controller of this run knew and that may train still."""
        journal = self._parts.notebook.journal
        return tuple(journal.members) if journal.active is not None else ()

    def adopt(self, living: Collection[str]) -> None:
        """Before ``start``: which of ``members`` have a machine still. None: the run begins anew,
        from its durable checkpoint."""
        parts, notebook = self._parts, self._parts.notebook
        layout, active = self._lived_on, notebook.journal.active
        anchors = parts.anchoring.expect(living)
        others = [node for node in living if node not in anchors]
        for node in set(notebook.journal.members) - set(living):
            notebook.journal = notebook.journal.left(node)
        self._adopts = layout is not None and active is not None and bool(others)
        if not self._adopts:
            notebook.journal = notebook.journal.alone(besides=anchors)
        journal = notebook.journal
        parts.roster = Roster(members=journal.members, given_up=journal.fenced)
        if layout is None or active is None or not others:
            return
        parts.run = to_adopt(
            limits=self.settings.limits,
            total_steps=self.settings.run.train.total_steps,
            at=parts.now(),
            generation=journal.generation,
            active=layout,
            active_generation=active.generation,
            awaited=frozenset(others),
        )
        parts.chronicle.takes_over(layout)
        parts.durable.trust_what_is_there()

    @property
    def _lived_on(self) -> Layout | None:
        """What the earlier controller had told to go, as far as this run's settings still hold."""
        active, run = self._parts.notebook.journal.active, self.settings.run
        if active is None:
            return None
        return Layout(plan=active.plan, spec=run.spec, pieces=run.pieces, workers=active.workers)

    def ask_stop(self, end: s.End, why: str) -> None:
        """Finish the step, save, end. Safe to call from a signal handler of the loop."""
        self._parts.ask_stop(end, why)

    async def add_nodes(self, *requests: NodeRequest) -> None:
        """Ask the provisioner for more machines. Raises CloudError when it refuses one at once."""
        await self._hiring.order(*requests)

    def give_back(self, node: str, reason: str) -> None:
        """Release a machine that the run does not need, or that did not come.

        One that has a role leaves it first, by a planned transition, as after a notice.
        """
        parts = self._parts
        if node in parts.roster.agents:
            seconds = self.settings.leave_s
            parts.events.write(
                "notice",
                node=node,
                seconds=seconds,
                source=f"given back: {reason}",
                given_back=True,
            )
            parts.put(h.Noticed(at=parts.now(), node=node, seconds=seconds))
        else:
            parts.beside(self._hiring.dismiss(node, reason))

    # The run

    async def start(self) -> tuple[str, int]:
        """Open the control port; the address agents dial. Raises OSError when it is taken.

        A port that was free to choose is the earlier controller's, where its agents dial. Raises
        CheckpointFailed when the place of durable checkpoints does not say what it has: a run must
        not begin anew because nobody answered.
        """
        notebook = self._parts.notebook
        await self._parts.durable.look()
        self._server = await listen(
            self.settings.host,
            self.settings.port or (notebook.journal.port if self.members else 0),
            identity=self._identity,
            decoder=m.decoder(m.ToController),
            on_link=self._reception.serve,
        )
        host, port = self._server.address
        await notebook.note(notebook.journal.started(port=port))
        return host, port

    async def run(self, provisioner: Provisioner) -> Outcome:
        """Provision, train through whatever happens, save, release. Call ``start`` first."""
        parts = self._parts
        self._hiring.provisioner = provisioner
        parts.run = replace(parts.run, started_at=parts.now())
        self._reception.open.set()
        parts.beside(self._ticks())
        parts.beside(self._reception.listen_to_cloud(provisioner.notices()))
        try:
            if not self._adopts:
                await self.add_nodes(*self.settings.nodes)
            while (end := self._orders.outcome) is None:
                await self._handle(await parts.queue.get())
        finally:
            released = await _to_the_end(self._wind_down())
        return Outcome(end=end.end, why=end.why, step=parts.run.step, released=released)

    async def _handle(self, event: h.Event) -> None:
        parts = self._parts
        parts.run, commands = advance(parts.run, event)
        if not isinstance(event, h.Tick) or commands:
            log.debug("%s -> %s", event, parts.run.phase.value)
        for command in commands:
            await self._orders.execute(command)

    async def _wind_down(self) -> tuple[Released, ...]:
        parts, end = self._parts, self._orders.outcome
        parts.chronicle.memory(parts.roster.agents, generation=parts.run.active_generation)
        parts.winding_down = True
        reason = end.why if end is not None else "the controller failed"
        for node in list(parts.roster.agents):
            await parts.roster.send(node, m.Shutdown(reason=reason))
        for task in parts.tasks:
            task.cancel()
        await asyncio.gather(*parts.tasks, return_exceptions=True)
        parts.chronicle.close_tally()
        released = await self._hiring.provisioner.close()
        for proof in released:
            self._hiring.note_released(proof)
        await parts.notebook.note(parts.notebook.journal.alone())
        await self._server.close()
        for agent in parts.roster.agents.values():
            if agent.link is not None:
                agent.link.abort()
        return released

    async def _ticks(self) -> None:
        """Ten times a second: who is silent, what a person asks, what is due."""
        parts, settings = self._parts, self.settings
        while True:
            await asyncio.sleep(TICK_S)
            now = parts.now()
            parts.hazard = parts.hazard.watched(TICK_S * len(parts.run.nodes))
            await parts.anchoring.mind(parts.run, step_s=parts.median_step_s())
            for agent in parts.roster.to_ask_after(now=now):
                parts.beside(self._reception.ask_after(agent.node, rounds=1, hung_up=False))
            for node, cause, silent_s in parts.roster.overdue(
                now=now, reconnect_s=settings.reconnect_s, silence_s=settings.silence_s
            ):
                self._hiring.lose(node, cause, silent_s)
            for request in take(settings.directory):
                self._asked(request, now=now)
            await self._tell_to_save(now=now)
            self._rebalancing.mind(now=now)
            parts.put(h.Tick(at=now))

    def _asked(self, request: Request, *, now: float) -> None:
        """What a person wants of the run while it goes on."""
        parts = self._parts
        match request:
            case Migrate(node=node, why=why):
                parts.events.write("move_asked", node=node, why=why)
                parts.put(h.MoveAsked(at=now, node=node, why=why))
            case Save(why=why):
                parts.events.write("save_asked", why=why)
                step_s = parts.median_step_s()
                self._saving.ask(
                    step=parts.run.step, step_seconds=HEARD_S if step_s is None else step_s
                )
            case Replan(why=why):
                parts.events.write("replan_asked", why=why)
                parts.put(h.ReplanAsked(at=now, why=why))
            case Stop(why=why):
                self.ask_stop(s.End.interrupted, why)

    async def _tell_to_save(self, *, now: float) -> None:
        parts, run = self._parts, self._parts.run
        if not run.training or run.active is None:
            return
        first = self._saving.due(
            at=now, generation=run.active_generation, durable_step=parts.durable.newest_step
        )
        if first is not None:
            save = m.Save(generation=run.active_generation, first=first)
            await parts.tell(run.active.nodes, save)


async def _to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await something that must not be left half done, however often we are told to stop."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    return task.result()
