"""Real runs for the migration benchmark: started as a user starts them, moved, killed, restarted.

What a run was is read from its event log alone; memory is read from the kernel.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.core_share import CoreShares
from provision.machines import MachineRecord
from provision.processes import kill_machine
from sailor.observe.events import Event, read_events
from sailor.runtime.requests import Migrate, ask

ROOT = Path(__file__).resolve().parent.parent
NAME = "moved"
_PATIENCE_S = 420.0  # for what a loaded machine does in seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One job: pipelines of two stages over ``nodes`` machines, and how it is run.

    It has no end of its own, and a learning rate that does not depend on one: steps of different
    runs can be compared.
    """

    folder: Path
    nodes: int
    standbys: int = 0
    rehearse: bool = True
    replace: bool = False
    persist_every: int = 0
    core_share: float | None = None  # of a core, for each machine; None: all share all cores

    def command(self) -> list[str]:
        """As a user would type it."""
        return [
            sys.executable, str(ROOT / "run.py"), f"runs_dir={self.folder}", f"run.name={NAME}",
            f"cloud.nodes={self.nodes}", f"cloud.standbys={self.standbys}",
            "cloud.memory_per_gpu=1GiB", "cloud.max_nodes=64", "planner.pipeline_parallel=2",
            f"planner.data_parallel={self.nodes // 2}", "planner.microbatch_size=2",
            f"cloud.replace={str(self.replace).lower()}",
            f"runtime.rehearse={str(self.rehearse).lower()}", "train.steps=100000",
            "train.eval_every=0",
            "optim.schedule=constant", "optim.warmup_steps=5",
            "train.eval_samples=8", f"checkpoint.persist_every={self.persist_every}",
            "runtime.silence=30s", "runtime.halt=45s", "faults=none", "ui=plain",
        ]  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Of one process, bytes. ``peak_bytes``: the largest resident set so far, pages of files that
    it has mapped, code and training data, included. ``own_bytes``: resident now without those."""

    peak_bytes: int
    own_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """Memory of all workers that live, by name, at or after a step."""

    step: int
    memory: Mapping[str, Memory]


class Job:
    """A run under way. Raises RuntimeError, with what it printed, when it ends or hangs."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.folder = setting.folder / NAME
        self.looks: list[Look] = []  # at memory, one each time that its log was looked at
        self.shares = CoreShares(setting.core_share) if setting.core_share else None
        self._printed = setting.folder / "output.txt"
        setting.folder.mkdir(parents=True, exist_ok=True)
        with self._printed.open("ab") as output:
            self._process = subprocess.Popen(
                setting.command(), stdout=output, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, cwd=setting.folder, start_new_session=True,
            )  # fmt: skip

    @property
    def log(self) -> tuple[Event, ...]:
        """Its events so far."""
        path = self.folder / "events.jsonl"
        return read_events(path) if path.exists() else ()

    def until(self, condition: Callable[[tuple[Event, ...]], bool], *, what: str) -> None:
        """Wait for something to show in the log."""
        deadline = time.monotonic() + _PATIENCE_S
        while not condition(log := self.log):
            self.looks.append(_look(log))
            self._confine(log)
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = self._printed.read_text(errors="replace")[-1500:]
                raise RuntimeError(f"{self.folder}: no {what}\n{tail}")
            time.sleep(0.1)

    def _confine(self, log: Sequence[Event]) -> None:
        """Give machines that have just come their share."""
        if self.shares is not None:
            for event in log:
                if event.kind == "node_joined":
                    self.shares.confine(event["pid"])

    def until_step(self, step: int) -> None:
        """Wait for a step to be applied."""
        self.until(lambda log: newest_step(log) >= step, what=f"step {step}")

    def until_calm(self, steps: int) -> None:
        """Wait until the newest generation has done so many steps and its standbys are ready."""
        standbys = self.setting.standbys if self.setting.rehearse else 0

        def calm(log: tuple[Event, ...]) -> bool:
            begun = [i for i, e in enumerate(log) if e.kind == "generation_started"]
            if not begun or sum(e.kind == "step" for e in log[begun[-1] :]) <= steps:
                return False
            warm = {e["node"] for e in log if e.kind == "standby" and e["state"] == "warm"}
            return len(warm) >= standbys

        self.until(calm, what=f"{steps} calm steps")

    def move(self, *nodes: str) -> None:
        """Ask for machines to be moved, at once, and wait for the first step without them."""
        for node in nodes:
            ask(self.folder, Migrate(node=node, why="benchmark"))

        def moved(log: tuple[Event, ...]) -> bool:
            first = next((e.generation for e in log[::-1] if e.kind == "pause"), 0)
            return newest_generation(log) == first and not {*nodes} & {*seated(log)}

        self.until(moved, what=f"move of {', '.join(nodes)}")

    def kill_node(self, node: str) -> None:
        """All of a machine at one instant."""
        (pid,) = [e["pid"] for e in self.log if e.kind == "node_joined" and e["node"] == node]
        os.killpg(pid, signal.SIGKILL)

    def kill(self) -> None:
        """Everything at one instant: the command and its machines."""
        self._process.kill()
        self._process.wait()
        for machine in MachineRecord(self.folder / "machines.jsonl").remaining():
            kill_machine(mark=machine.mark, leader=machine.leader)
        if self.shares is not None:
            self.shares.end()

    def stop(self) -> None:
        """As a user does; it saves and says that it may go on (exit code 75)."""
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = -1
        if code != 75:
            tail = self._printed.read_text(errors="replace")[-1500:]
            raise RuntimeError(f"the run ended with {code}\n{tail}")


@contextlib.contextmanager
def a_job(setting: Setting) -> Iterator[Job]:
    """A run; whatever is left of it at the end of the block is killed."""
    job = Job(setting)
    try:
        yield job
    finally:
        job.kill()


def newest_step(log: Sequence[Event]) -> int:
    """The last step in the log."""
    return max((e["step"] for e in log if e.kind == "step"), default=-1)


def newest_generation(log: Sequence[Event]) -> int:
    """That of the machines that train now."""
    return max((e.generation for e in log if e.kind == "generation_started"), default=0)


def seated(log: Sequence[Event]) -> list[str]:
    """The machines that train now, in rank order."""
    started = [e for e in log if e.kind == "generation_started"]
    return list(started[-1]["nodes"]) if started else []


def _look(log: Sequence[Event]) -> Look:
    """The step first: memory is read after it, so a look never holds less than that step needs."""
    step, memory = newest_step(log), {}
    for event in log:
        if event.kind == "node_joined":
            for entry in event["workers"]:
                with contextlib.suppress(OSError, ValueError):
                    memory[entry["worker"]] = _memory(entry["pid"])
    return Look(step=step, memory=memory)


def _memory(pid: int) -> Memory:
    """Of a process, as the kernel has it. Raises OSError and ValueError when there is none."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    parts = (line.partition(":") for line in lines)
    sizes = {name: rest.strip().removesuffix(" kB") for name, _, rest in parts}
    if "VmHWM" not in sizes:
        raise ValueError(f"{pid} has no memory")
    own = int(sizes["RssAnon"]) + int(sizes["RssShmem"])
    return Memory(peak_bytes=int(sizes["VmHWM"]) * 1024, own_bytes=own * 1024)
