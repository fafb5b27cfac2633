"""The systems that are compared, as rules with costs, and where each cost is from.

Published costs that belong to a data file (restart seconds by model and the like) are read by
whoever has the file and passed in; what is written here are single facts with their source. Two
things are given to every system alike: how fast machines train (``Speeds``) and how long it takes
to notice a death, which the published costs leave out.

    checkpoint-and-restart   kill, start again, load; the interval is tuned (Young, Daly)
    Bamboo-like              neighbours compute each other's layers in the bubbles (NSDI'23)
    Oobleck-like             pipeline templates, state from a live replica (SOSP'23)
    TrainMover-like          a warm standby takes the place, the layout never changes (OSDI'26)
    Parcae-like              moves away ahead of a loss when told of it (NSDI'24)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, expm1, inf, sqrt

from sailor.simulate.rivals import Checkpointing, Keeps, Newcomers, Rules, Warned

GB = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class Restart:
    """What a kill-and-restart costs. ``bytes_per_gpu`` is state a GPU saves and loads.

    ``framework_s``: processes, imports, communicators, first iteration; 80 s for Megatron-LM on 32
    GPUs, 190 on 128, 300 on 1,024 (TrainMover, OSDI'26, table of restarts). ``snapshot_s``: what an
    asynchronous save blocks a step for; None saves synchronously.
    """

    framework_s: float
    bytes_per_gpu: float
    storage_bytes_per_second: float  # of one GPU's share of the storage
    snapshot_s: float | None = None

    @property
    def transfer_s(self) -> float:
        """Saving, or loading, one GPU's state."""
        return self.bytes_per_gpu / self.storage_bytes_per_second

    @property
    def restart_s(self) -> float:
        """From the decision to the first step."""
        return self.framework_s + self.transfer_s

    def checkpoints(self, *, mean_time_between_losses_s: float, step_s: float) -> Checkpointing:
        """The interval that wastes least: Young's square root where a save blocks training,
        at least the time of one write where it does not."""
        if self.snapshot_s is None:
            stall, write = self.transfer_s, 0.0
        else:
            stall, write = self.snapshot_s, self.transfer_s
        interval = young_interval(stall, mean_time_between_losses_s)
        every = max(1, round(interval / step_s), ceil(write / step_s))
        return Checkpointing(every=every, stall_s=stall, write_s=write)


def framework_seconds(num_gpus: int) -> float:
    """Megatron-LM's restart without loading: the published points (32: 80 s, 128: 190, 256: 230,
    512: 260, 1,024: 300), straight lines between them, in log2 of the GPUs."""
    points = [(5, 80.0), (7, 190.0), (8, 230.0), (9, 260.0), (10, 300.0)]
    x = min(max(_log2(max(1, num_gpus)), points[0][0]), points[-1][0])
    for (a, low), (b, high) in zip(points, points[1:], strict=False):
        if x <= b:
            return low + (high - low) * (x - a) / (b - a)
    return points[-1][1]


def _log2(number: int) -> float:
    return number.bit_length() - 1 + (number / (1 << (number.bit_length() - 1)) - 1.0)


def young_interval(stall_s: float, mean_time_between_losses_s: float) -> float:
    """sqrt(2 x stall x MTBF), Young 1974: the first-order optimum. No losses: never."""
    if mean_time_between_losses_s == inf:
        return 1e9
    return sqrt(2.0 * stall_s * mean_time_between_losses_s)


def daly_efficiency(
    *, interval_s: float, stall_s: float, restart_s: float, mean_time_between_losses_s: float
) -> float:
    """Share of time that is work, for losses without memory: Daly 2006, his complete model,

    E = tau / (M exp(R / M) (exp((tau + delta) / M) - 1)).
    """
    m = mean_time_between_losses_s
    if m == inf:
        return interval_s / (interval_s + stall_s)
    if (restart_s + interval_s + stall_s) / m > 500:
        return 0.0
    return interval_s / (m * exp(restart_s / m) * expm1((interval_s + stall_s) / m))


def checkpoint_restart(
    restart_s: float, checkpoints: Checkpointing, *, newcomers: Newcomers = Newcomers.wait,
    sources: Sequence[str] = (),
) -> Rules:  # fmt: skip
    """Kill and restart. A notice buys one more checkpoint."""
    return Rules(
        name="checkpoint-restart",
        keeps=Keeps.checkpoint,
        newcomers=newcomers,
        warned=Warned.checkpoint,
        loss_s=lambda machines, changed: restart_s,
        join_s=lambda machines, changed: restart_s,
        checkpoints=checkpoints,
        sources=tuple(sources),
    )


def bamboo_like(*, rendezvous_s: float, rebalance_s: float, step_factor: float) -> Rules:
    """Redundant computation. ``step_factor``: 1.07 to 1.2 by its own paper where the model fits
    twice; 1 / 0.2 to 1 / 0.28 as the Oobleck authors measured it."""
    return Rules(
        name="bamboo-like",
        keeps=Keeps.steps,
        newcomers=Newcomers.join,
        warned=Warned.nothing,
        loss_s=lambda machines, changed: rendezvous_s + rebalance_s,
        join_s=lambda machines, changed: rebalance_s,
        bridges_s=lambda machines, changed: rebalance_s,
        step_factor=step_factor,
        sources=("Oobleck artifact: rendezvous 30 s, rebalancing by model",),
    )


def oobleck_like(*, reconfigure_s: float, newcomers: Newcomers = Newcomers.join) -> Rules:
    """Templates for every number of machines; layers come from live replicas."""
    return Rules(
        name="oobleck-like",
        keeps=Keeps.steps,
        newcomers=newcomers,
        warned=Warned.nothing,
        loss_s=lambda machines, changed: reconfigure_s,
        join_s=lambda machines, changed: reconfigure_s,
        sources=("Oobleck artifact: reconfiguration 2 to 10 s by model",),
    )


def trainmover_like(*, size: int, swap_s: float = 20.0, planned_s: float = 11.5) -> Rules:
    """One standby for one leaver, nothing else: with too few machines it waits.

    20 s unplanned and 11.5 s planned at 32 GPUs (OSDI'26; 21.1 and 16.6 s at 1,024).
    """
    return Rules(
        name="trainmover-like",
        keeps=Keeps.steps,
        newcomers=Newcomers.stand_by,
        warned=Warned.leave,
        loss_s=lambda machines, changed: swap_s,
        leave_s=lambda machines, changed: planned_s,
        size=size,
        sources=("TrainMover (OSDI'26), pauses at 32 GPUs",),
    )


def parcae_like(*, add_s: float, remove_s: float) -> Rules:
    """Migrates ahead of losses it is told of. 67 s to add and 40 s to remove a machine for 1.5 B
    at 4 x 8, 138 and 115 s for 6.7 B at 2 x 12 (its repository's cost tables)."""
    return Rules(
        name="parcae-like",
        keeps=Keeps.steps,
        newcomers=Newcomers.join,
        warned=Warned.leave,
        loss_s=lambda machines, changed: remove_s,
        join_s=lambda machines, changed: add_s,
        leave_s=lambda machines, changed: remove_s,
        sources=("Parcae repository, cost estimator and tables",),
    )


def parcae_seconds(parameters: float) -> tuple[float, float]:
    """(add, remove) by model size: its two published sizes, a straight line through them."""
    small, large = 1.5e9, 6.7e9
    share = (max(parameters, 0.3e9) - small) / (large - small)
    return max(20.0, 67.0 + share * (138.0 - 67.0)), max(10.0, 40.0 + share * (115.0 - 40.0))


def oobleck_seconds(parameters: float) -> float:
    """Reconfiguration by model size: 2 s up to 0.35 B (3 s), 6 s at 2.7 B, 10 s at 6.7 B, straight
    lines between, growing on at the last slope."""
    points = [(0.1e9, 2.0), (0.35e9, 3.0), (2.7e9, 6.0), (6.7e9, 10.0)]
    for (a, low), (b, high) in zip(points, points[1:], strict=False):
        if parameters <= b:
            return low + (high - low) * max(0.0, parameters - a) / (b - a)
    return 10.0 + (parameters - 6.7e9) / 1e9


def bamboo_seconds(parameters: float) -> float:
    """Rebalancing by model size: 76 s up to 1.5 B, 230 s at 2.7 B, 450 s at 6.7 B, straight lines
    between, growing on at the last slope."""
    if parameters <= 1.5e9:
        return 76.0
    if parameters <= 2.7e9:
        return 76.0 + (parameters - 1.5e9) / 1.2e9 * (230.0 - 76.0)
    return 230.0 + (parameters - 2.7e9) / 4.0e9 * (450.0 - 230.0)


def tuned(
    rules: Rules, *, candidates: Sequence[int], score: Callable[[Rules], float]
) -> tuple[Rules, float]:
    """The best of some checkpoint intervals on the very trace it is then judged on: more than any
    user can do, so that nobody can say the rival was not given its chance."""
    assert rules.checkpoints is not None
    best: tuple[Rules, float] | None = None
    for every in sorted(set(candidates)):
        with_it = replace(rules, checkpoints=replace(rules.checkpoints, every=every))
        value = score(with_it)
        if best is None or value > best[1]:
            best = (with_it, value)
    assert best is not None
    return best
