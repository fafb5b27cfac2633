"""Agents' connections, from their first word to their end, and whether the silent ones live."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from sailor.cluster.provisioner import News, Notice, Refused, Released, Started, is_anchor
from sailor.parallel.layout import Member
from sailor.runtime import happenings as h
from sailor.runtime import messages as m
from sailor.runtime.hiring import Hiring
from sailor.runtime.parts import Parts
from sailor.runtime.probe import Answer, ask, reach_seconds
from sailor.runtime.transport import Link, LinkClosed

log = logging.getLogger(__name__)

GOING_ON = ("training", "evaluating", "finished")  # what a worker does whose run is well
HELLO_S = 10.0  # for a new connection's first word
REACH_S = 2.0  # for a first connection to an agent's port
FAR_S = 0.25  # connecting takes no longer, unless we were busy when it was measured
UNREACHABLE_S = 0.3  # beyond what connecting takes: then the machine does not answer
ROUNDS, ROUND_S = 5, 0.01  # how often an agent that hung up is asked after, and how fast

OnMessage = Callable[[str, Link, Any], Awaitable[None]]  # of which node, over which link


class Reception:
    """Lets agents in, finds out whether those live that fell silent. ``open`` is set when the run
    has begun; whoever dials in before waits."""

    def __init__(self, parts: Parts, *, hiring: Hiring, on_message: OnMessage) -> None:
        self._parts = parts
        self._hiring = hiring
        self._on_message = on_message
        self.open = asyncio.Event()

    async def serve(self, link: Link) -> None:
        """One agent's connection, from Hello to its end."""
        parts = self._parts
        try:
            async with asyncio.timeout(HELLO_S):
                hello = await link.receive()
        except TimeoutError:
            log.warning("%s said nothing for %.0f s, closing", link.peer, HELLO_S)
            return
        if not isinstance(hello, m.Hello):
            log.warning("%s did not say hello, closing", link.peer)
            return
        await self.open.wait()
        known = hello.node in parts.roster.agents
        member = hello.node in parts.roster.members
        refusal = parts.roster.admit(hello, link, now=parts.now())
        if refusal:
            log.warning("refused %s: %s", hello.node, refusal)
            await link.send(m.Refused(reason=refusal))
            return
        await link.send(
            m.Welcome(
                settings=parts.settings.run,
                lease_s=parts.settings.lease_s,
                heartbeat_s=parts.settings.heartbeat_s,
                logged=parts.chronicle.newest,
            )
        )
        if known:
            await self._returned(hello)
        else:
            await self._arrived(hello, member=member)
        try:
            while True:
                message = await link.receive()
                parts.roster.heard(hello.node, now=parts.now())
                await self._on_message(hello.node, link, message)
        except LinkClosed:
            parts.roster.parted(hello.node, link, now=parts.now())
            await self.ask_after(hello.node, rounds=ROUNDS, hung_up=True)

    async def _arrived(self, hello: m.Hello, *, member: bool) -> None:
        """A new machine, or (``member``) one that an earlier controller had let in."""
        parts, agent = self._parts, self._parts.roster.agents[hello.node]
        parts.beside(self._measure_reach(hello.node))
        parts.beside(parts.notebook.joined(hello.node, hello.start))
        parts.events.write(
            "node_joined",
            node=hello.node,
            zone=hello.zone,
            machine_type=hello.machine_type,
            pid=hello.pid,
            workers=[{"worker": str(w.worker), "pid": w.pid} for w in hello.workers],
        )
        if is_anchor(hello.node):
            parts.anchoring.joined(hello)
        elif member:
            parts.put(self._rejoined(hello, agent.member, agent.slots))
            for part in hello.persisted:
                await parts.hear_durable(hello.node, part)
            self._hear_whether_finished(hello)
        else:
            parts.put(h.Joined(at=parts.now(), member=agent.member, slots=agent.slots))

    def _rejoined(self, hello: m.Hello, member: Member, slots: int) -> h.Rejoined:
        """What a member says of itself, as an event."""
        active = self._parts.run.active_generation
        mine = [status for status in hello.workers if status.generation == active]
        return h.Rejoined(
            at=self._parts.now(),
            member=member,
            slots=slots,
            going_on=frozenset(w.worker for w in mine if w.doing in GOING_ON),
            heard=hello.heard,
            step=max((status.step for status in mine), default=0),
        )

    async def _returned(self, hello: m.Hello) -> None:
        """A member's connection has broken and is there again: learn what it could not tell."""
        parts, now, run = self._parts, self._parts.now(), self._parts.run
        parts.anchoring.interrupted()
        node = run.nodes.get(hello.node)
        if node is None:
            return
        there = {status.worker: status for status in hello.workers}
        for worker in set(node.member.workers) - there.keys():
            cause = "ended while its node was away"
            parts.put(h.WorkerDied(at=now, worker=worker, cause=cause))
        for worker in sorted(there.keys() - set(node.member.workers)):
            parts.put(h.WorkerStarted(at=now, worker=worker))
        missed = parts.told_go.get(hello.node, 0) > hello.generation
        parts.put(h.Returned(at=now, node=hello.node, missed_go=missed))
        for part in hello.persisted:
            await parts.hear_durable(hello.node, part)
        self._hear_whether_finished(hello)

    def _hear_whether_finished(self, hello: m.Hello) -> None:
        """A node says once that it has applied the last step, perhaps to a controller that was
        killed right then, or into a connection that broke."""
        parts, active = self._parts, self._parts.run.active_generation
        mine = [w for w in hello.workers if active and w.generation == active]
        if mine and all(status.doing == "finished" for status in mine):
            parts.put(h.NodeFinished(at=parts.now(), generation=active, node=hello.node))

    async def _measure_reach(self, node: str) -> None:
        """Learn whether the agent's port can be asked at all, while it surely lives."""
        agent = self._parts.roster.agents.get(node)
        if agent is not None:
            agent.reach_s = await reach_seconds(agent.address, seconds=REACH_S)

    async def ask_after(self, node: str, *, rounds: int, hung_up: bool) -> None:
        """Whether a node that is silent or has gone away is there: if surely not, it is lost now,
        and not only when its time is up."""
        parts = self._parts
        for number in range(rounds):
            agent = parts.roster.agents.get(node)
            if agent is None or agent.reach_s is None or parts.winding_down:
                return None
            heard_at, link = agent.heard_at, agent.link
            if hung_up and link is not None:
                return None  # it has come back
            patience_s = UNREACHABLE_S + 4 * min(agent.reach_s, FAR_S)
            patience_s += parts.arrivals.queue_s(node)
            answer = await ask(agent.address, seconds=patience_s)
            if parts.roster.agents.get(node) is not agent or agent.heard_at != heard_at:
                return None
            if parts.winding_down:
                return None
            silent_s = parts.now() - heard_at
            match answer:
                case Answer.refused:
                    return self._hiring.lose(node, "its agent ended", silent_s)
                case Answer.nothing:
                    why = f"unreachable, silent for {silent_s:.1f} s"
                    return self._hiring.lose(node, why, silent_s)
            # Its sockets close one after the other while it dies: ask again in a moment.
            await asyncio.sleep(ROUND_S * (number + 1))
        return None

    async def listen_to_cloud(self, news: AsyncIterator[News]) -> None:
        """What the provisioner has to tell, as long as it tells."""
        parts, hiring = self._parts, self._hiring
        async for item in news:
            match item:
                case Notice(node=node, seconds=seconds, source=source):
                    parts.events.write("notice", node=node, seconds=seconds, source=source)
                    if seconds > 0:
                        parts.put(h.Noticed(at=parts.now(), node=node, seconds=seconds))
                    elif node in parts.roster.agents:
                        parts.beside(self._goes_now(node))
                    else:
                        hiring.lose(node, source, 0.0)  # it will never dial in
                case Started():
                    parts.events.write("node_started", node=item.node)
                case Refused():
                    hiring.note_refused(item)
                case Released() if item.node not in parts.roster.agents:
                    # A member's end is for its heartbeat to tell: no cloud is as quick.
                    hiring.note_released(item)

    async def _goes_now(self, node: str) -> None:
        """A machine that is gone is lost, not to be planned without while it trains."""
        await self.ask_after(node, rounds=ROUNDS, hung_up=False)
        if node in self._parts.roster.agents:
            self._parts.put(h.Noticed(at=self._parts.now(), node=node, seconds=0.0))
