"""``cloud=local``: machines are process groups on this computer, and can be preempted on request.

Each machine is an agent in a session of its own. Killing its group takes agent, zygote and workers
at one instant, and its snapshot memory goes with it, as with a machine that a cloud takes away.
Knows nothing of training: it starts the agent's command and watches processes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from provision.machines import Machine, MachineRecord
from provision.namespaces import Namespaces, NoNamespaces
from provision.processes import MARK, identify, kill_machine, living_members
from sailor.addresses import joined, numeric
from sailor.cluster.provisioner import News, NodeRequest, Notice, Refused, Released
from sailor.errors import CloudError

log = logging.getLogger(__name__)

ZONES = ("local-a", "local-b")
AGENT = (sys.executable, "-m", "sailor.runtime.agent")
CODE = Path(__file__).resolve().parents[1]  # agents run the code that their run.py runs
RECORD = "machines.jsonl"

_POLL_S = 0.02
_KILL_WAIT_S = 10.0  # SIGKILL is prompt unless a process hangs in the kernel


@dataclass(kw_only=True, slots=True)
class _Running:
    """A machine of this process. ``timer`` boots it or takes it away later."""

    machine: Machine
    process: subprocess.Popen[bytes] | None = None
    timers: list[asyncio.TimerHandle] = field(default_factory=list)
    watch: int | None = None  # a pidfd of its agent, readable when that has ended
    released: asyncio.Task[Released] | None = None


class LocalProvisioner:
    """Implements sailor.cluster.provisioner.Provisioner, and preempt and kill for fault scripts.

    ``slots`` names the machine types and how many workers each holds. ``controller`` is the address
    agents dial, ``identity`` the folder with the run's keys. ``boot_s`` delays every start, as a
    cloud would. ``command`` is the agent's; its arguments are added here. Needs a running event
    loop. One instance per run and process. With a ``network``, which is open, every machine has an
    address of its own there.
    """

    def __init__(
        self,
        *,
        run: str,
        folder: Path,
        controller: tuple[str, int],
        identity: Path,
        slots: Mapping[str, int],
        zones: Sequence[str] = ZONES,
        memory_bytes: int | None = None,
        boot_s: float = 0.0,
        grace_s: float = 5.0,
        command: Sequence[str] = AGENT,
        memory_root: Path = Path("/dev/shm"),
        network: Namespaces | None = None,
    ) -> None:
        self._network = network
        self.zones = tuple(zones)
        self._run = run
        self._folder = folder
        self._controller = controller
        dialled = numeric(controller[0])  # machines here talk as the controller listens
        self._loopback = "::1" if dialled is not None and dialled.version == 6 else "127.0.0.1"
        self._identity = identity
        self._slots = dict(slots)
        self._memory_bytes = memory_bytes
        self._boot_s = boot_s
        self._grace_s = grace_s
        self._command = tuple(command)
        self._memory_root = memory_root
        self._record = MachineRecord(folder / RECORD)
        self._nodes: dict[str, _Running] = {}
        self._closed = False
        self._news: asyncio.Queue[News | None] = asyncio.Queue()

    def log_path(self, node: str) -> Path:
        """Where a machine's agent, and all it starts, write what they print."""
        return self._folder / "logs" / f"{node}.log"

    def memory_folder(self, node: str) -> Path | None:
        """Where a machine's agent keeps its snapshots; None before it has booted."""
        running = self._nodes.get(node)
        if running is None:
            return None
        return _memory(self._memory_root, self._run, running.machine)

    async def request(self, *requests: NodeRequest) -> None:
        """Start machines after their boot time. A second request for a node does nothing.

        Raises CloudError for a zone or machine type this computer does not offer, and when the
        process cannot be started at once.
        """
        for request in requests:
            if request.node not in self._nodes:
                self._order(request)

    def _order(self, request: NodeRequest) -> None:
        if self._closed:
            raise CloudError(f"{request.node} comes too late: the run ends", code="E405")
        if request.zone not in self.zones:
            raise CloudError(
                f"there is no zone {request.zone} here",
                code="E404",
                why=f"cloud=local offers {', '.join(self.zones)}",
                fix="cloud.zones=[" + ",".join(self.zones) + "]",
            )
        if request.machine_type not in self._slots:
            raise CloudError(
                f"there is no machine type {request.machine_type} here",
                code="E404",
                why=f"cloud=local offers {', '.join(self._slots)}",
            )
        mark = f"{self._run}/{request.node}/{secrets.token_hex(8)}"
        running = _Running(machine=Machine(node=request.node, mark=mark))
        self._nodes[request.node] = running
        self._record.wish(running.machine)
        if self._boot_s <= 0:
            try:
                self._boot(running, request)
            except (OSError, NoNamespaces) as error:
                raise self._not_started(running, error) from error
        else:
            self._later(running, self._boot_s, self._boot_or_tell, running, request)

    def _not_started(self, running: _Running, error: Exception) -> CloudError:
        node = running.machine.node
        del self._nodes[node]
        self._record.gone(running.machine, proof="never started")
        return CloudError(
            f"{node} cannot be started on this computer",
            code="E405",
            why=str(error),
            where=self._command[0],
        )

    def adopt(self, *nodes: str) -> tuple[str, ...]:
        """Take over machines of an earlier process whose agents live still."""
        living = []
        for machine in self._record.remaining():
            leader = machine.leader
            if machine.node not in nodes or machine.node in self._nodes or leader is None:
                continue
            try:
                watch = os.pidfd_open(leader.pid)
            except OSError:
                continue
            if not leader.alive:  # asked once the descriptor is held: the pid was not used again
                os.close(watch)
                continue
            running = _Running(machine=machine, watch=watch)
            self._nodes[machine.node] = running
            asyncio.get_running_loop().add_reader(watch, self._ended_unasked, running)
            living.append(machine.node)
        return tuple(living)

    def preempt(self, node: str, *, seconds: float) -> None:
        """Say now that a machine goes, and take it away after ``seconds``. Raises KeyError."""
        running = self._nodes[node]
        self._news.put_nowait(Notice(node=node, seconds=seconds, source="local"))
        self._later(running, seconds, self.kill, node)

    def kill(self, node: str) -> None:
        """Take a machine away this instant, without a word: SIGKILL to all of it, its memory gone.

        Raises KeyError for a node never asked for; one that is gone stays gone.
        """
        running = self._nodes[node]
        self._cancel_timers(running)
        self._unwatch(running)
        kill_machine(mark=running.machine.mark, leader=running.machine.leader)
        if running.released is None:
            running.released = asyncio.create_task(self._bury_and_tell(running))

    def set_cut(self, node: str, *, cut: bool) -> None:
        """Take a machine's network away, without a word to anybody, or give it back.

        Raises OSError where machines have no network of their own, or it is gone.
        """
        if self._network is None:
            raise OSError("machines share one network")
        try:
            self._network.set_cut(node, cut=cut)
        except NoNamespaces as error:
            raise OSError(str(error)) from error

    async def release(self, node: str) -> Released:
        """End a machine, gently if it still runs, and prove it: no process, no memory left."""
        running = self._nodes.get(node)
        if running is None:
            return Released(node=node, released=True, proof="never started here")
        if running.released is None:
            running.released = asyncio.create_task(self._end(running))
        return await asyncio.shield(running.released)

    async def notices(self) -> AsyncIterator[News]:
        """Notices of ``preempt`` and machines that do not boot, until ``close``. One listener."""
        while (news := await self._news.get()) is not None:
            yield news

    async def close(self) -> tuple[Released, ...]:
        """Release every machine, those that an earlier process of the run left behind as well."""
        self._closed = True
        own = await asyncio.gather(*(self.release(node) for node in self._nodes))
        self._news.put_nowait(None)
        left = await end_leftovers(self._folder, run=self._run, memory_root=self._memory_root)
        return (*own, *left)

    def _boot(self, running: _Running, request: NodeRequest) -> None:
        """Start the agent. Raises OSError, NoNamespaces."""
        log_path = self.log_path(request.node)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        host, port = self._controller
        arguments = {
            "node": request.node,
            "zone": request.zone,
            "machine-type": request.machine_type,
            "slots": str(self._slots[request.machine_type]),
            "controller": joined(host, port),
            "identity": str(self._identity),
            "host": self._loopback if self._network is None else self._network.add(request.node),
            "log": str(log_path),
        }
        if self._memory_bytes is not None:
            arguments["memory-bytes"] = str(self._memory_bytes)
        enter = () if self._network is None else self._network.enter(request.node)
        with log_path.open("ab") as output:
            running.process = subprocess.Popen(
                [*enter, *self._command, *(x for k, v in arguments.items() for x in (f"--{k}", v))],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, MARK: running.machine.mark, "PYTHONPATH": _with_our_code()},
                start_new_session=True,
            )
        # Never reaped before its release: until then its pid cannot become another process's.
        running.machine = replace(running.machine, leader=identify(running.process.pid))
        self._record.started(running.machine)
        running.watch = os.pidfd_open(running.process.pid)
        asyncio.get_running_loop().add_reader(running.watch, self._ended_unasked, running)

    def _ended_unasked(self, running: _Running) -> None:
        """The agent ended though nobody gave the machine back: whoever waits for it must know."""
        self._unwatch(running)
        node = running.machine.node
        source = f"its agent ended, see {self.log_path(node)}"
        self._news.put_nowait(Notice(node=node, seconds=0.0, source=source))

    def _unwatch(self, running: _Running) -> None:
        if running.watch is not None:
            asyncio.get_running_loop().remove_reader(running.watch)
            os.close(running.watch)
            running.watch = None

    def _boot_or_tell(self, running: _Running, request: NodeRequest) -> None:
        try:
            self._boot(running, request)
        except (OSError, NoNamespaces) as error:  # the order was placed: its end comes as news
            refusal = self._not_started(running, error)
            self._news.put_nowait(Refused(node=request.node, error=refusal))

    async def _end(self, running: _Running) -> Released:
        """Let the agent leave, ask it to, insist, and then kill what is left of the machine.

        The controller has told it to go, as a rule, so a fifth of the grace time passes first. An
        agent takes one SIGTERM for a notice and the second for the end.
        """
        self._cancel_timers(running)
        self._unwatch(running)
        leader = running.machine.leader
        if leader is None:
            return self._gone(running.machine, "its boot was cancelled")
        how = "ended by itself"
        for share, ask in ((0.2, False), (0.2, True), (0.6, True)):
            if ask and leader.alive:
                how = "ended when asked"
                with suppress(ProcessLookupError):
                    os.kill(leader.pid, signal.SIGTERM)
            if await _until(lambda: not leader.alive, seconds=share * self._grace_s):
                break
        else:
            how = f"killed after {self._grace_s:g} s of grace"
        return await self._bury(running, how=how)

    async def _bury(self, running: _Running, *, how: str) -> Released:
        """Make sure that nothing of a machine is left, and write that down."""
        released = await _finish_off(running.machine, run=self._run, memory_root=self._memory_root)
        if running.process is not None:
            running.process.poll()  # reap it; from here on its pid may be anyone's
        if not released.released:
            return released
        return self._gone(running.machine, f"{how}; {released.proof}")

    async def _bury_and_tell(self, running: _Running) -> Released:
        released = await self._bury(running, how="killed")
        self._news.put_nowait(released)
        return released

    def _gone(self, machine: Machine, proof: str) -> Released:
        if self._network is not None:
            self._network.remove(machine.node)
        self._record.gone(machine, proof=proof)
        return Released(node=machine.node, released=True, proof=proof)

    def _later(
        self, running: _Running, seconds: float, act: Callable[..., object], *arguments: object
    ) -> None:
        loop = asyncio.get_running_loop()
        running.timers.append(loop.call_later(seconds, act, *arguments))

    def _cancel_timers(self, running: _Running) -> None:
        for timer in running.timers:
            timer.cancel()
        running.timers.clear()


