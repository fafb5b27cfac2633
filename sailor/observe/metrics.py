"""The figures of a run, each defined once: what live view, summary and report all show.

Pure functions of a RunHistory. Seconds are wall seconds since the run first started.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from sailor.observe.goodput import Span
from sailor.observe.history import RunHistory, StepPoint

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleCheck:
    """Whether the kept steps read every sample of the reference exactly once (invariant I3)."""

    lost: int
    repeated: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanCheck:
    """One plan as chosen against what it did. ``actual_step_s`` None: no step ran under it."""

    generation: int
    layout: str
    estimate_step_s: float | None
    actual_step_s: float | None  # median of its kept steps
    steps: int

    @property
    def ratio(self) -> float | None:
        """Actual over estimated step time: above 1, the plan was too hopeful."""
        if not self.actual_step_s or not self.estimate_step_s:
            return None
        return self.actual_step_s / self.estimate_step_s


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryCheck:
    """The most memory of its own that a rank's process has held, and the planner's bound on it.

    ``base_bytes``: what it held before it had a role. On a CPU that is the interpreter and torch,
    which the bound leaves out; memory that processes share, snapshots above all, is in neither.
    ``estimate_bytes`` None: the log has none.
    """

    rank: int
    worker: str
    peak_bytes: int
    base_bytes: int
    estimate_bytes: int | None

    @property
    def ratio(self) -> float | None:
        """What it took for its role, over the bound: above 1, the plan was too hopeful."""
        if not self.estimate_bytes:
            return None
        return (self.peak_bytes - self.base_bytes) / self.estimate_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Metrics:
    """A run in figures, as of ``wall_s``. None where nothing is known yet.

    ``tokens_per_second`` is kept tokens over the wall time, ``stepping_tokens_per_second`` over
    the time spent on kept steps. ``good_s`` and the values of ``badput_s`` add up to ``wall_s``.
    """

    wall_s: float
    good_s: float
    badput_s: Mapping[str, float]
    steps: int
    tokens: int
    loss_first: float | None
    loss_last: float | None
    eval_first: float | None
    eval_last: float | None
    tokens_per_second: float
    stepping_tokens_per_second: float
    committed_steps: int
    redone_steps: int
    samples: SampleCheck
    durable_step: int
    durable_lag_s: float | None
    cost_usd: float
    usd_per_billion_tokens: float | None
    mfu: float | None
    phases_s: Mapping[str, float]  # mean of a kept step, on the rank that told it
    memory: tuple[MemoryCheck, ...]

    @property
    def goodput(self) -> float:
        """Share of the wall time spent on steps that were kept, 0 to 1."""
        return self.good_s / self.wall_s if self.wall_s > 0 else 0.0


def measure(history: RunHistory, *, now: float | None = None) -> Metrics:
    """All figures of a run up to ``now`` (default: its newest event)."""
    wall = history.now if now is None else max(now, history.now)
    good, bad = history.accounts.totals(kept=lambda span: is_kept(history, span), now=wall)
    steps = kept_steps(history)
    tokens = sum(point.tokens for point in steps)
    cost = history.ledger.cost(now=max(wall, history.heard_at))
    evals = [history.evals[step] for step in sorted(history.evals)]
    durable = history.durable[-1] if history.durable else None
    return Metrics(
        wall_s=wall,
        good_s=good,
        badput_s=dict(sorted(bad.items(), key=lambda entry: -entry[1])),
        steps=len(steps),
        tokens=tokens,
        loss_first=steps[0].loss if steps else None,
        loss_last=steps[-1].loss if steps else None,
        eval_first=evals[0].loss if evals else None,
        eval_last=evals[-1].loss if evals else None,
        tokens_per_second=tokens / wall if wall > 0 else 0.0,
        stepping_tokens_per_second=tokens / good if good > 0 else 0.0,
        committed_steps=sum(1 for point in steps if point.step <= history.committed),
        redone_steps=history.steps_redone,
        samples=check_samples(history),
        durable_step=durable.step if durable else 0,
        durable_lag_s=wall - durable.t if durable else None,
        cost_usd=cost,
        usd_per_billion_tokens=cost / tokens * 1e9 if tokens else None,
        mfu=model_flops_utilization(history),
        phases_s=mean_phases(history),
        memory=check_memory(history),
    )


MFU_FORMULA = (
    "tokens x (6 x matrix parameters + 6 x layers x sequence x width) / (seconds of kept steps x "
    "peak FLOP/s of the GPUs in use): PaLM, appendix B, attention halved for its causal mask"
)


def model_flops_utilization(history: RunHistory) -> float | None:
    """Model FLOPs of kept steps over what their GPUs could have done at their data sheets' peak in
    the same time; None where a device's peak is not known. See MFU_FORMULA."""
    flops_per_token = history.start("flops_per_token")
    peaks = {plan.generation: plan.get("peak_flops") for plan in history.plans}
    steps = kept_steps(history)
    if not flops_per_token or not steps:
        return None
    possible = 0.0
    for point in steps:
        peak = peaks.get(point.generation)
        if not peak:
            return None
        possible += point.seconds * peak
    return flops_per_token * sum(p.tokens for p in steps) / possible if possible else None


