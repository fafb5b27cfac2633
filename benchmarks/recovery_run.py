"""One real run of the command on this computer that a benchmark breaks on purpose, by signals.

``broken_run`` starts ``run.py`` with real machines (processes); the benchmark kills what it likes
in the middle of a step and reads from the run's own log what followed, on the wall clock that both
share (the log's to a millisecond).
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil
import yaml

from provision.machines import MachineRecord
from provision.processes import kill_machine
from sailor.observe.events import Event, read_events

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 600.0
PARTS = ("decide_s", "prepare_s", "copy_s", "switch_s", "first_step_s")

PARAMETERS = {"1m": 1_040_768, "25m": 25_416_704, "100m": 99_526_656}
# The models of the peers' figures: bytes as tokens, 128 of them in a sequence.
SIZES = {
    "1m": (
        "model.num_layers=5", "model.hidden_size=128", "model.num_heads=4", "model.num_kv_heads=4",
        "model.head_size=32", "model.ffn_hidden_size=512", "train.global_batch_size=16",
        "planner.microbatch_size=2",
    ),
    "25m": (
        "model.num_layers=8", "model.hidden_size=512", "model.num_heads=8", "model.num_kv_heads=8",
        "model.head_size=64", "model.ffn_hidden_size=2048", "train.global_batch_size=4",
        "planner.microbatch_size=1",
    ),
    "100m": (
        "model.num_layers=14", "model.hidden_size=768", "model.num_heads=12",
        "model.num_kv_heads=12", "model.head_size=64", "model.ffn_hidden_size=3072",
        "train.global_batch_size=4", "planner.microbatch_size=1",
    ),
}  # fmt: skip
COMMON = (
    "model.max_positions=128", "train.sequence_length=128",
    "train.steps=100000", "train.eval_samples=2", "train.eval_every=0",
    "checkpoint.persist_every=0", "cloud.memory_per_gpu=4GiB", "cloud.max_nodes=64",
    "ui.mode=plain", "cloud.replace=false",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovery:
    """From a SIGKILL to the next committed step, in seconds, taken apart. ``found_s`` until the
    controller knew; ``log_s`` is what lies between a step's end and its line in the log."""

    victim: str
    cause: str
    layout_before: str
    layout_after: str
    total_s: float
    detect_s: float
    parts: dict[str, float]
    steps_redone: int
    source: str
    bytes_moved: int
    step_s: float  # median before the kill


@dataclass(frozen=True, kw_only=True, slots=True)
class Joining:
    """A new machine: from its agent's start to the first committed step with it."""

    first_step_s: float
    pause_s: float
    steps_redone: int
    bytes_moved: int
    copy_s: float


