"""Swapping machines under a run that goes on: pauses in median steps, and what each part is worth.

    python -m benchmarks.migration [--json] [--quick] [--sizes 2,4,8]

Real runs of the command on this computer, one after the other: machines are moved by the operator,
one is killed with a standby at hand, one without, and the whole job is killed and started again. A
loaded computer stretches everything alike, so figures are ratios: a pause is given in median steps
of the same run around it. Beyond what this computer holds, the run's own life cycle is simulated
with the pauses just measured (benchmarks/migration_beyond.py).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.document import machine, show
from benchmarks.migration_beyond import SIZES, beyond
from benchmarks.migration_figures import Change, changes, losses, usual_interval
from benchmarks.migration_run import Job, Setting, a_job, newest_step, seated
from sailor.observe.events import Event
from sailor.observe.history import replay
from sailor.simulate.costs import measured

PAPER_STEPS_BETWEEN_MOVES = 85
"""TrainMover's 32-GPU table rebalances every 10 minutes; of GPT-10B it says that a first iteration
of 44 s is six times a usual one, which makes 82 to 90 iterations in 10 minutes."""
_COMPARED = 60  # steps of the undisturbed part that others are compared with
_CALM = 6  # steps before something is done to a run: enough for a median, and for its standbys


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.migration")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="fewer moves, sizes 2 and 4")
    parser.add_argument("--sizes", help="numbers of workers, all even")
    arguments = parser.parse_args()
    sizes = [2, 4] if arguments.quick else [2, 4, 8]
    if arguments.sizes:
        sizes = [int(size) for size in arguments.sizes.split(",")]
    with tempfile.TemporaryDirectory(prefix="sailor-migration-") as folder:
        document = report(
            Path(folder), sizes=sizes, moves=2 if arguments.quick else 4,
            beyond_sizes=SIZES[:1] if arguments.quick else SIZES,
        )  # fmt: skip
    show(document, as_json=arguments.json)


def report(
    folder: Path, *, sizes: Sequence[int], moves: int, beyond_sizes: tuple[int, ...] = SIZES
) -> dict[str, Any]:
    """All runs, and the figures drawn from them."""
    main_size = 4 if 4 in sizes else sizes[0]
    by_size = {n: _moved(folder / f"moved-{n}", nodes=n, moves=moves) for n in sizes}
    without = _moved(folder / "no-sandbox", nodes=main_size, moves=moves, rehearse=False)
    replaced = _replaced_cold(folder / "replaced", nodes=main_size)
    restarted_s, restart_log = _restarted(folder / "restarted", nodes=main_size)
    main_run = by_size[main_size]
    planned = {n: _planned(run["changes"]) for n, run in by_size.items()}
    cold = _planned(without["changes"])
    (unplanned,) = [c for c in main_run["changes"] if not c.planned]
    (cold_replacement,) = [c for c in changes(replaced) if not c.planned]
    usual = usual_interval(main_run["log"])
    restart_steps = restarted_s / usual_interval(restart_log)
    reference = losses(restart_log)
    pause = _median_gap(planned[main_size])
    larger = beyond(
        measured(replay(main_run["log"])), step_s=usual, state_bytes_per_machine=0.0,
        sizes=beyond_sizes,
    )  # fmt: skip
    figures = {
        "planned_pause_steps": pause,
        "planned_steps_redone": max(c.steps_redone for c in planned[main_size]),
        "first_step_with_sandbox": _first_of_fresh(planned.values()),
        "first_step_without_sandbox": _first_of_fresh([cold]),
        "unplanned_pause_steps_after_detection": (unplanned.after_detection_s or 0.0)
        / unplanned.usual_s,
        "unplanned_steps_redone": unplanned.steps_redone,
        "restart_steps": restart_steps,
        "restart_over_unplanned": restarted_s / (unplanned.after_detection_s or usual),
        "ablation_steps": {
            "restart": restart_steps,
            "+ state from peers": cold_replacement.gap_steps,
            "+ two-phase": _median_gap(cold),
            "+ sandbox": pause,
        },
        "pause_s_by_workers": {n: median(c.gap_s for c in cs) for n, cs in planned.items()},
        "pause_steps_by_workers": {n: _median_gap(cs) for n, cs in planned.items()},
        "simulated_pause_steps": {
            size: {what: moved["pause_steps"] for what, moved in found.items()}
            for size, found in larger.items()
        },
        "rebalancing_efficiency": PAPER_STEPS_BETWEEN_MOVES
        / (PAPER_STEPS_BETWEEN_MOVES + max(0.0, pause)),
        "stayers_peak_growth": main_run["peak_growth"],
        "losses_bit_equal": all(
            _same(losses(run["log"]), reference) for run in [*by_size.values(), without]
        ),
    }
    goals = {
        "planned pause <= 2 steps": figures["planned_pause_steps"] <= 2.0,
        "0 steps redone when planned": figures["planned_steps_redone"] == 0,
        "first step <= 1.2 medians": (figures["first_step_with_sandbox"] or 9.9) <= 1.2,
        "unplanned <= 4 steps after detection": figures["unplanned_pause_steps_after_detection"]
        <= 4.0,
        "unplanned <= 1/10 of a restart": figures["restart_over_unplanned"] >= 10.0,
        "growth with size <= 25 %": max(figures["pause_s_by_workers"].values())
        <= 1.25 * min(figures["pause_s_by_workers"].values()),
        "rebalancing >= 99 %": figures["rebalancing_efficiency"] >= 0.99,
        "losses bit-equal": figures["losses_bit_equal"],
    }
    return {
        "benchmark": "migration",
        "figures": figures,
        "goals": goals,
        "detail": {
            "machine": machine(),
            "usual_step_s": usual,
            "simulated": larger,
            "changes": {
                name: [_plain(c) for c in cs]
                for name, cs in (
                    *((f"{n} workers", run["changes"]) for n, run in by_size.items()),
                    ("no sandbox", without["changes"]),
                    ("replaced cold", changes(replaced)),
                )
            },
            "restart_s": restarted_s,
            "efficiency": "computed from the measured pause: N / (N + pause), N = "
            f"{PAPER_STEPS_BETWEEN_MOVES} steps",
        },
    }


def _moved(folder: Path, *, nodes: int, moves: int, rehearse: bool = True) -> dict[str, Any]:
    """A run whose machines are moved, then one is killed with a standby at hand."""
    setting = Setting(folder=folder, nodes=nodes, standbys=1, rehearse=rehearse)
    with a_job(setting) as job:
        job.until_calm(_CALM)
        _note(f"{nodes} workers, sandbox {'on' if rehearse else 'off'}: training", job)
        before = job.peaks()
        for _ in range(moves):
            job.move(seated(job.log)[-1])
            job.until_calm(_CALM)
        stayers = [w for w in job.peaks() if w.partition("/")[0] in seated(job.log)[:-1]]
        after = job.peaks()
        growth = max(after[w] / before[w] - 1.0 for w in stayers)
        victim = seated(job.log)[0]
        pauses = sum(e.kind == "pause" for e in job.log)
        job.kill_node(victim)
        job.until(lambda log: sum(e.kind == "pause" for e in log) > pauses, what="recovery")
        job.until_step(newest_step(job.log) + _CALM)
        job.stop()
        log = job.log
    return {"log": log, "changes": changes(log), "peak_growth": growth}


def _replaced_cold(folder: Path, *, nodes: int) -> tuple[Event, ...]:
    """A machine is killed, nobody stands by, and fewer machines will not do: another is rented."""
    with a_job(Setting(folder=folder, nodes=nodes, replace=True)) as job:
        job.until_calm(_CALM)
        _note("no standby: training", job)
        pauses = sum(e.kind == "pause" for e in job.log)
        job.kill_node(seated(job.log)[-1])
        job.until(lambda log: sum(e.kind == "pause" for e in log) > pauses, what="recovery")
        job.until_step(newest_step(job.log) + _CALM)
        job.stop()
        return job.log


def _restarted(folder: Path, *, nodes: int) -> tuple[float, tuple[Event, ...]]:
    """Kill the whole job right after a checkpoint and start it again: seconds to the next step.

    The best case of a restart: nothing is redone, and the machines need no time to be found.
    """
    setting = Setting(folder=folder, nodes=nodes, persist_every=5)
    with a_job(setting) as job:
        job.until_calm(_CALM)
        _note("to be killed and started again: training", job)
        seen = sum(e.kind == "persisted" for e in job.log)
        job.until(lambda log: sum(e.kind == "persisted" for e in log) > seen, what="checkpoint")
        killed_at_step = newest_step(job.log)
        job.kill()
        killed = len(job.log)
        killed_t = job.log[-1].t
    with a_job(setting) as job:
        job.until(
            lambda log: any(e.kind == "step" and e["step"] >= killed_at_step for e in log[killed:]),
            what="the step it was killed at",
        )
        again = next(
            e for e in job.log[killed:] if e.kind == "step" and e["step"] >= killed_at_step
        )
        job.until_step(_COMPARED)
        job.stop()
        return again.t - killed_t, job.log


def _planned(found: Sequence[Change]) -> list[Change]:
    return [change for change in found if change.planned]


def _median_gap(found: Sequence[Change]) -> float:
    return median(change.gap_steps for change in found)


def _first_of_fresh(runs: Iterable[Sequence[Change]]) -> float | None:
    """The first step after the first move of each run: only then does a machine take over that has
    never trained. Those moved away from stand by next, and are warm for having trained."""
    ratios = [found[0].first_step for found in runs if found and found[0].first_step is not None]
    return median(ratios) if ratios else None


def _same(one: dict[int, float], other: dict[int, float]) -> bool:
    """To the last bit, at every step that both have."""
    both = one.keys() & other.keys()
    return bool(both) and all(one[step] == other[step] for step in both)


def _plain(change: Change) -> dict[str, Any]:
    names = ("planned", "cause", "gap_s", "gap_steps", "usual_s", "after_detection_s",
             "first_step", "steps_redone")  # fmt: skip
    return {name: getattr(change, name) for name in names}


def _note(words: str, job: Job) -> None:
    print(f"{words} (step {newest_step(job.log)})", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
