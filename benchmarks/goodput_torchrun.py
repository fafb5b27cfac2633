"""Elastic torchrun with torch's distributed checkpoints on a trace of machines that come and go.

As good as settings make it: one agent a machine (``--nnodes=1:4``), the rendezvous' store on a
machine of its own that is never taken, keep-alives by the second, two seconds of last call instead
of thirty, its store not shared between rounds (which hangs in torch 2.13), the interval between
saves by Young's formula from what a save takes and how often the trace takes machines. A machine
that the trace gives is there at once; ours has to ask and boot.
"""

from __future__ import annotations

import math
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.recovery_run import ROOT
from benchmarks.recovery_torchrun import kill_tree
from provision.trace import Trace

FIRST_EVERY = 10
PATIENCE_S = 120.0
_MODULE = "benchmarks.goodput_torchrun_worker"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One execution of a step, on rank 0."""

    at: float
    step: int
    pid: int
    world: int
    seconds: float
    save_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """What was kept after so many seconds of the trace."""

    steps: int
    good_s: float
    wall_s: float
    executions: int
    restarts: int
    every: int
    step_s: float  # with all machines

    @property
    def goodput(self) -> float:
        """Share of the time that went into steps that count, each once."""
        return self.good_s / self.wall_s


@dataclass(kw_only=True)
class _Fleet:
    """Agents by zone."""

    folder: Path
    port: int
    every: int
    most: int
    chance: random.Random
    agents: dict[str, list[subprocess.Popen[bytes]]] = field(default_factory=dict)
    number: int = 0

    def match(self, capacity: dict[str, int]) -> None:
        """Kill what the trace takes, start what it gives, at most ``most`` in all."""
        for zone, there in self.agents.items():
            while len(there) > capacity.get(zone, 0):
                kill_tree(there.pop(self.chance.randrange(len(there))))
        for zone, count in capacity.items():
            there = self.agents.setdefault(zone, [])
            while len(there) < count and sum(map(len, self.agents.values())) < self.most:
                there.append(self._agent())

    def close(self) -> None:
        for there in self.agents.values():
            for agent in there:
                kill_tree(agent)

    def _agent(self) -> subprocess.Popen[bytes]:
        self.number += 1
        command = [
            sys.executable, "-m", "torch.distributed.run", f"--nnodes=1:{self.most}",
            "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}",
            "--rdzv-id=baseline",
            "--rdzv-conf=is_host=0,keep_alive_interval=1,keep_alive_max_attempt=3,"
            "last_call_timeout=2",
            "--max-restarts=100000", "--monitor-interval=0.1",
            "-m", _MODULE, str(self.folder), str(self.every),
        ]  # fmt: skip
        with (self.folder / f"agent-{self.number}.log").open("ab") as output:
            return subprocess.Popen(
                command, cwd=self.folder, env=_environment(), stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip


def played(trace: Trace, folder: Path, *, seconds: float, most: int, seed: int) -> Baseline:
    """The trace, played from the first step on, as it was made faster. Raises TimeoutError."""
    every, step_s = _tuned(trace, folder / "tuning", seconds=seconds, most=most, seed=seed)
    with _fleet(folder / "played", every=every, most=most, seed=seed) as fleet:
        fleet.match(_capacity(trace, 0.0))
        began = _first_step(fleet.folder)
        while (now := time.time() - began) < seconds:
            fleet.match(_capacity(trace, now))
            time.sleep(0.05)
        return _account(
            fleet.folder, until=began + seconds, since=began, every=every, step_s=step_s
        )


def _tuned(
    trace: Trace, folder: Path, *, seconds: float, most: int, seed: int
) -> tuple[int, float]:
    """Steps between saves, by what a save and a step take with all machines there."""
    with _fleet(folder, every=FIRST_EVERY, most=most, seed=seed) as fleet:
        fleet.match({"all": most})
        began = _first_step(folder)
        deadline = began + PATIENCE_S
        while time.time() < deadline:
            full = [step for step in _steps(folder) if step.world == most]
            saves = [step.save_s for step in full if step.save_s]
            if len(saves) >= 2:
                break
            time.sleep(0.1)
        else:
            raise TimeoutError("torchrun's machines did not all train together in time")
    step_s = statistics.median(step.seconds for step in full)
    losses = sum(1 for event in trace.events if event.delta < 0 and event.t <= seconds)
    between_s = seconds / max(losses, 1)
    return max(1, round(math.sqrt(2 * statistics.median(saves) * between_s) / step_s)), step_s


def _account(folder: Path, *, since: float, until: float, every: int, step_s: float) -> Baseline:
    done = [step for step in _steps(folder) if step.at <= until]
    last = {step.step: step for step in done}  # whatever was done again counts once
    kept = [step for number, step in last.items() if number <= done[-1].step]
    return Baseline(
        steps=done[-1].step, good_s=sum(step.seconds for step in kept), wall_s=until - since,
        executions=len(done), restarts=len({step.pid for step in done}) - 1, every=every,
        step_s=step_s,
    )  # fmt: skip


def _capacity(trace: Trace, t: float) -> dict[str, int]:
    found: dict[str, int] = {}
    for (zone, _), count in trace.capacity_at(t).items():
        found[zone] = found.get(zone, 0) + count
    return found


def _first_step(folder: Path) -> float:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if steps := _steps(folder):
            return steps[0].at
        time.sleep(0.05)
    raise TimeoutError(f"torchrun made no step, see {folder}")


def _steps(folder: Path) -> list[Step]:
    path = folder / "steps"
    if not path.exists():
        return []
    found = []
    for line in path.read_text().split("\n")[:-1]:
        at, step, pid, world, seconds, save_s = line.split()
        found.append(
            Step(
                at=float(at), step=int(step), pid=int(pid), world=int(world),
                seconds=float(seconds), save_s=float(save_s),
            )
        )  # fmt: skip
    return found


@contextmanager
def _fleet(folder: Path, *, every: int, most: int, seed: int) -> Iterator[_Fleet]:
    folder.mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    store = subprocess.Popen(
        [sys.executable, "-m", _MODULE, "--store", str(port)], env=_environment(), cwd=folder,
        stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    fleet = _Fleet(folder=folder, port=port, every=every, most=most, chance=random.Random(seed))
    try:
        _listening(port)
        yield fleet
    finally:
        fleet.close()
        kill_tree(store)


def _listening(port: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError("the rendezvous' store did not come up")


def _environment() -> dict[str, str]:
    return os.environ | {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