def mean_phases(history: RunHistory) -> dict[str, float]:
    """Mean seconds of a kept step by phase; ``snapshot`` is all it waited for one."""
    steps = kept_steps(history)
    if not steps:
        return {}
    total: dict[str, float] = {}
    for point in steps:
        for name, seconds in point.phases.items():
            total[name] = total.get(name, 0.0) + seconds
    if history.snapshots.count:
        total["snapshot"] = total.get("snapshot", 0.0) + history.snapshots.begun_s
    return {name: seconds / len(steps) for name, seconds in total.items()}


def check_memory(history: RunHistory) -> tuple[MemoryCheck, ...]:
    """Every rank of the newest layout whose memory is known."""
    told = history.memory
    if told is None:
        return ()
    plans = [p for p in history.plans if p.generation == told.generation]
    bounds = list(plans[-1].get("estimate_bytes") or ()) if plans else []
    return tuple(
        MemoryCheck(
            rank=int(entry["rank"]),
            worker=str(entry["worker"]),
            peak_bytes=int(entry["peak_bytes"]),
            base_bytes=int(entry.get("base_bytes") or 0),
            estimate_bytes=bounds[entry["rank"]] if entry["rank"] < len(bounds) else None,
        )
        for entry in told.get("ranks", ())
    )


def kept_steps(history: RunHistory) -> list[StepPoint]:
    """The steps that count, in step order."""
    return [history.kept[step] for step in sorted(history.kept)]


def is_kept(history: RunHistory, span: Span) -> bool:
    """Whether a step's span is the execution of that step that counts."""
    point = history.kept.get(span.step)
    return point is not None and point.generation == span.generation


def check_samples(history: RunHistory) -> SampleCheck:
    """Compare the samples that kept steps read with the reference.

    The reference for steps a+1..b of a run that began after step a is the samples a*B up to b*B,
    with global batch B: samples are counted over the whole run, whatever the membership was.
    """
    steps = [point for point in kept_steps(history) if point.num_samples]
    if not steps:
        return SampleCheck(lost=0, repeated=0)
    batch = int(history.start("global_batch_size") or steps[0].num_samples)
    began_after = history.generations[0].step if history.generations else 0
    expected = range(began_after * batch, steps[-1].step * batch)
    lost, repeated, reached = 0, 0, expected.start
    for first, end in sorted((p.first_sample, p.first_sample + p.num_samples) for p in steps):
        lost += max(0, min(first, expected.stop) - reached)
        repeated += max(0, min(end, reached) - first)
        reached = max(reached, end)
    lost += max(0, expected.stop - reached)
    return SampleCheck(lost=lost, repeated=repeated)


def check_plans(history: RunHistory) -> list[PlanCheck]:
    """Every generation's plan: what it promised a step would take and what it took."""
    checks = []
    for generation in history.generations:
        chosen = [p for p in history.plans if p.generation == generation.generation]
        chosen = chosen or [p for p in history.plans if p.get("describe") == generation.layout]
        estimate = chosen[-1].get("estimate_step_s") if chosen else None
        seconds = [
            p.seconds for p in history.kept.values() if p.generation == generation.generation
        ]
        checks.append(
            PlanCheck(
                generation=generation.generation,
                layout=generation.layout,
                estimate_step_s=estimate,
                actual_step_s=median(seconds) if seconds else None,
                steps=len(seconds),
            )
        )
    return checks


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedCost:
    """What the first plan said that the whole run would cost and take, without interruptions."""

    usd: float
    low_usd: float
    high_usd: float
    seconds: float


def planned_cost(history: RunHistory) -> PlannedCost | None:
    """Of the first priced plan; its range is the error bar on its step. None where no plan has a
    price, or machines cost nothing."""
    total = int(history.start("total_steps") or 0)
    for plan in history.plans:
        step_s, per_hour = plan.get("estimate_step_s"), plan.get("estimate_usd_per_hour")
        if step_s and per_hour and total:
            seconds = step_s * total
            usd = seconds / 3600.0 * per_hour
            error = min(1.0, plan.get("estimate_relative_error") or 0.0)
            return PlannedCost(
                usd=usd, low_usd=usd * (1 - error), high_usd=usd * (1 + error), seconds=seconds
            )
    return None


def throughput(
    steps: Sequence[StepPoint], *, until: float, num_windows: int
) -> list[tuple[float, float]]:
    """(middle of window, kept tokens per second in it) over equal windows from 0 to ``until``.

    A step's tokens are spread evenly over the seconds it took.
    """
    if until <= 0 or num_windows < 1:
        return []
    width = until / num_windows
    tokens = [0.0] * num_windows
    for point in steps:
        begin, end = max(0.0, point.t - point.seconds), point.t
        first = min(num_windows - 1, int(begin / width))
        last = min(num_windows - 1, int(end / width))
        for window in range(first, last + 1):
            overlap = min(end, (window + 1) * width) - max(begin, window * width)
            share = overlap / (end - begin) if end > begin else 1.0
            tokens[window] += point.tokens * max(0.0, share)
    return [((i + 0.5) * width, total / width) for i, total in enumerate(tokens)]


def thinned(points: Sequence[Point], *, most: int) -> list[Point]:
    """At most about ``most`` points that look the same: of each bucket its lowest and highest."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(len(points) / (most / 2))
    kept = [points[0]]
    for begin in range(0, len(points), size):
        bucket = points[begin : begin + size]
        extremes = {min(bucket, key=lambda p: p[1]), max(bucket, key=lambda p: p[1])}
        kept += sorted(extremes)
    return [*kept, points[-1]]
