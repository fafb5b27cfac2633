"""How good a plan could be at most on a pool: the bound that is printed beside the chosen plan.

For money the bound holds for every plan on the pool (bound.least_dollars at each machine type's
lowest price). For time it is taken over each set of machines that may train together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from sailor.cluster.network import Network
from sailor.cluster.pool import Offer, Pool
from sailor.models.spec import ModelSpec
from sailor.planner.bound import least_dollars, least_step_seconds
from sailor.planner.own_costs import Ground, OwnCosts
from sailor.planner.question import NO_LIMITS, Job, Limits, Objective, SearchResult, Space
from sailor.profile.analytic import AnalyticProfile
from sailor.profile.profile import Profile

_FAST = (Objective.max_throughput, Objective.min_time)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """The least a step can take, and what the chosen plan takes: both seconds, or both dollars."""

    least: float
    reached: float
    dollars: bool

    @property
    def gap(self) -> float:
        """How much worse than the best possible the plan is at most: 0.02 is 2 %."""
        return max(0.0, self.reached / self.least - 1)

    def words(self) -> str:
        """'no plan takes less than 0.41 s a step; this one is within 3.1% of that'."""
        least = f"${self.least:.3g}" if self.dollars else f"{self.least:.3g} s"
        return f"no plan takes less than {least} a step; this one is within {self.gap:.1%} of that"

    def document(self) -> dict[str, float | str]:
        """In JSON types."""
        unit = "dollars" if self.dollars else "seconds"
        return {"unit": unit, "least": self.least, "reached": self.reached, "gap": self.gap}


def bound_of(
    result: SearchResult, *, spec: ModelSpec, pool: Pool, job: Job, space: Space, network: Network,
    limits: Limits = NO_LIMITS, profile: Profile | None = None,
) -> Bound | None:  # fmt: skip
    """The bound for a result's objective; None where everything is free and asked for in dollars.

    Limits only take plans away: what holds without them holds with them. One on dollars per hour
    makes it tighter: so much money buys so much work an hour.
    """
    best = result.best.estimate
    profile = profile or AnalyticProfile(
        spec=spec, sequence_length=job.sequence_length, numerics=job.numerics
    )
    fast = result.objective in _FAST or best.dollars_per_step == 0
    # Memory must rule nothing out that spreading over all replicas would allow.
    owners = job.global_batch_size if True in space.optimizer_sharding else 1
    least = inf
    for offers in _together(pool, fast=fast):
        grounds = [_ground(kind, space) for kind in _by_type(offers)]
        costs = OwnCosts(
            spec, [g for g in grounds if g.num_machines], job=job, space=space, profile=profile,
            network=network, num_owners=owners,
        )  # fmt: skip
        if not costs.ways:
            continue
        if fast:
            seconds = least_step_seconds(costs, known=best.step_seconds)
            if limits.dollars_per_hour is not None:
                seconds = max(seconds, least_dollars(costs) / limits.dollars_per_hour * 3600)
            least = min(least, seconds)
        else:
            least = min(least, least_dollars(costs))
    if not 0 < least < inf:
        return None
    return Bound(
        least=least, reached=best.step_seconds if fast else best.dollars_per_step, dollars=not fast
    )  # fmt: skip


def _together(pool: Pool, *, fast: bool) -> list[list[Offer]]:
    """For money everything at once; for time the machines of each network and market."""
    if not fast:
        return [list(pool.offers)]
    groups: dict[tuple[str, bool], list[Offer]] = {}
    for offer in pool.offers:
        groups.setdefault((offer.zone.network, offer.spot), []).append(offer)
    return list(groups.values())


def _by_type(offers: Sequence[Offer]) -> list[list[Offer]]:
    kinds: dict[str, list[Offer]] = {}
    for offer in offers:
        kinds.setdefault(offer.machine_type.name, []).append(offer)
    return list(kinds.values())


def _ground(offers: Sequence[Offer], space: Space) -> Ground:
    """All machines of a type, at the lowest price of any."""
    zones: dict[str, int] = {}
    for offer in offers:
        zones[offer.zone.name] = zones.get(offer.zone.name, 0) + offer.count
    if space.max_machines is not None:
        zones = {zone: min(number, space.max_machines) for zone, number in zones.items()}
    cheapest = min(offers, key=lambda offer: offer.price_per_hour)
    return Ground(
        machine_type=cheapest.machine_type,
        zones={zone: number for zone, number in zones.items() if number},
        dollars_per_hour=cheapest.price_per_hour,
    )
