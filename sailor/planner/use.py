"""Fixed machines: which replicas to cut out of them, answered best-first on lower bounds.

Equal replicas first; where those leave GPUs idle, or the pool is tiny, replicas that differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np

from sailor.cluster.network import Network
from sailor.cluster.pool import Offer
from sailor.models.spec import ModelSpec
from sailor.plan import Plan, Replica, Stage
from sailor.planner.estimate import Estimate, estimate
from sailor.planner.mixing import moved
from sailor.planner.pack import Group, Option, pack, share_out
from sailor.planner.price import Rental, rent_terms
from sailor.planner.question import Job, Space
from sailor.planner.shape_space import microbatch_sizes
from sailor.planner.shapes import Fitted, Shapes
from sailor.planner.worth_seating import WorthSeating
from sailor.profile.profile import Profile

# Up to here leftover GPUs are worth an exact knapsack; beyond, they are a small share.
PACK_GPUS = 96
# Up to here unequal replicas are tried even if equal ones leave no GPU idle.
SMALL_POOL = 8


class Use:
    """The best uses of sets of machines for one job, and what was worked out on the way."""

    def __init__(
        self, *, spec: ModelSpec, job: Job, network: Network, space: Space, profile: Profile
    ) -> None:
        self.spec, self.job, self.network = spec, job, network
        self.space, self.profile = space, profile
        self.shapes: dict[str, Shapes] = {}
        self._worth_seating: dict[tuple[str, int], WorthSeating] = {}
        self._chosen: dict[tuple[str, int], tuple[Plan, Estimate] | None] = {}

    def best(self, rentals: tuple[Rental, ...]) -> tuple[Plan, Estimate] | None:
        """The fastest plan on exactly these machines, or on fewer of their GPUs; None when nothing
        fits."""
        if len(rentals) > 1:
            return self._choose(rentals)
        # Which zone and at what price does not matter to one pool: worked out once.
        offer, count = rentals[0].offer, rentals[0].num_machines
        key = (offer.machine_type.name, count)
        if key not in self._chosen:
            self._chosen[key] = self._choose(rentals)
        found = self._chosen[key]
        if found is None:
            return None
        return (
            moved(found[0], {found[0].replicas[0].stages[0].zone: offer.zone.name}),
            replace(found[1], rent_terms=rent_terms(rentals)),
        )

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

    def _shapes_of(self, offer: Offer) -> Shapes:
        name = offer.machine_type.name
        if name not in self.shapes:
            self.shapes[name] = Shapes(
                offer.machine_type, zone=offer.zone.name, spec=self.spec, job=self.job,
                space=self.space, profile=self.profile, network=self.network,
            )  # fmt: skip
        return self.shapes[name]

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
            self._worth_seating[key] = WorthSeating(shapes, size)
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
