"""Swapping machines under a run that goes on: pauses in median steps, and what each part is worth.

    python -m benchmarks.migration [--json] [--quick] [--sizes 2,4,8]

Real runs of the command on this computer, one after the other: machines are moved by the operator,
one or two at once, one is killed with a standby at hand, one without, and the whole job is killed
and started again. A loaded computer stretches everything alike, so figures are ratios: a pause is
given in median steps of the same run around it. What a switch takes of each process is given beside
it, in processor seconds: those are the same however many processes share a core. Beyond what this
computer holds, the run's own life cycle is simulated with the pauses just measured
(benchmarks/migration_beyond.py).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.core_share import CoreShares
from benchmarks.document import machine, show
from benchmarks.migration_beyond import SIZES, beyond
from benchmarks.migration_figures import Change, changes, losses, usual_interval
from benchmarks.migration_rebalance import PAPER_STEPS_BETWEEN_MOVES, Rebalanced, rebalanced
from benchmarks.migration_run import Job, Setting, a_job, newest_step, seated
from sailor.observe.events import Event
from sailor.observe.history import replay
from sailor.simulate.costs import measured

TOGETHER = 2  # machines that are moved at one moment
_COMPARED = 60  # steps of the undisturbed part that others are compared with
_AT_A_STEADY_RATE = 2  # moves of the run that is compared with undisturbed ones
# Of a core, for each machine where the number of workers is compared: eight, one that stands by
# and the command fit on two cores.
_SHARE = 0.15
_CALM = 6  # steps before something is done to a run: enough for a median, and for its standbys


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.migration")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="fewer moves, sizes 2 and 4")
    parser.add_argument(
        "--every", type=int, help="steps between moves of the run that is rebalanced"
    )
    parser.add_argument("--sizes", help="numbers of workers, all even")
    arguments = parser.parse_args()
    sizes = [2, 4] if arguments.quick else [2, 4, 8]
    if arguments.sizes:
        sizes = [int(size) for size in arguments.sizes.split(",")]
    with tempfile.TemporaryDirectory(prefix="sailor-migration-") as folder:
        document = report(
            Path(folder), sizes=sizes, moves=2 if arguments.quick else 4,
            beyond_sizes=SIZES[:1] if arguments.quick else SIZES,
            every=arguments.every or (20 if arguments.quick else PAPER_STEPS_BETWEEN_MOVES),
        )  # fmt: skip
    show(document, as_json=arguments.json)


def report(
    folder: Path, *, sizes: Sequence[int], moves: int, every: int,
    beyond_sizes: tuple[int, ...] = SIZES,
) -> dict[str, Any]:  # fmt: skip
    """All runs, and the figures drawn from them."""
    main_size = 4 if 4 in sizes else sizes[0]
    by_size = {n: _moved(folder / f"moved-{n}", nodes=n, moves=moves) for n in sizes}
    without = _moved(folder / "no-sandbox", nodes=main_size, moves=moves, rehearse=False)
    several = _moved_together(folder / "together", nodes=main_size, times=max(2, moves // 2))
    alone, together = ([c for c in several if c.moved == count] for count in (1, TOGETHER))
    steady = rebalanced(
        folder / "rebalanced", nodes=main_size, every=every, times=_AT_A_STEADY_RATE
    )
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
    growth, from_to = _growth(planned), f"growth {min(planned)} to {max(planned)} workers <= 25 %"
    shares = _with_shares(folder, sizes=(min(sizes), max(sizes)), moves=moves)
    shared_growth = _growth({n: _planned(found) for n, found in shares.items()}) if shares else {}
    shared = f"on {os.cpu_count()} shared cores"
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
        "stood_still_s_by_workers": {n: median(c.stood_s for c in cs) for n, cs in planned.items()},
        "stayer_cpu_s_by_workers": {n: _stayer_work(cs) for n, cs in planned.items()},
        "newcomer_cpu_s_by_workers": {n: _newcomer_work(cs) for n, cs in planned.items()},
        "controller_cpu_s_by_workers": {
            n: median(c.work.controller_s for c in cs if c.work) for n, cs in planned.items()
        },
        "growth_2_to_8": growth["stood_still_s"],
        "growth_of": growth,
        "core_share": _SHARE,
        "growth_with_a_core_share_each": shared_growth,
        "pause_steps_one_moved": _median_gap(alone),
        "pause_steps_two_moved_at_once": _median_gap(together),
        "two_at_once_over_one": median(c.stood_s for c in together)
        / median(c.stood_s for c in alone),
        "newcomer_cpu_two_at_once_over_one": _newcomer_work(together) / _newcomer_work(alone),
        "simulated_pause_steps": {
            size: {what: moved["pause_steps"] for what, moved in found.items()}
            for size, found in larger.items()
        },
        **_rebalancing(steady),
        "stayers_peak_growth": steady.stayers_peak_growth,
        "stayers_own_memory_growth": steady.stayers_own_growth,
        "peaks_of_two_undisturbed_runs_differ": steady.alone_peaks_differ,
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
        f"{from_to}: seconds that all stand still, {shared}": growth["stood_still_s"] <= 1.25,
        f"{from_to}: the same in median steps": growth["stood_still_steps"] <= 1.25,
        f"{from_to}: processor time of who stays": growth["stayer_cpu_s"] <= 1.25,
        f"{from_to}: seconds that all stand still, {_SHARE:g} core for each": (
            shared_growth["stood_still_s"] <= 1.25 if shared_growth else None
        ),
        f"two moved at once <= 1.25 of one, {shared}": figures["two_at_once_over_one"] <= 1.25,
        "two moved at once <= 1.25 of one, processor time of who comes": figures[
            "newcomer_cpu_two_at_once_over_one"
        ]
        <= 1.25,
        _rate_goal(steady): steady.efficiency_at(PAPER_STEPS_BETWEEN_MOVES) >= 0.99
        and not steady.losses,
        "peak of who stays not above an undisturbed run's, by more than two of those differ": (
            steady.stayers_peak_growth <= max(0.0, steady.alone_peaks_differ)
        ),
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
                    *((f"{n} workers, {_SHARE:g} core each", cs) for n, cs in shares.items()),
                    ("no sandbox", without["changes"]),
                    ("one, and two at once", several),
                    ("replaced cold", changes(replaced)),
                )
            },
            "restart_s": restarted_s,
            "rebalanced_s": {
                "with moves": steady.moved.seconds,
                "left alone": [stretch.seconds for stretch in steady.alone],
                "steps": steady.every * steady.times,
            },
        },
    }


def _moved(folder: Path, *, nodes: int, moves: int, rehearse: bool = True) -> dict[str, Any]:
    """A run whose machines are moved, then one is killed with a standby at hand."""
    setting = Setting(folder=folder, nodes=nodes, standbys=1, rehearse=rehearse)
    with a_job(setting) as job:
        job.until_calm(_CALM)
        _note(f"{nodes} workers, sandbox {'on' if rehearse else 'off'}: training", job)
        _move(job, times=moves)
        victim = seated(job.log)[0]
        pauses = sum(e.kind == "pause" for e in job.log)
        job.kill_node(victim)
        job.until(lambda log: sum(e.kind == "pause" for e in log) > pauses, what="recovery")
        job.until_step(newest_step(job.log) + _CALM)
        job.stop()
        log = job.log
    return {"log": log, "changes": changes(log)}


def _move(job: Job, *, times: int) -> None:
    """The last machine's seats go to the one that stands by, again and again."""
    for _ in range(times):
        job.move(seated(job.log)[-1])
        job.until_calm(_CALM)


