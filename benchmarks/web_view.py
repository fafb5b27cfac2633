"""What an open page costs the training beside it: steps with a reader against steps without, in
turns, within one run.

``python -m benchmarks.web_view [--json] [--quick]``. Two readers: a client that takes the stream
and does nothing with it (what serving costs), and Chromium on the same computer (its drawing takes
of the same cores; it is left out where there is none). ``step_ratio``: the median step beside
nobody's, which on a busy computer says little; ``cpu_share``: the CPU seconds that serving adds to
the run's own process, as a share of what the whole run takes for the same steps. The latter does
not count other users' load.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.document import machine, show
from sailor.observe.events import read_events
from tools import browser

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 400.0
SETTLE_S = 1.0  # after a reader came or went
_COMMAND = (
    "run.name=viewed", "ui=plain", "ui.web=true", "faults=none", "train.steps=1000000",
    "train.eval_every=0", "checkpoint.persist_every=0", "cloud.nodes=2",
    "train.global_batch_size=4", "train.sequence_length=32",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Some steps of a run. ``step_s`` is the median; ``cpu_s`` a step, of all its processes;
    ``own_cpu_s`` a step, of the process that controls it and serves the page."""

    step_s: float
    cpu_s: float
    own_cpu_s: float
    steps: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument(
        "--quick", action="store_true", help="two rounds of 15 steps, not five of 40"
    )
    options = parser.parse_args()
    rounds, steps = (2, 15) if options.quick else (5, 40)
    with tempfile.TemporaryDirectory(prefix="sailor-bench-") as folder, a_run(Path(folder)) as run:
        stretches = measure(run, rounds=rounds, steps=steps)
    figures: dict[str, Any] = {}
    for name in [name for name in stretches if name != "nobody"]:
        pairs = list(zip(stretches["nobody"], stretches[name], strict=True))
        figures[f"step_ratio_{name}"] = median(b.step_s / a.step_s for a, b in pairs)
        figures[f"cpu_share_{name}"] = median(
            (b.own_cpu_s - a.own_cpu_s) / a.cpu_s for a, b in pairs
        )
    detail = {name: [asdict(one) for one in each] for name, each in stretches.items()}
    document = {
        "benchmark": "web_view", "figures": figures, "detail": detail, "machine": machine(),
    }  # fmt: skip
    show(document, as_json=options.json)


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """A run that goes on, and its page."""

    pid: int
    log: Path
    address: str


@contextmanager
def a_run(folder: Path) -> Iterator[Served]:
    """A run without an end; ended with the block. Raises RuntimeError when it does not train."""
    told, log = folder / "output.txt", folder / "viewed" / "events.jsonl"
    with told.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "run.py", f"runs_dir={folder}", *_COMMAND],
            cwd=ROOT, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and process.poll() is None:
            address = re.search(r"http://127\.0\.0\.1:\d+/[\w-]+/", told.read_text())
            if address and log.exists() and b'"step":10,' in log.read_bytes():
                yield Served(pid=process.pid, log=log, address=address[0])
                return
            time.sleep(0.2)
        raise RuntimeError(f"the run does not train:\n{told.read_text()[-800:]}")
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_S)
        if process.poll() is None:
            process.kill()


def measure(run: Served, *, rounds: int, steps: int) -> dict[str, list[Stretch]]:
    """Name of a reader -> its stretches, one a round; "nobody" is the first of each round."""
    readers: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "nobody": nullcontext, "stream": lambda: a_stream(run.address),
    }  # fmt: skip
    with nullcontext() if browser.why_not() else browser.a_browser() as chromium:
        if chromium is not None:
            readers["chromium"] = lambda: a_page(chromium, run.address)
        found: dict[str, list[Stretch]] = {name: [] for name in readers}
        for _ in range(rounds):
            for name, reader in readers.items():
                with reader():
                    time.sleep(SETTLE_S)
                    found[name].append(stretch(run, steps=steps))
    return found


def stretch(run: Served, *, steps: int) -> Stretch:
    """What so many steps take from now on. Raises RuntimeError when they do not come."""
    first, own_s, all_s = newest_step(run.log), cpu_seconds(run.pid), tree_cpu_seconds(run.pid)
    deadline = time.monotonic() + PATIENCE_S
    while newest_step(run.log) < first + steps:
        if time.monotonic() > deadline:
            raise RuntimeError(f"no {steps} steps within {PATIENCE_S:g} s")
        time.sleep(0.25)
    last, own_s = newest_step(run.log), cpu_seconds(run.pid) - own_s
    all_s = tree_cpu_seconds(run.pid) - all_s
    times = [
        event["seconds"]
        for event in read_events(run.log)
        if event.kind == "step" and first < event["step"] <= last
    ]
    number = last - first
    return Stretch(
        step_s=median(times), cpu_s=all_s / number, own_cpu_s=own_s / number, steps=number
    )


@contextmanager
def a_stream(address: str) -> Iterator[None]:
    """A client that reads the page's stream and throws it away."""
    with urllib.request.urlopen(f"{address}stream", timeout=30) as answer:

        def read() -> None:
            with suppress(
                OSError, ValueError, AttributeError
            ):  # closed under its hands, at the end
                while answer.readline():
                    pass

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        yield


@contextmanager
def a_page(chromium: Any, address: str) -> Iterator[None]:
    """The page, open and drawn."""
    page = chromium.new_page()
    page.goto(address)
    page.wait_for_selector("#machines li")
    yield
    page.close()


def newest_step(log: Path) -> int:
    """The step of the log's last step event; of its end only, for reading all would be load."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 65_536))
        return int(re.findall(rb'"kind":"step","step":(\d+)', file.read())[-1])


def cpu_seconds(pid: int) -> float:
    """User and system seconds of one process."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def tree_cpu_seconds(pid: int) -> float:
    """Those of a process and of all it has started that still live."""
    total = 0.0
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            total += cpu_seconds(process.pid)
    return total


if __name__ == "__main__":
    main()
