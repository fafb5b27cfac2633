"""The simulator against real runs on this computer: two runs of the command, one to measure costs
in, the other to predict.

``cloud=trace`` plays a recorded segment of spot availability (or a drawn one, where the recordings
are not there) faster than it was, with real processes, real losses and real recovery. Its costs
(pauses, steps, waits) come from another run on another segment; the machines that came and went
come from its own log; the goodput that the simulator makes of them is compared with the one that
was measured, up to the moment the run was told to stop.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sailor.observe.events import read_events
from sailor.observe.history import replay
from sailor.observe.metrics import measure
from sailor.simulate.costs import Costs, measured, usual_step_seconds
from sailor.simulate.pace import StepTable
from sailor.simulate.retrace import fleet_of, until_stopped
from sailor.simulate.world import Job, simulate

ROOT = Path(__file__).resolve().parent.parent
CALIBRATION, TARGET = "segment_zone_outage_8node.csv", "segment_churny_8node.csv"
_CLOSING_S = 180.0  # for the last save on a busy machine
MOST = 4  # machines at once: two cores cannot pose as eight and still be measured


@dataclass(frozen=True, kw_only=True, slots=True)
class Play:
    """One real run: which trace, how much of it, how fast."""

    path: Path | None
    seed: int
    faster: float
    seconds: float  # from the first start, or the first step, to the wish to stop
    from_step: bool = False
    more: tuple[str, ...] = ()  # words that come last

    def command(self, folder: Path) -> list[str]:
        """What is run."""
        which = [] if self.path is None else [f'cloud.trace.paths=["{self.path}"]']
        words = [
            sys.executable, str(ROOT / "run.py"), "cloud=trace", f"runs_dir={folder}",
            "run.name=played", f"seed={self.seed}", f"cloud.trace.faster={self.faster:g}",
            f"cloud.trace.most={MOST}", "train.steps=100000", "train.eval_samples=8",
            "checkpoint.persist_every=0", "faults=none",
            "planner.patience=1h", "ui=plain", *which, *self.more,
        ]  # fmt: skip
        return list({word.partition("=")[0]: word for word in words}.values())

    def run(self, folder: Path) -> Path:
        """The log of a run that was stopped as a user stops one (exit code 75). Raises
        RuntimeError when it ends otherwise."""
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "output.txt").open("w") as output:
            process = subprocess.Popen(
                self.command(folder), stdout=output, stderr=subprocess.STDOUT, cwd=folder
            )
            try:
                if self.from_step:
                    _stepped(folder / "played" / "events.jsonl", process)
                process.wait(self.seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(_CLOSING_S)
            finally:
                if process.poll() is None:
                    process.kill()
        if code != 75:
            tail = (folder / "output.txt").read_text()[-1500:]
            raise RuntimeError(f"the run ended with {code}:\n{tail}")
        return folder / "played" / "events.jsonl"


def _stepped(log: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait for the first step in a log. Raises RuntimeError where there will be none."""
    deadline = time.monotonic() + _CLOSING_S
    while time.monotonic() < deadline and process.poll() is None:
        if log.exists() and any(e.kind == "step" and e["step"] > 0 for e in read_events(log)):
            return
        time.sleep(0.1)
    process.kill()
    raise RuntimeError(f"no step was made, see {log}")


def report(*, traces: Path | None, faster: float, seconds: float, seed: int) -> dict[str, Any]:
    """Play two segments; predict the second with the costs of the first."""
    paths: list[Path | None] = [None, None]
    if traces is not None and (traces / CALIBRATION).exists():
        paths = [traces / CALIBRATION, traces / TARGET]
    with tempfile.TemporaryDirectory() as folder:
        logs = [
            Play(path=path, seed=seed + i, faster=faster, seconds=seconds).run(
                Path(folder) / str(i)
            )
            for i, path in enumerate(paths)
        ]
        return compare(calibration=logs[0], target=logs[1]) | {
            "segments": [p.name if p is not None else "drawn" for p in paths],
            "faster": faster, "seconds": seconds,
        }  # fmt: skip


def compare(*, calibration: Path, target: Path) -> dict[str, Any]:
    """Predicted and measured goodput of the target's log."""
    before = replay(until_stopped(read_events(calibration)))
    costs, steps = measured(before), usual_step_seconds(before)
    events = until_stopped(read_events(target))
    history = replay(events)
    real = measure(history)
    outcome = predict(events, costs=costs, steps=steps)
    predicted = outcome["goodput"]
    return {
        "error": abs(predicted / real.goodput - 1.0) if real.goodput else None,
        "measured_goodput": real.goodput,
        "predicted_goodput": predicted,
        "measured_seconds": {"good": real.good_s, **real.badput_s},
        "predicted_seconds": outcome["seconds"],
        "measured_steps": real.steps,
        "predicted_steps": outcome["steps"],
        "pauses": {"measured": len(history.pauses), "predicted": outcome["pauses"]},
        "wall_s": real.wall_s,
        "step_seconds_by_machines": {str(n): s for n, s in steps.items()},
        "costs": {
            "detect_s": costs.detect_s,
            **{f"{kind}.{part}": getattr(getattr(costs, kind), part)
               for kind in ("start", "planned", "unplanned")
               for part in ("hidden_s", "decide_s", "prepare_s", "copy_s", "switch_s", "gap_s",
                            "extra_s")},
        },
    }  # fmt: skip


def predict(events: list[Any], *, costs: Costs, steps: dict[int, float]) -> dict[str, Any]:
    """What the simulator makes of a log's machines."""
    fleet = fleet_of(events)
    batch = float(events[0].get("global_batch_size") or 1.0)
    outcome = simulate(
        fleet,
        speeds=StepTable(steps, depth=2),
        costs=costs,
        job=Job(samples_per_step=batch, state_bytes=0.0, persist_every=0),
    )
    return {
        "goodput": outcome.goodput, "seconds": dict(outcome.seconds), "steps": outcome.steps,
        "pauses": len([p for p in outcome.pauses if p["cause"] != "start"]),
    }  # fmt: skip
