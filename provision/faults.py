"""Carries out a script of faults on a running job: follows the event log, acts, writes it down.

It acts from outside, as bad luck does: with signals and through the provisioner, never by asking
the code that is being tested. Each entry fires once in the life of a run, restarts included. What
a script may say is in ``sailor/faults.py``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from sailor.cluster.provisioner import is_anchor
from sailor.faults import (
    POISON_AT,
    PROGRESS_PAGE,
    PROGRESS_SLOT_BYTES,
    SEALED,
    SEALED_AT,
    SNAPSHOT,
    Fault,
    FaultKind,
    Poison,
)
from sailor.observe.events import Event, EventLog

log = logging.getLogger(__name__)

_SLOW_PERIOD_S = 0.1  # a slowed node is stopped for a part of each such period
_POISONS = {
    FaultKind.nan_step: Poison.step,
    FaultKind.nan_state: Poison.state,
    FaultKind.hang_worker: Poison.hang,
}
_WORKER_KINDS = (FaultKind.kill_worker, FaultKind.stop_worker, *_POISONS)
_NO_TARGET = (FaultKind.join, FaultKind.kill_controller, FaultKind.fill_disk)


class Machines(Protocol):
    """What faults ask of a provisioner, besides what the controller asks of it."""

    def kill(self, node: str) -> None: ...
    def preempt(self, node: str, *, seconds: float) -> None: ...
    def memory_folder(self, node: str) -> Path | None: ...
    def set_cut(self, node: str, *, cut: bool) -> None: ...


class Disk(Protocol):
    """Where durable checkpoints go; provision.full_disk.FullDisk in real life."""

    def why_not(self) -> str: ...
    def fill(self) -> None: ...
    def free(self) -> None: ...


class FaultInjector:
    """Follows ``events`` from ``start`` to ``stop``; needs a running event loop between them.

    ``join`` asks for one more machine. ``past`` is what the log held when this
    process opened it: entries fired then do not fire again. ``send`` delivers signals. ``disk`` is
    None where checkpoints go to a store.
    """

    def __init__(
        self,
        script: Sequence[Fault],
        *,
        events: EventLog,
        machines: Machines,
        join: Callable[[], object],
        seed: int = 0,
        past: Iterable[Event] = (),
        send: Callable[[int, int], None] = os.kill,
        disk: Disk | None = None,
    ) -> None:
        self._events = events
        self._machines = machines
        self._join = join
        self._seed = seed
        self._deliver = send
        self._disk = disk
        self._cut: set[str] = set()  # nodes whose network we took away
        self._open = _by_name(script)
        self._trained_before, self._training = 0.0, False
        self._look_back(past)
        self._nodes: dict[str, dict[str, Any]] = {}  # node -> zone, pid
        self._workers: dict[str, int] = {}  # worker -> pid
        self._ranks: list[str] = []  # workers of the newest generation, in rank order
        self._leaving: set[str] = set()
        self._timers: list[asyncio.TimerHandle] = []
        self._slow: list[asyncio.Task[None]] = []
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        """Listen from now on."""
        self._unsubscribe = self._events.subscribe(self._see)

    async def stop(self) -> None:
        """Let go: no entry fires any more and nobody stays slowed."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        for timer in self._timers:
            timer.cancel()
        for node in list(self._cut):
            self._heal(node)
        if self._disk is not None:
            self._disk.free()
        for task in self._slow:
            task.cancel()
        await asyncio.gather(*self._slow, return_exceptions=True)

    def _look_back(self, past: Iterable[Event]) -> None:
        """What fired, and how long the run trained, in earlier processes."""
        fired, began, last = set(), None, 0.0
        for event in past:
            if event.kind == "fault_injected":
                fired.add(event.get("entry"))
            if event.kind == "run_started":
                self._trained_before += last - began if began is not None else 0.0
                began = None
            if event.kind in ("generation_started", "adopted") and began is None:
                began = event.t
            last = event.t
        self._trained_before += last - began if began is not None else 0.0
        self._open = {name: fault for name, fault in self._open.items() if name not in fired}

    def _set_timers(self) -> None:
        loop = asyncio.get_running_loop()
        for name, fault in self._open.items():
            if fault.at_seconds is not None:
                delay = max(0.0, fault.at_seconds - self._trained_before)
                self._timers.append(loop.call_later(delay, self._fire, name))

    def _see(self, event: Event) -> None:
        node = event.get("node")
        match event.kind:
            case "node_joined":
                self._nodes[node] = {"zone": event.get("zone"), "pid": event.get("pid")}
                for worker in event.get("workers", ()):
                    self._workers[worker["worker"]] = worker["pid"]
            case "worker_up":
                self._workers[event["worker"]] = event["pid"]
            case "worker_lost":
                self._workers.pop(event["worker"], None)
            case "node_lost" | "fenced" | "node_released":
                self._nodes.pop(node, None)
                self._leaving.discard(node)
                for worker in [w for w in self._workers if _node_of(w) == node]:
                    del self._workers[worker]
            case "notice":
                self._leaving.add(node)
            case "generation_started" | "adopted":
                ranks = sorted(event.get("ranks", ()), key=lambda entry: entry["rank"])
                self._ranks = [entry["worker"] for entry in ranks]
                if not self._training:
                    self._training = True
                    self._set_timers()
            case "step":
                for name, fault in list(self._open.items()):
                    if fault.at_step is not None and event["step"] >= fault.at_step:
                        self._fire(name)

    def _fire(self, entry: str) -> None:
        """Do it, once. An entry whose target does not exist is written down as skipped."""
        fault = self._open.pop(entry)
        kind = fault.kind.value
        targets = self._targets(fault, chance=random.Random(f"{self._seed}:{entry}"))
        why = self._cannot(fault)
        if why or not targets:
            why, targets = why or f"nobody is there who fits {fault.target or 'it'}", []
            log.warning("fault %s at %s skipped: %s", kind, fault.at, why)
            self._events.write(
                "fault_injected", fault=kind, target=fault.target, at=fault.at, entry=entry,
                skipped=why,
            )  # fmt: skip
        for target in targets:
            # Written first, so that the log has causes before effects, and for kill_controller.
            self._events.write(
                "fault_injected", fault=kind, target=target, at=fault.at, entry=entry
            )
            try:
                self._act(fault, target)
            except (OSError, KeyError) as error:
                log.warning("fault %s on %s failed: %s", kind, target, error)

    def _cannot(self, fault: Fault) -> str:
        """Why an entry will not be carried out whoever it is for; "" when it may."""
        if fault.kind is not FaultKind.fill_disk:
            return ""
        return "checkpoints go to a store" if self._disk is None else self._disk.why_not()

    def _act(self, fault: Fault, target: str) -> None:
        """One fault on one target. Raises OSError or KeyError when the target is gone by now."""
        match fault.kind:
            case FaultKind.kill_worker:
                self._send(self._workers[target], signal.SIGKILL)
            case FaultKind.stop_worker:
                self._stop_for(self._workers[target], fault.lasts_seconds)
            case FaultKind.kill_node:
                self._machines.kill(target)
            case FaultKind.preempt:
                self._machines.preempt(target, seconds=fault.notice_seconds)
            case FaultKind.kill_agent:
                self._send(self._nodes[target]["pid"], signal.SIGKILL)
            case FaultKind.slow_node:
                self._slow.append(asyncio.ensure_future(self._slow_down(target, fault)))
            case FaultKind.corrupt_snapshot:
                _corrupt(self._machines.memory_folder(target))
            case FaultKind.nan_step | FaultKind.nan_state | FaultKind.hang_worker:
                folder = self._machines.memory_folder(_node_of(target))
                _poison(folder, target, _POISONS[fault.kind])
            case FaultKind.cut_node:
                self._machines.set_cut(target, cut=True)
                self._cut.add(target)
                self._later(fault.lasts_seconds, self._heal, target)
            case FaultKind.fill_disk if self._disk is not None:
                self._disk.fill()
                self._later(fault.lasts_seconds, self._disk.free)
            case FaultKind.join:
                self._join()
            case FaultKind.kill_controller:
                self._send(os.getpid(), signal.SIGKILL)

    def _targets(self, fault: Fault, *, chance: random.Random) -> list[str]:
        """Whom an entry hits now: nodes, or workers by full name; [""] where none is needed."""
        if fault.kind in _NO_TARGET:
            return [""]
        seats = [worker for worker in self._ranks if worker in self._workers]
        wanted = fault.target or ""
        if fault.kind in _WORKER_KINDS:
            if "/" in wanted:
                return [w for w in self._workers if w == wanted or w.rpartition(".")[0] == wanted]
            if wanted == "leader":
                return seats[:1]
            if wanted == "last":
                return seats[-1:]
        nodes = self._target_nodes(wanted, seats, chance)
        if fault.kind not in _WORKER_KINDS:
            return nodes
        workers = [sorted(w for w in self._workers if _node_of(w) == node) for node in nodes]
        return [chance.choice(there) for there in workers if there]

    def _target_nodes(self, wanted: str, seats: list[str], chance: random.Random) -> list[str]:
        nodes = sorted(self._nodes)
        if wanted.startswith("zone:"):
            zone = wanted.removeprefix("zone:")
            return [node for node in nodes if self._nodes[node]["zone"] == zone]
        match wanted:
            case "leader":
                return [_node_of(worker) for worker in seats[:1]]
            case "last":
                return [_node_of(worker) for worker in seats[-1:]]
            case "newest":
                return [node for node in self._nodes if not is_anchor(node)][-1:]
            case "":
                staying = sorted(({_node_of(w) for w in seats} & set(nodes)) - self._leaving)
                return [chance.choice(staying)] if staying else []
        return [node for node in nodes if node == wanted]

    def _send(self, pid: int, number: int) -> None:
        if pid <= 1:  # 0, -1 and 1 mean a group, everybody and init
            raise ProcessLookupError(f"{pid} is not the pid of a worker")
        self._deliver(pid, number)

    def _later(self, seconds: float | None, act: Callable[..., object], *of: object) -> None:
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._timers.append(loop.call_later(seconds, act, *of))

    def _heal(self, node: str) -> None:
        self._cut.discard(node)
        try:
            self._machines.set_cut(node, cut=False)
        except (OSError, KeyError) as error:  # given up and gone meanwhile
            log.info("the network of %s was not healed: %s", node, error)

    def _stop_for(self, pid: int, seconds: float | None) -> None:
        """SIGSTOP; with an end, SIGCONT after it."""
        self._send(pid, signal.SIGSTOP)
        self._later(seconds, self._continue, pid)

    def _continue(self, pid: int) -> None:
        if pid in self._workers.values():  # else it ended, and its pid may be another's
            self._send(pid, signal.SIGCONT)

    async def _slow_down(self, node: str, fault: Fault) -> None:
        """Let a node's workers run for 1/factor of the time, for a while or for good."""
        loop = asyncio.get_running_loop()
        end = None if fault.lasts_seconds is None else loop.time() + fault.lasts_seconds
        stopped_s = _SLOW_PERIOD_S * (1.0 - 1.0 / fault.factor)
        while end is None or loop.time() < end:
            pids = [pid for worker, pid in self._workers.items() if _node_of(worker) == node]
            try:
                for pid in pids:
                    self._send(pid, signal.SIGSTOP)
                await asyncio.sleep(stopped_s)
            except ProcessLookupError:
                return
            finally:
                for pid in pids:
                    self._continue(pid)
            await asyncio.sleep(_SLOW_PERIOD_S - stopped_s)