def _with_shares(
    folder: Path, *, sizes: tuple[int, int], moves: int
) -> dict[int, list[Change]]:  # fmt: skip
    """Moves in runs of these sizes in which every machine has its own share of a core; nothing
    where this computer cannot do that."""
    found: dict[int, list[Change]] = {}
    for nodes in sizes if CoreShares.available() else ():
        setting = Setting(
            folder=folder / f"share-{nodes}", nodes=nodes, standbys=1, core_share=_SHARE
        )
        with a_job(setting) as job:
            job.until_calm(_CALM)
            _note(f"{nodes} workers, {_SHARE:g} of a core each: training", job)
            _move(job, times=moves)
            job.stop()
            found[nodes] = changes(job.log)
    return found


def _rebalancing(steady: Rebalanced) -> dict[str, Any]:
    """Measured at the rate of the run, and computed from the same run for the paper's."""
    return {
        "rebalancing_steps_between_moves": steady.every,
        "rebalancing_efficiency_measured": steady.efficiency,
        "rebalancing_lost_steps_per_move": steady.lost_steps,
        f"rebalancing_efficiency_computed_for_{PAPER_STEPS_BETWEEN_MOVES}_steps": (
            steady.efficiency_at(PAPER_STEPS_BETWEEN_MOVES)
        ),
        f"rebalancing_efficiency_by_pauses_for_{PAPER_STEPS_BETWEEN_MOVES}_steps": (
            steady.efficiency_by_pauses(PAPER_STEPS_BETWEEN_MOVES)
        ),
        "undisturbed_runs_differ": steady.alone_differ,
        "losses_while_rebalancing": steady.losses,
    }


