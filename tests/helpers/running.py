"""``python run.py`` as a person runs it: a real process with real machines, and what it leaves.

``Place`` is where runs happen: a text of its own, tokens made once, a computer whose cores are
taken to be so slow that the planner cuts a tiny model over all the machines there are.
``Place.start`` starts a run, ``Place.train`` sees it through to its end. Whatever happens, every
process of a run has ended when the test has, and a run that ended by itself has left nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import xxhash
import yaml

from provision.machines import MachineRecord
from provision.processes import MARK, kill_machine
from sailor.observe.events import Event, read_events
from sailor.profile.local import core_speed
from tests.helpers.compose import ROOT

PATIENCE_S = 300.0  # for a machine under load; nothing asserted depends on it
SHARED_MEMORY = Path("/dev/shm")

# 43,520 parameters. With 1 MiB for each worker and samples one at a time, four machines make two
# replicas of two stages, three make one of three, two make one of two, and one is not enough.
MODEL = (
    "model.num_layers=4", "model.hidden_size=32", "model.num_heads=4", "model.num_kv_heads=4",
    "model.head_size=8", "model.ffn_hidden_size=64", "model.max_positions=32",
    "train.sequence_length=32", "train.global_batch_size=8", "train.eval_samples=8",
    "planner.microbatch_size=1", "cloud.memory_per_gpu=1MiB", "cloud.max_nodes=64",
    "checkpoint.compare_every=1",
)  # fmt: skip
# Waits that only a broken run reaches, however busy the computer is.
PATIENT = (
    "runtime.silence=30s", "runtime.halt=45s", "runtime.boundary=60s", "runtime.plan=60s",
    "runtime.prepare=60s", "runtime.restore=60s", "runtime.switch=60s", "runtime.save=60s",
)  # fmt: skip
QUIET = ("ui.mode=plain", "faults=none")


@dataclass(kw_only=True)
class Ended:
    """A start of a run that has ended."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def events(self) -> tuple[Event, ...]:
        """The whole log, earlier starts included."""
        return read_events(self.folder / "events.jsonl")

    @property
    def summary(self) -> dict[str, Any]:
        """summary.json."""
        return dict(json.loads((self.folder / "summary.json").read_text()))

    def told(self) -> str:
        """What a failed test should show."""
        logs = sorted((self.folder / "logs").glob("*.log"))
        parts = [f"exit {self.code}", self.out[-3000:], self.err[-3000:]]
        parts += [f"-- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in logs]
        return "\n".join(parts)


@dataclass(kw_only=True)
class Running:
    """A start of a run that goes on. Times out by raising AssertionError with what was said."""

    name: str
    folder: Path
    process: subprocess.Popen[bytes]
    printed: Path  # standard output; beside it, with .err, standard error
    deadline: float = field(default_factory=lambda: time.monotonic() + PATIENCE_S)

    @property
    def events(self) -> tuple[Event, ...]:
        """The log so far."""
        path = self.folder / "events.jsonl"
        return read_events(path) if path.exists() else ()

    def until(
        self,
        condition: Callable[[tuple[Event, ...]], Any],
        *,
        what: str,
        within_s: float | None = None,
    ) -> Any:
        """The first true value of a condition on the log, which is read again when it has grown.

        Raises TimeoutError after ``within_s``, and AssertionError when all patience is at an end.
        """
        path, size = self.folder / "events.jsonl", -1
        give_up = time.monotonic() + within_s if within_s is not None else self.deadline
        while time.monotonic() < min(give_up, self.deadline):
            ended = self.process.poll() is not None
            now = path.stat().st_size if path.exists() else 0
            if now != size or ended:
                size = now
                if value := condition(self.events):
                    return value
            assert not ended, f"the run ended before: {what}\n{self._ended().told()}"
            time.sleep(0.01)
        if within_s is not None:
            raise TimeoutError(what)
        raise AssertionError(f"not within {PATIENCE_S:.0f} s: {what}\n{self._ended().told()}")

    def until_step(self, step: int) -> None:
        """Until that step was applied."""
        self.until(lambda log: steps_done(log) >= step, what=f"step {step}")

    def signal(self, number: signal.Signals) -> None:
        """To run.py alone, as a terminal or a batch system would."""
        self.process.send_signal(number)

    def pid_of(self, node: str) -> int:
        """The agent of a node."""
        found = [e["pid"] for e in self.events if e.kind == "node_joined" and e["node"] == node]
        return int(found[-1])

    def pid_of_worker(self, worker: str) -> int:
        """The newest start of a worker, by its node and slot: node-1/0."""
        found = 0
        for event in self.events:
            if event.kind == "node_joined":
                for entry in event["workers"]:
                    if entry["worker"].rpartition(".")[0] == worker:
                        found = entry["pid"]
            if event.kind == "worker_up" and event["worker"].rpartition(".")[0] == worker:
                found = event["pid"]
        assert found > 1, f"no worker {worker}"
        return int(found)

    def hold_until(self, condition: Callable[[tuple[Event, ...]], Any], *, what: str) -> None:
        """Keep training back, a step now and then, until something else has come about.

        A whole machine is stopped and continued, agent and all, so that nobody is blamed for it;
        never for as long as a collective waits.
        """
        group = self.pid_of("node-1")
        while not condition(self.events):
            os.killpg(group, signal.SIGSTOP)
            try:
                with contextlib.suppress(TimeoutError):
                    self.until(condition, what=what, within_s=5.0)
            finally:
                os.killpg(group, signal.SIGCONT)
            self.until_step(steps_done(self.events) + 1)

    def kill_node(self, node: str) -> None:
        """All of a machine at one instant: its agent leads the process group of everything."""
        os.killpg(self.pid_of(node), signal.SIGKILL)

    def kill_machine(self, node: str) -> None:
        """The same for one whose agent has not dialled in yet."""

        def leader(_: object) -> int | None:
            machines = MachineRecord(self.folder / "machines.jsonl").remaining()
            return next((m.leader.pid for m in machines if m.node == node and m.leader), None)

        os.killpg(self.until(leader, what=f"{node} boots"), signal.SIGKILL)

    def wait(self, *, leaves_nothing: bool = True) -> Ended:
        """Until run.py has ended; unless it was killed, nothing may be left then."""
        try:
            self.process.wait(max(1.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end in time\n{self._ended().told()}") from None
        ended = self._ended()
        if leaves_nothing:
            assert leftovers(self.name) == [], ended.told()
        return ended

    def end(self) -> None:
        """Kill what is left of it, run.py first."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for machine in MachineRecord(self.folder / "machines.jsonl").remaining():
            kill_machine(mark=machine.mark, leader=machine.leader)
        for path in SHARED_MEMORY.glob(f"sailor-{self.name}-*"):
            for file in path.iterdir():
                file.unlink(missing_ok=True)
            path.rmdir()

    def _ended(self) -> Ended:
        code = self.process.poll()
        return Ended(
            code=-999 if code is None else code,
            out=self.printed.read_text(errors="replace"),
            err=self.printed.with_suffix(".err").read_text(errors="replace"),
            folder=self.folder,
        )


class Place:
    """Where runs happen. ``root`` may be shared by several test processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.text = root / "text"
        self.runs = root / "runs"
        self._mark = xxhash.xxh3_64_hexdigest(str(root).encode())[:6]
        if not self.text.exists():
            _write_text(self.text)
        slow_cores(root / "cache" / "sailor")

    @contextlib.contextmanager
    def start(
        self,
        *arguments: str,
        name: str | None = None,
        script: Sequence[Mapping[str, Any]] = (),
        base: Sequence[str] = (*MODEL, *PATIENT),
    ) -> Iterator[Running]:
        """A run under way; what is left of it is killed at the end of the block.

        ``name``: for a run that is started more than once, see ``named``. ``script`` is what goes
        wrong, as in a file of faults. Later arguments win over ``base``.
        """
        name = name or f"t{secrets.token_hex(5)}"
        if script:
            path = self.root / f"{name}.faults.yaml"
            path.write_text(yaml.safe_dump([dict(entry) for entry in script]))
            arguments = (f"faults={path}", *arguments)
        printed = self.root / f"{name}-{secrets.token_hex(2)}.out"
        with printed.open("wb") as out, printed.with_suffix(".err").open("wb") as err:
            process = subprocess.Popen(
                self._command(name, *base, *arguments),
                cwd=self.root, env=self.environment(), stdin=subprocess.DEVNULL, stdout=out,
                stderr=err, start_new_session=True,
            )  # fmt: skip
        running = Running(name=name, folder=self.runs / name, process=process, printed=printed)
        try:
            yield running
        finally:
            running.end()

    def train(self, *arguments: str, **more: Any) -> Ended:
        """A run from its start to its end."""
        with self.start(*arguments, **more) as running:
            return running.wait()

    def call(
        self, *arguments: str, name: str | None = None, seconds: float = PATIENCE_S
    ) -> Ended:  # fmt: skip
        """A command that ends without starting anything: refused, or done already."""
        name = name or f"t{secrets.token_hex(5)}"
        done = subprocess.run(
            self._command(name, *MODEL, *PATIENT, *arguments),
            cwd=self.root, env=self.environment(), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=seconds,
        )  # fmt: skip
        folder = self.runs / name
        return Ended(code=done.returncode, out=done.stdout, err=done.stderr, folder=folder)

    def named(self, name: str) -> str:
        """A run's name that no other place on this computer uses."""
        return f"{name}-{self._mark}"

    def environment(self) -> dict[str, str]:
        """That of our commands: the slow cores, and no configuration of the user's own."""
        return {**os.environ, "XDG_CACHE_HOME": str(self.root / "cache")}

    def _command(self, name: str, *arguments: str) -> list[str]:
        """One word for each key, the last one: Hydra refuses a group that is named twice."""
        words = [
            *QUIET, "data=text", f"data.path={self.text}", f"data.cache={self.root / 'cache'}",
            f"runs_dir={self.runs}", f"run.name={name}", *arguments,
        ]  # fmt: skip
        latest = {word.partition("=")[0]: word for word in words}
        return [sys.executable, str(ROOT / "run.py"), *latest.values()]


def slow_cores(folder: Path, *, flops: float = 1e8) -> None:
    """Make the planner believe that a core here is slow: then a tiny model is worth cutting, and
    its plans are the same on every computer."""
    core_speed(cache=folder)
    for path in folder.glob("cpu-*.json"):
        document = json.loads(path.read_text())
        document |= {"flops": flops, "bytes_per_second": flops, "source": "made up by a test"}
        path.write_text(json.dumps(document))


def steps_done(log: Sequence[Event]) -> int:
    """The newest step in the log."""
    return max((event["step"] for event in log if event.kind == "step"), default=-1)


def leftovers(name: str) -> list[str]:
    """Whatever a run has left on this computer: processes that live, shared memory."""
    found = [f"/dev/shm/{path.name}" for path in SHARED_MEMORY.glob(f"sailor-{name}-*")]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            mark = process.environ().get(MARK, "")
            ours = mark.startswith(f"{name}/") or f"run.name={name}" in process.cmdline()
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())[:120]}")
    return found


def _write_text(folder: Path) -> None:
    """Text with something to learn, the same every time."""
    chance = random.Random(1)
    words = ["".join(chance.choices("abcdefghij", k=chance.randint(2, 6))) for _ in range(60)]
    folder.mkdir(parents=True)
    for name in "abc":
        lines = (" ".join(chance.choices(words, k=8)) for _ in range(700))
        (folder / f"{name}.txt").write_text("\n".join(lines))
