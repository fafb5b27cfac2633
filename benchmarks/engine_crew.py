"""Groups of processes that train side by side, a few steps at a time, each when it is its turn.

The machine a benchmark runs on has other users. So every contender is started and warmed up once,
and then all of them take turns in short rounds: whatever slows the machine for a while slows them
all. A contender whose turn it is not waits for a line on a pipe, and costs nothing.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

import psutil

ROOT = Path(__file__).resolve().parent.parent
ANSWER_S = 600.0  # for whatever a contender is told to do, on a busy machine
# What a worker of a run is started with (sailor/runtime/nursery.py), for all contenders alike: one
# thread, and freed memory stays in the process.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_ARENA_MAX": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One contender's round: seconds per step, by the wall and of all its processes' CPU time.

    ``others``: how many cores somebody else kept busy meanwhile; where that is not near 0, the wall
    says little.
    """

    wall_s: float
    cpu_s: float
    loss: float
    others: float


@dataclass(kw_only=True, slots=True)
class Record:
    """All turns of a contender."""

    turns: list[Turn] = field(default_factory=list)

    @property
    def wall_s(self) -> float:
        """The fastest round: what it takes when nobody disturbs."""
        return min(turn.wall_s for turn in self.turns)

    @property
    def cpu_s(self) -> float:
        """CPU seconds per step of the cheapest round."""
        return min(turn.cpu_s for turn in self.turns)

    def detail(self) -> dict[str, Any]:
        """For the report."""
        walls = [turn.wall_s for turn in self.turns]
        others = [turn.others for turn in self.turns]
        return {
            "wall_s_min": min(walls), "wall_s_median": median(walls), "wall_s_max": max(walls),
            "cpu_s_min": self.cpu_s, "cpu_s_median": median(turn.cpu_s for turn in self.turns),
            "others_cores_min": min(others), "others_cores_median": median(others),
            "rounds": len(walls), "loss_first": self.turns[0].loss,
            "loss_last": self.turns[-1].loss,
        }  # fmt: skip


def ratio(slower: Record, faster: Record, *, of: str = "wall_s") -> dict[str, float]:
    """How many times as long the one takes: of the best rounds, and round by round."""
    pairs = [
        getattr(a, of) / getattr(b, of) for a, b in zip(slower.turns, faster.turns, strict=True)
    ]
    return {
        "best": getattr(slower, of) / getattr(faster, of), "median": median(pairs),
        "min": min(pairs), "max": max(pairs),
    }  # fmt: skip


class Crew:
    """The processes of one contender: ``kind`` is a name in benchmarks.engine_rank."""

    def __init__(self, kind: str, *, world_size: int, **job: Any) -> None:
        self.kind = kind
        self._store = tempfile.TemporaryDirectory()
        self._ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.engine_rank"], cwd=ROOT,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env={**os.environ, **ENVIRONMENT},
            )
            for _ in range(world_size)
        ]  # fmt: skip
        for rank in range(world_size):
            self._tell(
                rank,
                {"kind": kind, "rank": rank, "world_size": world_size,
                 "store": str(Path(self._store.name) / "store"), **job},
            )  # fmt: skip

    def ready(self) -> None:
        """Return when all its ranks have warmed up. Raises RuntimeError when one did not."""
        for rank in range(len(self._ranks)):
            self._answer(rank)

    def turn(self, *, steps: int) -> Turn:
        """Train so many steps."""
        began, busy_before = time.monotonic(), _busy_seconds()
        for rank in range(len(self._ranks)):
            self._tell(rank, {"steps": steps})
        answers = [self._answer(rank) for rank in range(len(self._ranks))]
        wall_s = max(a["ended"] for a in answers) - min(a["began"] for a in answers)
        cpu_s = sum(a["cpu_s"] for a in answers)
        others_s = _busy_seconds() - busy_before - cpu_s
        losses = [a["loss"] for a in answers if a["loss"] is not None]
        return Turn(
            wall_s=wall_s / steps, cpu_s=cpu_s / steps, loss=sum(losses) / len(losses),
            others=max(0.0, others_s / (time.monotonic() - began)),
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._ranks:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._ranks:
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._store.cleanup()

    def _tell(self, rank: int, message: Mapping[str, Any]) -> None:
        pipe = self._ranks[rank].stdin
        assert pipe is not None
        pipe.write(json.dumps(message) + "\n")
        pipe.flush()

    def _answer(self, rank: int) -> dict[str, Any]:
        pipe = self._ranks[rank].stdout
        assert pipe is not None
        readable, _, _ = select.select([pipe], [], [], ANSWER_S)
        line = pipe.readline() if readable else ""
        if not line:
            raise RuntimeError(f"rank {rank} of {self.kind} did not answer")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _busy_seconds() -> float:
    """CPU seconds that all processes of this machine have used so far."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def compete(
    crews: Mapping[str, Crew], *, rounds: int, steps: Mapping[str, int]
) -> dict[str, Record]:
    """All crews take turns. Every other round goes the other way, so that nobody always follows
    the same one."""
    records = {name: Record() for name in crews}
    for number in range(rounds):
        order: Sequence[str] = list(crews) if number % 2 == 0 else list(reversed(crews))
        for name in order:
            records[name].turns.append(crews[name].turn(steps=steps[name]))
    return records


def assembled(stack: ExitStack, jobs: Mapping[str, Mapping[str, Any]]) -> dict[str, Crew]:
    """Start the crews one after another, so that they do not all import at once."""
    crews = {}
    for name, job in jobs.items():
        crews[name] = stack.enter_context(Crew(**job))
        crews[name].ready()
    return crews
