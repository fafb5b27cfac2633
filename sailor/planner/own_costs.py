"""Our own evaluator as the search's costs: the pieces of ``estimate``, and a plan from a fleet.

Whatever is computed here for speed is what ``estimate`` says of the resulting plan; a test holds
the two together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from sailor.cluster.gpu import GpuType
from sailor.cluster.network import Link, Network
from sailor.cluster.pool import MachineType
from sailor.models.spec import ModelSpec
from sailor.plan import Plan, Replica, Stage, tensor_parallel_problems
from sailor.planner.costs import Fleet, FloatArray, IntArray, Row, Site, Template, Way
from sailor.planner.dealing import Dealt, deal, edges_of, exact_batch
from sailor.planner.memory import (
    Cut,
    MemoryCoefficients,
    Rooms,
    memory_coefficients,
    stage_bytes,
)
from sailor.planner.question import Job, Space
from sailor.planner.reduction import (
    ReducingReplica,
    ReducingStage,
    Reduction,
    gradient_bytes,
    reduction,
)
from sailor.planner.shape_space import sizes_together
from sailor.planner.stage import Seat, boundary_links, send_seconds, stage_seconds
from sailor.planner.timing import Ring, message_steps, ring_seconds, sharing
from sailor.profile.profile import Profile


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Machines of one type in the zones of one region, and what one of them costs for an hour.

    Zones are filled in their order. Links inside a region are equal enough to count as one place.
    """

    machine_type: MachineType
    zones: Mapping[str, int]  # zone -> machines
    dollars_per_hour: float

    @property
    def num_machines(self) -> int:
        """In all zones."""
        return sum(self.zones.values())


