"""The agent: one per node. Dials the controller, obeys it, and answers for its workers.

It owns the node's snapshot memory, starts a zygote and through it one worker per slot, and turns
the controller's words to the node into words to each worker, and their answers into the node's. It
decides nothing about the run, and imports no torch. When it has not heard from the controller for
the lease it ends its workers and itself. One without slots is an anchor: it has no zygote, and
holds copies of what others train.

    python -m sailor.runtime.agent --node NAME --zone Z --machine-type T --slots K
        --controller HOST:PORT --identity DIR [--host ADDRESS] [--memory-bytes N] [--log FILE]
        [--notices-of CLOUD]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sailor.addresses import parted
from sailor.checkpoint.arena import open_arena
from sailor.checkpoint.replicate import BULK_DECODER, serve_bulk
from sailor.checkpoint.retention import ANCHOR_VERSIONS, KEPT_VERSIONS
from sailor.errors import SailorError
from sailor.faults import PROGRESS_PAGE
from sailor.log import Stamp, configure_log
from sailor.parallel.layout import WorkerId
from sailor.runtime import messages as m
from sailor.runtime.identity import Identity, load_identity
from sailor.runtime.keeper import Keeper
from sailor.runtime.notices import CLOUDS, watch
from sailor.runtime.nursery import Child, Nursery, NurseryFailed
from sailor.runtime.tenure import Tenure
from sailor.runtime.transport import Link, LinkClosed, connect, listen
from sailor.runtime.watchdog import ProgressPage
from sailor.runtime.way_here import way_here
from sailor.runtime.worker_link import Grant

log = logging.getLogger("sailor.runtime.agent")  # also when run as the main module

FIRST_CONTACT_S = 120.0  # how long to look for a controller that has never answered
LEAVE_S = 10.0  # from the decision to leave to the end of the process, at most
_DIAL_S = 3.0
_BACKOFF_S = (0.05, 0.1, 0.2, 0.5, 1.0)
_BUFFERED = 1024  # messages kept for a controller that is away; the oldest go first
# What stays true while the controller is away. Answers to a transition do not: it begins anew.
# Steps are told again from the tenure's own list.
_WORTH_KEEPING = (
    m.Snapshotted, m.Persisted, m.Finished, m.Diverged, m.WorkerLost, m.WorkerUp, m.NoticeSeen,
    m.TransitionFailed,
)  # fmt: skip
_NOTICE_S = 30.0  # what a SIGTERM is worth: what clouds give between it and the end


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentSettings:
    """What an agent is told at its start."""

    node: str
    zone: str
    machine_type: str
    slots: int
    controller: tuple[str, int]
    identity: Identity
    host: str
    memory_bytes: int | None
    notices_of: str = ""  # the cloud whose metadata service is watched
    environment: Mapping[str, str] = field(default_factory=dict)  # of its workers, besides ours


class Agent:
    """One node's agent. ``run`` returns when it was told to go, or its lease ran out."""

    def __init__(
        self, settings: AgentSettings, *, stamp: Stamp, workers: Callable[..., Nursery] = Nursery
    ) -> None:
        """``workers`` makes whoever starts and watches them."""
        self.settings = settings
        self._stamp = stamp
        self._workers = workers
        self._link: Link | None = None
        self._welcome: m.Welcome | None = None
        self._heard_at = time.monotonic()
        self._unsent: deque[m.Message] = deque(maxlen=_BUFFERED)
        self._store_requests: dict[int, tuple[Child, m.StoreGet]] = {}
        self._request_count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaving: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._notices = 0
        self._failures = 0  # to reach the controller, in a row
        self._bulk_address = ("", 0)
        self._start = secrets.token_hex(8)  # no other start of an agent has it

    async def run(self) -> str:
        """``serve``, as all that this process does: heeds its signals, and ends it if the last act
        hangs. Raises NurseryFailed."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._on_sigterm)
        loop.add_signal_handler(signal.SIGINT, self.leave, "interrupted")
        self._leaving.add_done_callback(_end_in_time)
        return await self.serve()

    async def serve(self) -> str:
        """Serve the run. Returns why it ended; nothing of this node is left then.

        Raises NurseryFailed when no worker can be started.
        """
        arena = open_arena(
            run=self.settings.identity.run,
            node=self.settings.node,
            budget_bytes=self.settings.memory_bytes,
            share=0.5 if self.settings.slots else 0.9,  # nobody else needs an anchor's memory
        )
        page = ProgressPage.create(arena.directory / PROGRESS_PAGE, slots=self.settings.slots)
        self.keeper = Keeper(
            arena, node=self.settings.node, grant=self._grant,
            versions=KEPT_VERSIONS if self.settings.slots else ANCHOR_VERSIONS,
        )  # fmt: skip
        self.nursery = self._workers(
            node=self.settings.node,
            slots=self.settings.slots,
            page=page,
            on_message=self._on_worker,
            on_up=self._on_up,
            on_lost=self._on_lost,
        )
        self.tenure = Tenure(
            settings=self.settings, keeper=self.keeper, nursery=self.nursery, tell=self.tell,
            beside=self.beside,
        )  # fmt: skip
        async with contextlib.AsyncExitStack() as end:  # every part comes, whatever breaks one off
            end.callback(arena.destroy)
            end.callback(self._hang_up)
            end.push_async_callback(self.nursery.end)
            bulk = await listen(
                self.settings.host,
                0,
                identity=self.settings.identity,
                decoder=BULK_DECODER,
                on_link=lambda link: serve_bulk(link, self.keeper),
            )
            end.push_async_callback(bulk.close)
            end.callback(self._cease)
            self._bulk_address = bulk.address
            if self.settings.slots:
                await self.nursery.start()
            self.beside(self._serve_controller())
            self.beside(self._keep_lease())
            if self.settings.notices_of:
                self.beside(self._watch_for_notices())
            self.nursery.failed.add_done_callback(self._nursery_failed)
            return await self._leaving

    def _cease(self) -> None:
        self.leave("failed")  # unless it has left already
        self.tenure.close()
        for task in self._tasks:
            task.cancel()

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.abort()

    def _nursery_failed(self, failed: asyncio.Future[None]) -> None:
        if not failed.cancelled() and not self._leaving.done():
            self._leaving.set_exception(failed.exception() or NurseryFailed("ended"))

    def leave(self, reason: str) -> None:
        """End the workers and this process, in order."""
        if not self._leaving.done():
            self._leaving.set_result(reason)

    def beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the loop that hears the controller. A failure ends the agent."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._beside_done)

    def _beside_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background work failed", exc_info=error)
            self.leave(f"internal error: {error!r}")

    async def _watch_for_notices(self) -> None:
        """Pass on what the cloud says of this machine, as it says it."""
        async for seen in watch(self.settings.notices_of):
            if seen.seconds is None:
                log.warning("%s: this machine may be taken soon", seen.source)
                continue
            log.warning("%s: this machine goes in %.0f s", seen.source, seen.seconds)
            await self.tell(
                m.NoticeSeen(node=self.settings.node, seconds=seen.seconds, source=seen.source)
            )

    def _on_sigterm(self) -> None:
        if self._leaving.done():
            return
        self._notices += 1
        if self._notices > 1 or self._welcome is None:
            self.leave("terminated")
            return
        log.warning("SIGTERM: taken for a notice; a second one ends this agent")
        self.beside(
            self.tell(m.NoticeSeen(node=self.settings.node, seconds=_NOTICE_S, source="SIGTERM"))
        )

    # The controller

    async def tell(self, message: m.Message) -> None:
        """Send to the controller, or keep it until the controller is back."""
        link = self._link
        if link is not None:
            with contextlib.suppress(LinkClosed):
                await link.send(message)
                return
        if isinstance(message, _WORTH_KEEPING):
            self._unsent.append(message)

    async def _serve_controller(self) -> None:
        """Dial, say hello, obey; again when the link breaks, as long as the lease runs."""
        while True:
            try:
                link = await connect(
                    *self.settings.controller,
                    identity=self.settings.identity,
                    decoder=m.decoder(m.ToAgent),
                    deadline_s=_DIAL_S,
                )
                await self._obey(link)
            except LinkClosed as error:
                level = logging.INFO if self._failures else logging.WARNING
                log.log(level, "no controller: %s", error)
            self._link = None
            self._fail_store_requests()
            await asyncio.sleep(_BACKOFF_S[min(self._failures, len(_BACKOFF_S) - 1)])
            self._failures += 1

    async def _obey(self, link: Link) -> None:
        """One connection to the controller, from Hello to its end. Raises LinkClosed."""
        host, port = self._bulk_address
        hello = m.Hello(
            generation=self.tenure.generation,
            node=self.settings.node,
            zone=self.settings.zone,
            machine_type=self.settings.machine_type,
            pid=os.getpid(),
            host=host,
            port=port,
            workers=self.nursery.statuses(),
            holdings=self.keeper.holdings(),
            start=self._start,
            heard=self.tenure.heard_of,
            persisted=self.tenure.persisted,
        )
        try:
            await link.send(hello)
            while True:
                message = await link.receive()
                self._heard_at = time.monotonic()
                if isinstance(message, m.Welcome):
                    await self._welcomed(message, link)
                else:
                    await self._on_controller(message)
        finally:
            link.abort()

    async def _welcomed(self, welcome: m.Welcome, link: Link) -> None:
        self._welcome, self._failures = welcome, 0
        self.tenure.settled(welcome.settings)
        for stepped in self.tenure.stepped_after(welcome.logged):
            await link.send(stepped)
        while self._unsent:  # first what is older than whatever comes now
            await link.send(self._unsent[0])
            self._unsent.popleft()
        self._link = link
        self.beside(self._heartbeats(link, welcome.heartbeat_s))

    async def _on_controller(self, message: Any) -> None:
        match message:
            case m.Beat():
                pass
            case m.Refused():
                self.leave(f"refused: {message.reason}")
            case m.Shutdown():
                self.leave(f"shut down: {message.reason}")
            case m.StoreValues():
                await self._store_answered(message)
            case _:
                await self.tenure.obey(message)
                self._stamp.generation = self.tenure.generation

    async def _heartbeats(self, link: Link, every_s: float) -> None:
        with contextlib.suppress(LinkClosed):
            while self._link is link:
                await link.send(
                    m.Heartbeat(
                        generation=self.tenure.generation,
                        node=self.settings.node,
                        workers=self.nursery.statuses(),
                    )
                )
                await asyncio.sleep(every_s)

    async def _keep_lease(self) -> None:
        """Fence this node when the controller has been silent too long."""
        while True:
            lease_s = self._welcome.lease_s if self._welcome is not None else FIRST_CONTACT_S
            left = self._heard_at + lease_s - time.monotonic()
            if left <= 0:
                self.leave(f"no word from the controller for {lease_s:.1f} s")
                return
            await asyncio.sleep(min(left, 0.5))

    # Workers

    async def _on_worker(self, child: Child, message: Any) -> None:
        match message:
            case m.StoreSet():
                await self.tell(message)
            case m.StoreGet():
                self._request_count += 1
                self._store_requests[self._request_count] = (child, message)
                link = self._link
                if link is None:
                    self._fail_store_requests()
                else:
                    await self.tell(
                        m.StoreGet(
                            generation=message.generation,
                            request=self._request_count,
                            keys=message.keys,
                            seconds=message.seconds,
                        )
                    )
            case _:
                await self.tenure.heard(child, message)

    async def _store_answered(self, answer: m.StoreValues) -> None:
        asked = self._store_requests.pop(answer.request, None)
        if asked is not None:
            child, request = asked
            await send(
                child,
                m.StoreValues(
                    generation=answer.generation, request=request.request, values=answer.values
                ),
            )

    def _fail_store_requests(self) -> None:
        """The controller is gone: nobody will answer."""
        for request in list(self._store_requests):
            self.beside(self._store_answered(m.StoreValues(request=request, values=())))

    async def _on_up(self, child: Child) -> None:
        await self.tell(m.WorkerUp(node=self.settings.node, worker=child.worker, pid=child.pid))

    async def _on_lost(self, child: Child, cause: str, silent_s: float) -> None:
        lost = m.WorkerLost(
            generation=child.generation,
            node=self.settings.node,
            worker=child.worker,
            cause=cause,
            silent_s=silent_s,
        )
        await self.tell(lost)
        await self.tenure.lost(child)

    def _grant(self, worker: WorkerId, generation: int, segment: str) -> None:
        child = self.nursery.children.get(worker)
        if child is not None:
            self.beside(send(child, Grant(generation=generation, segment=segment)))


def _end_in_time(_: object) -> None:
    """Whatever hangs on the way, a machine that is given back must not stay busy."""
    last_resort = threading.Timer(LEAVE_S, os._exit, args=(1,))
    last_resort.daemon = True
    last_resort.start()


async def send(child: Child, message: m.Message) -> None:
    """To a worker; if it is gone, its end is reported elsewhere."""
    with contextlib.suppress(LinkClosed):
        await child.link.send(message)


def parse_arguments(arguments: list[str]) -> tuple[AgentSettings, Path | None]:
    """Settings, and the log file. Exits with usage (2) on anything wrong."""
    parser = argparse.ArgumentParser(prog="python -m sailor.runtime.agent")
    for name in ("node", "zone", "machine-type", "controller", "identity"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--memory-bytes", type=int)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--notices-of", choices=CLOUDS, default="")
    parsed = parser.parse_args(arguments)
    try:
        controller, way = parted(parsed.controller), way_here(parsed.host)
    except (ValueError, OSError) as error:
        parser.error(f"--controller or --host: {error}")
    if parsed.slots < 0:
        parser.error("--slots must be at least 0")
    try:
        identity = load_identity(Path(parsed.identity))
    except OSError as error:
        parser.error(str(error))
    settings = AgentSettings(
        node=parsed.node, zone=parsed.zone, machine_type=parsed.machine_type, slots=parsed.slots,
        controller=controller, identity=identity, host=way.address, environment=way.environment(),
        memory_bytes=parsed.memory_bytes, notices_of=parsed.notices_of,
    )  # fmt: skip
    return settings, parsed.log


def main() -> int:
    """Exit code: 0 told to go, 1 could not serve."""
    settings, log_file = parse_arguments(sys.argv[1:])
    for name, value in settings.environment.items():
        os.environ.setdefault(name, value)  # what the machine's owner has set knows better
    configure_log(stamp := Stamp(who=settings.node), file=log_file)

    async def serve() -> str:
        return await Agent(settings, stamp=stamp).run()

    try:
        reason = asyncio.run(serve())
    except (NurseryFailed, SailorError, OSError) as error:
        log.critical("cannot serve: %s", error)
        return 1
    log.info("left: %s", reason)
    return 0


if __name__ == "__main__":
    sys.exit(main())
