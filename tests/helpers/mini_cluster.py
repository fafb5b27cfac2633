"""A whole run in one process: the real controller, real agents, and workers that only pretend.

Everything between them is real: TLS links on loopback, the agents' tenure, snapshot memory in
shared memory, copies to peers and to an anchor, durable files, the journal and the event log. What
is not: processes (a machine that dies is a task that is cancelled and connections that are
dropped), the training itself (``pretend_workers``), and who rents machines.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sailor.checkpoint.arena import sweep
from sailor.checkpoint.interval import LossRate
from sailor.cluster.provisioner import News, NodeRequest, Notice, Released, anchor_name, is_anchor
from sailor.errors import NoFeasiblePlan
from sailor.log import Stamp
from sailor.observe.events import Event, EventLog
from sailor.parallel.layout import Member, WorkerId
from sailor.plan import Plan
from sailor.runtime import state as s
from sailor.runtime.agent import Agent, AgentSettings
from sailor.runtime.controller import Controller
from sailor.runtime.controller_settings import ControllerSettings, Outcome
from sailor.runtime.identity import Identity, create_identity
from sailor.runtime.messages import RunSettings
from tests.helpers.builders import a_plan, a_spec
from tests.helpers.pretend_exchange import Exchange
from tests.helpers.pretend_workers import PretendNursery
from tests.helpers.settings import some_settings

log = logging.getLogger(__name__)

HANG_UP_S = 20.0  # a handshake that nobody ends is given up before
FEWEST = 2  # machines that can hold the model
ENOUGH = 6
_CUTS: dict[int, list[list[int]]] = {
    2: [[2]], 3: [[1, 3]], 4: [[2], [2]], 5: [[2], [1, 3]], 6: [[2], [2], [2]],
}  # fmt: skip


def plan_for(members: Sequence[Member]) -> Plan:
    """Pipelines over however many workers there are. Raises NoFeasiblePlan for fewer than two."""
    workers = sum(len(member.workers) for member in members)
    if workers < FEWEST:
        raise NoFeasiblePlan(f"{workers} machines cannot hold it", code="E301")
    return a_plan(*_CUTS[min(workers, ENOUGH)])


@dataclass(kw_only=True, eq=False)
class Machine:
    """One that was asked for. ``task`` is its agent's life, from its boot on."""

    request: NodeRequest
    agent: Agent | None = None
    task: asyncio.Task[None] | None = None


class Machines:
    """Satisfies Provisioner: agents are tasks of this process."""

    def __init__(
        self, *, identity: Identity, chance: random.Random, exchange: Exchange,
        controller: Callable[[], tuple[str, int]],
    ) -> None:  # fmt: skip
        self.machines: dict[str, Machine] = {}
        self.problems: list[str] = []
        self._identity = identity
        self._chance = chance
        self._exchange = exchange
        self._controller = controller
        self._news: asyncio.Queue[News | None] = asyncio.Queue()

    @property
    def living(self) -> tuple[str, ...]:
        """Machines whose agents run."""
        return tuple(
            name
            for name, machine in self.machines.items()
            if machine.agent is not None and machine.task is not None and not machine.task.done()
        )

    def agent(self, node: str) -> Agent:
        """The agent of a living machine."""
        agent = self.machines[node].agent
        assert agent is not None
        return agent

    async def request(self, *requests: NodeRequest) -> None:
        for request in requests:
            if request.node not in self.machines:
                machine = self.machines[request.node] = Machine(request=request)
                machine.task = asyncio.ensure_future(self._live(machine))

    def adopt(self, *nodes: str) -> tuple[str, ...]:
        return ()

    async def release(self, node: str) -> Released:
        machine = self.machines.get(node)
        if machine is not None and machine.task is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(asyncio.wait({machine.task})), 1.0)
            self.kill(node)
            await asyncio.wait({machine.task})
        return Released(node=node, released=True, proof="its task has ended")

    async def notices(self) -> AsyncIterator[News]:
        while (news := await self._news.get()) is not None:
            yield news

    async def close(self) -> tuple[Released, ...]:
        released = [await self.release(node) for node in list(self.machines)]
        self._news.put_nowait(None)
        return tuple(released)

    def kill(self, node: str) -> None:
        """All of it at this instant, its memory gone, without a word."""
        machine = self.machines[node]
        assert machine.task is not None
        machine.task.cancel()

    def tell(self, node: str, *, seconds: float) -> None:
        """The cloud's notice."""
        self._news.put_nowait(Notice(node=node, seconds=seconds, source="chaos"))

    async def _live(self, machine: Machine) -> None:
        await asyncio.sleep(self._chance.uniform(0.0, 0.05))
        request = machine.request
        settings = AgentSettings(
            node=request.node, zone=request.zone, machine_type="local",
            slots=0 if is_anchor(request.node) else 1, controller=self._controller(),
            identity=self._identity, host="127.0.0.1", memory_bytes=8 << 20,
        )  # fmt: skip
        nursery: Any = partial(PretendNursery, exchange=self._exchange, chance=self._chance)
        machine.agent = Agent(settings, stamp=Stamp(who=request.node), workers=nursery)
        try:
            why = await machine.agent.serve()
            log.info("%s left: %s", request.node, why)
            if why.startswith("internal error"):
                self.problems.append(f"{request.node}: {why}")
        except asyncio.CancelledError:
            log.info("%s was killed", request.node)


