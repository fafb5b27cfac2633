"""Says why no plan will do: what ended each family of plans, and the least change that would help.

E301 memory, E302 budget, E303 deadline or speed, E304 numbers that do not divide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor

from sailor.cluster.pool import Pool
from sailor.errors import NoFeasiblePlan
from sailor.models.spec import ModelSpec
from sailor.plan import tensor_parallel_problems
from sailor.planner.memory import Cut, peak_bytes, stage_memory
from sailor.planner.partition import cut_evenly
from sailor.planner.question import Candidate, Job, Limits, Space
from sailor.planner.shape_space import Shape
from sailor.planner.shapes import Shapes
from sailor.planner.term import Term
from sailor.units import MIB, duration, gib
from sailor.units import count as in_words


def refuse(
    *,
    spec: ModelSpec,
    pool: Pool,
    job: Job,
    space: Space,
    limits: Limits,
    candidates: Sequence[Candidate],
    shapes: Sequence[Shapes],
) -> NoFeasiblePlan:
    """The error for a search that found nothing feasible."""
    if candidates:
        return _beyond_limits(spec, job, limits, candidates)
    if indivisible := _indivisible(spec, job, space):
        return indivisible
    if not any(offer.count for offer in pool.offers):
        return NoFeasiblePlan(
            f"there is no machine to run {spec.name} on",
            code="E301",
            why="no zone, machine type or quota is left after the limits on the cloud",
            fix="widen cloud.zones, cloud.regions or cloud.machine_types",
        )
    return _too_large(spec, space, pool, shapes)


def _beyond_limits(
    spec: ModelSpec, job: Job, limits: Limits, candidates: Sequence[Candidate]
) -> NoFeasiblePlan:
    """Plans fit the machines; money or time ended them all."""
    cheapest = min(candidates, key=lambda c: c.estimate.dollars_per_step)
    fastest = min(candidates, key=lambda c: c.estimate.step_seconds)
    reasons = [reason for candidate in candidates for reason in candidate.reasons]
    families = ", ".join(
        f"{sum(reason.startswith(start) for reason in reasons)} {label}"
        for start, label in (("over budget", "cost too much"), ("over $", "cost too much per hour"),
                             ("misses", "take too long"), ("below", "are too slow"))
        if any(reason.startswith(start) for reason in reasons)
    )  # fmt: skip
    budget, needed = limits.total_dollars, _whole_cost(cheapest, limits)
    if budget is not None and needed is not None and needed > budget:
        affordable = budget / needed * (job.total_tokens or 0.0)
        return NoFeasiblePlan(
            f"${budget:,.2f} does not pay for training {spec.name} to the end",
            code="E302",
            why=f"{_words(cheapest)} is the cheapest of {len(candidates)} plans: "
            f"${cheapest.dollars or 0:,.2f} in {_hours(cheapest)}{_beside(limits)}\n({families})",
            where=f"budget.total_usd={budget:g}",
            fix=f"budget.total_usd={_up(needed)}   or   "
            f"train.tokens={in_words(affordable).replace(' ', '')}",
        )
    rate = limits.dollars_per_hour
    if rate is not None and all(c.estimate.dollars_per_hour > rate for c in candidates):
        least = min(candidates, key=lambda c: c.estimate.dollars_per_hour)
        whole = rate + limits.beside_per_hour
        needed = least.estimate.dollars_per_hour + limits.beside_per_hour
        return NoFeasiblePlan(
            f"no plan for {spec.name} costs ${whole:,.2f} an hour or less",
            code="E302",
            why=f"{_words(least)} costs ${least.estimate.dollars_per_hour:,.2f} an hour"
            f"{_beside(limits)}\n({families})",
            where=f"budget.per_hour_usd={whole:g}",
            fix=f"budget.per_hour_usd={_up(needed)}",
        )
    deadline = limits.deadline_seconds
    if deadline is not None and fastest.hours is not None and fastest.hours * 3600 > deadline:
        return NoFeasiblePlan(
            f"{spec.name} cannot be trained within {duration(deadline)}",
            code="E303",
            why=f"{_words(fastest)} is the fastest of {len(candidates)} plans: "
            f"{_hours(fastest)} for ${fastest.dollars or 0:,.2f}\n({families})",
            where=f"budget.deadline={deadline / 3600:g}h",
            fix=f"budget.deadline={ceil(fastest.hours * 10) / 10:g}h   or   fewer train.tokens",
        )
    floor_speed = limits.min_tokens_per_second
    if floor_speed is not None and fastest.estimate.tokens_per_second < floor_speed:
        reached = fastest.estimate.tokens_per_second
        return NoFeasiblePlan(
            f"no plan trains {spec.name} at {floor_speed:,.0f} tokens/s",
            code="E303",
            why=f"{_words(fastest)} is the fastest of {len(candidates)} plans: "
            f"{reached:,.0f} tokens/s\n({families})",
            where=f"planner.min_tokens_per_second={floor_speed:g}",
            fix=f"planner.min_tokens_per_second={floor(reached)}   or   more or larger machines",
        )
    within = [c for c in candidates if not _breaks(c, "over")]
    nearest = min(within or candidates, key=lambda c: c.estimate.step_seconds)
    hours = _hours(nearest)
    return NoFeasiblePlan(
        f"no plan for {spec.name} keeps all limits at once",
        code="E302" if _breaks(nearest, "over") else "E303",
        why=f"the fastest within the budget is {_words(nearest)}: {hours}, "
        f"{nearest.estimate.tokens_per_second:,.0f} tokens/s, ${nearest.dollars or 0:,.2f}\n"
        f"({families})",
        fix=_relax(nearest, candidates, limits),
    )


def _relax(nearest: Candidate, candidates: Sequence[Candidate], limits: Limits) -> str:
    options = []
    if nearest.hours is not None and limits.deadline_seconds is not None:
        options.append(f"budget.deadline={ceil(nearest.hours * 10) / 10:g}h")
    if limits.min_tokens_per_second is not None and _breaks(nearest, "below"):
        reached = floor(nearest.estimate.tokens_per_second)
        options.append(f"planner.min_tokens_per_second={reached}")
    in_time = [c for c in candidates if not _breaks(c, "misses") and not _breaks(c, "below")]
    if in_time and limits.total_dollars is not None:
        cost = min(_whole_cost(c, limits) or 0.0 for c in in_time)
        options.append(f"budget.total_usd={_up(cost)}")
    return "   or   ".join(options) or "loosen the limit that the table names"


def _whole_cost(candidate: Candidate, limits: Limits) -> float | None:
    """Dollars of all machines of a run: those of a plan, and those beside it."""
    if candidate.dollars is None:
        return None
    return candidate.dollars + limits.beside_per_hour * (candidate.hours or 0.0)


def _beside(limits: Limits) -> str:
    """What else is paid for, where something is."""
    if not limits.beside_per_hour:
        return ""
    return f", and ${limits.beside_per_hour:,.3f} an hour for machines that do not train"


def _breaks(candidate: Candidate, start: str) -> bool:
    return any(reason.startswith(start) for reason in candidate.reasons)


def _indivisible(spec: ModelSpec, job: Job, space: Space) -> NoFeasiblePlan | None:
    """A choice the user made that does not divide."""
    degrees = space.tensor_parallel_degrees or (1,)
    if all(tensor_parallel_problems(spec, degree) for degree in degrees):
        problems = tensor_parallel_problems(spec, degrees[0])
        valid = [d for d in range(1, spec.num_heads + 1) if not tensor_parallel_problems(spec, d)]
        near = sorted(valid, key=lambda d: abs(d - degrees[0]))[:2]
        fixes = [f"planner.tensor_parallel={d}" for d in near]
        if len(problems) == 1 and spec.vocab_size % degrees[0]:  # idle rows would do
            rows = -(-spec.num_tokens // (64 * degrees[0])) * 64 * degrees[0]
            padding = rows - spec.num_tokens
            fixes.append(f"model.vocab_size={rows} model.vocab_padding={padding}")
        return NoFeasiblePlan(
            f"{spec.name} cannot be cut {degrees[0]} ways",
            code="E304",
            why="; ".join(problems),
            where=f"planner.tensor_parallel={degrees[0]}",
            fix="   or   ".join(fixes),
        )
    if space.num_stages is not None and space.num_stages > spec.num_layers:
        return NoFeasiblePlan(
            f"{space.num_stages} stages need as many blocks, {spec.name} has {spec.num_layers}",
            code="E304",
            why="a stage holds whole blocks, one at least",
            where=f"planner.pipeline_parallel={space.num_stages}",
            fix=f"planner.pipeline_parallel={spec.num_layers}",
        )
    sizes = space.microbatch_sizes or (1,)
    batch = job.global_batch_size
    if all(batch % size for size in sizes):
        near = sorted((s for s in range(1, batch + 1) if batch % s == 0),
                      key=lambda s: abs(s - sizes[0]))[:2]  # fmt: skip
        return NoFeasiblePlan(
            f"a global batch of {batch} does not divide into microbatches of {sizes[0]}",
            code="E304",
            why="the global batch is kept exactly, whatever machines come and go",
            where=f"planner.microbatch_size={sizes[0]}",
            fix="   or   ".join(f"planner.microbatch_size={s}" for s in near),
        )
    wanted = space.num_replicas
    if wanted is not None and wanted > batch // min(sizes):
        return NoFeasiblePlan(
            f"{wanted} replicas, but only {batch // min(sizes)} microbatches a step",
            code="E304",
            why=f"train.global_batch_size={batch}, microbatches of {min(sizes)}",
            where=f"planner.data_parallel={wanted}",
            fix=f"planner.data_parallel={batch // min(sizes)}",
        )
    return None


def _too_large(
    spec: ModelSpec, space: Space, pool: Pool, shapes: Sequence[Shapes]
) -> NoFeasiblePlan:
    """Nothing fits: the layout that came closest on each machine type, and what it would take."""
    width = space.num_replicas or 1
    gpus = {
        name: sum(o.count for o in pool.offers if o.machine_type.name == name) * kind.num_gpus
        for name, kind in pool.machine_types.items()
    }
    closest = sorted(
        (
            found
            for group in shapes
            if (found := _closest(group, num_gpus=gpus[group.machine_type.name] // width))
        ),
        key=lambda near: near.need / near.have,
    )
    if not closest:
        return NoFeasiblePlan(
            f"the layout asked of {spec.name} needs more GPUs than the machines allowed have",
            code="E301",
            why=", ".join(f"{name}: {number} GPUs" for name, number in sorted(gpus.items())),
            where=_asked(space),
            fix="raise cloud.max_nodes (cloud.nodes here), or leave planner.* free",
        )
    near = closest[0]
    others = "".join(
        f"\n{other.machine}: needs {gib(other.need)} of {gib(other.have)}" for other in closest[1:4]
    )
    return NoFeasiblePlan(
        f"{spec.name} does not fit on {near.machine}",
        code="E301",
        why=f"needs {gib(near.need)} per GPU at tp{near.shape.tensor_parallel} "
        f"pp{near.shape.num_stages}, microbatch {near.shape.microbatch_size}: {near.parts}; "
        f"usable {gib(near.have)}{others}",
        where=_asked(space),
        fix=_room(space, near, shapes),
    )


def _asked(space: Space) -> str:
    asked = []
    if space.num_stages is not None:
        asked.append(f"planner.pipeline_parallel={space.num_stages}")
    if space.num_replicas is not None:
        asked.append(f"planner.data_parallel={space.num_replicas}")
    if space.microbatch_sizes is not None and len(space.microbatch_sizes) == 1:
        asked.append(f"planner.microbatch_size={space.microbatch_sizes[0]}")
    return "  ".join(asked)


def _room(space: Space, near: _Near, shapes: Sequence[Shapes]) -> str:
    """The least that would help: memory, machines, or a choice taken back."""
    group = next(g for g in shapes if g.machine_type.name == near.machine)
    options = []
    if not group.machine_type.gpu.has_context:
        options.append(f"cloud.memory_per_gpu={ceil(near.need / MIB)}MiB")
    enough = _machines_that_fit(group, width=space.num_replicas or 1)
    if enough is not None:
        key = "cloud.max_nodes" if group.machine_type.gpu.has_context else "cloud.nodes"
        options.append(f"{key}={enough}")
    if space.num_stages is not None:
        options.append("planner.pipeline_parallel=null")
    if space.num_replicas is not None:
        options.append("planner.data_parallel=null")
    if space.recompute == (False,):
        options.append("planner.recompute=true")
    if space.microbatch_sizes is not None and min(space.microbatch_sizes) > 1:
        options.append("planner.microbatch_size=1")
    return "   or   ".join(options) or "allow a machine type with more memory per GPU"


def _machines_that_fit(group: Shapes, *, width: int) -> int | None:
    """Fewest machines of this type that hold the model so many times in some cut."""
    sizes = [
        shape.num_gpus
        for index, shape in enumerate(group.all)
        if group.fits[index]
        and group.fit(index, num_replicas=1, num_microbatches=shape.num_stages) is not None
    ]
    return ceil(min(sizes) * width / group.machine_type.num_gpus) if sizes else None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Near:
    """The least demanding layout of a machine type that its GPUs are enough for."""

    need: float
    have: int
    machine: str
    shape: Shape
    parts: str


def _closest(group: Shapes, *, num_gpus: int) -> _Near | None:
    best: _Near | None = None
    for shape in group.all:
        if shape.num_gpus > num_gpus:
            continue
        terms = max(
            (_terms(group, shape, stage) for stage in range(shape.num_stages)), key=peak_bytes
        )
        need = peak_bytes(terms)
        if best is None or need < best.need:
            best = _Near(
                need=need,
                have=group.machine_type.gpu.memory_bytes,
                machine=group.machine_type.name,
                shape=shape,
                parts=" + ".join(
                    f"{term.name} {gib(term.value)}" for term in terms if term.value > 0.02 * need
                ),
            )
    return best


def _terms(group: Shapes, shape: Shape, stage: int) -> tuple[Term, ...]:
    counts = cut_evenly(group.spec.num_layers, shape.num_stages)
    return stage_memory(
        group.coefficients(shape),
        Cut(num_blocks=counts[stage], first=stage == 0, last=stage == shape.num_stages - 1),
        num_in_flight=shape.num_stages - stage,
        num_owners=1,
        optimizer_sharding=False,
        gpu=group.machine_type.gpu,
    )


def _words(candidate: Candidate) -> str:
    machines = " + ".join(
        f"{r.num_machines} x {r.offer.machine_type.name} {'spot' if r.offer.spot else 'on-demand'}"
        f" in {r.offer.zone.name}"
        for r in candidate.rentals
    )
    return f"{machines} as {candidate.plan.describe()}"


def _hours(candidate: Candidate) -> str:
    return duration(candidate.hours * 3600) if candidate.hours is not None else "unknown time"


def _up(dollars: float) -> str:
    """A round number that is enough."""
    return f"{ceil(dollars)}" if dollars >= 10 else f"{ceil(dollars * 100) / 100:.2f}"
