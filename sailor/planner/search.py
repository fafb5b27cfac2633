"""Finds the plans worth looking at: for every affordable set of machines the fastest way to use it.

Which machines, how many, where is decided here; what to make of fixed machines in ``use.py``. All
candidates are then evaluated by ``estimate`` and ranked by the objective; limits are hard.
Deterministic: the same question has the same answer, byte for byte.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf

from sailor.cluster.network import Network
from sailor.cluster.pool import Offer, Pool
from sailor.models.spec import ModelSpec
from sailor.parallel.boxes import allowed_degrees
from sailor.plan import Plan
from sailor.planner.estimate import Estimate
from sailor.planner.mixing import Mixer
from sailor.planner.price import Rental
from sailor.planner.question import (
    ANY_SPACE,
    NO_LIMITS,
    Candidate,
    Job,
    Limits,
    Objective,
    SearchResult,
    Space,
    limits_broken,
    score,
)
from sailor.planner.refusal import refuse
from sailor.planner.use import SMALL_POOL, Use
from sailor.profile.analytic import AnalyticProfile
from sailor.profile.profile import Profile

NAMED = 4  # offers that a warning names


def search(
    spec: ModelSpec,
    pool: Pool,
    *,
    job: Job,
    network: Network,
    objective: Objective,
    space: Space = ANY_SPACE,
    limits: Limits = NO_LIMITS,
    profile: Profile | None = None,
) -> SearchResult:
    """The candidates for a job on a pool, best first.

    Raises NoFeasiblePlan (E301 memory, E302 budget, E303 deadline or speed, E304 division) with
    what ended each family of plans and the smallest relaxation that would help.
    """
    began = time.perf_counter()
    question = _Question(spec, pool, job, network, objective, space, limits, profile)
    candidates = question.candidates()
    if not any(candidate.feasible for candidate in candidates):
        raise refuse(
            spec=spec, pool=pool, job=job, space=question.space, limits=limits,
            candidates=candidates, shapes=tuple(question.use.shapes.values()),
        )  # fmt: skip
    return SearchResult(
        candidates=candidates,
        objective=objective,
        considered=sum(len(s.all) for s in question.use.shapes.values()),
        rejected=dict(question.rejected),
        warnings=tuple(question.warnings),
        seconds=time.perf_counter() - began,
    )


def best_on(
    rentals: tuple[Rental, ...], *, spec: ModelSpec, job: Job, network: Network, space: Space,
    objective: Objective, limits: Limits = NO_LIMITS, profile: Profile | None = None,
) -> Candidate | None:  # fmt: skip
    """The best plan on exactly these machines; None when nothing fits.

    Machines are as ``network`` describes their types, which may differ from what the offers say:
    this is how a what-if is asked.
    """
    here = tuple(
        replace(
            rental,
            offer=replace(
                rental.offer, machine_type=network.machine_types[rental.offer.machine_type.name]
            ),
        )
        for rental in rentals
    )
    pool = Pool(offers=tuple(rental.offer for rental in here))
    question = _Question(spec, pool, job, network, objective, space, limits, profile)
    return question.best_on(here)


class _Question:
    """One search: its inputs, and what was worked out on the way."""

    def __init__(
        self, spec: ModelSpec, pool: Pool, job: Job, network: Network, objective: Objective,
        space: Space, limits: Limits, profile: Profile | None,
    ) -> None:  # fmt: skip
        self.spec, self.pool, self.job = spec, pool, job
        self.network, self.objective, self.limits = network, objective, limits
        degrees = space.tensor_parallel_degrees
        if degrees is None:
            degrees = allowed_degrees(spec, max_degree=pool.max_gpus_per_machine)
        self.space = replace(space, tensor_parallel_degrees=degrees)
        self.profile = profile or AnalyticProfile(
            spec=spec, sequence_length=job.sequence_length, numerics=job.numerics
        )
        self.rejected: Counter[str] = Counter()
        self.warnings: list[str] = []
        self.use = Use(spec=spec, job=job, network=network, space=self.space, profile=self.profile)

    def candidates(self) -> tuple[Candidate, ...]:
        """All candidates, feasible ones first, then by the objective."""
        found: list[Candidate] = []
        offers = self._usable_offers()
        for offer in _distinct(offers):
            for count in machine_counts(self._most_machines(offer)):
                candidate = self._best((Rental(offer=offer, num_machines=count),))
                if candidate is not None:
                    found.append(candidate)
        if self.space.mix:
            found += list(self._mixed(offers, found))
        for shapes in self.use.shapes.values():
            self.rejected["memory"] += shapes.num_rejected
        found = _without_idle(found)
        key = lambda c: (not c.feasible, *self._rank(c))  # noqa: E731
        return tuple(sorted(found, key=key))

    def _rank(self, candidate: Candidate) -> tuple[float, float, float, str]:
        """Ties of the objective go to the faster, then to the cheaper, then by name."""
        return (
            score(self.objective, candidate),
            candidate.estimate.step_seconds,
            candidate.estimate.dollars_per_hour,
            str([rental.key for rental in candidate.rentals]),
        )

    def _usable_offers(self) -> list[Offer]:
        """Offers worth renting: something there, and no spot price above on-demand."""
        on_demand = {
            (o.zone.name, o.machine_type.name): o.price_per_hour
            for o in self.pool.offers
            if not o.spot
        }
        usable, unavailable = [], []
        for offer in self.pool.offers:
            listed = on_demand.get((offer.zone.name, offer.machine_type.name), inf)
            if offer.spot and offer.price_per_hour > listed:
                self.warnings.append(
                    f"{offer.machine_type.name} in {offer.zone.name}: spot "
                    f"${offer.price_per_hour:.2f} is dearer than on-demand ${listed:.2f}; "
                    "on-demand is used"
                )
            elif self._most_machines(offer) < 1:
                self.rejected["quota or capacity"] += 1
                why = "" if not offer.count else " (quota)"
                unavailable.append(f"{offer.machine_type.name} in {offer.zone.name}{why}")
            else:
                usable.append(offer)
        if unavailable:
            more = len(unavailable) - NAMED
            self.warnings.append(
                "no machine to be had: " + ", ".join(unavailable[:NAMED])
                + (f" and {more} more" if more > 0 else "")
            )  # fmt: skip
        return usable

    def _most_machines(self, offer: Offer) -> int:
        """Capacity, quota and the limit on machines together."""
        most = offer.count
        quota = self.pool.allowance(
            gpu=offer.machine_type.gpu.name, region=offer.zone.region, spot=offer.spot
        )
        if quota is not None:
            most = min(most, quota // offer.machine_type.num_gpus)
        if self.space.max_machines is not None:
            most = min(most, self.space.max_machines)
        return most

    def _mixed(self, offers: Sequence[Offer], found: Sequence[Candidate]) -> Iterable[Candidate]:
        """Candidates over several offers."""
        speed: dict[int, float] = {}
        for candidate in found:
            for rental in candidate.rentals:
                key = id(rental.offer)
                speed[key] = max(speed.get(key, 0.0), candidate.estimate.tokens_per_second)
        most = {id(offer): self._most_machines(offer) for offer in offers}
        mixer = Mixer(
            spec=self.spec, pool=self.pool, job=self.job, network=self.network,
            objective=self.objective, limits=self.limits, space=self.space, profile=self.profile,
        )  # fmt: skip
        for rentals, plan in mixer.plans(offers, most=most, speed=speed):
            value = self.use.evaluate(plan, rentals)
            if value.fits and self._as_asked(plan):
                yield self._candidate(plan, value, rentals)
            if sum(rental.num_gpus for rental in rentals) <= 2 * SMALL_POOL:
                small = self._best(rentals)
                if small is not None:
                    yield small

    def _as_asked(self, plan: Plan) -> bool:
        """Whether depth and width are those the user set."""
        depth, width = self.space.num_stages, self.space.num_replicas
        return (width is None or len(plan.replicas) == width) and (
            depth is None or all(replica.num_stages == depth for replica in plan.replicas)
        )

    def best_on(self, rentals: tuple[Rental, ...]) -> Candidate | None:
        """The best plan on these machines, alike or mixed."""
        found = [candidate for candidate in (self._best(rentals),) if candidate is not None]
        if len(rentals) > 1:
            offers = [replace(r.offer, count=r.num_machines) for r in rentals]
            found += list(self._mixed(offers, found))
        return min(found, key=lambda c: (not c.feasible, *self._rank(c)), default=None)

    def _best(self, rentals: tuple[Rental, ...]) -> Candidate | None:
        found = self.use.best(rentals)
        return None if found is None else self._candidate(*found, rentals)

    def _candidate(self, plan: Plan, value: Estimate, rentals: tuple[Rental, ...]) -> Candidate:
        hours = dollars = None
        if self.job.total_tokens is not None:
            hours = self.job.total_tokens / value.tokens_per_second / 3600
            dollars = hours * value.dollars_per_hour
        return Candidate(
            plan=plan, estimate=value, rentals=rentals, hours=hours, dollars=dollars,
            reasons=limits_broken(value, hours=hours, dollars=dollars, limits=self.limits),
        )  # fmt: skip


def machine_counts(most: int) -> tuple[int, ...]:
    """All counts up to eight, then powers of two and one and a half times those, and the most."""
    counts = set(range(1, min(most, 8) + 1))
    step = 8
    while step <= most:
        counts |= {step, step * 3 // 2}
        step *= 2
    return tuple(sorted({count for count in counts if count <= most} | ({most} if most else set())))


def _distinct(offers: Sequence[Offer]) -> list[Offer]:
    """One offer of those that differ in nothing but the zone within a region."""
    seen: dict[tuple[object, ...], Offer] = {}
    for offer in offers:
        key = (
            offer.machine_type.name, offer.zone.region, offer.zone.cloud, offer.spot,
            offer.price_per_hour, offer.count,
        )  # fmt: skip
        seen.setdefault(key, offer)
    return list(seen.values())


def _without_idle(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Drops candidates with a machine that no stage stands on: fewer machines do the same."""
    kept = []
    for candidate in candidates:
        used = candidate.plan.gpus_by_pool()
        if all(
            used.get(rental.key, 0) > (rental.num_machines - 1) * rental.offer.machine_type.num_gpus
            for rental in candidate.rentals
        ):
            kept.append(candidate)
    return kept