class BrokenRun:
    """A run under way. Methods raise TimeoutError with the end of its output when nothing comes."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], output: Path) -> None:
        self.folder = folder
        self.process = process
        self._output = output

    @property
    def log(self) -> tuple[Event, ...]:
        """All events so far."""
        path = self.folder / "events.jsonl"
        return read_events(path) if path.exists() else ()

    def until(self, condition: Callable[[tuple[Event, ...]], object], *, what: str) -> None:
        """Wait for something to show in the log."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition(self.log):
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = self._output.read_text(errors="replace")[-2000:]
                raise TimeoutError(f"{what} did not come\n{tail}")
            time.sleep(0.02)

    def steps_on(self, count: int) -> None:
        """Until the present generation has done so many steps more."""
        seen = len(_steps(self.log))
        self.until(lambda log: len(_steps(log)) >= seen + count, what=f"{count} more steps")

    def recover_from(self, victim: str, kill: Callable[[], None], *, into_step: float) -> Recovery:
        """Kill in the middle of a step and wait for the next committed one."""
        before = self.log
        step_s = statistics.median(e["seconds"] for e in _steps(before)[-8:])
        generation = _started(before)[-1].generation
        seen = len(_steps(before))
        self.until(lambda log: len(_steps(log)) > seen, what="the next step")
        time.sleep(into_step * step_s)
        killed_at = time.time()
        kill()

        def stepped(log: tuple[Event, ...]) -> bool:
            return any(e.kind == "pause" and e.generation > generation for e in log)

        self.until(stepped, what=f"a step after the loss of {victim}")
        log = self.log
        pause = [e for e in log if e.kind == "pause" and e.generation > generation][-1]
        first = next(e for e in _steps(log) if e.generation == pause.generation)
        lost = next(
            e
            for e in log
            if e.kind in ("node_lost", "worker_lost") and _wall(e) >= killed_at - 0.01
        )
        return Recovery(
            victim=victim,
            cause=str(lost["cause"]),
            layout_before=_started(log)[-2]["layout"],
            layout_after=_started(log)[-1]["layout"],
            total_s=_wall(first) - killed_at,
            detect_s=_wall(lost) - killed_at,
            parts={part: pause[part] for part in PARTS},
            steps_redone=pause["steps_redone"],
            source=pause["source"],
            bytes_moved=pause.get("bytes_moved", 0),
            step_s=step_s,
        )

    def joined(self, node: str) -> Joining:
        """Wait for a machine that was asked for to take part."""
        self.until(
            lambda log: any(node in e["nodes"] for e in _started(log)), what=f"{node} takes part"
        )
        log = self.log
        generation = next(e.generation for e in _started(log) if node in e["nodes"])
        self.until(
            lambda log: any(e.kind == "pause" and e.generation == generation for e in log),
            what=f"a step with {node}",
        )
        log = self.log
        (pause,) = [e for e in log if e.kind == "pause" and e.generation == generation]
        first = next(e for e in _steps(log) if e.generation == generation)
        (seen,) = [e for e in log if e.kind == "node_joined" and e["node"] == node]
        started_at = psutil.Process(seen["pid"]).create_time()
        return Joining(
            first_step_s=_wall(first) - started_at,
            pause_s=pause["total_s"],
            steps_redone=pause["steps_redone"],
            bytes_moved=pause.get("bytes_moved", 0),
            copy_s=pause["copy_s"],
        )

    def kill_node(self, node: str) -> None:
        """SIGKILL to all of a machine at one instant."""
        (pid,) = [e["pid"] for e in self.log if e.kind == "node_joined" and e["node"] == node]
        os.killpg(pid, signal.SIGKILL)

    def kill_worker(self, name: str) -> None:
        """SIGKILL to the newest start of a worker, by node and slot: node-1/0."""
        pids = {}
        for event in self.log:
            if event.kind == "node_joined":
                pids |= {w["worker"].rpartition(".")[0]: w["pid"] for w in event["workers"]}
            if event.kind == "worker_up":
                pids[event["worker"].rpartition(".")[0]] = event["pid"]
        os.kill(pids[name], signal.SIGKILL)

    def worker_of_rank(self, rank: int) -> str:
        """Node and slot of a rank of the present generation."""
        (entry,) = [e for e in _started(self.log)[-1]["ranks"] if e["rank"] == rank]
        return str(entry["worker"]).rpartition(".")[0]


@contextlib.contextmanager
def broken_run(folder: Path, *arguments: str, joins: Sequence[int] = ()) -> Iterator[BrokenRun]:
    """Start a run in ``folder``; of it nothing is left at the end. ``joins``: steps at which one
    more machine is asked for."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "faults.yaml"
    script.write_text(yaml.safe_dump([{"kind": "join", "at": step} for step in joins] or []))
    faults = f"faults={script}" if joins else "faults=none"
    output = folder / "output.txt"
    with output.open("wb") as sink:
        process = subprocess.Popen(
            [
                sys.executable, str(ROOT / "run.py"), faults, f"runs_dir={folder}",
                "run.name=broken", *COMMON, *arguments,
            ],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    run = BrokenRun(folder / "broken", process, output)
    try:
        yield run
    finally:
        process.kill()
        process.wait()
        for machine in MachineRecord(run.folder / "machines.jsonl").remaining():
            kill_machine(mark=machine.mark, leader=machine.leader)
        for left in Path("/dev/shm").glob("sailor-broken-*"):
            _remove(left, run.folder)


def _remove(memory: Path, folder: Path) -> None:
    """The snapshot memory of a machine of ours: its name ends in its agent's pid."""
    pids = {e["pid"] for e in read_events(folder / "events.jsonl") if e.kind == "node_joined"}
    if memory.name.rpartition("-")[2] in {str(pid) for pid in pids}:
        for file in memory.iterdir():
            file.unlink(missing_ok=True)
        memory.rmdir()


def _steps(log: Sequence[Event]) -> list[Event]:
    return [e for e in log if e.kind == "step" and e["num_samples"]]


def _started(log: Sequence[Event]) -> list[Event]:
    return [e for e in log if e.kind == "generation_started"]


def _wall(event: Event) -> float:
    return datetime.fromisoformat(event.time).timestamp()
