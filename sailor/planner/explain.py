"""Says in words why a plan was chosen, what holds it back and why others lost. Pure text."""

from __future__ import annotations

from collections.abc import Sequence

from sailor.cluster.pool import Pool
from sailor.planner.question import Candidate, Limits, Objective, SearchResult
from sailor.planner.term import Term, worst_mark
from sailor.units import duration, gib

_GOAL = {
    Objective.max_throughput: "fastest",
    Objective.min_time: "fastest",
    Objective.min_cost_per_token: "cheapest per token",
    Objective.min_cost_to_finish: "cheapest",
}


def machines(candidate: Candidate) -> str:
    """'2 x a2-highgpu-8g spot'."""
    return " + ".join(
        f"{r.num_machines} x {r.offer.machine_type.name} {'spot' if r.offer.spot else 'on-demand'}"
        for r in candidate.rentals
    )


def zones(candidate: Candidate) -> str:
    """Where its machines stand."""
    return ", ".join(dict.fromkeys(r.offer.zone.name for r in candidate.rentals))


def layout(candidate: Candidate) -> str:
    """'pp2 x dp4 x tp1', and what else the plan does."""
    plan = candidate.plan
    words = [plan.describe()]
    sizes = sorted({replica.microbatch_size for replica in plan.replicas})
    words.append("mb" + "/".join(map(str, sizes)))
    if plan.optimizer_sharding:
        words.append("zero1")
    if any(stage.recompute for _, _, stage in plan.stages()):
        words.append("recompute")
    return " ".join(words)


def shortlist(result: SearchResult, *, rows: int) -> tuple[Candidate, ...]:
    """The candidates worth a line: the best, then the best of every other kind of machine, place
    and price, in the order of the result."""
    seen: set[tuple[tuple[str, bool], ...]] = set()
    kept = []
    for candidate in result.candidates:
        kind = tuple(sorted((r.offer.machine_type.name, r.offer.spot) for r in candidate.rentals))
        if kind in seen:
            continue
        seen.add(kind)
        kept.append(candidate)
    return tuple(kept[:rows])


def why_chosen(result: SearchResult, limits: Limits) -> str:
    """One sentence on the choice."""
    best = result.best
    kept = [c for c in result.candidates if c.feasible]
    asked = [
        limit is not None
        for limit in (limits.total_dollars, limits.dollars_per_hour, limits.deadline_seconds,
                      limits.min_tokens_per_second)
    ]  # fmt: skip
    goal = _GOAL[result.objective]
    free = all(c.estimate.dollars_per_hour == 0 for c in kept)
    if free:
        goal = "fastest; machines cost nothing"
    if any(asked):
        return f"{goal} of {len(kept)} plans that keep every limit"
    rival = next((c for c in kept if c.rentals != best.rentals), None)
    return f"{goal} of {len(kept)} plans" + (f"; {_against(best, rival)}" if rival else "")


def _against(best: Candidate, rival: Candidate) -> str:
    """How the runner-up compares."""
    slower = rival.estimate.step_seconds / best.estimate.step_seconds - 1
    words = [f"next is {machines(rival)} in {zones(rival)}"]
    words.append(f"{abs(slower):.0%} {'slower' if slower >= 0 else 'faster'}")
    cost = best.estimate.dollars_per_step
    if cost > 0:
        dearer = rival.estimate.dollars_per_step / cost - 1
        words.append(f"{abs(dearer):.0%} {'dearer' if dearer >= 0 else 'cheaper'}")
    return ", ".join(words)


def what_binds(candidate: Candidate, *, limits: Limits, pool: Pool) -> str:
    """How full the fullest GPU is, which limits are used up, and what the step spends most on
    besides computing."""
    estimate = candidate.estimate
    fullest = estimate.fullest
    share = fullest.peak_bytes / fullest.capacity_bytes
    words = [f"memory {share:.0%} of {fullest.gpu} (stage {fullest.stage + 1})"]
    for used, limit, name in (
        (candidate.dollars, limits.dollars_to_train(candidate.hours), "budget"),
        (estimate.dollars_per_hour, limits.dollars_per_hour, "hourly budget"),
        (None if candidate.hours is None else candidate.hours * 3600, limits.deadline_seconds,
         "deadline"),
    ):  # fmt: skip
        if used is not None and limit:
            words.append(f"{name} {used / limit:.0%} used")
    for rental in candidate.rentals:
        offer = rental.offer
        quota = pool.allowance(
            gpu=offer.machine_type.gpu.name, region=offer.zone.region, spot=offer.spot
        )
        if quota is not None and rental.num_gpus + offer.machine_type.num_gpus > quota:
            words.append(f"quota of {quota} {offer.machine_type.gpu.name} in {offer.zone.region}")
        elif rental.num_machines == offer.count:
            words.append(f"all {offer.count} {offer.machine_type.name} in {offer.zone.name} taken")
    others = [t for t in estimate.step_terms if t.name != "compute"]
    if others:
        worst = max(others, key=lambda term: term.value)
        words.append(f"{worst.name} {worst.value / estimate.step_seconds:.0%} of the step")
    return "; ".join(words)


def step_line(terms: Sequence[Term], *, step_seconds: float, relative_error: float) -> str:
    """The step taken apart, with its error bar and mark."""
    parts = " + ".join(f"{term.name} {duration(term.value)}" for term in terms if term.value)
    return (
        f"step {duration(step_seconds)} +- {relative_error:.0%} "
        f"({worst_mark(terms).value}): {parts}"
    )


def memory_line(terms: Sequence[Term], *, capacity_bytes: int) -> str:
    """The fullest GPU's bytes by part."""
    total_bytes = sum(term.value for term in terms)
    parts = " + ".join(f"{term.name} {gib(term.value)}" for term in terms)
    return f"fullest GPU {gib(total_bytes)} of {gib(capacity_bytes)}: {parts}"
