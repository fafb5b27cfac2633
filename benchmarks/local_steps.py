"""Predicted against measured step time on this computer, for several layouts of a small model.

``python -m benchmarks.local_steps [--json] [--quick] [--deadline MINUTES]``. Each layout is trained
for some steps with cloud=local and read from its log. Predictions: of data sheets (and the core's
measured speed), of a profile that action=profile measures here first, and of data sheets scaled by
one of the runs, which is then not scored. Layouts that the deadline leaves no time for are left out
by name; fewer than six are no answer.

What else runs on the computer is in the measured times. Before and after each run as many processes
as it has workers count for a while: by how much longer that takes than their own CPU seconds, and
than the cores would make it take, others were in the way. Scored are the times divided by that; the
errors of the times as they were stand beside (``raw``).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import mean
from typing import Any

from actions.planning import question
from benchmarks.configuration import configured
from benchmarks.document import machine, show
from sailor.observe.events import read_events
from sailor.observe.history import replay
from sailor.profile.local import num_cores

# Counts until it has had so many CPU seconds; prints how many seconds went by.
COUNTING_SECONDS = 0.2
COUNT = f"""
import time
began, used = time.perf_counter(), time.process_time()
while time.process_time() - used < {COUNTING_SECONDS}:
    pass
print(time.perf_counter() - began)
"""
ROOT = Path(__file__).resolve().parent.parent
# (pp, dp, tp, microbatch): what a small model can be cut into on at most two workers a core.
LAYOUTS = (
    (1, 1, 1, 4), (1, 2, 1, 2), (2, 1, 1, 2), (1, 1, 2, 4), (2, 2, 1, 2), (4, 1, 1, 1),
    (1, 4, 1, 4), (2, 1, 2, 2),
)  # fmt: skip
STEPS, SKIPPED = 16, 4
LEAST = 6  # layouts
MODEL = (
    "cloud.memory_per_gpu=1GiB", f"train.steps={STEPS}", "train.eval_every=0", "faults=none",
    "cloud.max_nodes=4",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--quick", action="store_true", help="six layouts instead of eight")
    parser.add_argument("--deadline", type=float, default=15.0, help="minutes for all of it")
    options = parser.parse_args()
    layouts = LAYOUTS[:6] if options.quick else LAYOUTS
    with tempfile.TemporaryDirectory() as folder:
        ends = time.monotonic() + 60 * options.deadline
        profile = call(folder, "action=profile", ends=ends)["path"]
        rows: list[dict[str, Any]] = []
        for layout in layouts:
            if len(rows) >= LEAST and time.monotonic() + longest(rows) > ends:
                break
            rows.append(measured(folder, layout, ends=ends))
            print(f"{rows[-1]['layout']}: {rows[-1]['measured_s']:.3f} s", file=sys.stderr)
        left_out, layouts = layouts[len(rows) :], layouts[: len(rows)]
        names = {
            "sheets": (),
            "profile": (f"planner.profile={profile}",),
            "calibrated": ("planner.calibrate=run0",),
        }
        for name, words in names.items():
            for number, (layout, row) in enumerate(zip(layouts, rows, strict=True)):
                if name != "calibrated" or number:
                    config = configured(f"runs_dir={folder}", *words, *asked(layout))
                    row[name] = question(config).answer().best.estimate.step_seconds
    figures: dict[str, float] = {}
    for name in names:
        scored = [row for row in rows if name in row]
        for kind, column in (("", "alone_s"), ("_raw", "measured_s")):
            errors = [abs(row[name] / row[column] - 1) for row in scored]
            figures[f"mape_{name}{kind}"] = mean(errors)
            figures[f"rank_correlation_{name}{kind}"] = spearman(
                [row[name] for row in scored], [row[column] for row in scored]
            )
    figures["layouts"] = len(rows)
    if not options.json:
        table(rows)
    show(
        {
            "benchmark": "local_steps", "figures": figures,
            "detail": {
                "layouts": rows,
                "left_out": ["pp{} dp{} tp{} mb{}".format(*layout) for layout in left_out],
            },
            "machine": machine(),
        },
        as_json=options.json,
    )  # fmt: skip


def table(rows: list[dict[str, Any]]) -> None:
    """One line for each layout: seconds of a step, measured and predicted."""
    print(
        f"{'layout':<20}{'measured':>10}{'others':>8}{'alone':>10}{'sheets':>10}{'profile':>10}"
        f"{'calibrated':>12}"
    )
    for row in rows:
        scaled = f"{row['calibrated']:>12.3f}" if "calibrated" in row else f"{'its run':>12}"
        print(
            f"{row['layout']:<20}{row['measured_s']:>10.3f}{row['others']:>7.1f}x"
            f"{row['alone_s']:>10.3f}{row['sheets']:>10.3f}{row['profile']:>10.3f}{scaled}"
        )


def asked(layout: tuple[int, int, int, int]) -> tuple[str, ...]:
    """The words that ask for one layout, and for the machines it takes."""
    stages, replicas, degree, size = layout
    return (
        *MODEL, f"planner.pipeline_parallel={stages}", f"planner.data_parallel={replicas}",
        f"planner.tensor_parallel={degree}", f"planner.microbatch_size={size}",
        f"cloud.nodes={stages * replicas}", f"cloud.gpus_per_node={degree}",
    )  # fmt: skip


def longest(rows: list[dict[str, Any]]) -> float:
    """What the next layout may take, by those before."""
    return max(row["took_s"] for row in rows)


def measured(folder: str, layout: tuple[int, int, int, int], *, ends: float) -> dict[str, Any]:
    """Trains a layout and reads its steps. The quickest fifth: others use the computer too."""
    number = len(list(Path(folder).glob("run*")))
    name, began = f"run{number}", time.monotonic()
    workers = layout[0] * layout[1] * layout[2]
    before = in_the_way(workers, ends=ends)
    call(folder, "action=train", f"run.name={name}", *asked(layout), ends=ends)
    others = (before + in_the_way(workers, ends=ends)) / 2
    history = replay(read_events(Path(folder) / name / "events.jsonl"))
    seconds = sorted(
        p.seconds for p in sorted(history.kept.values(), key=lambda p: p.step)[SKIPPED:]
    )
    fifth = seconds[len(seconds) // 5]
    return {
        "layout": "pp{} dp{} tp{} mb{}".format(*layout),
        "measured_s": fifth,
        "median_s": seconds[len(seconds) // 2],
        "others": others,
        "alone_s": fifth / others,
        "took_s": time.monotonic() - began,
    }


def in_the_way(workers: int, *, ends: float) -> float:
    """How much longer so many processes compute than on an idle computer: 1 when nobody else does.

    Ends the benchmark when they are not done in time; they end by themselves."""
    with ExitStack() as stack:
        counting = [
            stack.enter_context(
                subprocess.Popen([sys.executable, "-c", COUNT], stdout=subprocess.PIPE, text=True)
            )
            for _ in range(workers)
        ]
        try:
            seconds = [
                float(child.communicate(timeout=max(1.0, ends - time.monotonic()))[0])
                for child in counting
            ]
        except subprocess.TimeoutExpired:
            raise SystemExit("this computer is too busy to measure on; see --deadline") from None
    usual = COUNTING_SECONDS * max(1.0, workers / num_cores())
    return max(1.0, mean(seconds) / usual)


def call(folder: str, *words: str, ends: float) -> dict[str, Any]:
    """One command's JSON document. Ends the benchmark if it fails or does not end in time."""
    command = [sys.executable, str(ROOT / "run.py"), "output=json", f"runs_dir={folder}", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        env={**os.environ, "NO_COLOR": "1"},
    ) as child:  # fmt: skip
        try:
            stdout, stderr = child.communicate(timeout=max(1.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            # An interrupt, so that it ends its workers and takes its memory back itself.
            child.send_signal(signal.SIGINT)
            child.communicate(timeout=60)
            raise SystemExit(f"{' '.join(words)} did not end in time; see --deadline") from None
    done = subprocess.CompletedProcess(command, child.returncode, stdout, stderr)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def spearman(a: list[float], b: list[float]) -> float:
    """Rank correlation; no ties are expected of measured times."""

    def ranks(values: list[float]) -> list[int]:
        order = sorted(range(len(values)), key=lambda i: values[i])
        return [order.index(i) for i in range(len(values))]

    n = len(a)
    differences = sum((x - y) ** 2 for x, y in zip(ranks(a), ranks(b), strict=True))
    return 1 - 6 * differences / (n * (n * n - 1))


if __name__ == "__main__":
    main()
