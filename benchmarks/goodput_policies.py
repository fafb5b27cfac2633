"""Our runtime and others on recorded and drawn traces: shares of the bound, ratios, and regimes.

Two questions. How close to the zero-cost bound does our runtime come on every trace, for one job?
And where is it how many times faster than a tuned checkpoint-and-restart, over sizes of the state,
rates of loss and storage bandwidths? Costs are the published ones of ``sailor/simulate/costs.py``;
every row says the regime it is of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from actions.scenes import Setting, setting
from benchmarks.configuration import configured
from provision.trace import Trace, read_trace
from sailor.errors import DataError
from sailor.planner.futures import Stand
from sailor.planner.risk import Pay, expect
from sailor.simulate.costs import Costs
from sailor.simulate.fleet import Fleet, rent
from sailor.simulate.goodput import (
    Scene,
    bound_samples,
    gains,
    mean_time_between_losses,
    ours,
    tuned_restart,
    usual_step_seconds,
)
from sailor.simulate.policies import Restart, framework_seconds
from sailor.simulate.world import Outcome

STORAGE = (0.25, 0.5, 1.0, 2.0)  # GB/s per GPU
MOST_MACHINES = 64
LONGEST_H = 48.0
JOB = ("model=gpt_1b", "cloud=gcp", "cloud.machine_types=[a2-highgpu-1g]")
LARGE_JOB = ("model=llama3_8b", "train.global_batch_size=64", "cloud=gcp",
             "cloud.machine_types=[a2-ultragpu-1g]")  # fmt: skip
LARGEST_JOB = ("model=llama3_70b", *LARGE_JOB[1:])
# Restarts as slow as they were measured to be: Varuna at 2.7 B parameters on 30 machines, in
# the simulator of the Oobleck artifact (SOSP'23, tools/simulator): 515 s, of which a checkpoint is
# 50 s. With the traces it is run on there.
SLOW_JOB = ("model=gpt_2_7b", "cloud=gcp", "cloud.machine_types=[a2-highgpu-1g]")
SLOW_RESTART_S, SLOW_SAVE_S = 515.0, 50.0
SLOW_TRACES = ("oobleck_1h.csv", "oobleck_30m.csv", "oobleck_10m.csv",
               "oobleck_scale_gcp-trace.csv", "oobleck_scale_p3-trace.csv")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Regime:
    """What a drawn scene is like."""

    machines: int
    rates: str
    job: tuple[str, ...] = LARGE_JOB

    def text(self, here: Setting, fleet: Fleet, storage: float) -> str:
        """In words, for the figure."""
        per_gpu = here.size.state_bytes / here.size.num_gpus / 1e9
        return (
            f"{here.asked.spec.name}, {here.size.state_bytes / 1e9:.0f} GB of state "
            f"({per_gpu:.2g} GB a GPU) on {self.machines} x {here.kind}, one loss event every "
            f"{mean_time_between_losses(fleet) / 60:.1f} min ({self.rates}), storage "
            f"{storage:g} GB/s per GPU, no notice"
        )


GRID = tuple(
    Regime(machines=machines, rates=rates)
    for machines in (32, 64, 128)
    for rates in ("aws_p3", "aws_v100_churny", "aws_v100_calm")
) + tuple(Regime(machines=n, rates="aws_p3", job=LARGEST_JOB) for n in (32, 64, 128))
QUICK_GRID = (Regime(machines=32, rates="aws_p3"), Regime(machines=128, rates="aws_p3"))


def find_traces(folder: Path) -> tuple[list[Path], list[str]]:
    """Files of a folder that are traces, and why others are not."""
    found, notes = [], []
    for path in sorted(folder.iterdir()):
        if path.suffix not in (".csv", ".json"):
            continue
        try:
            trace = read_trace(path)
        except DataError as error:
            notes.append(f"{path.name}: {error.why}")
            continue
        if peak(trace) < 1:
            notes.append(f"{path.name}: it never has a machine to give")
            continue
        found.append(path)
        notes += [f"{path.name}: {note}" for note in trace.notes]
    return found, notes


def peak(trace: Trace) -> int:
    """Most machines at once."""
    return max((sum(level.values()) for _, _, level in trace.levels()), default=0)


def world_of(
    path: Path | None, *, job: Sequence[str], machines: int, rates: str = "aws_p3", seed: int,
    length_h: float, notice: str = "null",
) -> Setting:  # fmt: skip
    """The setting of a file, or of a drawn trace of two zones."""
    which = (
        [f"cloud.trace.rates={rates}", "cloud.trace.zones=2"]
        if path is None
        else [f'cloud.trace.paths=["{path}"]']
    )
    return setting(
        configured(
            "action=simulate", *job, f"cloud.max_nodes={machines}",
            "planner.objective=max_throughput", f"simulate.machines={machines}", f"seed={seed}",
            f"simulate.length={length_h:g}h", f"cloud.trace.notice={notice}", *which,
        )
    )  # fmt: skip


def scene_of(here: Setting) -> Scene:
    """Machines as the trace gives them, and snapshots as often as the spot-aware choice says."""
    fleet = rent(
        here.trace.events, seconds=here.trace.seconds, target=here.target,
        boot_seconds=here.costs.boot_s, seed=here.config.seed, source=here.trace.source,
    )  # fmt: skip
    return here.scene(fleet, snapshot_every=snapshots(here))


def snapshots(here: Setting) -> int:
    """Steps between snapshots, by what is believed of the places."""
    pays = [pay for pay in here.pays() if not pay.on_demand]
    share = max(1, here.target // len(pays))
    stands = [_standing(pay, share) for pay in pays]
    return expect(stands, here.guard(), here.speed, standbys=0, copies=0).snapshot_every


def persisting(here: Setting, scene: Scene, *, storage: float) -> tuple[Scene, Costs]:
    """The scene and our costs with storage of so many GB/s per GPU, and durable checkpoints by the
    same rule as the rival's asynchronous ones begin with: Young's, and no more often than one can
    be written."""
    costs = replace(here.costs, storage_bytes_per_second=storage * 1e9)
    rule = Restart(
        framework_s=0.0, bytes_per_gpu=here.size.state_bytes / here.size.num_gpus,
        storage_bytes_per_second=storage * 1e9, snapshot_s=costs.persist_stall_s,
    )  # fmt: skip
    every = rule.checkpoints(
        mean_time_between_losses_s=mean_time_between_losses(scene.fleet),
        step_s=usual_step_seconds(scene),
    ).every
    return replace(scene, job=replace(scene.job, persist_every=every)), costs


def _standing(pay: Pay, machines: int) -> Stand:
    return Stand(
        place=pay.place, machines=machines, price_per_hour=pay.price_per_hour, hazard=pay.hazard
    )


def restarts(here: Setting, scene: Scene, *, storage: Sequence[float]) -> dict[float, Outcome]:
    """The better of blocking and asynchronous checkpoints, tuned on this very scene, by GB/s."""
    best: dict[float, Outcome] = {}
    for rate in storage:
        for snapshot_s in (None, here.costs.snapshot_stall_s):
            restart = Restart(
                framework_s=framework_seconds(here.size.num_gpus),
                bytes_per_gpu=here.size.state_bytes / here.size.num_gpus,
                storage_bytes_per_second=rate * 1e9,
                snapshot_s=snapshot_s,
            )
            _, outcome = tuned_restart(scene, restart)
            if rate not in best or outcome.samples > best[rate].samples:
                best[rate] = outcome
    return best


def trace_row(path: Path | None, *, seed: int, rates: str = "", storage: Sequence[float],
              notice: str = "null") -> dict[str, Any]:  # fmt: skip
    """One trace, one job: our share of the bound and the ratio over restarting."""
    machines = 32
    if path is not None:
        machines = min(MOST_MACHINES, peak(read_trace(path)))
    here = world_of(path, job=JOB, machines=machines, rates=rates or "aws_p3", seed=seed,
                    length_h=LONGEST_H, notice=notice)  # fmt: skip
    scene = scene_of(here)
    bound = bound_samples(scene.fleet, scene.speeds, samples_per_step=scene.job.samples_per_step)
    outcome = ours(scene, here.costs)
    row: dict[str, Any] = {
        "trace": path.name if path is not None else f"drawn, {rates}, seed {seed}",
        "hours": scene.fleet.seconds / 3600,
        "machines": machines,
        "usable_mean": scene.fleet.node_seconds / scene.fleet.seconds,
        "lost": scene.fleet.num_lost,
        "minutes_between_losses": _minutes(mean_time_between_losses(scene.fleet)),
        "notice": None if notice == "null" else notice,
        "snapshot_every": scene.job.snapshot_every,
        "bound_samples_per_s": bound / scene.fleet.seconds,
        "ours_samples_per_s": outcome.samples_per_second,
        "share_of_upper_bound": outcome.samples / bound if bound else None,
        "goodput": outcome.goodput,
        "seconds": dict(outcome.seconds),
    }
    others = restarts(here, scene, storage=storage)
    row["ratio_vs_restart"] = {f"{rate:g} GB/s": _ratio(outcome, o) for rate, o in others.items()}
    return row


def grid_rows(
    regimes: Sequence[Regime], *, seed: int, length_h: float, storage: Sequence[float]
) -> list[dict[str, Any]]:
    """Every regime at every storage bandwidth."""
    rows = []
    for regime in regimes:
        here = world_of(None, job=regime.job, machines=regime.machines, rates=regime.rates,
                        seed=seed, length_h=length_h)  # fmt: skip
        scene = scene_of(here)
        bound = bound_samples(
            scene.fleet, scene.speeds, samples_per_step=scene.job.samples_per_step
        )
        for rate, other in restarts(here, scene, storage=storage).items():
            outcome = ours(*persisting(here, scene, storage=rate))
            rows.append(
                {
                    "regime": regime.text(here, scene.fleet, rate),
                    "machines": regime.machines, "rates": regime.rates, "storage": rate,
                    "ratio": _ratio(outcome, other),
                    "ours_share_of_bound": outcome.samples / bound if bound else None,
                    "restart_share_of_bound": other.samples / bound if bound else None,
                }
            )  # fmt: skip
    return rows


def published_rows(
    folder: Path, *, seed: int, traces: Sequence[str] = SLOW_TRACES
) -> list[dict[str, Any]]:
    """Restarting at what it was measured to take, its interval tuned, on the recordings of that
    measurement."""
    rows = []
    for name in traces:
        trace = read_trace(folder / name)
        here = world_of(folder / name, job=SLOW_JOB, machines=min(30, peak(trace)), seed=seed,
                        length_h=LONGEST_H)  # fmt: skip
        scene = scene_of(here)
        per_gpu = here.size.state_bytes / here.size.num_gpus
        rate = per_gpu / SLOW_SAVE_S / 1e9
        restart = Restart(
            framework_s=SLOW_RESTART_S - SLOW_SAVE_S, bytes_per_gpu=per_gpu,
            storage_bytes_per_second=rate * 1e9,
        )  # fmt: skip
        _, other = tuned_restart(scene, restart)
        outcome = ours(*persisting(here, scene, storage=rate))
        bound = bound_samples(
            scene.fleet, scene.speeds, samples_per_step=scene.job.samples_per_step
        )
        rows.append(
            {
                "regime": f"{here.asked.spec.name}, {here.size.state_bytes / 1e9:.0f} GB of state "
                f"({per_gpu / 1e9:.2g} GB a GPU) on {here.target} x {here.kind}, one loss event "
                f"every {mean_time_between_losses(scene.fleet) / 60:.1f} min ({name}), restart "
                f"{SLOW_RESTART_S:g} s and save {SLOW_SAVE_S:g} s as measured for Varuna at 2.7 B "
                f"(Oobleck artifact, SOSP'23; {rate:.2g} GB/s per GPU), no notice",
                "machines": here.target, "rates": name, "storage": rate,
                "ratio": _ratio(outcome, other),
                "ours_share_of_bound": outcome.samples / bound if bound else None,
                "restart_share_of_bound": other.samples / bound if bound else None,
            }
        )  # fmt: skip
    return rows


def more_nodes(path: Path, *, seed: int, storage: float) -> dict[str, Any]:
    """Gains kept apart: one zone with restarts against all zones with ours."""
    here = world_of(path, job=JOB, machines=peak(read_trace(path)), seed=seed, length_h=LONGEST_H)
    zones = [zone for zone, _ in here.trace.places]
    every = scene_of(here)
    bound_all = bound_samples(
        every.fleet, every.speeds, samples_per_step=every.job.samples_per_step
    )
    found = {}
    for zone in zones:
        events = [event for event in here.trace.events if event.zone == zone]
        fleet = rent(
            events, seconds=here.trace.seconds, target=here.target,
            boot_seconds=here.costs.boot_s, seed=seed,
        )  # fmt: skip
        alone = Scene(fleet=fleet, speeds=every.speeds, job=every.job, detect_s=every.detect_s)
        bound = bound_samples(fleet, alone.speeds, samples_per_step=alone.job.samples_per_step)
        other = restarts(here, alone, storage=(storage,))[storage]
        gained = gains(ours_many=ours(every, here.costs), bounds=(bound, bound_all),
                       rival_few=other)  # fmt: skip
        found[f"{zone} alone with restarts -> {' + '.join(zones)} with ours"] = {
            "from_runtime": _finite(gained.runtime), "from_more_nodes": _finite(gained.nodes),
            "total": _finite(gained.total),
        }  # fmt: skip
    return {"trace": path.name, "storage": storage, "gains": found}


def _ratio(one: Outcome, other: Outcome) -> float | None:
    """None: the other never finishes a step that it keeps."""
    return one.samples / other.samples if other.samples else None


def _minutes(seconds: float) -> float | None:
    return seconds / 60 if math.isfinite(seconds) else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