class OwnCosts:
    """Costs of a job on some grounds, one site each.

    ``num_owners`` is how many replicas memory may count on: 1 keeps all optimizer state on every
    owner, more spreads it (ZeRO-1), and the plan must then have that many replicas.
    """

    def __init__(
        self, spec: ModelSpec, grounds: Sequence[Ground], *, job: Job, space: Space,
        profile: Profile, network: Network, num_owners: int = 1,
    ) -> None:  # fmt: skip
        self.spec, self.grounds = spec, tuple(grounds)
        self.job, self.space = job, space
        self.profile, self.network = profile, network
        self.num_owners = num_owners
        self.sites = tuple(
            Site(
                name=f"{ground.machine_type.name} in {', '.join(ground.zones)}",
                gpu=ground.machine_type.gpu.name,
                num_gpus=ground.num_machines * ground.machine_type.num_gpus,
                dollars_per_gpu_hour=ground.dollars_per_hour / ground.machine_type.num_gpus,
            )
            for ground in self.grounds
        )
        self._links_of_row: dict[tuple[tuple[int, int], ...], tuple[Link, ...]] = {}
        self._slow: dict[tuple[int, ...], tuple[dict[int, float], float, float]] = {}
        self._rooms: dict[tuple[int, bool, bool], Rooms] = {}
        self._coefficients: dict[int, MemoryCoefficients] = {}
        self._spreads: dict[tuple[object, ...], tuple[int, ...] | None] = {}
        self._ring_links: dict[tuple[object, ...], Ring] = {}
        self._reducing: dict[tuple[object, ...], tuple[ReducingStage, ...]] = {}

    @property
    def num_blocks(self) -> int:
        return self.spec.num_layers

    @property
    def global_batch_size(self) -> int:
        return self.job.global_batch_size

    @cached_property
    def ways(self) -> tuple[Way, ...]:
        found: list[Way] = []
        for index, ground in enumerate(self.grounds):
            degrees = self.space.tensor_parallel_degrees or (1,)
            for degree in degrees:
                if degree > ground.machine_type.num_gpus:
                    continue
                if tensor_parallel_problems(self.spec, degree):
                    continue
                for size in sizes_together(self.job, self.space):
                    for recompute in self.space.recompute:
                        found.append(self._way(len(found), index, degree, size, recompute))
        return tuple(found)

    def _way(self, index: int, site: int, degree: int, size: int, recompute: bool) -> Way:
        def seconds(num_blocks: int, *, first: bool = False, last: bool = False) -> float:
            return stage_seconds(
                self.profile, Cut(num_blocks=num_blocks, first=first, last=last),
                gpu=self._gpu(site), tensor_parallel=degree, microbatch_size=size,
                recompute=recompute,
            ).total  # fmt: skip

        return Way(
            index=index, site=site, tensor_parallel=degree, microbatch_size=size,
            recompute=recompute, block=seconds(1), first=seconds(0, first=True),
            last=seconds(0, last=True),
        )  # fmt: skip

    def _gpu(self, site: int) -> GpuType:
        return self.grounds[site].machine_type.gpu

    def _seat(self, way: Way, zone: str | None = None) -> Seat:
        ground = self.grounds[way.site]
        return Seat(
            zone=zone or next(iter(ground.zones)), machine_type=ground.machine_type.name,
            tensor_parallel=way.tensor_parallel,
        )  # fmt: skip

    def coefficients(self, way: Way) -> MemoryCoefficients:
        """Memory of a rank that runs a stage this way."""
        if way.index not in self._coefficients:
            self._coefficients[way.index] = self._coefficients_of(way)
        return self._coefficients[way.index]

    def _coefficients_of(self, way: Way) -> MemoryCoefficients:
        return memory_coefficients(
            self.spec, tensor_parallel=way.tensor_parallel, microbatch_size=way.microbatch_size,
            sequence_length=self.job.sequence_length, recompute=way.recompute,
            numerics=self.job.numerics,
        )  # fmt: skip

    def sends(self, row: Row) -> tuple[float, ...]:
        key = tuple((way.site, way.tensor_parallel) for way in row)
        if key not in self._links_of_row:
            links = boundary_links([self._seat(way) for way in row], self.network)
            self._links_of_row[key] = links
        links = self._links_of_row[key]
        return send_seconds(links, boundary_bytes=self.coefficients(row[0]).boundary)

    def most_blocks(self, way: Way, *, stage: int, num_stages: int) -> int:
        key = (way.index, stage == 0, stage == num_stages - 1)
        if key not in self._rooms:
            self._rooms[key] = Rooms(
                self.coefficients(way), num_blocks=self.spec.num_layers, first=key[1],
                last=key[2], num_owners=max(2, self.num_owners),
                optimizer_sharding=self.num_owners > 1, gpu=self._gpu(way.site),
            )  # fmt: skip
        return self._rooms[key].most_blocks(num_stages - stage)

    def counting_on(self, num_owners: int) -> OwnCosts:
        """The same costs with state spread over so many owners. What does not depend on that is
        worked out once for both."""
        ways = self.ways  # made once, before the copy
        other = copy(self)
        other.ways = ways
        other.num_owners = num_owners
        other._rooms = {}
        return other

    def peak_bytes(self, way: Way, cut: Cut, *, num_in_flight: int) -> float:
        """Peak of a rank of a stage."""
        return stage_bytes(
            self.coefficients(way), cut, num_in_flight=num_in_flight,
            num_owners=max(2, self.num_owners), optimizer_sharding=self.num_owners > 1,
            gpu=self._gpu(way.site),
        )  # fmt: skip

    def shared_seconds(self, crews: Sequence[tuple[Template, int]]) -> float:
        owners = sum(count for _, count in crews)
        zones = self._zones_used(crews)
        if zones is None:
            return inf
        last = [len(template.counts) - 1 for template, _ in crews]
        edges = sorted({edge for template, _ in crews for edge in edges_of(template.counts)})
        totals = [[0.0] * len(template.counts) for template, _ in crews]
        at = [0] * len(crews)
        ends = [list(edges_of(template.counts)) for template, _ in crews]
        for start, stop in zip(edges, edges[1:], strict=False):
            for c, cut in enumerate(ends):
                while cut[at[c] + 1] <= start:
                    at[c] += 1
            ring = tuple(
                (template.row[at[c]].site, template.usage[template.row[at[c]].site])
                for c, (template, _) in enumerate(crews)
            )
            path = self._ring_over(ring, zones, crews)
            for c, (template, _) in enumerate(crews):
                each = self.coefficients(template.row[at[c]])
                parameters = (stop - start) * each.block_parameters
                if start == 0:
                    parameters += each.first_parameters - each.tied_parameters
                if at[c] == last[c] and stop == self.num_blocks:
                    parameters += each.last_parameters
                totals[c][at[c]] += ring_seconds(
                    parameters * gradient_bytes(each), num_owners=owners, ring=path
                )
        self._add_tied(crews, totals, zones, owners)
        spread = owners if self.num_owners > 1 else 1
        update = max(
            self.profile.update_seconds(
                gpu=self._gpu(way.site),
                num_parameters=self.coefficients(way).parameters(
                    Cut(num_blocks=count, first=s == 0, last=s == len(template.row) - 1)
                )
                / spread,
            )
            for template, _ in crews
            for s, (way, count) in enumerate(zip(template.row, template.counts, strict=True))
        )
        host = max(
            self.profile.host_seconds(gpu=self._gpu(site))
            for template, _ in crews
            for site, gpus in enumerate(template.usage)
            if gpus
        )
        return max(max(stages) for stages in totals) + update + host

    def _add_tied(
        self, crews: Sequence[tuple[Template, int]], totals: list[list[float]],
        zones: tuple[int, ...], owners: int,
    ) -> None:  # fmt: skip
        """The token matrix of a tied model: owners on first and last stages."""
        if not self.coefficients(crews[0][0].row[0]).tied_parameters:
            return
        ends = [(template, sorted({0, len(template.row) - 1})) for template, _ in crews]
        both = owners + sum(
            count for (_, stages), (_, count) in zip(ends, crews, strict=True) if len(stages) > 1
        )
        ring = tuple(
            (template.row[s].site, template.usage[template.row[s].site])
            for template, stages in ends
            for s in stages
        )
        path = self._ring_over(ring, zones, crews)
        for c, (template, stages) in enumerate(ends):
            for s in stages:
                each = self.coefficients(template.row[s])
                totals[c][s] += ring_seconds(
                    each.tied_parameters * gradient_bytes(each), num_owners=both, ring=path
                )

    def _zones_used(self, crews: Sequence[tuple[Template, int]]) -> tuple[int, ...] | None:
        """How many zones of each site are used; None where the GPUs left do not lie together."""
        key = tuple(
            (tuple((way.site, way.tensor_parallel) for way in template.row), count)
            for template, count in crews
        )
        if key not in self._spreads:
            used = [0] * len(self.sites)
            for template, count in crews:
                for site, gpus in enumerate(template.usage):
                    used[site] += gpus * count
            try:
                self._deal(crews)
            except ValueError:
                self._spreads[key] = None
            else:
                self._spreads[key] = tuple(
                    _zones_for(ground, gpus)
                    for ground, gpus in zip(self.grounds, used, strict=True)
                )
        return self._spreads[key]

    def _ring_over(
        self, ring: tuple[tuple[int, int], ...], zones: tuple[int, ...],
        crews: Sequence[tuple[Template, int]],
    ) -> Ring:  # fmt: skip
        """The ring over (site, GPUs a replica takes there), as reduction.py finds it."""
        one = ring[0][0]
        if all(site == one for site, _ in ring) and zones[one] == 1:
            gpus = sum(template.usage[one] * count for template, count in crews)
            machine_gpus = self.grounds[one].machine_type.num_gpus
            if gpus <= machine_gpus:
                return Ring(link=self.network.inside(self.grounds[one].machine_type.name))
        key = (frozenset(ring), zones)
        if key not in self._ring_links:
            self._ring_links[key] = self._slowest(frozenset(ring), zones)
        return self._ring_links[key]

    def _slowest(self, ring: frozenset[tuple[int, int]], zones: tuple[int, ...]) -> Ring:
        pools: dict[tuple[str, str], float] = {}
        for site, width in ring:
            kind = self.grounds[site].machine_type
            rings = sharing(gpus_per_machine=kind.num_gpus, gpus_per_replica=width)
            for zone in list(self.grounds[site].zones)[: zones[site]]:
                pool = (zone, kind.name)
                pools[pool] = max(pools.get(pool, 0.0), rings)
        worst: tuple[float, Link, float] | None = None
        far = 0.0
        for here, rings in pools.items():
            for there, others in pools.items():
                link = self.network.between(*here, *there)
                shared = max(rings, others)
                far = max(far, link.seconds_per_message)
                rate = link.bytes_per_second / shared
                if worst is None or rate < worst[0]:
                    worst = (rate, link, shared)
        assert worst is not None
        num_zones = len({zone for zone, _ in pools})
        return Ring(link=worst[1], num_sharing=worst[2], num_zones=num_zones, far_seconds=far)

    def _reduction(self, crews: Sequence[tuple[Template, int]]) -> Reduction:
        replicas = [
            ReducingReplica(count=dealt.count, stages=self._stages(dealt.template, dealt.zones))
            for dealt in self._deal(crews)
        ]
        return reduction(replicas, network=self.network)

    def _deal(self, crews: Sequence[tuple[Template, int]]) -> list[Dealt]:
        return deal(
            crews,
            [
                {zone: n * ground.machine_type.num_gpus for zone, n in ground.zones.items()}
                for ground in self.grounds
            ],
        )

    def _stages(self, template: Template, zones: tuple[str, ...]) -> tuple[ReducingStage, ...]:
        key = (tuple(way.index for way in template.row), template.counts, zones)
        if key not in self._reducing:
            stages, start = [], 0
            last = len(template.row) - 1
            for s, (way, count) in enumerate(zip(template.row, template.counts, strict=True)):
                stages.append(
                    ReducingStage(
                        start=start,
                        cut=Cut(num_blocks=count, first=s == 0, last=s == last),
                        seat=self._seat(way, zones[s]),
                        coefficients=self.coefficients(way),
                    )
                )
                start += count
            self._reducing[key] = tuple(stages)
        return self._reducing[key]

    def ring_guess(
        self, shares: FloatArray, owners: IntArray, widths: IntArray, *, sites: tuple[int, ...]
    ) -> FloatArray:
        way = next(way for way in self.ways if way.site == sites[0])
        coefficients = self.coefficients(way)
        whole = coefficients.parameters(Cut(num_blocks=self.spec.num_layers, first=True, last=True))
        per_block = whole * way.tensor_parallel / self.spec.num_layers
        num_bytes = shares * per_block * gradient_bytes(coefficients)
        owners = np.maximum(owners, 1)
        steps = 2.0 * (owners - 1)
        messages = np.minimum(steps, 4 * np.ceil(np.log2(owners)))
        num_zones = len({zone for site in sites for zone in self.grounds[site].zones})
        rates, near, far = self._slowest_links(sites)
        each = np.zeros(np.shape(widths))  # seconds per byte
        for machine_gpus, rate in rates.items():
            # As timing.sharing says, for all widths at once.
            on_machine = np.maximum(1, machine_gpus // np.maximum(widths, 1))
            rings = np.minimum(machine_gpus, widths * on_machine) / on_machine
            each = np.maximum(each, np.maximum(1.0, rings) / rate)
        between = message_steps(num_zones + 1) * far if num_zones > 1 else 0.0
        starts = messages * near + np.where(owners > 1, between, 0.0)
        seconds: FloatArray = steps / owners * num_bytes * each + starts
        return seconds

    def _slowest_links(self, sites: tuple[int, ...]) -> tuple[dict[int, float], float, float]:
        """Bytes per second of the slowest link by the GPUs that share it; least and most seconds
        that a message takes to start."""
        if sites not in self._slow:
            links = self._links(sites)
            rates: dict[int, float] = {}
            for link, machine_gpus in links:
                rates[machine_gpus] = min(rates.get(machine_gpus, inf), link.bytes_per_second)
            starts = [link.seconds_per_message for link, _ in links]
            self._slow[sites] = (rates, min(starts), max(starts))
        return self._slow[sites]

    def _links(self, sites: tuple[int, ...]) -> list[tuple[Link, int]]:
        """Links between machines of these sites, and the GPUs that share the card at one end."""
        found = []
        places = [
            (zone, self.grounds[site].machine_type)
            for site in sites
            for zone in list(self.grounds[site].zones)[:2]
        ]
        if len(sites) == 1 and self.grounds[sites[0]].num_machines == 1:
            return [(self.network.inside(places[0][1].name), 1)]
        for zone, kind in places:
            for other_zone, other in places:
                link = self.network.between(zone, kind.name, other_zone, other.name)
                found.append((link, kind.num_gpus))
        return found

    def step_dollars(self, fleet: Fleet, *, seconds: float) -> float:
        used = [0] * len(self.sites)
        for crew in fleet:
            for site, gpus in enumerate(crew.template.usage):
                used[site] += crew.count * gpus
        rent = sum(
            -(-gpus // ground.machine_type.num_gpus) * ground.dollars_per_hour
            for gpus, ground in zip(used, self.grounds, strict=True)
        )
        return rent * seconds / 3600 + self._egress(fleet)

    def _egress(self, fleet: Fleet) -> float:
        if len({zone for ground in self.grounds for zone in ground.zones}) == 1:
            return 0.0
        crews = [(crew.template, crew.count) for crew in fleet]
        dollars = self._reduction(crews).dollars
        rounds = {id(crew.template): crew.num_microbatches for crew in fleet}
        for dealt in self._deal(crews):
            boundary = self.coefficients(dealt.template.row[0]).boundary
            for here, there in zip(dealt.zones, dealt.zones[1:], strict=False):
                price = self.network.dollars_per_gb(here, there)
                price += self.network.dollars_per_gb(there, here)
                dollars += dealt.count * rounds[id(dealt.template)] * boundary / 1e9 * price
        return dollars

    def plan(self, fleet: Fleet) -> Plan:
        """The fleet as a Plan; the batch is exact."""
        rounds = {id(crew.template): crew.num_microbatches for crew in fleet}
        replicas: list[Replica] = []
        for dealt in self._deal([(crew.template, crew.count) for crew in fleet]):
            stages, start = [], 0
            template = dealt.template
            for way, count, zone in zip(template.row, template.counts, dealt.zones, strict=True):
                machine_type = self.grounds[way.site].machine_type
                stages.append(
                    Stage(
                        layers=range(start, start + count),
                        gpu=machine_type.gpu.name,
                        machine_type=machine_type.name,
                        zone=zone,
                        tensor_parallel=way.tensor_parallel,
                        recompute=way.recompute,
                    )
                )
                start += count
            replica = Replica(
                stages=tuple(stages),
                num_microbatches=rounds[id(template)],
                microbatch_size=template.microbatch_size,
            )
            replicas += [replica] * dealt.count
        return Plan(
            model=self.spec.name,
            replicas=tuple(exact_batch(replicas, self.global_batch_size)),
            sequence_length=self.job.sequence_length,
            optimizer_sharding=self.num_owners > 1,
        )


def _zones_for(ground: Ground, gpus: int) -> int:
    """Zones that so many GPUs fill, one after another."""
    zones = 0
    for machines in ground.zones.values():
        if gpus <= 0:
            break
        zones += 1
        gpus -= machines * ground.machine_type.num_gpus
    return zones
