"""What elasticity costs while nothing goes wrong: whole runs against the bare engine.

A run has a controller, agents that beat and hash, snapshots and an event log; the bare engine has
ranks and nothing else. Same model, same cut, same numbers, same niceness, in turns, and a machine
of its own for every rank, so sockets between them. CPU seconds of all processes per step are
compared, between two steps well inside a run: on a machine whose cores are all busy they are what a
step costs, and other users' load does not count.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.engine_crew import ROOT, Crew, Record
from benchmarks.engine_shapes import SEQUENCE, SHAPES, Shape
from benchmarks.snapshot_waits import waited
from sailor.observe.events import Event, read_events

CUT = "pp2dp2"
EVERY = 10  # steps between snapshots, when not every step has one
FIRST = 8  # steps before the count begins: all that happens once is over
_DEADLINE_S = 240.0
_WORKER_NICENESS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Ride:
    """A stretch of one run. Seconds per step; ``stall_share`` of the time of its steps."""

    cpu_s: float
    wall_s: float
    stall_share: float
    copy_gb_per_s: float | None


def report(
    shape: str, *, rounds: int, steps: int, tokens: str, folder: Path, batch: int
) -> dict[str, Any]:
    """``batch`` sequences a step; figures and every measurement behind them."""
    bare = Record()
    sparse: list[Ride] = []
    dense: list[Ride] = []
    job = {
        "kind": "ours", "world_size": 4, "shape": shape, "cut": CUT, "deterministic": True,
        "tokens": tokens, "batch": batch, "nice": _WORKER_NICENESS, "apart": True,
    }  # fmt: skip
    with Crew(**job) as crew:
        crew.ready()
        for number in range(rounds):
            bare.turns.append(crew.turn(steps=steps))
            sparse.append(ride(shape, every=EVERY, steps=steps, batch=batch, folder=folder))
            dense.append(ride(shape, every=1, steps=steps, batch=batch, folder=folder))
            if number == rounds - 1:
                bare.turns.append(crew.turn(steps=steps))
    bandwidths = [r.copy_gb_per_s for r in dense if r.copy_gb_per_s is not None]
    return {
        "figures": {
            "elastic_overhead": min(r.cpu_s for r in sparse) / bare.cpu_s - 1.0,
            "elastic_overhead_every_step": min(r.cpu_s for r in dense) / bare.cpu_s - 1.0,
            # By the clock: copies also take of what a step would compute with.
            "every_step_over_seldom": min(r.wall_s for r in dense)
            / min(r.wall_s for r in sparse) - 1.0,
            "snapshot_stall_share": median(r.stall_share for r in dense),
            "snapshot_copy_gb_per_s": median(bandwidths) if bandwidths else None,
        },
        "detail": {
            "shape": shape, "cut": CUT, "sequences_per_step": batch, "snapshot_every": EVERY,
            "bare": bare.detail(),
            "bare_cpu_s": [turn.cpu_s for turn in bare.turns],
            "run_cpu_s": [r.cpu_s for r in sparse],
            "run_every_step_cpu_s": [r.cpu_s for r in dense],
            "run_wall_s": [r.wall_s for r in sparse],
            "run_every_step_wall_s": [r.wall_s for r in dense],
            "stall_shares": [r.stall_share for r in dense],
        },
    }  # fmt: skip


def ride(shape: str, *, every: int, steps: int, batch: int, folder: Path) -> Ride:
    """One run of the command, to its end. Raises RuntimeError when it fails or takes too long."""
    with tempfile.TemporaryDirectory(dir=folder) as runs:
        log = Path(runs) / "ride" / "events.jsonl"
        with (Path(runs) / "output.txt").open("w") as output:
            process = subprocess.Popen(
                _command(SHAPES[shape], every=every, steps=FIRST + steps + 2, batch=batch,
                         runs=Path(runs)),
                cwd=ROOT, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            began = _when_at(log, FIRST, process)
            ended = _when_at(log, FIRST + steps, process)
            code = process.wait(_DEADLINE_S)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60.0)
        if code != 0:
            raise RuntimeError(
                f"the run ended with {code}: {(Path(runs) / 'output.txt').read_text()[-800:]}"
            )
        events = read_events(log)
    counted = range(began.step + 1, ended.step + 1)
    done = [e for e in events if e.kind == "step" and e["step"] in counted]
    stalls, rates = _stalls(events, counted)
    return Ride(
        cpu_s=(ended.cpu_s - began.cpu_s) / len(counted),
        wall_s=(done[-1].t - done[0].t) / max(1, len(done) - 1),
        stall_share=sum(stalls) / sum(e["seconds"] for e in done),
        copy_gb_per_s=median(rates) if rates else None,
    )


def _command(shape: Shape, *, every: int, steps: int, batch: int, runs: Path) -> list[str]:
    spec = shape.spec()
    model = {
        "family": "llama", "num_layers": spec.num_layers, "hidden_size": spec.hidden_size,
        "num_heads": spec.num_heads, "num_kv_heads": spec.num_kv_heads,
        "head_size": spec.head_size, "ffn_hidden_size": spec.ffn_hidden_size,
        "max_positions": spec.max_positions, "tied_embeddings": "false", "activation": "swiglu",
        "norm": "rmsnorm", "norm_epsilon": "1e-6", "positions": "rotary",
        "attention_bias": "false", "attention_output_bias": "false", "ffn_bias": "false",
    }  # fmt: skip
    return [
        sys.executable, str(ROOT / "run.py"), f"runs_dir={runs}", "run.name=ride",
        *(f"model.{name}={value}" for name, value in model.items()),
        f"train.steps={steps}", f"train.global_batch_size={batch}",
        f"train.sequence_length={SEQUENCE}", "train.eval_every=0", "train.eval_samples=4",
        "optim.warmup_steps=0", "planner.pipeline_parallel=2", "planner.data_parallel=2",
        "planner.tensor_parallel=1", f"planner.microbatch_size={shape.microbatch}",
        "cloud.memory_per_gpu=2GiB", "cloud.nodes=4", f"checkpoint.snapshot_every={every}",
        "checkpoint.persist_every=0", "faults=none", "ui=plain",
    ]  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mark:
    """CPU seconds that all processes of a run had used when a step was told."""

    step: int
    cpu_s: float


def _when_at(log: Path, step: int, process: subprocess.Popen[bytes]) -> _Mark:
    """Wait for a step in the log, then count."""
    deadline = time.monotonic() + _DEADLINE_S
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
        newest = _newest_step(log)
        if newest >= step:
            return _Mark(step=newest, cpu_s=_cpu_seconds(process.pid))
    raise RuntimeError(f"the run did not reach step {step}")


def _newest_step(log: Path) -> int:
    """Of the last lines only: reading all of a growing log over and over would be load."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16_384))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return -1
    newest = -1
    for line in lines:
        if b'"kind":"step"' in line:
            found = line.partition(b'"step":')[2] or b"-1"
            digits = found.lstrip().split(b",")[0].rstrip(b"}")
            with suppress(ValueError):
                newest = max(newest, int(digits))
    return newest


def _cpu_seconds(pid: int) -> float:
    """User and system seconds of a process and all it has started that still live."""
    total = 0.0
    root = psutil.Process(pid)
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _stalls(events: tuple[Event, ...], counted: range) -> tuple[list[float], list[float]]:
    """Seconds that training waited for each step's snapshot, and GB/s of the slowest rank's copy,
    made beside the next step."""
    told = [e for e in events if e.kind == "snapshot" and e["step"] in counted]
    rates = [e["bytes"] / e["workers"] / max(e["copy_s"], 1e-9) / 1e9 for e in told]
    return list(waited(events, counted).values()), rates
