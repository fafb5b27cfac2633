"""The controller: feeds what happens to ``lifecycle.advance`` and does what it answers. No torch.

One loop takes events from one queue; everything that waits (planning, agents, disks) runs beside
it and reports back as an event. It is handed a Provisioner, a way to plan and an event log; it
knows no cloud and no planner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Protocol, TypeVar

from sailor.checkpoint import store
from sailor.checkpoint.interval import LossRate
from sailor.checkpoint.placement import peers
from sailor.clock import Clock, WallClock
from sailor.cluster.provisioner import (
    NodeRequest,
    Notice,
    Provisioner,
    Refused,
    Released,
    Started,
    is_anchor,
)
from sailor.errors import NoFeasiblePlan
from sailor.parallel.layout import Layout, Member
from sailor.plan import Plan
from sailor.runtime import messages as m
from sailor.runtime import state as s
from sailor.runtime.adoption import to_adopt
from sailor.runtime.anchoring import Anchoring, trained
from sailor.runtime.chronicle import Chronicle
from sailor.runtime.copies import Copies
from sailor.runtime.durable import Durable
from sailor.runtime.event_sink import EventSink
from sailor.runtime.identity import Identity
from sailor.runtime.journal import Journal, read_journal, write_journal
from sailor.runtime.key_store import KeyStore
from sailor.runtime.lifecycle import advance
from sailor.runtime.lookout import Lookout, ProbeAll, Wish
from sailor.runtime.probe import Answer, ask, reach_seconds
from sailor.runtime.requests import Migrate, Replan, Request, Save, Stop, take
from sailor.runtime.roster import Roster
from sailor.runtime.saving import HEARD_S, Saving
from sailor.runtime.standby import Rehearsals
from sailor.runtime.straggler import Rules
from sailor.runtime.transport import Link, LinkClosed, address_of, listen
from sailor.runtime.watchdog import exchange_timeout_s

log = logging.getLogger(__name__)

TICK_S = 0.1
GOING_ON = ("training", "evaluating", "finished")  # what a worker does whose run is well
HELLO_S = 10.0  # for a new connection's first word
REACH_S = 2.0  # for a first connection to an agent's port
FAR_S = 0.25  # connecting takes no longer, unless we were busy when it was measured
UNREACHABLE_S = 0.3  # beyond what connecting takes: then the machine does not answer
ROUNDS, ROUND_S = 5, 0.01  # how often an agent that hung up is asked after, and how fast

T = TypeVar("T")
Replanner = Callable[[Sequence[Member]], Plan]


class NotWorth(Protocol):
    """Why a change from one plan to another, both possible, does not pay; "" when it does."""

    def __call__(self, old: Plan, new: Plan, *, steps_left: int, pause_s: float) -> str: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ControllerSettings:
    """What one controller needs to know. Seconds; ``keep`` and ``keep_every``: see
    checkpoint.store.kept."""

    directory: Path  # the run folder
    run: m.RunSettings
    limits: s.Limits
    nodes: tuple[NodeRequest, ...]  # asked for at the start
    hazard: LossRate  # of a machine, before anything is seen
    host: str = "127.0.0.1"
    port: int = 0
    lease_s: float = 60.0
    heartbeat_s: float = 0.2
    reconnect_s: float = 0.4
    silence_s: float = 5.0
    keep: int = 2
    keep_every: int = 0
    losses: Mapping[int, float] = field(default_factory=dict)  # by step, of earlier starts
    recorded: frozenset[tuple[int, int]] = frozenset()  # (generation, step) in the log already
    stragglers: Rules | None = None  # where machines stand by; None never suspects any
    rehearse: bool = True  # standbys run a step in the sandbox for the seats they may take
    leave_s: float = 120.0  # for a machine that is given back to hand over what it holds
    anchor: NodeRequest | None = None  # what to ask for as one; see runtime.anchors
    anchor_join_s: float = 1200.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How the run ended, and the proof that its machines are gone."""

    end: s.End
    why: str
    step: int
    released: tuple[Released, ...]


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
        foretold: Callable[[Plan], Mapping[str, Any]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.settings = settings
        self._identity = identity
        self._replan = replan
        self._not_worth = not_worth
        self._foretold = foretold  # fields of plan_chosen
        self._events = events
        self._hazard = settings.hazard
        self._chronicle = Chronicle(events, recorded=settings.recorded, losses=settings.losses)
        self._clock = clock or WallClock()
        self._queue: asyncio.Queue[s.Event] = asyncio.Queue()
        self._store = KeyStore()
        self._durable = Durable(
            settings.run, keep=settings.keep, keep_every=settings.keep_every, events=events,
            clock=self._clock,
        )  # fmt: skip
        self._copies = Copies(self._durable, events=events)
        self._anchoring = Anchoring(
            settings.anchor, join_s=settings.anchor_join_s, run=settings.run, events=events,
            clock=self._clock, roster=lambda: self._roster, copies=self._copies,
            order=self.add_nodes, refused=self._note_refused,
            lose=lambda node, cause: self._lose(node, cause, 0.0),
        )  # fmt: skip
        self._told_go: dict[str, int] = {}  # node -> generation
        self._tasks: set[asyncio.Task[None]] = set()
        self._lookout = Lookout(settings.stragglers if settings.limits.standbys else None)
        self._rehearsals = Rehearsals(
            settings.directory / "recordings",
            train=settings.run.train,
            wanted=settings.limits.standbys > 0 and settings.rehearse,
        )
        self._saving = Saving()
        self._outcome: s.Finish | None = None
        self._journal_path = settings.directory / "journal.json"
        self._journal = read_journal(self._journal_path)
        self._journalling = asyncio.Lock()
        self._roster = Roster(members=self._journal.members, given_up=self._journal.fenced)
        self._winding_down = False  # whoever leaves now was told to
        self._adopts = False
        self._open = asyncio.Event()  # ``run`` has begun; whoever dials in before waits
        self._run = s.Run(
            limits=settings.limits,
            total_steps=settings.run.train.total_steps,
            started_at=self._clock.now(),
            generation=self._journal.generation,
        )

    # For the people around it

    @property
    def members(self) -> tuple[str, ...]:
        """Nodes that an earlier controller of this run knew and that may train still."""
        return tuple(self._journal.members) if self._journal.active is not None else ()

    @property
    def _lived_on(self) -> Layout | None:
        """What the earlier controller had told to go, as far as this run's settings still hold."""
        active, run = self._journal.active, self.settings.run
        if active is None:
            return None
        return Layout(plan=active.plan, spec=run.spec, pieces=run.pieces, workers=active.workers)

    def adopt(self, living: Collection[str]) -> None:
        """Before ``start``: which of ``members`` have a machine still. None: the run begins anew,
        from its durable checkpoint."""
        layout, active = self._lived_on, self._journal.active
        anchors = self._anchoring.expect(living)
        others = [node for node in living if node not in anchors]
        for node in set(self._journal.members) - set(living):
            self._journal = self._journal.left(node)
        if layout is None or active is None or not others:
            self._journal = self._journal.alone(besides=anchors)
            self._roster = Roster(members=self._journal.members, given_up=self._journal.fenced)
            return
        self._roster = Roster(members=self._journal.members, given_up=self._journal.fenced)
        self._adopts = True
        self._run = to_adopt(
            limits=self.settings.limits,
            total_steps=self.settings.run.train.total_steps,
            at=self._clock.now(),
            generation=self._journal.generation,
            active=layout,
            active_generation=active.generation,
            awaited=frozenset(others),
        )
        self._chronicle.takes_over(layout)
        self._durable.trust_what_is_there()

    def ask_stop(self, end: s.End, why: str) -> None:
        """Finish the step, save, end. Safe to call from a signal handler of the loop."""
        self._queue.put_nowait(s.StopAsked(at=self._clock.now(), end=end, why=why))

    async def add_nodes(self, *requests: NodeRequest) -> None:
        """Ask the provisioner for more machines. Raises CloudError when it refuses one at once."""
        for request in requests:
            self._events.write(
                "node_requested",
                node=request.node,
                zone=request.zone,
                machine_type=request.machine_type,
                spot=request.spot,
                price_per_hour=request.price_per_hour,
                role="anchor" if is_anchor(request.node) else "",
            )
        await self._provisioner.request(*requests)

    def give_back(self, node: str, reason: str) -> None:
        """Release a machine that the run does not need, or that did not come.

        One that has a role leaves it first, by a planned transition, as after a notice.
        """
        if node in self._roster.agents:
            seconds = self.settings.leave_s
            self._events.write("notice", node=node, seconds=seconds, source=f"given back: {reason}")
            self._put(s.Noticed(at=self._clock.now(), node=node, seconds=seconds))
        else:
            self._beside(self._execute(s.Release(node=node, reason=reason)))

    # The run

    async def start(self) -> tuple[str, int]:
        """Open the control port; the address agents dial. Raises OSError when it is taken.

        A port that was free to choose is the earlier controller's, where its agents dial. Raises
        CheckpointFailed when the place of durable checkpoints does not say what it has: a run must
        not begin anew because nobody answered.
        """
        await self._durable.look()
        self._server = await listen(
            self.settings.host,
            self.settings.port or (self._journal.port if self.members else 0),
            identity=self._identity,
            decoder=m.decoder(m.ToController),
            on_link=self._serve,
        )
        host, port = address_of(self._server)
        await self._note(self._journal.started(port=port))
        return host, port

    def _note(self, journal: Journal) -> Coroutine[Any, Any, None]:
        """From now on this is the journal; awaited, it is on disk."""
        self._journal = journal
        return self._write_journal()

    async def _write_journal(self) -> None:
        async with self._journalling:
            try:
                await asyncio.to_thread(write_journal, self._journal_path, self._journal)
            except OSError as error:  # no reason to end a run that trains
                log.error("a controller after this one may not find its run: %s", error)

    async def run(self, provisioner: Provisioner) -> Outcome:
        """Provision, train through whatever happens, save, release. Call ``start`` first."""
        self._provisioner = provisioner
        self._run = replace(self._run, started_at=self._clock.now())
        self._open.set()
        self._beside(self._ticks())
        self._beside(self._watch_notices())
        try:
            if not self._adopts:
                await self.add_nodes(*self.settings.nodes)
            while self._outcome is None:
                await self._handle(await self._queue.get())
        finally:
            released = await _to_the_end(self._wind_down())
        return Outcome(
            end=self._outcome.end, why=self._outcome.why, step=self._run.step, released=released
        )

    async def _handle(self, event: s.Event) -> None:
        self._run, commands = advance(self._run, event)
        if not isinstance(event, s.Tick) or commands:
            log.debug("%s -> %s", event, self._run.phase.value)
        for command in commands:
            await self._execute(command)

    async def _wind_down(self) -> tuple[Released, ...]:
        self._chronicle.memory(self._roster.agents, generation=self._run.active_generation)
        self._winding_down = True
        reason = self._outcome.why if self._outcome is not None else "the controller failed"
        for node in list(self._roster.agents):
            await self._roster.send(node, m.Shutdown(reason=reason))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._chronicle.close_tally()
        released = await self._provisioner.close()
        for proof in released:
            self._note_released(proof)
        await self._note(self._journal.alone())
        self._server.close()
        for agent in self._roster.agents.values():
            if agent.link is not None:
                agent.link.abort()
        return released

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the loop. If it breaks, the run ends as failed, saved if it can."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._beside_done)

    def _beside_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background work failed", exc_info=error)
            self.ask_stop(s.End.failed, f"internal error: {error!r}")

    async def _ticks(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now = self._clock.now()
            self._hazard = self._hazard.watched(TICK_S * len(self._run.nodes))
            steps = self._chronicle.step_seconds
            await self._anchoring.mind(self._run, step_s=median(steps) if steps else None)
            for agent in self._roster.to_ask_after(now=now):
                self._beside(self._ask_after(agent.node, rounds=1, hung_up=False))
            for node, cause, silent_s in self._roster.overdue(
                now=now,
                reconnect_s=self.settings.reconnect_s,
                silence_s=self.settings.silence_s,
            ):
                self._lose(node, cause, silent_s)
            for request in take(self.settings.directory):
                self._asked(request, now=now)
            await self._tell_to_save(now=now)
            self._queue.put_nowait(s.Tick(at=now))

    def _asked(self, request: Request, *, now: float) -> None:
        """What a person wants of the run while it goes on."""
        match request:
            case Migrate(node=node, why=why):
                self._events.write("move_asked", node=node, why=why)
                self._put(s.MoveAsked(at=now, node=node, why=why))
            case Save(why=why):
                self._events.write("save_asked", why=why)
                seconds = median(self._chronicle.step_seconds or [HEARD_S])
                self._saving.ask(step=self._run.step, step_seconds=seconds)
            case Replan(why=why):
                self._events.write("replan_asked", why=why)
                self._put(s.ReplanAsked(at=now, why=why))
            case Stop(why=why):
                self.ask_stop(s.End.interrupted, why)

    async def _tell_to_save(self, *, now: float) -> None:
        run = self._run
        if not run.training or run.active is None:
            return
        first = self._saving.due(
            at=now, generation=run.active_generation, durable_step=self._durable.newest_step
        )
        if first is not None:
            await self._tell(
                run.active.nodes, m.Save(generation=run.active_generation, first=first)
            )

    async def _watch_notices(self) -> None:
        async for news in self._provisioner.notices():
            match news:
                case Notice():
                    self._events.write(
                        "notice", node=news.node, seconds=news.seconds, source=news.source
                    )
                    if news.seconds <= 0 and news.node not in self._roster.agents:
                        self._lose(news.node, news.source, 0.0)  # it will never dial in
                        continue
                    if news.seconds <= 0:
                        self._beside(self._goes_now(news.node))
                        continue
                    self._put(s.Noticed(at=self._clock.now(), node=news.node, seconds=news.seconds))
                case Started():
                    self._events.write("node_started", node=news.node)
                case Refused():
                    self._note_refused(news)
                case Released() if news.node not in self._roster.agents:
                    # A member's end is for its heartbeat to tell: no cloud is as quick.
                    self._note_released(news)

    def _note_refused(self, news: Refused) -> None:
        self._events.write(
            "node_refused",
            node=news.node,
            code=news.error.code,
            why=news.error.what,
            detail=news.error.why,
            fix=news.error.fix,
            retry_s=news.retry_s,
            lasting=news.lasting,
        )
        self._anchoring.refused(news)

    async def _goes_now(self, node: str) -> None:
        """A machine that is gone is lost, not to be planned without while it trains."""
        await self._ask_after(node, rounds=ROUNDS, hung_up=False)
        if node in self._roster.agents:
            self._put(s.Noticed(at=self._clock.now(), node=node, seconds=0.0))

    def _put(self, event: s.Event) -> None:
        self._queue.put_nowait(event)

    def _lose(self, node: str, cause: str, silent_s: float) -> None:
        self._shut_out(node, cause, silent_s)
        if is_anchor(node):
            self._anchoring.lost(node)
        else:
            self._put(s.Lost(at=self._clock.now(), node=node, cause=cause, silent_s=silent_s))

    def _shut_out(self, node: str, cause: str, silent_s: float) -> None:
        agent = self._roster.remove(node)
        self._roster.fenced[node] = cause
        self._beside(self._note(self._journal.left(node)))
        if agent is not None and agent.link is not None:
            agent.link.abort()
        self._events.write("node_lost", node=node, cause=cause, silent_s=silent_s)
        if not is_anchor(node):
            self._hazard = self._hazard.lost()
        self._beside(self._release(node))

    async def _release(self, node: str) -> None:
        self._note_released(await self._provisioner.release(node))

    def _note_released(self, proof: Released) -> None:
        self._events.write(
            "node_released", node=proof.node, released=proof.released, proof=proof.proof
        )

    # Agents

    async def _serve(self, link: Link) -> None:
        """One agent's connection, from Hello to its end."""
        try:
            async with asyncio.timeout(HELLO_S):
                hello = await link.receive()
        except TimeoutError:
            log.warning("%s said nothing for %.0f s, closing", link.peer, HELLO_S)
            return
        if not isinstance(hello, m.Hello):
            log.warning("%s did not say hello, closing", link.peer)
            return
        await self._open.wait()
        now = self._clock.now()
        known = hello.node in self._roster.agents
        member = hello.node in self._roster.members
        refusal = self._roster.admit(hello, link, now=now)
        if refusal:
            log.warning("refused %s: %s", hello.node, refusal)
            await link.send(m.Refused(reason=refusal))
            return
        await link.send(
            m.Welcome(
                settings=self.settings.run,
                lease_s=self.settings.lease_s,
                heartbeat_s=self.settings.heartbeat_s,
                logged=self._chronicle.newest,
            )
        )
        agent = self._roster.agents[hello.node]
        if not known:
            self._beside(self._measure_reach(hello.node))
            self._beside(self._note(self._journal.joined(hello.node, hello.start)))
            self._events.write(
                "node_joined",
                node=hello.node,
                zone=hello.zone,
                machine_type=hello.machine_type,
                pid=hello.pid,
                workers=[{"worker": str(w.worker), "pid": w.pid} for w in hello.workers],
            )
            if is_anchor(hello.node):
                self._anchoring.joined(hello)
            elif member:
                self._put(self._rejoined(hello, agent.member, agent.slots))
                for part in hello.persisted:
                    await self._hear_durable(hello.node, part)
            else:
                self._put(s.Joined(at=now, member=agent.member, slots=agent.slots))
        else:
            await self._returned(hello)
        try:
            while True:
                message = await link.receive()
                self._roster.heard(hello.node, now=self._clock.now())
                await self._on_message(hello.node, link, message)
        except LinkClosed:
            self._roster.parted(hello.node, link, now=self._clock.now())
            await self._ask_after(hello.node, rounds=ROUNDS, hung_up=True)

    async def _returned(self, hello: m.Hello) -> None:
        """A member's connection has broken and is there again: learn what it could not tell."""
        now, run = self._clock.now(), self._run
        self._anchoring.interrupted()
        node = run.nodes.get(hello.node)
        if node is None:
            return
        there = {status.worker: status for status in hello.workers}
        for worker in set(node.member.workers) - there.keys():
            cause = "ended while its node was away"
            self._put(s.WorkerDied(at=now, worker=worker, cause=cause))
        for worker in sorted(there.keys() - set(node.member.workers)):
            self._put(s.WorkerStarted(at=now, worker=worker))
        missed = self._told_go.get(hello.node, 0) > hello.generation
        self._put(s.Returned(at=now, node=hello.node, missed_go=missed))
        for part in hello.persisted:
            await self._hear_durable(hello.node, part)
        active = run.active_generation
        mine = [w for w in there.values() if active and w.generation == active]
        if mine and all(status.doing == "finished" for status in mine):
            self._put(s.NodeFinished(at=now, generation=active, node=hello.node))

    async def _measure_reach(self, node: str) -> None:
        """Learn whether the agent's port can be asked at all, while it surely lives."""
        agent = self._roster.agents.get(node)
        if agent is not None:
            agent.reach_s = await reach_seconds(agent.address, seconds=REACH_S)

    async def _ask_after(self, node: str, *, rounds: int, hung_up: bool) -> None:
        """Whether a node that is silent or has gone away is there: if surely not, it is lost now,
        and not only when its time is up."""
        for number in range(rounds):
            agent = self._roster.agents.get(node)
            if agent is None or agent.reach_s is None or self._winding_down:
                return None
            heard_at, link = agent.heard_at, agent.link
            if hung_up and link is not None:
                return None  # it has come back
            patience_s = UNREACHABLE_S + 4 * min(agent.reach_s, FAR_S)
            answer = await ask(agent.address, seconds=patience_s)
            if self._roster.agents.get(node) is not agent or agent.heard_at != heard_at:
                return None
            if self._winding_down:
                return None
            silent_s = self._clock.now() - heard_at
            match answer:
                case Answer.refused:
                    return self._lose(node, "its agent ended", silent_s)
                case Answer.nothing:
                    return self._lose(node, f"unreachable, silent for {silent_s:.1f} s", silent_s)
            # Its sockets close one after the other while it dies: ask again in a moment.
            await asyncio.sleep(ROUND_S * (number + 1))
        return None

    def _rejoined(self, hello: m.Hello, member: Member, slots: int) -> s.Rejoined:
        """What a member says of itself, as an event."""
        active = self._run.active_generation
        mine = [status for status in hello.workers if status.generation == active]
        return s.Rejoined(
            at=self._clock.now(),
            member=member,
            slots=slots,
            going_on=frozenset(w.worker for w in mine if w.doing in GOING_ON),
            heard=hello.heard,
            step=max((status.step for status in mine), default=0),
        )

    async def _on_message(self, node: str, link: Link, message: Any) -> None:
        """Turn one message into events. Answers of other generations are sorted out by advance."""
        now, generation = self._clock.now(), message.generation
        match message:
            case m.Heartbeat():
                await link.send(m.Beat())  # what its lease goes on by
                self._note_statuses(node, message.workers)
                if not is_anchor(node):
                    await self._mind_pace(node, message.workers)
            case m.Probed():
                self._mind_lines(message)
            case m.StoreSet():
                await self._store.set(generation, message.key, message.value)
            case m.StoreGet():
                self._beside(self._answer_store(link, message))
            case m.Stepped():
                self._chronicle.step(message.record)
                self._put(s.StepApplied(at=now, generation=generation, step=message.record.step))
            case m.WorkerLost():
                self._events.write(
                    "worker_lost",
                    worker=str(message.worker),
                    cause=message.cause,
                    silent_s=message.silent_s,
                )
                self._put(
                    s.WorkerDied(
                        at=now,
                        worker=message.worker,
                        cause=message.cause,
                        silent_s=message.silent_s,
                    )
                )
            case m.WorkerUp():
                self._rehearsals.forget(node)
                self._events.write("worker_up", worker=str(message.worker), pid=message.pid)
                self._put(s.WorkerStarted(at=now, worker=message.worker))
            case m.Prepared():
                self._put(s.NodePrepared(at=now, generation=generation, node=node))
            case m.Halted():
                self._note_statuses(node, message.workers)
                if (agent := self._roster.agents.get(node)) is not None:  # else lost meanwhile
                    agent.holdings = message.holdings
                for record in message.records:
                    self._chronicle.step(record)
                if is_anchor(node):
                    self._anchoring.told_holdings()
                else:
                    self._put(s.NodeHalted(at=now, generation=generation, node=node))
            case m.Switched():
                self._chronicle.moved(generation, message.bytes_moved)
                self._put(
                    s.NodeSwitched(at=now, generation=generation, node=node, copy_s=message.copy_s)
                )
            case m.TransitionFailed():
                self._copies.refuse(message)
                self._put(
                    s.NodeFailed(at=now, generation=generation, node=node, reason=message.reason)
                )
            case m.Recorded():
                self._rehearsals.keep(message)
                await self._warm()
            case m.Warmed():
                self._events.write(
                    "standby",
                    generation=generation,
                    node=node,
                    state="cold" if message.error else "warm",
                    why=message.error or f"rehearsed role {message.role}",
                    role=message.role,
                    seconds=message.seconds,
                )
            case m.Finished():
                self._put(s.NodeFinished(at=now, generation=generation, node=node))
            case m.Snapshotted():
                self._chronicle.snapshot(message, active_generation=self._run.active_generation)
            case m.Persisted():
                await self._hear_durable(node, message)
            case m.CopiedOut():
                await self._anchoring.hear(message)
            case m.NoticeSeen():
                self._events.write(
                    "notice", node=node, seconds=message.seconds, source=message.source
                )
                self._put(s.Noticed(at=now, node=node, seconds=message.seconds))
            case m.Diverged():
                self._put(
                    s.StepRefused(at=now, generation=generation, step=message.step, why=message.why)
                )

    def _note_statuses(self, node: str, statuses: tuple[m.WorkerStatus, ...]) -> None:
        agent = self._roster.agents.get(node)
        if agent is not None:
            agent.statuses = {status.worker: status for status in statuses}

    async def _mind_pace(self, node: str, statuses: tuple[m.WorkerStatus, ...]) -> None:
        """Find out who holds the others up, and have it moved where that pays."""
        run = self._run
        if (
            run.phase is not s.Phase.training
            or run.active is None
            or not self._chronicle.step_seconds
        ):
            return
        verdict = self._lookout.heard(
            node,
            statuses,
            step_s=self._chronicle.step_seconds[-1],
            steps_left=run.total_steps - run.step,
            pause_s=self._chronicle.planned_pause_s,
        )
        match verdict:
            case Wish():
                self._wish_moved(verdict)
            case ProbeAll():
                self._events.write("held_up", why=verdict.why)
                there = self._roster.agents
                addresses = {n: there[n].address for n in verdict.nodes if n in there}
                for at in addresses:
                    peers = {n: address for n, address in addresses.items() if n != at}
                    await self._roster.send(at, m.Probe(peers=peers))

    def _mind_lines(self, answer: m.Probed) -> None:
        run = self._run
        links, wish = self._lookout.probed(
            answer, steps_left=run.total_steps - run.step, pause_s=self._chronicle.planned_pause_s
        )
        if links is not None:
            self._events.write(
                "lines_probed", nodes=list(links.nodes), pairs=[list(p) for p in links.pairs]
            )
        if wish is not None:
            self._wish_moved(wish)

    def _wish_moved(self, wish: Wish) -> None:
        """A slow machine is not to stand in for others afterwards."""
        self._events.write("move_asked", node=wish.node, why=wish.why)
        self._put(s.MoveAsked(at=self._clock.now(), node=wish.node, why=wish.why, keep_out=True))

    async def _answer_store(self, link: Link, request: m.StoreGet) -> None:
        values = await self._store.get(
            request.generation, request.keys, seconds=min(request.seconds, 60.0)
        )
        try:
            await link.send(
                m.StoreValues(generation=request.generation, request=request.request, values=values)
            )
        except LinkClosed:
            log.debug("%s went before its store answer", link.peer)

    async def _hear_durable(self, node: str, part: m.Persisted) -> None:
        saved = await self._durable.hear(node, part)
        if self._run.stopping is not None:
            for name in saved:
                self._put(s.NodeSaved(at=self._clock.now(), node=name))

    # Commands

    async def _execute(self, command: s.Command) -> None:
        match command:
            case s.Record():
                self._chronicle.life_cycle(command, self._run)
                if command.kind in ("generation_started", "adopted") and self._run.active:
                    self._lookout.began(
                        step=int(command.fields["step"]), nodes=self._run.active.nodes
                    )
            case s.Replan():
                self._beside(self._plan(command))
            case s.SendPrepare():
                await self._prepare(command)
            case s.SendWarm():
                self._rehearsals.stand_by(command.generation, command.layout, command.nodes)
                await self._warm()
            case s.SendHalt():
                halt = m.Halt(
                    generation=command.generation,
                    boundary=command.boundary,
                    persist=command.persist,
                )
                await self._tell(command.nodes, halt)
            case s.ChooseSources():
                await self._choose(command)
            case s.SendSwitch():
                await self._switch(command)
            case s.SendGo():
                await self._note(
                    self._journal.begun(
                        command.generation, step=command.step, layout=command.layout
                    )
                )
                go = m.Go(
                    generation=command.generation,
                    step=command.step,
                    losses=self._chronicle.losses.until(command.step),
                    record=self._rehearsals.to_record(command.layout),
                    losses_per_s=self._hazard.per_machine_s * len(command.layout.nodes),
                )
                self._anchoring.interrupted()
                self._told_go |= dict.fromkeys(command.layout.nodes, command.generation)
                await self._tell(command.layout.nodes, go)
                await self._store.drop_before(command.generation)
            case s.SendDrop():
                await self._store.drop_before(command.generation + 1)
                await self._tell(command.nodes, m.Drop(generation=command.generation))
            case s.Fence():
                self._events.write("fenced", node=command.node, reason=command.reason)
                await self._roster.send(command.node, m.Refused(reason=command.reason))
                self._shut_out(command.node, command.reason, 0.0)
            case s.Release():
                await self._roster.send(command.node, m.Shutdown(reason=command.reason))
                self._roster.remove(command.node)
                self._roster.fenced[command.node] = command.reason
                self._beside(self._note(self._journal.left(command.node)))
                self._put(s.Lost(at=self._clock.now(), node=command.node, cause="released"))
                self._beside(self._release(command.node))
            case s.Provision():
                fenced, attempt = self._roster.fenced, self._journal.attempt
                await self.add_nodes(
                    *(
                        replace(r, node=f"{r.node}-{attempt}") if r.node in fenced else r
                        for r in self.settings.nodes
                    )
                )
            case s.Finish():
                self._outcome = command

    async def _warm(self) -> None:
        """Tell those who stand by what they can rehearse by now."""
        for node, warm in self._rehearsals.due().items():
            await self._roster.send(node, warm)

    async def _tell(self, nodes: Sequence[str], message: m.Message) -> None:
        await asyncio.gather(*(self._roster.send(node, message) for node in nodes))

    async def _plan(self, command: s.Replan) -> None:
        layout, why = None, ""
        try:
            plan = await asyncio.to_thread(self._replan, command.members)
            why = await asyncio.to_thread(self._reason_to_stay, command, plan)
            if not why:
                layout = await asyncio.to_thread(
                    partial(
                        Layout.of,
                        plan,
                        spec=self.settings.run.spec,
                        pieces=self.settings.run.pieces,
                        members=command.members,
                        previous=command.previous,
                    )
                )
        except NoFeasiblePlan as error:
            why = error.what
        except Exception as error:  # whatever planning runs into, the run must hear of it
            log.exception("planning failed")
            why = f"planning failed: {error!r}"
        self._put(
            s.Planned(at=self._clock.now(), generation=command.generation, layout=layout, why=why)
        )

    def _reason_to_stay(self, command: s.Replan, plan: Plan) -> str:
        """Why a change that nothing forces is not worth its pause; "" to make it."""
        run, before = self._run, command.previous
        if self._not_worth is None or before is None or not run.training:
            return ""
        staying = {worker for member in command.members for worker in member.workers}
        if not staying.issuperset(before.workers):
            return ""  # somebody leaves: things cannot stay as they are
        return self._not_worth(
            before.plan,
            plan,
            steps_left=run.total_steps - run.step,
            pause_s=self._chronicle.planned_pause_s,
        )

    async def _prepare(self, command: s.SendPrepare) -> None:
        layout = command.layout
        members = tuple(
            node.member for name, node in sorted(self._run.nodes.items()) if name in layout.nodes
        )
        keepers = [n.member for n in self._run.nodes.values() if n.leaves_at is None]
        prepare = m.Prepare(
            generation=command.generation,
            plan=layout.plan,
            members=members,
            workers=layout.workers,
            peers={a.node: a.address for a in self._roster.agents.values()},
            copies=peers(keepers),
            timeout_s=exchange_timeout_s(self._chronicle.step_seconds),
            warm_up=self.settings.rehearse,
            rehearse=self._time_to_rehearse(),
        )
        await self._tell(layout.nodes, prepare)
        await asyncio.to_thread(self._rehearsals.learn, layout)
        if self._foretold is not None:
            self._beside(self._foretell(command.generation, layout.plan))

    async def _foretell(self, generation: int, plan: Plan) -> None:
        """Write down what the coming generation is expected to take, while it is prepared."""
        assert self._foretold is not None
        try:
            fields = await asyncio.to_thread(self._foretold, plan)
        except Exception:  # a run must not end for want of an estimate
            log.exception("no estimate for the plan of generation %d", generation)
            return
        self._events.write("plan_chosen", generation=generation, **fields)

    def _time_to_rehearse(self) -> bool:
        """Whether a change that all train through has time for a newcomer's step in the sandbox."""
        t, steps = self._run.transition, self._chronicle.step_seconds
        if not self.settings.rehearse or t is None or not t.planned or not steps:
            return False
        left = self.settings.limits.prepare_s / 4
        if t.halt_due is not None:
            left = min(left, (t.halt_due - self._clock.now()) / 4)
        return median(steps) < left

    async def _choose(self, command: s.ChooseSources) -> None:
        copies, committed = self._copies.in_memory(
            trained(self._roster.agents), self._run, live=command.live
        )
        self._events.write("committed", generation=self._run.active_generation, step=committed)
        starts = self._journal.starts
        try:
            restore = await self._copies.choose(command, copies, starts=starts)
            # An anchor is asked only where it can help: nobody waits for one that cannot.
            lacking = restore.step < committed or restore.farthest_tier in ("disk", "init")
            if lacking and (more := await self._anchoring.copies()):
                copies += more
                restore = await self._copies.choose(command, copies, starts=starts)
        except store.CheckpointFailed as error:
            log.error("%s", error.render())
            return  # the stage passes its deadline, and all is tried again
        self._put(
            s.Restorable(
                at=self._clock.now(),
                generation=command.generation,
                step=restore.step,
                redone=max(0, committed - restore.step),
                source=restore.farthest_tier,
            )
        )

    async def _switch(self, command: s.SendSwitch) -> None:
        generation, layout = command.generation, command.layout
        by_node = self._copies.sources(generation, layout)
        self._events.write(
            "restored",
            generation=generation,
            step=command.step,
            sources=self._copies.told(generation, layout),
        )
        await asyncio.gather(
            *(
                self._roster.send(
                    node,
                    m.Switch(generation=command.generation, step=command.step, sources=sources),
                )
                for node, sources in by_node.items()
            )
        )


async def _to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await something that must not be left half done, however often we are told to stop."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    return task.result()
