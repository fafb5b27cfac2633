"""Goodput: how close to the bound, how far ahead of restarting, how well predicted, how fast.

``python -m benchmarks.goodput [--json] [--quick] [--traces DIR] [--seed N] [--no-real]``

Traces are those of DIR (any format of docs/traces.md; what is none is named and left out), else the
recordings beside the project, else drawn ones. Every figure's regime stands in ``regimes``; every
row behind it in ``detail``. ``--quick`` takes fewer traces, regimes and futures and shorter runs.

max_ratio_vs_restart      ours / checkpoint-and-restart tuned on the same trace, in the regime named
max_ratio_vs_restart_drawn  the same over drawn losses, storage of 0.25 to 2 GB/s per GPU and
                          restarts as quick as Megatron-LM's
min_ratio_vs_restart_recorded  the least over two recorded traces (p3 and GCP machines), restarts as
                          slow as they were measured to be on them
share_of_upper_bound_min  ours / the zero-cost bound on the same machines, least over all traces
sim_vs_real_error         predicted / measured goodput of a real run on this computer, less one
claimed_90_kept_hours, _dollars  share of worlds that keep what the choice claims of 90 % of them
sim_1000x7d_s             CPU seconds to simulate 1,000 machines for 7 days
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import (
    goodput_calibration,
    goodput_choice,
    goodput_published,
    goodput_real,
    goodput_scale,
)
from benchmarks.document import machine, show
from benchmarks.goodput_policies import (
    GRID,
    QUICK_GRID,
    STORAGE,
    find_traces,
    grid_rows,
    more_nodes,
    published_rows,
    trace_row,
)
from sailor.errors import NoFeasiblePlan

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT.parent / "shared" / "data" / "traces"
# Of the recordings those where machines were held until they were taken.
HELD = ("bamboo", "oobleck_scale", "oobleck_10m", "oobleck_1h", "parcae", "sailor_a100_trace_16",
        "segment")  # fmt: skip
QUICK = ("bamboo_aws_p3", "segment_churny")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--quick", action="store_true", help="in under a minute, less of each")
    parser.add_argument("--traces", type=Path, help="folder of traces to use instead")
    parser.add_argument("--seed", type=int, default=0, help="for whatever is drawn")
    parser.add_argument("--no-real", action="store_true", help="start no run on this computer")
    options = parser.parse_args()
    show(
        document(
            traces=options.traces, seed=options.seed, quick=options.quick, real=not options.no_real
        ),
        as_json=options.json,
    )


def document(*, traces: Path | None, seed: int, quick: bool, real: bool) -> dict[str, Any]:
    """Everything, in the form all benchmarks have."""
    began = time.perf_counter()
    detail: dict[str, Any] = {}
    regimes: dict[str, str] = {}
    recorded = RECORDED if RECORDED.is_dir() else None

    def say(what: str) -> None:
        print(f"{time.perf_counter() - began:6.0f} s  {what}", file=sys.stderr)

    say("policies on traces")
    told, notes = traces_of(traces, recorded=recorded, seed=seed, quick=quick)
    detail["traces"], detail["notes"] = told, notes
    worst = min(told, key=lambda row: row["share_of_upper_bound"])
    regimes["share_of_upper_bound_min"] = (
        f"gpt_1b, batch 512, on a2-highgpu-1g machines, no notice; least of {len(told)} traces: "
        f"{worst['trace']}, {worst['machines']} machines, one loss event every "
        f"{worst['minutes_between_losses'] or float('inf'):.0f} min; published costs"
    )
    say("regimes")
    grid = grid_rows(
        QUICK_GRID if quick else GRID, seed=seed, length_h=3.0 if quick else 12.0,
        storage=(0.25, 2.0) if quick else STORAGE,
    )  # fmt: skip
    slow = published_rows(recorded, seed=seed) if recorded is not None else []
    detail["regimes"] = grid + slow
    detail["restart_never_advances"] = [r["regime"] for r in grid + slow if r["ratio"] is None]
    figures: dict[str, Any] = {"share_of_upper_bound_min": worst["share_of_upper_bound"]}
    for name, of, among in (
        ("max_ratio_vs_restart", max, grid + slow),
        ("max_ratio_vs_restart_drawn", max, grid),
        ("min_ratio_vs_restart_recorded", min, [r for r in slow if "scale" in r["rates"]]),
    ):
        rows = [row for row in among if row["ratio"] is not None]
        if rows:
            found = of(rows, key=lambda row: row["ratio"])
            figures[name], regimes[name] = found["ratio"], found["regime"]
    figures |= real_figures(recorded, seed=seed, quick=quick, real=real, say=say, detail=detail,
                            regimes=regimes)  # fmt: skip
    say("1,000 machines, a week")
    scale = goodput_scale.report(machines=1000, days=7.0, seed=seed)
    detail["scale"] = scale
    figures["sim_1000x7d_s"] = scale["cpu_s"]
    regimes["sim_1000x7d_s"] = (
        f"{scale['machines']} machines in {scale['zones']} zones, {scale['machines_lost']:,} lost "
        f"({scale['rates']}), {scale['generations']:,} generations, {scale['plans_asked']} plans"
    )
    say("the spot-aware choice")
    choice = goodput_choice.report(seed=seed, traces=10 if quick else 100)
    detail["choice"] = choice
    for name in ("saving_vs_throughput_only", "regret_vs_best_fixed"):
        figures[name] = choice[name]
        regimes[name] = (
            f"{choice['traces']} traces of a day after two days of history, 16 machines in 4 zones"
        )
    say("claims against worlds")
    calibration = goodput_calibration.report(worlds=200 if quick else 1000, seed=seed)
    detail["calibration"] = calibration
    for what in ("hours", "dollars"):
        figures[f"claimed_90_kept_{what}"] = calibration["found"]["90%"][what]
        regimes[f"claimed_90_kept_{what}"] = (
            f"{calibration['worlds']} worlds of 16 machines in 2 zones, 8 h of work; sampling "
            f"error {calibration['found']['90%']['sampling_error']:.1%}"
        )
    if recorded is not None:
        say("published results")
        published = goodput_published.report(recorded)
        detail["published"] = published
        for name in ("artifact_worst_error", "clockwork_worst_error", "life_cycle_worst_error"):
            figures[name] = published[name]
        if not quick:
            segment = recorded / "segment_churny_8node.csv"
            detail["more_nodes"] = more_nodes(segment, seed=seed, storage=1.0)
    say("done")
    return {
        "benchmark": "goodput", "figures": figures, "regimes": regimes, "detail": detail,
        "machine": machine(),
    }  # fmt: skip


def traces_of(
    folder: Path | None, *, recorded: Path | None, seed: int, quick: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """A row for every trace, and notes on files that are none."""
    storage = (0.25, 2.0) if quick else STORAGE
    notes: list[str] = []
    paths: list[Path] = []
    if folder is not None:
        paths, notes = find_traces(folder)
        if not paths:
            raise SystemExit(f"{folder} has no trace: {'; '.join(notes) or 'it is empty'}")
    elif recorded is not None:
        found, notes = find_traces(recorded)
        wanted = QUICK if quick else HELD
        paths = [path for path in found if path.name.startswith(wanted)]
        notes = [note for note in notes if note.startswith(wanted)]
    rows = []
    for path in paths:
        try:
            rows.append(trace_row(path, seed=seed, storage=storage))
        except NoFeasiblePlan as error:
            notes.append(f"{path.name}: {error.what}")
    drawn = ("aws_p3",) if quick else ("aws_p3", "aws_g4dn", "aws_v100_calm", "aws_v100_churny")
    rows += [trace_row(None, seed=seed, rates=rates, storage=storage) for rates in drawn]
    return [row for row in rows if row["share_of_upper_bound"] is not None], notes


def real_figures(
    recorded: Path | None, *, seed: int, quick: bool, real: bool, say: Any, detail: dict[str, Any],
    regimes: dict[str, str],
) -> dict[str, Any]:  # fmt: skip
    """The simulator against a real run; none where no run may be started."""
    if not real:
        regimes["sim_vs_real_error"] = "not measured: --no-real"
        return {"sim_vs_real_error": None}
    say("real runs on this computer")
    seconds, faster = (60.0, 360.0) if quick else (200.0, 120.0)
    found = goodput_real.report(traces=recorded, faster=faster, seconds=seconds, seed=seed)
    detail["real"] = found
    regimes["sim_vs_real_error"] = (
        f"gpt_tiny on this computer, {found['segments'][1]} at {faster:g}x for {seconds:g} s, "
        f"measured goodput {found['measured_goodput']:.3f}; costs from {found['segments'][0]}"
    )
    return {"sim_vs_real_error": found["error"]}


if __name__ == "__main__":
    main()
