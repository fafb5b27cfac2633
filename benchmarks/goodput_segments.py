"""Goodput on recorded spot availability, ours beside elastic torchrun with torch's checkpoints.

    python -m benchmarks.goodput_segments            three segments of six hours, minutes each
    python -m benchmarks.goodput_segments --quick    one of them in half a minute
    python -m benchmarks.goodput_segments --json

Real processes and real SIGKILLs on this computer, ours and the baseline's one after the other, the
same model size, global batch, segment, factor and time. The trace is made faster by the factor
that is printed. Scaled by it: when machines are taken and can be had. Not scaled: everything that
is done about it - noticing, deciding, starting processes, moving state, saves and steps. So a
second of recovery costs as many seconds of the trace as the factor says, for both. Neither sums
exactly, and each puts into a microbatch what it likes: the planner's choice, all that a worker
has. No loss is announced. Where the recordings are not there, traces are drawn from measured rates.

kept steps a second counts each step once that the newest state contains; goodput is the share of
the time that went into those.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from actions.traces import trace_of
from benchmarks.configuration import configured
from benchmarks.document import machine, show
from benchmarks.goodput_real import MOST, Play
from benchmarks.goodput_torchrun import played
from benchmarks.goodput_torchrun_worker import BATCH
from benchmarks.recovery_run import COMMON, SIZES
from sailor.observe.events import read_events
from sailor.observe.history import RunHistory, replay
from sailor.observe.metrics import measure
from sailor.simulate.retrace import until_stopped

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT.parent / "shared" / "data" / "traces"
SEGMENTS = ("segment_calm_8node", "segment_churny_8node", "segment_zone_outage_8node")
HOURS = 6.0
SCALED = "when machines are taken and can be had"
NOT_SCALED = "noticing, deciding, booting, moving state, saving, stepping"
_WORDS = tuple(
    word
    for word in (*SIZES["1m"], *COMMON)
    if not word.startswith(("train.global_batch_size", "planner.microbatch_size", "cloud.",
                            "train.steps", "ui.", "train.eval_samples"))
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--quick", action="store_true", help="one segment, in half a minute")
    parser.add_argument("--faster", type=float, help="how much faster the traces are played")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    faster = options.faster or (720.0 if options.quick else 120.0)
    segments = SEGMENTS[1:2] if options.quick else SEGMENTS
    show(document(segments, faster=faster, seed=options.seed), as_json=options.json)


def document(segments: tuple[str, ...], *, faster: float, seed: int) -> dict[str, Any]:
    """All segments, in the form all benchmarks have."""
    rows = [row(segment, faster=faster, seed=seed) for segment in segments]
    figures: dict[str, Any] = {"compression": faster, "scaled": SCALED, "not_scaled": NOT_SCALED}
    for found in rows:
        name = found["segment"]
        figures |= {
            f"{name}_goodput": found["ours"]["goodput"],
            f"{name}_goodput_torchrun": found["torchrun"]["goodput"],
            f"{name}_kept_steps_ratio": found["kept_steps_ratio"],
        }
    return {
        "benchmark": "goodput_segments", "figures": figures, "detail": {"rows": rows},
        "machine": machine(),
    }  # fmt: skip


def row(segment: str, *, faster: float, seed: int) -> dict[str, Any]:
    """One segment, both ways."""
    recorded = RECORDED / f"{segment}.csv"
    path = recorded if recorded.exists() else None
    seconds = HOURS * 3600 / faster
    play = Play(
        path=path, seed=seed, faster=faster, seconds=seconds, from_step=True,
        more=(*_WORDS, f"train.global_batch_size={BATCH}", "train.deterministic=false",
              "cloud.memory_per_gpu=4GiB", "cloud.trace.notice=0s", f"cloud.nodes={MOST}"),
    )  # fmt: skip
    trace = trace_of(configured(*play.command(Path("runs"))[2:]))
    with tempfile.TemporaryDirectory(prefix="sailor-goodput-") as folder:
        history = replay(until_stopped(read_events(play.run(Path(folder) / "ours"))))
        ours = measure(history)
        theirs = played(trace, Path(folder) / "torchrun", seconds=seconds, most=MOST, seed=seed)
    trained_s = ours.wall_s - _first_step_s(history)
    our_pace, their_pace = ours.steps / trained_s, theirs.steps / theirs.wall_s
    return {
        "segment": segment if path is not None else f"drawn for {segment}",
        "compression": faster, "seconds": seconds,
        "losses": sum(1 for event in trace.events if event.delta < 0 and event.t <= seconds),
        "ours": {
            "goodput": ours.good_s / trained_s, "kept_steps": ours.steps,
            "kept_steps_per_s": our_pace, "seconds": trained_s, "pauses": len(history.pauses),
            "redone_steps": ours.redone_steps,
        },
        "torchrun": asdict(theirs) | {"goodput": theirs.goodput, "kept_steps_per_s": their_pace},
        "kept_steps_ratio": our_pace / their_pace if their_pace else None,
    }  # fmt: skip


def _first_step_s(history: RunHistory) -> float:
    """When training began: both are measured from their first step on."""
    return min((g.t for g in history.generations), default=0.0)


if __name__ == "__main__":
    main()