def _rate_goal(steady: Rebalanced) -> str:
    how = "measured"
    if steady.every != PAPER_STEPS_BETWEEN_MOVES:
        how = f"computed from one every {steady.every}, measured"
    known = f"undisturbed runs differ by {steady.alone_differ:.1%}"
    return f"rebalancing every {PAPER_STEPS_BETWEEN_MOVES} steps >= 99 %, {how} ({known})"


def _moved_together(folder: Path, *, nodes: int, times: int) -> list[Change]:
    """A run in which one machine is moved, then two at once, again and again: one after the other,
    so that both see the same of what else this computer does."""
    with a_job(Setting(folder=folder, nodes=nodes, standbys=TOGETHER)) as job:
        job.until_calm(_CALM)
        _note(f"{nodes} workers, one and {TOGETHER} machines moved at once: training", job)
        for _ in range(times):
            for count in (1, TOGETHER):
                job.move(*seated(job.log)[-count:])
                job.until_calm(_CALM)
        job.stop()
        return _planned(changes(job.log))


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


def _stayer_work(found: Sequence[Change]) -> float:
    return median(change.work.stayer_s for change in found if change.work is not None)


def _newcomer_work(found: Sequence[Change]) -> float:
    return median(change.work.newcomer_s for change in found if change.work is not None)


def _growth(planned: Mapping[int, Sequence[Change]]) -> dict[str, float]:
    """From the smallest to the largest number of workers: how long all stand still, on the clock
    and in median steps of the same run, and processor seconds of the busiest machine that stays.
    Only the last is of the program alone: in the others all workers share this computer's cores."""
    least, most = planned[min(planned)], planned[max(planned)]

    def ratio(of: Callable[[Change], float]) -> float:
        return median(map(of, most)) / median(map(of, least))

    return {
        "stood_still_s": ratio(lambda change: change.stood_s),
        "stood_still_steps": ratio(lambda change: change.stood_s / change.usual_s),
        "stayer_cpu_s": _stayer_work(most) / _stayer_work(least),
    }


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
             "first_step", "steps_redone", "stood_s", "moved")  # fmt: skip
    plain = {name: getattr(change, name) for name in names}
    return plain | {"work": None if change.work is None else asdict(change.work)}


def _note(words: str, job: Job) -> None:
    print(f"{words} (step {newest_step(job.log)})", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