class MiniCluster:
    """See the module's docstring. ``events`` grows as the run goes on."""

    def __init__(
        self, folder: Path, *, seed: int, nodes: int, total_steps: int, anchored: bool,
        persist_every: int,
    ) -> None:  # fmt: skip
        self.chance = random.Random(seed)
        self.exchange = Exchange()
        self.events: list[Event] = []
        self.run_name = f"mini-{seed}-{folder.name}"[-40:]
        self.settings = _run_settings(
            folder, run=self.run_name, total_steps=total_steps, persist_every=persist_every,
            anchored=anchored,
        )  # fmt: skip
        self._folder = folder
        self._identity = create_identity(folder / "identity", run=self.run_name)
        self._address = ("", 0)
        self.machines = Machines(
            identity=self._identity, chance=self.chance, exchange=self.exchange,
            controller=lambda: self._address,
        )  # fmt: skip
        self._next = nodes + 1
        self._requests = tuple(_request(number) for number in range(1, nodes + 1))
        self._anchored = anchored

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[Outcome]]:
        """The run; ended, whatever happens, with the block."""
        sockets = _sockets()
        with EventLog(self._folder / "events.jsonl", run=self.run_name) as events:
            events.subscribe(self.events.append)
            self.controller = Controller(
                self._controller_settings(), identity=self._identity, replan=plan_for,
                events=events,
            )  # fmt: skip
            self._address = await self.controller.start()
            task = asyncio.ensure_future(self.controller.run(self.machines))
            try:
                yield task
            finally:
                if not task.done():
                    task.cancel()
                await asyncio.wait({task})
                await _hung_up(sockets)
                sweep(self.run_name)

    async def join(self) -> None:
        """One more machine."""
        request = _request(self._next)
        self._next += 1
        await self.controller.add_nodes(request)

    def workers(self) -> list[tuple[PretendNursery, WorkerId]]:
        """Every living worker, with who could kill it."""
        found = []
        for node in self.machines.living:
            nursery: Any = self.machines.agent(node).nursery
            found += [(nursery, worker) for worker in nursery.children]
        return found

    def _controller_settings(self) -> ControllerSettings:
        limits = s.Limits(
            initial_nodes=len(self._requests), assemble_s=20.0, halt_s=5.0, boundary_s=5.0,
            plan_s=5.0, prepare_s=5.0, restore_s=5.0, switch_s=5.0, save_s=20.0, park_s=600.0,
            leave_margin_s=0.3, overstay_s=2.0, stumble_s=0.3, max_restarts=1000,
        )  # fmt: skip
        anchor = replace(_request(1), node=anchor_name(1), spot=False)
        return ControllerSettings(
            directory=self._folder, run=self.settings, limits=limits, nodes=self._requests,
            hazard=LossRate(losses=1.0, machine_s=1000.0), heartbeat_s=0.05, reconnect_s=0.4,
            silence_s=5.0, lease_s=20.0, rehearse=False, leave_s=5.0,
            anchor=anchor if self._anchored else None,
        )  # fmt: skip


async def _hung_up(before: frozenset[str]) -> None:
    """Until dropped connections, those in the middle of a handshake included, have closed their
    sockets at both ends; the loop must not end before."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(HANG_UP_S):
            while _sockets() - before:
                await asyncio.sleep(0.02)


def _sockets() -> frozenset[str]:
    return frozenset(what for what in open_files() if what.startswith("socket:"))


def open_files() -> list[str]:
    """What each descriptor of this process stands for, as the kernel names it."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return found


def _request(number: int) -> NodeRequest:
    return NodeRequest(node=f"node-{number}", zone="a", machine_type="local", spot=True)


def _run_settings(
    folder: Path, *, run: str, total_steps: int, persist_every: int, anchored: bool
) -> RunSettings:
    spec = a_spec(hidden_size=8, num_heads=2, num_kv_heads=2, head_size=4, ffn_hidden_size=16,
                  vocab_size=32, max_positions=16)  # fmt: skip
    settings = some_settings(
        run=run,
        checkpoint_directory=str(folder / "checkpoints"),
        total_steps=total_steps,
        persist_every=persist_every,
    )
    fields = {name: getattr(settings, name) for name in settings.__struct_fields__}
    return RunSettings(**{**fields, "spec": spec, "compare_every": 1, "anchored": anchored})
