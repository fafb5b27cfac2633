"""Invariant I6: after any number of changes every process is as large as it was after the first."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import pytest

from tests.end_to_end.test_losses import hold_to_invariants, of_kind
from tests.helpers.running import SHARED_MEMORY, Ended, Place, Running

Undisturbed = Callable[[int], Ended]
NODES = ("node-1", "node-2", "node-3")
VICTIM = "node-3/0"

# Connections come and go with transfers and store calls: the least of several looks counts, and
# one or two may be under way even then.
LOOKS = 8
FEW_DESCRIPTORS = 3
# Interpreters keep what they once needed; growth by the change would be 40 times of something.
FEW_BYTES = 24 << 20


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


def through(place: Place, undisturbed: Undisturbed, *, changes: int) -> None:
    """A run whose worker is killed again and again, looked at after the first time and the last."""
    apart = 8
    steps = apart * (changes + 2)
    script = [
        {"kind": "kill_worker", "at": apart * (i + 1), "target": VICTIM} for i in range(changes)
    ]

    def recovered(times: int) -> Callable[[tuple], bool]:
        return lambda log: len(of_kind(log, "pause")) == times + 1

    with place.start("cloud.nodes=3", f"train.steps={steps}", script=script) as run:
        run.until(recovered(1), what="the first recovery")
        first, shared_first = usage(run), shared_bytes(run)
        run.until(recovered(changes), what="the last recovery")
        last, shared_last = usage(run), shared_bytes(run)
        ended = run.wait()
    assert ended.code == 0, ended.told()
    hold_to_invariants(ended, undisturbed(steps), steps=steps)
    assert len(of_kind(ended.events, "worker_lost")) == changes
    for name, before in first.items():
        after = last[name]
        assert after.descriptors <= before.descriptors + FEW_DESCRIPTORS, (name, before, after)
        assert after.threads <= before.threads, (name, before, after)
        assert after.bytes <= before.bytes + FEW_BYTES, (name, before, after)
    assert shared_last <= 1.5 * shared_first


@pytest.mark.matrix
def test_five_recoveries_leave_nothing_behind(place: Place, undisturbed: Undisturbed):
    through(place, undisturbed, changes=5)


@pytest.mark.matrix
def test_a_hundred_recoveries_leave_nothing_behind(place: Place, undisturbed: Undisturbed):
    through(place, undisturbed, changes=100)
