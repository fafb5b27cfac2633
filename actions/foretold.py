"""What a plan is expected to take, as the log tells it beside what it then took."""

from __future__ import annotations

import json
from typing import Any

from actions.planning import Question
from sailor.plan import Plan
from sailor.planner.estimate import Estimate


def foretold(plan: Plan, value: Estimate, asked: Question, *, priced: bool) -> dict[str, Any]:
    """The fields of ``plan_chosen``.

    ``estimate_bytes``: the bound on each rank's memory, in rank order. ``peak_flops``: of all its
    GPUs together in the format they compute in; None where one is a device without a data sheet.
    ``priced``: the estimate knows what the machines cost.
    """
    return {
        "plan": json.loads(plan.to_json())["plan"],
        "describe": plan.describe(),
        "estimate_step_s": value.step_seconds,
        "estimate_relative_error": value.step_relative_error,
        "estimate_usd_per_hour": value.dollars_per_hour if priced else None,
        "estimate_bytes": _bytes_by_rank(plan, value),
        "peak_flops": _peak_flops(plan, asked),
    }


def _bytes_by_rank(plan: Plan, value: Estimate) -> list[int]:
    """An estimate has equal replicas once, under the first of them."""
    stages = {(stage.replica, stage.stage): stage.peak_bytes for stage in value.stages}
    firsts: dict[Any, int] = {}
    found = []
    for r, s, stage in plan.stages():
        replica = plan.replicas[r]
        if (r, s) in stages:
            firsts.setdefault(replica, r)
        bound = stages[firsts.get(replica, 0), s]
        found += [round(bound)] * stage.tensor_parallel
    return found


def _peak_flops(plan: Plan, asked: Question) -> float | None:
    types = asked.catalogue.network.machine_types
    total = 0.0
    for _, _, stage in plan.stages():
        gpu = types[stage.machine_type].gpu
        if not gpu.has_context:  # a CPU: nobody has measured what it could do at best
            return None
        narrow = asked.job.numerics.compute_bytes == 2
        total += stage.tensor_parallel * (gpu.peak_flops if narrow else gpu.peak_flops_fp32)
    return total
