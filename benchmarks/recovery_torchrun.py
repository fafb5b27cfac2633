"""The baseline: torchrun with two agents of two workers each and torch's distributed checkpoints.

As good as a user can make it by settings: the interval between saves is tuned (one in twenty steps
at 1 M parameters, one in eight at 25 M: about 5 and 9 % of the time), the rendezvous keeps alive by
the second (``keep_alive_interval=1``; 5 s as shipped), and its store is not shared between rounds
(``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1``), without which a restart hangs in torch 2.13.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.recovery_run import ROOT

EVERY = {"1m": 20, "25m": 8}
WORKERS = 4
PATIENCE_S = 240.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Restart:
    """From a SIGKILL to the end of the slowest worker's next step, and back where it was."""

    victim: str
    total_s: float
    back_s: float | None  # until the step of the kill was done again
    steps_redone: int
    step_s: float


def restarts(size: str, folder: Path, *, workers: int, nodes: int, seed: int = 0) -> list[Restart]:
    """Kill a worker so many times, then an agent with its workers, which is started again at once.

    The kills are spread over the interval between saves by the seed. Raises TimeoutError.
    """
    chance = random.Random(seed)
    found = []
    with _agents(size, folder) as agents:
        _until(lambda: len(_pids(folder)) == WORKERS and _step(folder) > EVERY[size], agents)
        for victim in ["worker"] * workers + ["node"] * nodes:
            target = _step(folder) + 2 + chance.randrange(EVERY[size])
            _until(lambda target=target: _step(folder) >= target, agents)
            step_s = _step_seconds(folder)
            time.sleep(0.5 * step_s)
            before, at_step = set(_pids(folder).values()), _step(folder)
            killed_at = time.time()
            if victim == "worker":
                os.kill(_pids(folder)[chance.randrange(1, WORKERS)], signal.SIGKILL)
            else:  # the second: the first hosts the rendezvous, and its death ends the job
                kill_tree(agents[1])
                agents[1] = _agent(size, folder, port=agents.port, number=1)
            found.append(
                _recovered(folder, agents, victim, killed_at, before, at_step, step_s, size)
            )
    return found


class _Agents(list[subprocess.Popen[bytes]]):
    port = 0


def _recovered(
    folder: Path, agents: _Agents, victim: str, killed_at: float, before: set[int], at_step: int,
    step_s: float, size: str,
) -> Restart:  # fmt: skip
    def all_new() -> bool:
        pids = set(_pids(folder).values())
        return len(pids) == WORKERS and not pids & before

    _until(all_new, agents)
    first = []
    for rank in range(WORKERS):
        lines = [line for line in _lines(folder, rank) if line[2] not in before]
        first.append(min(line for line in lines if line[0] > killed_at))
    resumed = first[0][1]
    back_s = None
    _until(lambda: _step(folder, but=before) >= at_step, agents)
    again = [
        next(line[0] for line in _lines(folder, r) if line[2] not in before and line[1] >= at_step)
        for r in range(WORKERS)
    ]
    back_s = max(again) - killed_at
    return Restart(
        victim=victim,
        total_s=max(line[0] for line in first) - killed_at,
        back_s=back_s,
        steps_redone=max(0, at_step - resumed + 1),
        step_s=step_s,
    )


@contextmanager
def _agents(size: str, folder: Path) -> Iterator[_Agents]:
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    agents = _Agents()
    agents.port = port
    try:
        agents += [_agent(size, folder, port=port, number=n) for n in range(2)]
        yield agents
    finally:
        for agent in agents:
            kill_tree(agent)


def _agent(size: str, folder: Path, *, port: int, number: int) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2",
        "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=baseline",
        "--rdzv-conf=keep_alive_interval=1", "--max-restarts=100", "-m",
        "benchmarks.recovery_torchrun_worker", size, str(folder), str(EVERY[size]),
    ]  # fmt: skip
    environment = os.environ | {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    with (folder / f"agent-{number}.log").open("ab") as output:
        return subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def kill_tree(agent: subprocess.Popen[bytes]) -> None:
    """An agent and its workers, which have sessions of their own."""
    try:
        everybody = [*psutil.Process(agent.pid).children(recursive=True), psutil.Process(agent.pid)]
    except psutil.NoSuchProcess:
        everybody = []
    for process in reversed(everybody):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    agent.wait()


def _lines(folder: Path, rank: int) -> list[tuple[float, int, int]]:
    path = folder / f"steps-{rank}"
    if not path.exists():
        return []
    whole = [line.split() for line in path.read_text().split("\n")[:-1]]
    return [(float(at), int(step), int(pid)) for at, step, pid in whole]


def _pids(folder: Path) -> dict[int, int]:
    """Rank -> the process that stepped last."""
    newest = {rank: _lines(folder, rank) for rank in range(WORKERS)}
    return {rank: lines[-1][2] for rank, lines in newest.items() if lines}


def _step(folder: Path, *, but: Collection[int] = ()) -> int:
    """The newest step that all ranks have done, by processes other than those named."""
    newest = [[line for line in _lines(folder, r) if line[2] not in but] for r in range(WORKERS)]
    return min((lines[-1][1] if lines else 0) for lines in newest)


def _step_seconds(folder: Path) -> float:
    times = [line[0] for line in _lines(folder, 0)[-12:]]
    gaps = [b - a for a, b in zip(times, times[1:], strict=False)]
    return statistics.median(gaps) if gaps else 0.0


def _until(condition: object, agents: _Agents) -> None:
    assert callable(condition)
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("torchrun did not get there")
        time.sleep(0.05)