def _node_of(worker: str) -> str:
    """The node in a worker's name, node/slot.incarnation."""
    return worker.partition("/")[0]


def _by_name(script: Sequence[Fault]) -> dict[str, Fault]:
    """Entries by the name they have in the log, where a resumed run finds those that happened."""
    seen: Counter[str] = Counter()
    named = {}
    for fault in script:
        text = f"{fault.kind.value} {fault.target or 'any'} at {fault.at}"
        seen[text] += 1
        named[f"{text} #{seen[text]}"] = fault
    return named


def _poison(folder: Path | None, worker: str, poison: Poison) -> None:
    """Put a NaN, or a hang, in a worker's way. Raises OSError."""
    if folder is None:
        raise FileNotFoundError(f"{worker} has no memory here")
    slot = int(worker.partition("/")[2].partition(".")[0])
    with (folder / PROGRESS_PAGE).open("r+b") as page:
        page.seek(slot * PROGRESS_SLOT_BYTES + POISON_AT)
        page.write(poison.to_bytes(8, "little"))


def _corrupt(folder: Path | None) -> None:
    """Flip one byte in each 64th part of every snapshot that a node holds: of one that is being
    written nobody has said yet what its bytes should be. Raises OSError."""
    if folder is None or not folder.is_dir():
        raise FileNotFoundError(f"no snapshot memory at {folder}")
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        with path.open("r+b") as file:
            head = file.read(SEALED_AT + 1)
            if not head.startswith(SNAPSHOT) or head[SEALED_AT:] != SEALED:
                continue
            size = path.stat().st_size
            for part in range(64):
                at = size * part // 64 + size // 128
                file.seek(at)
                byte = file.read(1)
                if byte:
                    file.seek(at)
                    file.write(bytes([byte[0] ^ 0xFF]))
