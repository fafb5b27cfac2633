"""A node's worker processes: forked by the zygote, heard, watched, and started again.

The end of a worker's socket tells of its death within milliseconds, the zygote says how it died,
and the watchdog ends those that are stopped. A slot whose worker is gone gets the next incarnation
at once. What workers say is handed on; what it means is the agent's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from sailor.parallel.layout import WorkerId
from sailor.runtime.messages import WorkerStatus, decoder, encode
from sailor.runtime.process import describe_exit
from sailor.runtime.transport import Link, LinkClosed
from sailor.runtime.watchdog import (
    LOOK_S,
    STOPPED_LOOKS,
    TELL,
    Look,
    Pace,
    ProgressPage,
    Starvation,
    Watch,
    is_hung,
    is_stopped,
    kernel_state,
    peak_bytes,
    starved_seconds,
    stopped_looks,
)
from sailor.runtime.worker_link import (
    ZYGOTE_PACKET_BYTES,
    Exited,
    Fork,
    Forked,
    FromWorker,
    FromZygote,
    Imported,
    Ready,
)

log = logging.getLogger(__name__)

_HUNG = "its training thread hangs"
IMPORT_S = 120.0  # a cold import on a machine that is busy booting
READY_S = 30.0
_EXIT_S = 1.0  # how long to wait for the zygote to say how a worker died
_QUICK_DEATH_S = 2.0  # a worker that lived shorter than this is not started again at once
_LONGEST_PAUSE_S = 5.0
_TELLING_S = 0.1  # for a hung worker to say where it hangs
_MAX_ZYGOTE_FAILURES = 3

# One thread a worker: several workers share the cores, and sums must not depend on the count.
# The malloc settings keep freed memory, whose pages were paid for, in the process, and for all its
# threads: a role is warmed up in one and trains in another. 32 MiB is the largest mmap threshold
# glibc takes.
_ZYGOTE_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_ARENA_MAX": "1",
}


class NurseryFailed(Exception):
    """No worker can be started on this node."""


@dataclass(kw_only=True, eq=False)
class Child:
    """One living worker. ``generation`` is the one it sits in, 0 before the first."""

    worker: WorkerId
    pid: int
    link: Link
    started_at: float
    base_bytes: int = 0  # of its own memory when it said that it is ready
    generation: int = 0
    cause: str = ""  # why we ended it, if we did
    states: deque[str] = field(default_factory=lambda: deque(maxlen=STOPPED_LOOKS))
    pace: Pace = field(default_factory=Pace)
    tickless: Starvation = field(default_factory=Starvation)
    moveless: Starvation = field(default_factory=Starvation)


class Nursery:
    """The zygote and K workers. ``start`` first; ``end`` leaves no process."""

    def __init__(
        self,
        *,
        node: str,
        slots: int,
        page: ProgressPage,
        on_message: Callable[[Child, Any], Awaitable[None]],
        on_up: Callable[[Child], Awaitable[None]],
        on_lost: Callable[[Child, str, float], Awaitable[None]],
    ) -> None:
        self._node = node
        self._slots = slots
        self._page = page
        self._on_message = on_message
        self._on_up = on_up
        self._on_lost = on_lost  # (child, cause, seconds silent)
        self._decoder = decoder(FromWorker)
        self._zygote_decoder = decoder(FromZygote)
        self._zygote: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._imported = asyncio.Event()
        self._forked: dict[WorkerId, asyncio.Future[int]] = {}
        self._exits: dict[int, asyncio.Future[int]] = {}
        self._incarnations = [0] * slots
        self._quick_deaths = [0] * slots
        self._zygote_failures = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = False
        self.children: dict[WorkerId, Child] = {}
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Zygote, then all workers. Raises NurseryFailed."""
        self._start_zygote()
        await asyncio.gather(*(self._start_worker(slot) for slot in range(self._slots)))
        self._spawn(self._watch())

    async def end(self) -> None:
        """Kill everything that was started."""
        self._ending = True
        for task in self._tasks:
            task.cancel()
        for child in self.children.values():
            child.link.abort()
            self._kill(child)
        if self._zygote is not None:
            self._close_socket()
            self._zygote.kill()  # what is left dies with its parent
            await asyncio.to_thread(self._zygote.wait)

    def statuses(self) -> tuple[WorkerStatus, ...]:
        """Every living worker as its progress page has it."""
        found = []
        for worker, child in sorted(self.children.items()):
            progress = self._page.read(worker.slot)
            found.append(
                WorkerStatus(
                    worker=worker,
                    pid=child.pid,
                    step=progress.step,
                    doing=progress.doing.name,
                    peak_bytes=progress.device_bytes or peak_bytes(child.pid),
                    base_bytes=0 if progress.device_bytes else child.base_bytes,
                    generation=child.generation,
                    busy_s=progress.busy_s,
                )
            )
        return tuple(found)

    # Zygote

    def _start_zygote(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        command = [sys.executable, "-m", "sailor.runtime.zygote", "--node", self._node]
        command += ["--fd", str(theirs.fileno()), "--parent", str(os.getpid())]
        self._zygote = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, **_ZYGOTE_ENVIRONMENT},
        )
        theirs.close()
        self._socket = ours
        asyncio.get_running_loop().add_reader(ours.fileno(), self._hear_zygote)

    def _hear_zygote(self) -> None:
        assert self._socket is not None
        try:
            packet = self._socket.recv(ZYGOTE_PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._zygote_died()
            return
        match self._zygote_decoder.decode(packet):
            case Imported():
                self._zygote_failures = 0
                self._imported.set()
            case Forked(worker=worker, pid=pid):
                self._exits[pid] = asyncio.get_running_loop().create_future()
                if (waiting := self._forked.pop(worker, None)) and not waiting.done():
                    waiting.set_result(pid)
            case Exited(pid=pid, status=status):
                if (future := self._exits.get(pid)) is not None and not future.done():
                    future.set_result(status)

    def _zygote_died(self) -> None:
        """Its workers died with it. Start another; give up when it does not stay up."""
        self._close_socket()
        self._imported.clear()
        for waiting in self._forked.values():
            waiting.cancel()
        self._forked.clear()
        if self._ending:
            return
        self._zygote_failures += 1
        assert self._zygote is not None
        log.error("the zygote ended: %s", describe_exit(self._zygote.wait()))
        if self._zygote_failures >= _MAX_ZYGOTE_FAILURES:
            if not self.failed.done():
                self.failed.set_exception(
                    NurseryFailed(f"the zygote died {self._zygote_failures} times in a row")
                )
            return
        self._start_zygote()

    def _close_socket(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    # Workers

    async def _start_worker(self, slot: int) -> Child:
        """Fork the next incarnation of a slot and hear it until its end. Raises NurseryFailed."""
        while True:
            try:
                child = await self._fork(slot)
                break
            except (TimeoutError, LinkClosed, OSError, asyncio.CancelledError) as error:
                if self._ending or (task := asyncio.current_task()) and task.cancelling():
                    raise
                if self.failed.done():
                    raise NurseryFailed("the zygote does not start") from error
                log.warning("worker in slot %d did not start: %r", slot, error)
                await asyncio.sleep(0.2)
        self.children[child.worker] = child
        self._spawn(self._hear(child))
        return child

    async def _fork(self, slot: int) -> Child:
        async with asyncio.timeout(IMPORT_S):
            await _first(self._imported.wait(), self.failed)
        if self._socket is None:
            raise LinkClosed("the zygote has just died")
        self._incarnations[slot] += 1
        worker = WorkerId(node=self._node, slot=slot, incarnation=self._incarnations[slot])
        self._page.reset(slot)
        ours, theirs = socket.socketpair()
        pid: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._forked[worker] = pid
        request = encode(Fork(worker=worker, progress=str(self._page.path)))
        with theirs:
            socket.send_fds(self._socket, [request], [theirs.fileno()])
        reader, writer = await asyncio.open_connection(sock=ours)
        link = Link(reader, writer, self._decoder)
        try:
            async with asyncio.timeout(READY_S):
                number = await pid
                ready = await link.receive()
            if not isinstance(ready, Ready):
                raise LinkClosed(f"{worker} began with {type(ready).__name__}")
        except BaseException:
            link.abort()
            raise
        return Child(
            worker=worker, pid=number, link=link, started_at=time.monotonic(),
            base_bytes=peak_bytes(number),
        )  # fmt: skip

    async def _hear(self, child: Child) -> None:
        """Hand on what a worker says until its socket ends; then say so and replace it."""
        with contextlib.suppress(LinkClosed):
            while True:
                await self._on_message(child, await child.link.receive())
        if self._ending:
            return
        del self.children[child.worker]
        progress = self._page.read(child.worker.slot)
        heard_at = progress.ticked_at
        if child.cause.startswith(_HUNG):
            heard_at = max(progress.moved_at, progress.waited_at)
        silent_s = max(0.0, time.monotonic() - heard_at)
        self._kill(child)  # a worker that closed its socket is of no use
        cause = child.cause or await self._cause_of_death(child)
        log.warning("worker %s (pid %d) lost: %s", child.worker, child.pid, cause)
        await self._on_lost(child, cause, silent_s)
        await self._replace(child)

    async def _cause_of_death(self, child: Child) -> str:
        exited = self._exits.get(child.pid)
        if exited is None:
            return "ended with the zygote"
        try:
            async with asyncio.timeout(_EXIT_S):
                return describe_exit(await asyncio.shield(exited))
        except TimeoutError:
            return "closed its connection"
        finally:
            self._exits.pop(child.pid, None)

    async def _replace(self, child: Child) -> None:
        slot = child.worker.slot
        if time.monotonic() - child.started_at < _QUICK_DEATH_S:
            self._quick_deaths[slot] += 1
            pause = 0.1 * 2 ** self._quick_deaths[slot] if self._quick_deaths[slot] > 1 else 0.0
            await asyncio.sleep(min(pause, _LONGEST_PAUSE_S))
        else:
            self._quick_deaths[slot] = 0
        await self._on_up(await self._start_worker(slot))

    def _kill(self, child: Child) -> None:
        exited = self._exits.get(child.pid)
        if exited is None or not exited.done():  # else the pid may be somebody else's by now
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)

    # Watchdog

    async def _have_told(self, child: Child) -> None:
        """Have a worker write into the log where its threads are."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, TELL)
            await asyncio.sleep(_TELLING_S)

    async def _watch(self) -> None:
        watch = Watch(time.monotonic())
        while True:
            await asyncio.sleep(LOOK_S)
            now = time.monotonic()
            watch.look(now)
            for child in list(self.children.values()):
                child.states.append(kernel_state(child.pid))
                progress = self._page.read(child.worker.slot)
                delay_s = starved_seconds(child.pid)
                look = Look(
                    ticked_at=progress.ticked_at,
                    stopped_looks=stopped_looks(child.states),
                    starved_s=child.tickless.since(progress.ticked_at, delay_s=delay_s),
                )
                if not child.cause and is_stopped(look, now=now, watched_since=watch.since):
                    child.cause = "stopped"
                    self._kill(child)
                moved_at = max(progress.moved_at, progress.waited_at)
                starved_s = child.moveless.since(moved_at, delay_s=delay_s)
                child.pace.look(progress, generation=child.generation)
                steps = child.pace.step_seconds
                if not child.cause and is_hung(
                    progress, steps, now=now, watched_since=watch.since, starved_s=starved_s
                ):
                    child.cause = f"{_HUNG}: neither steps nor waits for a peer"
                    await self._have_told(child)
                    self._kill(child)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("a worker could not be served", exc_info=error)
        if not self.failed.done():
            self.failed.set_exception(NurseryFailed(repr(error)))


async def _first(waiting: Coroutine[Any, Any, Any], failed: asyncio.Future[None]) -> None:
    """Wait for something unless all is lost before. Raises NurseryFailed."""
    task = asyncio.ensure_future(waiting)
    try:
        await asyncio.wait({task, failed}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
    if failed.done():
        failed.result()
