"""Real agents with real workers, driven step by step by a controller that decides nothing.

``async with a_cluster(tmp_path, nodes=2) as cluster`` starts agents and waits for their Hello. The
test then says what the controller would and awaits the answers. On leaving, every process and
folder must be gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from sailor.checkpoint.arena import SHARED_MEMORY, sweep
from sailor.data.corpus import text_at
from sailor.data.prepare import prepare
from sailor.data.source import TextSource
from sailor.data.tokenizer import tokenizer
from sailor.parallel.boxes import all_boxes
from sailor.parallel.layout import Layout, Member, WorkerId
from sailor.plan import Plan
from sailor.runtime import messages as m
from sailor.runtime.identity import Identity, create_identity
from sailor.runtime.key_store import KeyStore
from sailor.runtime.transport import Link, LinkClosed, Listener, listen
from tests.helpers.settings import some_settings

PATIENCE_S = 180.0  # a loaded machine; nothing asserted depends on it


def settings_in(tmp_path: Path, *, run: str, **train: Any) -> m.RunSettings:
    """A run of a tiny model on text of its own."""
    text = tmp_path / "text"
    if not text.exists():
        text.mkdir()
        for i in range(4):
            lines = (f"line {j} of file {i}: {j * j % 97} {'ab' * (j % 7)}\n" for j in range(400))
            (text / f"{i}.txt").write_text("".join(lines))
    manifest = prepare(TextSource(text_at(text), tokenizer("bytes")), directory=tmp_path / "tokens")
    return some_settings(
        run=run,
        tokens_path=manifest.path,
        checkpoint_directory=str(tmp_path / "checkpoints"),
        **train,
    )


@dataclass(kw_only=True)
class AgentProcess:
    """One agent, its link while it is connected, and everything it ever said, with the time."""

    node: str
    process: subprocess.Popen[bytes]
    link: Link | None = None
    hello: m.Hello | None = None
    said: list[tuple[float, Any]] = field(default_factory=list)

    def members(self) -> list[psutil.Process]:
        """The agent, its zygote and its workers, as far as they live."""
        try:
            agent = psutil.Process(self.process.pid)
            return [agent, *agent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


class Cluster:
    """See the module's docstring."""

    def __init__(self, tmp_path: Path, *, run: str, settings: m.RunSettings) -> None:
        self.tmp_path = tmp_path
        self.run = run
        self.settings = settings
        self.identity: Identity = create_identity(tmp_path / "identity", run=run)
        self.agents: dict[str, AgentProcess] = {}
        self.lease_s = 30.0
        self.store = KeyStore()
        self.published: Counter[int] = Counter()  # generation -> keys set to build its groups
        self._server: Listener | None = None
        self._port = 0
        self._news = asyncio.Condition()

    # Control port

    async def open(self) -> None:
        self._server = await listen(
            "127.0.0.1",
            self._port,
            identity=self.identity,
            decoder=m.decoder(m.ToController),
            on_link=self._serve,
        )
        self._port = self._server.address[1]

    @property
    def port(self) -> int:
        """Where agents dial."""
        return self._port

    async def vanish(self) -> None:
        """The controller dies: no port, no connections."""
        assert self._server is not None
        await self._server.close()
        for agent in self.agents.values():
            if agent.link is not None:
                agent.link.abort()
                agent.link = None

    async def _serve(self, link: Link) -> None:
        hello = await link.receive()
        agent = self.agents[hello.node]
        agent.link, agent.hello = link, hello
        await link.send(m.Welcome(settings=self.settings, lease_s=self.lease_s, heartbeat_s=0.1))
        await self._note(agent, hello)
        gets: set[asyncio.Task[None]] = set()
        try:
            while True:
                message = await link.receive()
                match message:
                    case m.Heartbeat():
                        await link.send(m.Beat())
                    case m.StoreSet():
                        self.published[message.generation] += 1
                        await self.store.set(message.generation, message.key, message.value)
                        continue
                    case m.StoreGet():
                        gets.add(asyncio.create_task(self._answer(link, message)))
                        continue
                await self._note(agent, message)
        finally:
            for task in gets:
                task.cancel()
            if agent.link is link:
                agent.link = None
            await self._note(agent, None)

    async def _answer(self, link: Link, get: m.StoreGet) -> None:
        values = await self.store.get(get.generation, get.keys, seconds=get.seconds)
        with contextlib.suppress(LinkClosed):
            await link.send(m.StoreValues(request=get.request, values=values))

    async def _note(self, agent: AgentProcess, message: Any) -> None:
        agent.said.append((time.monotonic(), message))
        async with self._news:
            self._news.notify_all()

    # Agents

    def boot(
        self, node: str, *more: str, slots: int = 1, memory_bytes: int | None = 256 << 20,
        environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        command = [sys.executable, "-m", "sailor.runtime.agent", "--node", node, "--zone", "a"]
        command += ["--machine-type", "local", "--slots", str(slots)]
        command += ["--controller", f"127.0.0.1:{self._port}", "--host", "127.0.0.1"]
        command += ["--identity", str(self.tmp_path / "identity")]
        command += ["--log", str(self.log_of(node)), *more]
        if memory_bytes is not None:
            command += ["--memory-bytes", str(memory_bytes)]
        with self.log_of(node).open("ab") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
                start_new_session=True, env={**os.environ, **(environment or {})},
            )  # fmt: skip
        self.agents[node] = AgentProcess(node=node, process=process)

    def log_of(self, node: str) -> Path:
        return self.tmp_path / f"{node}.log"

    async def until(
        self, condition: Callable[[], Any], *, what: str, seconds: float = PATIENCE_S
    ) -> Any:
        """The condition's first true value; it is looked at after every message."""
        try:
            async with self._news:
                await asyncio.wait_for(self._news.wait_for(condition), seconds)
        except TimeoutError:
            logs = "\n".join(self.log_of(n).read_text()[-3000:] for n in self.agents)
            raise AssertionError(f"not within {seconds:.0f} s: {what}\n{logs}") from None
        return condition()

    async def heard(
        self, node: str, kind: type, *, since: float = 0.0, seconds: float = PATIENCE_S,
        where: Callable[[Any], bool] = lambda _: True,
    ) -> Any:  # fmt: skip
        """The first message of a kind from a node."""

        def found() -> Any:
            for at, message in self.agents[node].said:
                if at >= since and isinstance(message, kind) and where(message):
                    return message
            return None

        return await self.until(found, what=f"{kind.__name__} of {node}", seconds=seconds)

    def all_said(self, node: str, kind: type) -> list[Any]:
        return [message for _, message in self.agents[node].said if isinstance(message, kind)]

    async def say(self, node: str, message: m.Message) -> None:
        link = self.agents[node].link
        assert link is not None, f"{node} is not connected"
        await link.send(message)

    def workers(self, node: str) -> dict[WorkerId, int]:
        """Living workers by their newest pid, from what the agent said."""
        hello = self.agents[node].hello
        assert hello is not None
        found = {status.worker: status.pid for status in hello.workers}
        for message in self.all_said(node, m.WorkerLost):
            found.pop(message.worker, None)
        for message in self.all_said(node, m.WorkerUp):
            found[message.worker] = message.pid
        return found

    # What a controller does

    def layout(self, plan: Plan, nodes: Sequence[str], previous: Layout | None = None) -> Layout:
        members = [self.member(node) for node in nodes]
        spec, pieces = self.settings.spec, self.settings.pieces
        return Layout.of(plan, spec=spec, pieces=pieces, members=members, previous=previous)

    def member(self, node: str) -> Member:
        workers = tuple(sorted(self.workers(node)))
        return Member(node=node, zone="a", machine_type="local", workers=workers)

    async def prepare(
        self, generation: int, layout: Layout, *, copies: dict[str, tuple[str, ...]] | None = None
    ) -> None:
        peers = {}
        for node, agent in self.agents.items():
            if agent.hello is not None:
                peers[node] = (agent.hello.host, agent.hello.port)
        message = m.Prepare(
            generation=generation, plan=layout.plan, workers=layout.workers, peers=peers,
            members=tuple(self.member(node) for node in layout.nodes), copies=copies or {},
        )  # fmt: skip
        await self.tell(layout, message)
        for node in layout.nodes:
            await self.heard(node, m.Prepared, where=lambda p: p.generation == generation)

    async def tell(self, layout: Layout, message: m.Message) -> None:
        for node in layout.nodes:
            await self.say(node, message)

    async def switch(
        self, generation: int, layout: Layout, *, step: int,
        sources: Callable[[int, str], tuple[m.Source, ...]],
    ) -> None:  # fmt: skip
        """``sources`` of (rank, worker's name) or the seed."""
        for node in layout.nodes:
            mine = {
                str(worker): sources(rank, str(worker))
                for rank, worker in enumerate(layout.workers)
                if worker.node == node
            }
            await self.say(node, m.Switch(generation=generation, step=step, sources=mine))
        for node in layout.nodes:
            await self.heard(node, m.Switched, where=lambda s: s.generation == generation)

    async def begin(
        self, layout: Layout, *, generation: int = 1,
        copies: dict[str, tuple[str, ...]] | None = None,
    ) -> None:  # fmt: skip
        """From the seed to training."""
        await self.prepare(generation, layout, copies=copies)
        await self.switch(
            generation, layout, step=0, sources=lambda rank, _: (from_seed(layout, rank),)
        )
        await self.tell(layout, m.Go(generation=generation, step=0))

    async def stepped(self, node: str, step: int, *, generation: int) -> m.StepRecord:
        message = await self.heard(
            node, m.Stepped,
            where=lambda s: s.generation == generation and s.record.step == step,
        )  # fmt: skip
        return message.record

    async def halt(
        self, nodes: Sequence[str], generation: int, *, boundary: bool, persist: bool = False
    ) -> dict[str, m.Halted]:
        since = time.monotonic()
        for node in nodes:
            await self.say(node, m.Halt(generation=generation, boundary=boundary, persist=persist))
        return {node: await self.heard(node, m.Halted, since=since) for node in nodes}

    def losses(self, node: str) -> dict[int, float]:
        """Newest loss of every step that was reported."""
        return {s.record.step: s.record.loss for s in self.all_said(node, m.Stepped)}

    async def close(self) -> None:
        for node, agent in self.agents.items():
            if agent.link is not None:
                with contextlib.suppress(LinkClosed):
                    await self.say(node, m.Shutdown(reason="the test is over"))
        members = [p for agent in self.agents.values() for p in agent.members()]
        for agent in self.agents.values():
            try:
                await asyncio.to_thread(agent.process.wait, 10.0 if agent.link else 0.1)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(agent.process.pid, signal.SIGKILL)
                agent.process.wait()
        if self._server is not None:
            await self._server.close()
        sweep(self.run)
        _, alive = await asyncio.to_thread(psutil.wait_procs, members, 5.0)
        left = list(SHARED_MEMORY.glob(f"sailor-{self.run}-*"))
        assert not alive, f"left running: {alive}"
        assert not left, f"left in memory: {left}"


@contextlib.asynccontextmanager
async def a_cluster(
    tmp_path: Path, *, nodes: int = 1, slots: int = 1, lease_s: float = 30.0, **train: Any
) -> AsyncIterator[Cluster]:
    """Agents n0, n1, … that have said hello."""
    run = f"t{uuid.uuid4().hex[:8]}"
    cluster = Cluster(tmp_path, run=run, settings=settings_in(tmp_path, run=run, **train))
    cluster.lease_s = lease_s
    await cluster.open()
    try:
        for i in range(nodes):
            cluster.boot(f"n{i}", slots=slots)
        for i in range(nodes):
            await cluster.heard(f"n{i}", m.Hello)
        yield cluster
    finally:
        await cluster.close()


def from_seed(layout: Layout, rank: int) -> m.Source:
    return m.Source(tier="init", boxes=tuple(box.name for box in layout.boxes[rank]))


KEPT_LIVE = m.Source(tier="live", boxes=())


def box_names(settings: m.RunSettings) -> list[str]:
    return [box.name for box in all_boxes(settings.spec, pieces=settings.pieces)]
