"""Around the chosen plan: the front of cost against time, mixes, and what would help most.

Reads a search's result; asks the same evaluator again for a few changed worlds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from sailor.cluster.network import Network
from sailor.planner.question import Candidate, Job, Limits, Objective, SearchResult, score

FASTER_LINKS = 2.0  # by which a what-if raises bandwidth
MORE_MEMORY = 2.0
WORTH_ASKING = 0.01  # share of the step


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Something about the world, and how much better the goal would then be (0.1: 10 %)."""

    what: str
    gain: float


def front(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Those that no other beats in both seconds and dollars per step, fastest first."""
    kept: list[Candidate] = []
    cheapest = inf
    for candidate in sorted(
        candidates, key=lambda c: (c.estimate.step_seconds, c.estimate.dollars_per_step)
    ):
        if candidate.estimate.dollars_per_step < cheapest * (1 - 1e-9):
            kept.append(candidate)
            cheapest = candidate.estimate.dollars_per_step
    return tuple(kept)


def kinds(candidate: Candidate) -> frozenset[str]:
    """The GPU types it uses: no machine is rented for nothing."""
    return frozenset(rental.offer.machine_type.gpu.name for rental in candidate.rentals)


def places(candidate: Candidate) -> frozenset[str]:
    """The zones it uses."""
    return frozenset(rental.offer.zone.name for rental in candidate.rentals)


def on_mixing(result: SearchResult) -> str:
    """Whether GPUs of several types, or zones, are worth mixing here, in one sentence; empty when
    the question does not arise."""
    kept = [c for c in result.candidates if c.feasible]
    types = {kind for c in result.candidates for kind in kinds(c)}
    words = []
    for what, of, many in (
        ("GPU types", kinds, len(types) > 1),
        ("zones", places, len({z for c in result.candidates for z in places(c)}) > 1),
    ):
        if not many:
            continue
        alone = min((c for c in kept if len(of(c)) == 1), key=_by(result), default=None)
        mixed = min((c for c in kept if len(of(c)) > 1), key=_by(result), default=None)
        if mixed is None:
            tried = any(len(of(c)) > 1 for c in result.candidates)
            why = "no mix keeps every limit" if tried else "enough of one kind is on offer"
            words.append(f"do not mix {what}: {why}")
        elif alone is None:
            words.append(f"mix {what}: no plan with one of them keeps every limit")
        else:
            better = _value(result, alone) / _value(result, mixed) - 1
            unit = _word(result)
            if better > 0:
                words.append(f"mix {what}: {better:.1%} {unit} than the best without")
            else:
                worse = _value(result, mixed) / _value(result, alone) - 1
                words.append(f"do not mix {what}: the best mix is {worse:.1%} {_opposite(result)}")
    return "; ".join(words)


def _by(result: SearchResult) -> Callable[[Candidate], float]:
    return lambda candidate: _value(result, candidate)


def _value(result: SearchResult, candidate: Candidate) -> float:
    """What the goal makes less of; seconds where it is dollars and machines cost nothing."""
    if _is_free(result):
        return candidate.estimate.step_seconds
    return score(result.objective, candidate)


def _is_free(result: SearchResult) -> bool:
    return result.best.estimate.dollars_per_step == 0


def _word(result: SearchResult) -> str:
    return "faster" if _is_fast(result) else "cheaper"


def _opposite(result: SearchResult) -> str:
    return "slower" if _is_fast(result) else "dearer"


def _is_fast(result: SearchResult) -> bool:
    fast = result.objective in (Objective.max_throughput, Objective.min_time)
    return fast or _is_free(result)


def lost_to(best: Candidate, candidate: Candidate) -> str:
    """Why a feasible candidate was not chosen: '12% slower, 30% dearer'."""
    words = []
    slower = candidate.estimate.step_seconds / best.estimate.step_seconds - 1
    if abs(slower) >= 0.005:
        words.append(f"{abs(slower):.0%} {'slower' if slower > 0 else 'faster'}")
    cost = best.estimate.dollars_per_step
    if cost > 0:
        dearer = candidate.estimate.dollars_per_step / cost - 1
        if abs(dearer) >= 0.005:
            words.append(f"{abs(dearer):.0%} {'dearer' if dearer > 0 else 'cheaper'}")
    return ", ".join(words) or "equal; the tie went by name"


Again = Callable[[Candidate, Network, Job], Candidate | None]


def changes(
    result: SearchResult, *, network: Network, job: Job, limits: Limits, again: Again
) -> tuple[Change, ...]:
    """What single changes would do to the goal, the most helpful first; only those that help.

    ``again`` plans anew on the chosen machines with other links, GPUs or another batch.
    """
    best = result.best
    before = _value(result, best) / job.tokens_per_step
    several = sum(rental.num_machines for rental in best.rentals) > 1
    links: list[tuple[str, Network, Job]] = []
    if _sending(best) > WORTH_ASKING:  # else faster links cannot help
        where = f"links inside machines {FASTER_LINKS:g} x as fast"
        links.append((where, _faster_inside(network), job))
        if several:
            where = f"links between machines {FASTER_LINKS:g} x as fast"
            links.append((where, _faster_cards(network), job))
    worlds = (
        *links,
        (f"GPUs with {MORE_MEMORY:g} x the memory", _more_memory(network), job),
        (
            "a global batch twice as large",
            network,
            replace(job, global_batch_size=2 * job.global_batch_size),
        ),
    )
    found = []
    for what, world, work in worlds:
        other = again(best, world, work)
        if other is not None:
            after = _value(result, other) / work.tokens_per_step
            found.append(Change(what=what, gain=before / after - 1))
    found += _without_a_limit(result, limits)
    return tuple(sorted((c for c in found if c.gain > 0.005), key=lambda c: -c.gain))


def _sending(candidate: Candidate) -> float:
    """The share of the step that is spent on links."""
    names = ("tensor-parallel exchange", "stage to stage", "gradient reduction")
    terms = candidate.estimate.step_terms
    return sum(t.value for t in terms if t.name in names) / candidate.estimate.step_seconds


def _without_a_limit(result: SearchResult, limits: Limits) -> list[Change]:
    """The best plan that breaks one limit only."""
    names = (
        ("over budget", limits.total_dollars, "no limit on total dollars"),
        ("over $", limits.dollars_per_hour, "no limit on dollars per hour"),
        ("misses deadline", limits.deadline_seconds, "no deadline"),
        ("below", limits.min_tokens_per_second, "no least speed"),
    )
    found = []
    for start, limit, what in names:
        if limit is None:
            continue
        freed = [
            c
            for c in result.candidates
            if c.reasons and all(reason.startswith(start) for reason in c.reasons)
        ]
        if freed:
            other = min(freed, key=_by(result))
            gain = _value(result, result.best) / _value(result, other) - 1
            found.append(Change(what=what, gain=gain))
    return found


def _faster_cards(network: Network) -> Network:
    return replace(
        network,
        machine_types={
            name: replace(
                kind, network_bytes_per_second=kind.network_bytes_per_second * FASTER_LINKS
            )
            for name, kind in network.machine_types.items()
        },
    )


def _faster_inside(network: Network) -> Network:
    return replace(
        network,
        machine_types={
            name: replace(
                kind,
                gpu=replace(
                    kind.gpu, link_bytes_per_second=kind.gpu.link_bytes_per_second * FASTER_LINKS
                ),
            )
            for name, kind in network.machine_types.items()
        },
    )


def _more_memory(network: Network) -> Network:
    return replace(
        network,
        machine_types={
            name: replace(
                kind,
                gpu=replace(kind.gpu, memory_bytes=int(kind.gpu.memory_bytes * MORE_MEMORY)),
            )
            for name, kind in network.machine_types.items()
        },
    )
