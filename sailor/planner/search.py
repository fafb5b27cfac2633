"""Finds the plans worth looking at: for every affordable set of machines the fastest way to use it.

Outer loop: which machines, how many, where. Inner question, for fixed machines: which replicas,
answered best-first on lower bounds. All candidates are then evaluated by ``estimate`` and ranked by
the objective; limits are hard. Deterministic: the same question has the same answer, byte for byte.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from sailor.cluster.network import Network
from sailor.cluster.pool import Offer, Pool
from sailor.models.spec import ModelSpec
from sailor.parallel.boxes import allowed_degrees
from sailor.plan import Plan, Replica, Stage
from sailor.planner.estimate import Estimate, estimate
from sailor.planner.mixing import Mixer, moved
from sailor.planner.pack import Group, Option, pack, share_out
from sailor.planner.price import Rental, rent_terms
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
from sailor.planner.shapes import Fitted, Shapes, microbatch_sizes
from sailor.profile.analytic import AnalyticProfile
from sailor.profile.profile import Profile

# Up to here leftover GPUs are worth an exact knapsack; beyond, they are a small share.
PACK_GPUS = 96
# Up to here unequal replicas are tried even if equal ones leave no GPU idle.
SMALL_POOL = 8
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
            candidates=candidates, shapes=tuple(question.shapes.values()),
        )  # fmt: skip
    return SearchResult(
        candidates=candidates,
        objective=objective,
        considered=sum(len(s.all) for s in question.shapes.values()),
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
        self.shapes: dict[str, Shapes] = {}
        self._worth_seating: dict[tuple[str, int], _WorthSeating] = {}
        self._chosen: dict[tuple[str, int], tuple[Plan, Estimate] | None] = {}

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
        for shapes in self.shapes.values():
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
            value = self.evaluate(plan, rentals)
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

    def _shapes_of(self, offer: Offer) -> Shapes:
        name = offer.machine_type.name
        if name not in self.shapes:
            self.shapes[name] = Shapes(
                offer.machine_type, zone=offer.zone.name, spec=self.spec, job=self.job,
                space=self.space, profile=self.profile, network=self.network,
            )  # fmt: skip
        return self.shapes[name]

    def best_on(self, rentals: tuple[Rental, ...]) -> Candidate | None:
        """The best plan on these machines, alike or mixed."""
        found = [candidate for candidate in (self._best(rentals),) if candidate is not None]
        if len(rentals) > 1:
            offers = [replace(r.offer, count=r.num_machines) for r in rentals]
            found += list(self._mixed(offers, found))
        return min(found, key=lambda c: (not c.feasible, *self._rank(c)), default=None)

    def _best(self, rentals: tuple[Rental, ...]) -> Candidate | None:
        """The fastest plan on exactly these machines, or on fewer of their GPUs."""
        if len(rentals) > 1:
            found = self._choose(rentals)
        else:
            # Which zone and at what price does not matter to one pool: worked out once.
            offer, count = rentals[0].offer, rentals[0].num_machines
            key = (offer.machine_type.name, count)
            if key not in self._chosen:
                self._chosen[key] = self._choose(rentals)
            found = self._chosen[key]
            if found is not None:
                found = (
                    moved(found[0], {found[0].replicas[0].stages[0].zone: offer.zone.name}),
                    replace(found[1], rent_terms=rent_terms(rentals)),
                )
        return None if found is None else self._candidate(*found, rentals)

    def _choose(self, rentals: tuple[Rental, ...]) -> tuple[Plan, Estimate] | None:
        best: tuple[Plan, Estimate] | None = None
        idle = True
        for equal in self._uniform(rentals[0]) if len(rentals) == 1 else ():
            value = self.evaluate(equal, rentals)
            idle = equal.num_gpus < rentals[0].num_gpus
            if value.fits:
                best = (equal, value)
        # Equal replicas that use every GPU are as good as it gets, but for tiny pools.
        num_gpus = sum(rental.num_gpus for rental in rentals)
        if len(rentals) == 1 and num_gpus > (PACK_GPUS if idle else SMALL_POOL):
            return best
        for size in self._sizes_for(rentals):
            bar = inf if best is None else best[1].step_seconds * (1 - 1e-9)
            plan = self._packed(rentals, size=size, bar=bar)
            if plan is None:
                continue
            value = self.evaluate(plan, rentals)
            if value.fits and value.step_seconds < bar:
                best = (plan, value)
        return best

    def evaluate(self, plan: Plan, rentals: Sequence[Rental]) -> Estimate:
        """The one evaluator, with this question's inputs."""
        return estimate(
            plan, spec=self.spec, profile=self.profile, network=self.network,
            numerics=self.job.numerics, rentals=rentals,
        )  # fmt: skip

    def _candidate(self, plan: Plan, value: Estimate, rentals: tuple[Rental, ...]) -> Candidate:
        hours = dollars = None
        if self.job.total_tokens is not None:
            hours = self.job.total_tokens / value.tokens_per_second / 3600
            dollars = hours * value.dollars_per_hour
        return Candidate(
            plan=plan, estimate=value, rentals=rentals, hours=hours, dollars=dollars,
            reasons=limits_broken(value, hours=hours, dollars=dollars, limits=self.limits),
        )  # fmt: skip

    def _uniform(self, rental: Rental) -> list[Plan]:
        """Equal replicas: best first by the bound, until no bound can win."""
        shapes = self._shapes_of(rental.offer)
        if not shapes.all:
            return []
        bounds = shapes.step_bound(num_gpus=rental.num_gpus)
        replicas = shapes.replicas(num_gpus=rental.num_gpus)
        best_seconds = inf
        best: tuple[Fitted, int] | None = None
        for index in np.argsort(bounds, kind="stable").tolist():
            if bounds[index] >= best_seconds or bounds[index] == inf:
                break
            samples = self.job.global_batch_size // shapes.all[index].microbatch_size
            count = int(replicas[index])
            most = -(-samples // count)
            fitted = shapes.fit(index, num_replicas=count, num_microbatches=most)
            if fitted is None:
                continue
            seconds = shapes.step_seconds(fitted, num_replicas=count, num_microbatches=most)
            if seconds < best_seconds:
                best_seconds, best = seconds, (fitted, count)
        if best is None:
            return []
        fitted, count = best
        samples = self.job.global_batch_size // fitted.shape.microbatch_size
        shares = [samples // count + (r < samples % count) for r in range(count)]
        return [self._plan([(rental.offer, fitted)] * count, shares=shares)]

    def _packed(self, rentals: tuple[Rental, ...], *, size: int, bar: float) -> Plan | None:
        """Replicas that differ, of one microbatch size; None when none of it takes less than
        ``bar`` seconds a step."""
        samples = self.job.global_batch_size // size
        kinds = [self._shapes_of(rental.offer) for rental in rentals]
        room = bar - min(shapes.host for shapes in kinds)
        if room < inf:
            most = [
                shapes.most_microbatches(room, size=size, num_gpus=rental.num_gpus)
                for shapes, rental in zip(kinds, rentals, strict=True)
            ]
            if max(max(alone for alone, _ in most), sum(both for _, both in most)) < samples:
                return None
        fitted = [
            self._options(shapes, size=size, num_gpus=rental.num_gpus)
            for shapes, rental in zip(kinds, rentals, strict=True)
        ]
        groups = [
            Group(
                num_gpus=rental.num_gpus,
                options=tuple(
                    Option(num_gpus=f.shape.num_gpus, pipeline=f.pipeline) for f in options
                ),
            )
            for rental, options in zip(rentals, fitted, strict=True)
        ]
        seated = pack(groups, num_microbatches=samples, bar=room)
        wanted = self.space.num_replicas
        if not seated or (wanted is not None and len(seated) != wanted):
            return None
        if len(rentals) == 1:
            rows = [fitted[0][s.option] for s in seated]
            ring, shapes = kinds[0].ring_of(rows), kinds[0]
            pipelines = max(
                row.pipeline.seconds(s.num_microbatches)
                for row, s in zip(rows, seated, strict=True)
            )
            shared = max(
                shapes.shared_bound(row, num_replicas=len(rows), ring=ring)
                for row in {id(row): row for row in rows}.values()
            )
            if pipelines + shared >= room:
                return None
        return self._plan(
            [(rentals[s.group].offer, fitted[s.group][s.option]) for s in seated],
            shares=[s.num_microbatches for s in seated],
        )

    def _sizes_for(self, rentals: Sequence[Rental]) -> tuple[int, ...]:
        """Microbatch sizes around those that are best where replicas are equal."""
        sizes = microbatch_sizes(self.job, self.space)
        if sum(rental.num_gpus for rental in rentals) <= SMALL_POOL:
            return sizes
        near: set[int] = set()
        for rental in rentals:
            key = (rental.offer.machine_type.name, rental.num_machines)
            if (found := self._chosen.get(key)) is not None:
                size = found[0].replicas[0].microbatch_size
                near |= {size // 2, size, size * 2}
        return tuple(size for size in sizes if size in near) or sizes

    def _options(self, shapes: Shapes, *, size: int, num_gpus: int) -> list[Fitted]:
        """The shapes worth seating on so many GPUs, of one microbatch size."""
        key = (shapes.machine_type.name, size)
        if key not in self._worth_seating:
            self._worth_seating[key] = _WorthSeating(shapes, size)
        return self._worth_seating[key].up_to(min(num_gpus, PACK_GPUS))

    def _plan(
        self, replicas: Sequence[tuple[Offer, Fitted]], *, shares: Sequence[int] | None = None
    ) -> Plan:
        """Fitted shapes as a Plan. Shares of the batch are even unless given."""
        size = replicas[0][1].shape.microbatch_size
        if shares is None:
            shares = share_out(
                [fitted.pipeline for _, fitted in replicas],
                num_microbatches=self.job.global_batch_size // size,
            )
        made: dict[tuple[int, int, int], Replica] = {}
        built = []
        for (offer, fitted), share in zip(replicas, shares, strict=True):
            key = (id(offer), id(fitted), share)
            if key not in made:
                made[key] = _replica(offer, fitted, share)
            built.append(made[key])
        return Plan(
            model=self.spec.name,
            replicas=tuple(built),
            sequence_length=self.job.sequence_length,
            optimizer_sharding=any(fitted.optimizer_sharding for _, fitted in replicas),
        )


class _WorthSeating:
    """The shapes of one microbatch size that no smaller ones, side by side, stand in for.

    Found in the order of their GPUs and only as far as somebody asks. Unsharded, for how many
    owners there will be is not known yet.
    """

    def __init__(self, shapes: Shapes, size: int) -> None:
        self._shapes = shapes
        self._samples = shapes.job.global_batch_size // size
        usable = np.flatnonzero(shapes.fits & (shapes.microbatch_size == size))
        gpus, pace, fill = (each[usable] for each in (shapes.num_gpus, shapes.pace, shapes.fill))
        order = np.lexsort((usable, fill, pace, gpus))[::-1]
        # The next one last: index, GPUs, pace, fill.
        self._left = list(
            zip(*(each[order].tolist() for each in (usable, gpus, pace, fill)), strict=True)
        )
        self._found: list[Fitted] = []

    def up_to(self, num_gpus: int) -> list[Fitted]:
        """Those that take at most ``num_gpus``."""
        while self._left and self._left[-1][1] <= num_gpus:
            index, gpus, pace, fill = self._left.pop()
            if self._stood_in_for(gpus, pace, fill):
                continue
            fitted = self._shapes.fit_unsharded(index, num_microbatches=self._samples)
            if fitted is not None:
                self._found.append(fitted)
        return [fitted for fitted in self._found if fitted.shape.num_gpus <= num_gpus]

    def _stood_in_for(self, gpus: int, pace: float, fill: float) -> bool:
        return any(
            gpus % other.shape.num_gpus == 0
            and other.pipeline.fill <= fill
            and other.pipeline.pace * other.shape.num_gpus <= pace * gpus
            for other in self._found
        )


def _replica(offer: Offer, fitted: Fitted, num_microbatches: int) -> Replica:
    stages, start = [], 0
    for count in fitted.counts:
        stages.append(
            Stage(
                layers=range(start, start + count),
                gpu=offer.machine_type.gpu.name,
                machine_type=offer.machine_type.name,
                zone=offer.zone.name,
                tensor_parallel=fitted.shape.tensor_parallel,
                recompute=fitted.shape.recompute,
            )
        )
        start += count
    return Replica(
        stages=tuple(stages),
        num_microbatches=num_microbatches,
        microbatch_size=fitted.shape.microbatch_size,
    )


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
