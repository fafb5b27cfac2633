"""Invariant I6: after many changes of layout every process is as large as after the first."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import pytest

from sailor.observe.events import Event
from sailor.runtime.watchdog import LEAST_EXCHANGE_S
from tests.end_to_end.test_losses import BATCH, of_kind
from tests.helpers import invariants as check
from tests.helpers.running import SHARED_MEMORY, Place, Running

NODES = ("node-1", "node-2", "node-3")
VICTIM = "node-3/0"

# Connections come and go with transfers and store calls: the least of several looks counts, and
# one or two may be under way even then.
LOOKS = 8
FEW_DESCRIPTORS = 3
# Work that blocks runs in asyncio's pool, which starts threads as they are wanted, so many at most.
FEW_THREADS = min(32, (os.cpu_count() or 1) + 4)
# Interpreters keep what they once needed; growth by the change would be 40 times of something.
FEW_BYTES = 48 << 20
# What a group had under way when it was left rests until that times out (exchange_timeout_s), and a
# set-up that was left until gloo has called whoever is gone five times for so long.
SETTLES_S = 5 * LEAST_EXCHANGE_S + 30.0


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What one process holds."""

    descriptors: int
    threads: int
    bytes: int


def usage(run: Running) -> dict[str, Usage]:
    """Of run.py, of every agent, and of every worker that is never a victim."""
    pids = {"run.py": run.process.pid}
    pids |= {node: run.pid_of(node) for node in NODES}
    pids |= {worker: run.pid_of_worker(worker) for worker in ("node-1/0", "node-2/0")}
    looks = []
    for _ in range(LOOKS):
        looks.append({name: _look(psutil.Process(pid)) for name, pid in pids.items()})
        time.sleep(0.05)  # between two looks at processes that have no clock to move
    return {name: min((look[name] for look in looks), key=_descriptors) for name in pids}


def _look(process: psutil.Process) -> Usage:
    with process.oneshot():
        return Usage(
            descriptors=process.num_fds(),
            threads=process.num_threads(),
            bytes=process.memory_info().rss,
        )


def _descriptors(look: Usage) -> int:
    return look.descriptors


def shared_bytes(run: Running) -> int:
    """Snapshot memory of the whole run."""
    folders = SHARED_MEMORY.glob(f"sailor-{run.name}-*")
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*"))


def grown(run: Running, before: dict[str, Usage]) -> list[str]:
    """Processes that hold more than they did."""
    now = usage(run)
    return [
        f"{name}: {was} -> {now[name]}"
        for name, was in before.items()
        if now[name].descriptors > was.descriptors + FEW_DESCRIPTORS
        or now[name].threads > was.threads + (0 if "/" in name else FEW_THREADS)
        or now[name].bytes > was.bytes + FEW_BYTES
    ]


def through(place: Place, *, changes: int) -> int:
    """A run whose worker is killed again and again, looked at after the first time and the last.
    How often one was lost."""
    # After the first recovery there is time for a look.
    steps = [8, *(100 + 8 * i for i in range(1, changes))]
    script = [{"kind": "kill_worker", "at": step, "target": VICTIM} for step in steps]

    def recovered(times: int) -> Callable[[tuple[Event, ...]], bool]:
        return lambda log: len(of_kind(log, "pause")) == times + 1

    with place.start("cloud.nodes=3", "train.steps=100000", script=script) as run:
        run.until(recovered(1), what="the first recovery")
        first, shared_first = usage(run), shared_bytes(run)
        run.deadline += 3.0 * changes
        run.until(recovered(changes), what="the last recovery")
        give_up = time.monotonic() + SETTLES_S
        while (more := grown(run, first)) and time.monotonic() < give_up:
            pass  # each look takes a while
        assert more == []
        assert shared_bytes(run) <= 1.5 * shared_first
        run.signal(signal.SIGINT)
        ended = run.wait()
    assert ended.code == 75, ended.told()
    log = ended.events
    check.check_one_owner(log)
    check.check_replicas(log, at_least=changes)
    check.check_samples(log, batch=BATCH)
    check.check_pauses(log)
    return len(of_kind(log, "worker_lost"))


def test_five_recoveries_leave_nothing_behind(place: Place):
    assert through(place, changes=5) == 5


@pytest.mark.matrix
def test_a_hundred_recoveries_leave_nothing_behind(place: Place):
    assert through(place, changes=100) == 100
