"""Predicted against measured step time on this computer, for several layouts of a small model.

``python -m benchmarks.local_steps [--json] [--quick] [--deadline MINUTES]``. Each layout is trained
for some steps with cloud=local and read from its log. Predictions: of data sheets (and the core's
measured speed), of a profile that action=profile measures here first, and of data sheets scaled by
one of the runs, which is then not scored. What else runs on the computer is in the measured times:
the load before and after is printed beside them. Layouts that the deadline leaves no time for are
left out by name; fewer than six are no answer.
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
from pathlib import Path
from statistics import mean
from typing import Any

from actions.planning import question
from benchmarks.configuration import configured
from benchmarks.document import machine, show
from sailor.observe.events import read_events
from sailor.observe.history import replay

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
        errors = [abs(row[name] / row["measured_s"] - 1) for row in scored]
        figures[f"mape_{name}"] = mean(errors)
        figures[f"rank_correlation_{name}"] = spearman(
            [row[name] for row in scored], [row["measured_s"] for row in scored]
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
    print(f"{'layout':<20}{'measured':>10}{'sheets':>10}{'profile':>10}{'calibrated':>12}   load")
    for row in rows:
        scaled = f"{row['calibrated']:>12.3f}" if "calibrated" in row else f"{'its run':>12}"
        print(
            f"{row['layout']:<20}{row['measured_s']:>10.3f}{row['sheets']:>10.3f}"
            f"{row['profile']:>10.3f}{scaled}   {row['load'][0]} to {row['load'][1]}"
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
    name, began, load = f"run{number}", time.monotonic(), os.getloadavg()[0]
    call(folder, "action=train", f"run.name={name}", *asked(layout), ends=ends)
    history = replay(read_events(Path(folder) / name / "events.jsonl"))
    seconds = sorted(
        p.seconds for p in sorted(history.kept.values(), key=lambda p: p.step)[SKIPPED:]
    )
    return {
        "layout": "pp{} dp{} tp{} mb{}".format(*layout),
        "measured_s": seconds[len(seconds) // 5],
        "median_s": seconds[len(seconds) // 2],
        "took_s": time.monotonic() - began,
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
    }


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
