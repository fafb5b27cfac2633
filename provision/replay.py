"""``cloud=trace``: a provisioner whose machines come and go as a trace says.

Stands in front of another provisioner, which has the real machines (processes of this computer):
an order waits until the trace has a machine to give, or is refused when it has none, and when the
trace takes machines away, some of those that run are preempted, with its notice or without one.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol

from provision.trace import Place, SpotEvent, Trace
from sailor.cluster.provisioner import News, NodeRequest, Provisioner, Refused, Released
from sailor.errors import CloudError

log = logging.getLogger(__name__)


class Breakable(Provisioner, Protocol):
    """A provisioner whose machines can be taken away on purpose."""

    def kill(self, node: str) -> None: ...
    def preempt(self, node: str, *, seconds: float) -> None: ...
    def memory_folder(self, node: str) -> Path | None: ...
    def set_cut(self, node: str, *, cut: bool) -> None: ...


class TraceProvisioner:
    """Implements Provisioner over another one, on the trace's terms. Needs a running event loop.

    ``play`` walks the trace and must run beside the job. ``on_capacity`` hears of (zone, machine
    type, machines free beyond all orders) whenever there is more to be had. An order for what is
    not there waits, or is refused ``answer_s`` seconds later, as a cloud does. ``sleep`` waits;
    tests give one that does not. Who is taken is drawn by ``seed``: a cloud does not ask who is
    needed.
    """

    def __init__(
        self,
        inner: Breakable,
        trace: Trace,
        *,
        seed: int = 0,
        answer_s: float | None = None,
        on_capacity: Callable[[str, str, int], None] = lambda zone, machine_type, free: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._inner = inner
        self._trace = trace
        self._chance = random.Random(seed)
        self._answer_s = answer_s
        self._on_capacity = on_capacity
        self._sleep = sleep
        self._capacity: dict[Place, int] = dict.fromkeys(trace.places, 0)
        self._held: dict[str, Place] = {}  # machines that run and are not told to go
        self._orders: dict[Place, deque[NodeRequest]] = {place: deque() for place in trace.places}
        self._known: set[str] = set()
        self._answers: set[asyncio.Task[None]] = set()
        self._news: asyncio.Queue[News | None] = asyncio.Queue()
        self._next = 0
        self._advance(0.0)

    @property
    def zones(self) -> tuple[str, ...]:
        """Zones of the trace, in order of appearance."""
        return tuple(dict.fromkeys(zone for zone, _ in self._capacity))

    def free(self, place: Place) -> int:
        """Machines to be had there at once, orders that wait already counted."""
        held = sum(1 for where in self._held.values() if where == place)
        return max(0, self._capacity[place] - held - len(self._orders[place]))

    async def play(self) -> None:
        """Let the trace's time pass, until its last event. Cancel it to stop."""
        now = 0.0
        while self._next < len(self._trace.events):
            event = self._trace.events[self._next]
            await self._sleep(event.t - now)
            now = event.t
            self._advance(now)
            for place in self._capacity:
                await self._serve(place)

    async def request(self, *requests: NodeRequest) -> None:
        """Order machines: each started now if the trace has one to give, else as the class says.

        Raises CloudError for a zone and machine type the trace does not know, and what the inner
        provisioner refuses at once.
        """
        for request in requests:
            if request.node in self._known:
                continue
            if request.spot:
                await self._order(request)
            else:  # a trace is of spot machines: others are there whenever they are asked for
                self._known.add(request.node)
                await self._inner.request(request)

    async def _order(self, request: NodeRequest) -> None:
        place = (request.zone, request.machine_type)
        if place not in self._capacity:
            raise CloudError(
                f"the trace has no {request.machine_type} in {request.zone}",
                code="E404",
                why="it has " + ", ".join(f"{kind} in {zone}" for zone, kind in self._capacity),
            )
        self._known.add(request.node)
        self._orders[place].append(request)
        await self._serve(place, asked=request)
        if self._answer_s is not None and request in self._orders[place]:
            answer = asyncio.create_task(self._refuse(request, after_s=self._answer_s))
            self._answers.add(answer)
            answer.add_done_callback(self._answers.discard)

    async def _refuse(self, request: NodeRequest, *, after_s: float) -> None:
        """Say that there is none, unless one has come in the meantime."""
        await self._sleep(after_s)
        place = (request.zone, request.machine_type)
        if request not in self._orders[place]:
            return
        self._orders[place].remove(request)
        self._known.discard(request.node)
        error = CloudError(
            f"no {request.machine_type} can be had in {request.zone} now",
            code="E405",
            why=f"the trace has {self._capacity[place]} to give, and they are taken",
        )
        self._news.put_nowait(Refused(node=request.node, error=error))

    def adopt(self, *nodes: str) -> tuple[str, ...]:
        """None: a trace begins anew with every process, and its machines with it."""
        return ()

    async def release(self, node: str) -> Released:
        """Give a machine back, or withdraw its order; its place is free for the next one."""
        for orders in self._orders.values():
            for request in [request for request in orders if request.node == node]:
                orders.remove(request)
                return Released(node=node, released=True, proof="its order was withdrawn")
        place = self._held.pop(node, None)
        released = await self._inner.release(node)
        if place is not None:
            await self._serve(place)
        return released

    async def notices(self) -> AsyncIterator[News]:
        """The inner provisioner's news, and refusals, until the inner one is closed."""
        passing = asyncio.create_task(self._pass_on())
        try:
            while (news := await self._news.get()) is not None:
                yield news
        finally:
            passing.cancel()

    async def _pass_on(self) -> None:
        async for news in self._inner.notices():
            self._news.put_nowait(news)
        self._news.put_nowait(None)

    async def close(self) -> tuple[Released, ...]:
        """Withdraw all orders and release all machines."""
        for answer in self._answers:
            answer.cancel()
        for orders in self._orders.values():
            orders.clear()
        self._held.clear()
        return await self._inner.close()

    def kill(self, node: str) -> None:
        """Take a machine away at once, as the inner provisioner does. Its place stays free."""
        self._held.pop(node, None)
        self._inner.kill(node)

    def preempt(self, node: str, *, seconds: float) -> None:
        """Announce that a machine goes, as the inner provisioner does."""
        self._held.pop(node, None)
        self._inner.preempt(node, seconds=seconds)

    def set_cut(self, node: str, *, cut: bool) -> None:
        """Take a machine's network away, or give it back, as the inner provisioner does."""
        self._inner.set_cut(node, cut=cut)

    def memory_folder(self, node: str) -> Path | None:
        """Where a machine keeps its snapshots, as the inner provisioner has it."""
        return self._inner.memory_folder(node)

    def _advance(self, t: float) -> None:
        """Apply the events up to ``t``."""
        while self._next < len(self._trace.events) and self._trace.events[self._next].t <= t:
            event = self._trace.events[self._next]
            self._next += 1
            self._capacity[event.zone, event.machine_type] += event.delta
            if event.delta < 0:
                self._take(event)

    def _take(self, event: SpotEvent) -> None:
        """Let go as many machines as are held beyond what the zone still gives."""
        place = (event.zone, event.machine_type)
        held = sorted(node for node, where in self._held.items() if where == place)
        too_many = max(0, len(held) - self._capacity[place])
        for node in self._chance.sample(held, too_many):
            if event.notice_seconds is None:
                self.kill(node)
            else:
                self.preempt(node, seconds=event.notice_seconds)

    async def _serve(self, place: Place, *, asked: NodeRequest | None = None) -> None:
        """Start machines for waiting orders while there are some to give, first come first served.

        A refusal of the order that was just ``asked`` is raised, one of an older order is logged.
        """
        orders = self._orders[place]
        while orders and sum(1 for w in self._held.values() if w == place) < self._capacity[place]:
            request = orders.popleft()
            self._held[request.node] = place
            try:
                await self._inner.request(request)
            except CloudError as error:
                del self._held[request.node]
                self._known.discard(request.node)
                if request is asked:
                    raise
                log.warning("the order for %s was refused: %s", request.node, error.what)
        if free := self.free(place):
            self._on_capacity(*place, free)
