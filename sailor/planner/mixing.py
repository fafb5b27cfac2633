"""Offers used together: zones of one region, machine types side by side or in one pipeline.

Only where machines are scarce. As long as enough of the best machine can be had, more of it beats
any mix, and the search says so by not offering one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from sailor.cluster.network import Network
from sailor.cluster.pool import Offer, Pool
from sailor.models.spec import ModelSpec
from sailor.plan import Plan
from sailor.planner.costs import Fleet
from sailor.planner.fleet import FleetSearch, Goal
from sailor.planner.own_costs import Ground, OwnCosts
from sailor.planner.price import Rental
from sailor.planner.question import Job, Limits, Objective, Space
from sailor.profile.profile import Profile

MOST_SITES = 4  # kinds of machine in one mix, the fastest ones
# Replicas that plans with spread optimizer state must have. Few are not looked at where the best
# plan has very many: pipelines as deep as that would be are mostly bubble.
MANY_OWNERS, FEW_OWNERS, VERY_MANY = 32, 4, 128


def moved(plan: Plan, zones: Mapping[str, str]) -> Plan:
    """The same plan in other zones, from name to name."""
    if all(zone == there for zone, there in zones.items()):
        return plan
    made = {
        replica: replace(
            replica,
            stages=tuple(replace(stage, zone=zones[stage.zone]) for stage in replica.stages),
        )
        for replica in dict.fromkeys(plan.replicas)
    }
    return replace(plan, replicas=tuple(made[replica] for replica in plan.replicas))


@dataclass(frozen=True, kw_only=True)
class Mixer:
    """Finds fleets over several offers for one question."""

    spec: ModelSpec
    pool: Pool
    job: Job
    network: Network
    objective: Objective
    limits: Limits
    space: Space
    profile: Profile

    def plans(
        self, offers: Sequence[Offer], *, most: Mapping[int, int], speed: Mapping[int, float]
    ) -> Iterable[tuple[tuple[Rental, ...], Plan]]:
        """Rentals and plan for each group of offers that may stand together.

        ``most`` and ``speed`` are by id of an offer: machines that may be rented, and tokens per
        second with all of them (0 when the model does not fit there).
        """
        known: dict[tuple[object, ...], tuple[list[str], list[Plan]]] = {}
        for group in self._groups(offers, most):
            chosen = self._grounds(group, most, speed)
            if sum(len(ground.zones) for ground, _ in chosen) < 2:
                continue
            grounds = [ground for ground, _ in chosen]
            parts = [offer for _, part in chosen for offer in part]
            # Regions that differ in nothing but their names have the same plans.
            zones = list(dict.fromkeys(zone for ground in grounds for zone in ground.zones))
            key = self._kind(grounds, zones)
            if key not in known:
                known[key] = (zones, self._plans_on(grounds))
            before, plans = known[key]
            for plan in plans:
                here = moved(plan, dict(zip(before, zones, strict=True)))
                yield self._rentals(here, parts), here

    def _kind(self, grounds: Sequence[Ground], zones: Sequence[str]) -> tuple[object, ...]:
        """All that plans on these grounds depend on, with places instead of names."""
        place = {zone: index for index, zone in enumerate(zones)}
        first = zones[0]
        distances = tuple(
            (self.network.tier(zone, other), self.network.dollars_per_gb(zone, other))
            for zone in zones
            for other in zones
        )
        return (
            self.network.zones[first].cloud,
            distances,
            tuple(
                (
                    ground.machine_type, ground.dollars_per_hour,
                    tuple((place[zone], count) for zone, count in ground.zones.items()),
                )
                for ground in grounds
            ),
        )  # fmt: skip

    def _plans_on(self, grounds: Sequence[Ground]) -> list[Plan]:
        """The best plans with all state on every owner, and with state spread over some."""
        costs = self._costs(grounds, self.space)
        known: list[Fleet] = []
        plans: list[Plan] = []
        for owners in self._owners():
            most = max((len(plan.replicas) for plan in plans), default=0)
            if owners == FEW_OWNERS and most >= VERY_MANY:
                continue
            found = self._best(grounds, costs, owners, known)
            plans += [p for p in found if owners == 1 or len(p.replicas) >= owners]
        return plans

    def _costs(self, grounds: Sequence[Ground], space: Space) -> OwnCosts:
        return OwnCosts(
            self.spec, grounds, job=self.job, space=space, profile=self.profile,
            network=self.network,
        )  # fmt: skip

    def _best(
        self, grounds: Sequence[Ground], costs: OwnCosts, owners: int, known: list[Fleet]
    ) -> list[Plan]:
        """The best plan on these grounds. Where its shares of unlike microbatches do not add up to
        the batch, the best of each of those sizes alone. ``known``: fleets that were best with
        state spread over fewer owners, which this one is added to."""
        costs = costs.counting_on(owners)
        found = FleetSearch(costs, self._goal(grounds)).best(known) if costs.ways else None
        if found is None:
            return []
        known.append(found.fleet)
        try:
            return [costs.plan(found.fleet)]
        except ValueError:
            sizes = sorted({crew.template.microbatch_size for crew in found.fleet})
        if len(sizes) == 1:
            return []
        alone = [self._costs(grounds, replace(costs.space, microbatch_sizes=(n,))) for n in sizes]
        return [plan for one in alone for plan in self._best(grounds, one, owners, [])]

    def _owners(self) -> tuple[int, ...]:
        return (1, MANY_OWNERS, FEW_OWNERS) if True in self.space.optimizer_sharding else (1,)

    def _goal(self, grounds: Sequence[Ground]) -> Goal:
        """The objective and the limits per step. What costs nothing is used for speed."""
        limits, tokens = self.limits, self.job.tokens_per_step
        steps = None if self.job.total_tokens is None else self.job.total_tokens / tokens
        most_seconds = inf
        if limits.deadline_seconds is not None and steps:
            most_seconds = limits.deadline_seconds / steps
        if limits.min_tokens_per_second is not None:
            most_seconds = min(most_seconds, tokens / limits.min_tokens_per_second)
        most_dollars = inf
        if limits.total_dollars is not None and steps:
            most_dollars = limits.total_dollars / steps
        fast = (Objective.max_throughput, Objective.min_time)
        priced = any(ground.dollars_per_hour for ground in grounds)
        return Goal(
            dollars=priced and self.objective not in fast,
            max_seconds=most_seconds,
            max_dollars=most_dollars,
            num_stages=self.space.num_stages,
            num_replicas=self.space.num_replicas,
        )

    def _groups(self, offers: Sequence[Offer], most: Mapping[int, int]) -> list[list[Offer]]:
        """Offers of one region and market; and all regions that connect, when they are few."""
        regions: dict[tuple[str, str, bool], list[Offer]] = {}
        networks: dict[tuple[str, bool], list[Offer]] = {}
        for offer in offers:
            zone = offer.zone
            regions.setdefault((zone.network, zone.region, offer.spot), []).append(offer)
            networks.setdefault((zone.network, offer.spot), []).append(offer)
        groups = list(regions.values())
        for group in networks.values():
            places = {(o.zone.region, o.machine_type.name) for o in group}
            if len({o.zone.region for o in group}) > 1 and len(places) <= MOST_SITES:
                groups.append(group)
        return [group for group in groups if self._scarce(group, most)]

    def _scarce(self, group: Sequence[Offer], most: Mapping[int, int]) -> bool:
        """Whether no single offer of the group reaches the limit on machines."""
        ceiling = self.space.max_machines
        total = sum(most[id(offer)] for offer in group)
        largest = max(most[id(offer)] for offer in group)
        return total > largest and (ceiling is None or largest < ceiling)

    def _grounds(
        self, group: Sequence[Offer], most: Mapping[int, int], speed: Mapping[int, float]
    ) -> list[tuple[Ground, list[Offer]]]:
        """Machine types by speed, each with its zones, within quota and the limit on machines."""
        kinds: dict[tuple[str, str], list[Offer]] = {}
        for offer in group:
            kinds.setdefault((offer.zone.region, offer.machine_type.name), []).append(offer)
        ranked = sorted(
            kinds.items(),
            key=lambda kind: (-sum(speed.get(id(o), 0.0) for o in kind[1]), kind[0]),
        )
        left = self.space.max_machines
        quota: dict[tuple[str, str, bool], int | None] = {}
        grounds = []
        for (region, _), part in ranked[:MOST_SITES]:
            kind = part[0].machine_type
            key = (kind.gpu.name, region, part[0].spot)
            if key not in quota:
                quota[key] = self.pool.allowance(
                    gpu=kind.gpu.name, region=region, spot=part[0].spot
                )
            zones: dict[str, int] = {}
            for offer in sorted(part, key=lambda o: (o.price_per_hour, o.zone.name)):
                count = most[id(offer)]
                if left is not None:
                    count = min(count, left)
                if (allowed := quota[key]) is not None:
                    count = min(count, allowed // kind.num_gpus)
                    quota[key] = allowed - count * kind.num_gpus
                if count > 0:
                    zones[offer.zone.name] = zones.get(offer.zone.name, 0) + count
                    left = None if left is None else left - count
            if zones:
                # Zones of a region may differ in price: the dearest stands for all in the search,
                # the estimate then has each one's own.
                price = max(offer.price_per_hour for offer in part)
                ground = Ground(machine_type=kind, zones=zones, dollars_per_hour=price)
                grounds.append((ground, part))
        return grounds

    def _rentals(self, plan: Plan, offers: Sequence[Offer]) -> tuple[Rental, ...]:
        """The machines the plan stands on."""
        by_place = {(offer.zone.name, offer.machine_type.name): offer for offer in offers}
        return tuple(
            Rental(
                offer=by_place[place],
                num_machines=-(-gpus // by_place[place].machine_type.num_gpus),
            )
            for place, gpus in sorted(plan.gpus_by_pool().items())
        )