async def end_leftovers(
    folder: Path,
    *,
    run: str,
    besides: Collection[str] = (),
    memory_root: Path = Path("/dev/shm"),
) -> tuple[Released, ...]:
    """End machines that an earlier process of this run started and did not live to release,
    ``besides`` those that were taken over.

    Found by the record in the run folder: by pid and start tick, and by the mark in their
    environment, so that a pid that belongs to another process by now is left alone.
    """
    record = MachineRecord(folder / RECORD)
    results = []
    for machine in record.remaining():
        if machine.node in besides:
            continue
        found = living_members(mark=machine.mark, leader=machine.leader)
        released = await _finish_off(machine, run=run, memory_root=memory_root)
        if released.released:
            how = f"{len(found)} processes of an earlier start killed" if found else "found gone"
            released = replace(released, proof=f"{how}; {released.proof}")
            record.gone(machine, proof=released.proof)
        results.append(released)
    return tuple(results)


def zone_of(index: int, *, zones: Sequence[str] = ZONES) -> str:
    """The zone of the index-th machine, so that machines are spread evenly."""
    return zones[index % len(zones)]


async def _finish_off(machine: Machine, *, run: str, memory_root: Path) -> Released:
    """Kill whatever lives of a machine, remove its snapshot memory, and say what was found."""

    def empty() -> bool:
        if not living_members(mark=machine.mark, leader=machine.leader):
            return True
        kill_machine(mark=machine.mark, leader=machine.leader)
        return False

    def answer(released: bool, proof: str) -> Released:
        return Released(node=machine.node, released=released, proof=proof)

    if not await _until(empty, seconds=_KILL_WAIT_S):
        pids = living_members(mark=machine.mark, leader=machine.leader)
        still = ", ".join(map(str, pids))
        return answer(False, f"pids {still} still live {_KILL_WAIT_S:g} s after SIGKILL")
    left = _memories(memory_root, run, machine)
    for memory in left:
        shutil.rmtree(memory, ignore_errors=True)
        if memory.exists():
            return answer(False, f"{memory} could not be removed")
    proof = "no process carries its mark"
    if machine.leader is not None:
        proof = f"pid {machine.leader.pid} is gone, its group is empty, {proof}"
    return answer(True, "".join([proof, *(f", {memory} is gone" for memory in left)]))


async def _until(condition: Callable[[], bool], *, seconds: float) -> bool:
    """Whether a condition came true before its time was up."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not condition():
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(_POLL_S)
    return True


def _with_our_code() -> str:
    """PYTHONPATH for an agent: it must find this project wherever run.py was called from."""
    return os.pathsep.join(filter(None, (str(CODE), os.environ.get("PYTHONPATH"))))


def _memory(root: Path, run: str, machine: Machine) -> Path | None:
    """The folder of an agent's snapshot memory, named by run, node and the agent's pid."""
    if machine.leader is None:
        return None
    return root / f"sailor-{run}-{machine.node}-{machine.leader.pid}"


def _memories(root: Path, run: str, machine: Machine) -> list[Path]:
    """The folders to remove. Of a machine whose start was written down and its pid was not: all
    that bear its name."""
    if (memory := _memory(root, run, machine)) is not None:
        return [memory]
    name = re.compile(f"{re.escape(f'sailor-{run}-{machine.node}')}-[0-9]+")
    return sorted(folder for folder in root.glob("sailor-*") if name.fullmatch(folder.name))
