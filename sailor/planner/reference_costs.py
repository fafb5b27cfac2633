"""The published simulator's formulas as the search's costs: for the comparison alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import permutations
from math import inf

import numpy as np

from sailor.plan import Plan, Replica, Stage
from sailor.planner.costs import Fleet, FloatArray, IntArray, Row, Site, Template, Way
from sailor.planner.dealing import exact_batch
from sailor.planner.reference import (
    BUCKET_BYTES,
    BYTES,
    CONSTANT_BYTES,
    CONSTANT_BYTES_TENSOR_PARALLEL,
    STATE_BYTES_PER_PARAMETER,
    all_reduce_seconds,
    send_seconds,
)
from sailor.profile.artifact import (
    DOLLARS_PER_HOUR,
    MEMORY_GB,
    ArtifactModel,
    ArtifactNetwork,
    Scenario,
)

# The fits were made on messages of 64 KB to 1 GB; far below they turn negative, and a search would
# find that out. Plans that need smaller messages are not looked at.
LEAST_BYTES = 64_000
TENSOR_PARALLEL = (1, 2, 4)  # what the published planner tries, and its machines hold


_Ring = tuple[tuple[int, tuple[str, ...]], ...]


class ReferenceCosts:
    """Costs of one scenario. Layer 0 goes with the first stage, the last layer with the last one;
    the layers between are the blocks."""

    def __init__(self, model: ArtifactModel, network: ArtifactNetwork, scenario: Scenario) -> None:
        self.model, self.network, self.scenario = model, network, scenario
        regions: dict[tuple[str, str], dict[str, int]] = {}
        for (gpu, zone), count in scenario.resources.items():
            if count > 0 and gpu in MEMORY_GB:
                regions.setdefault((gpu, zone.rpartition("-")[0]), {})[zone] = count
        orders: dict[str, list[str]] = {}
        for _, region in regions:
            gpus = [gpu for gpu, name in regions if name == region]
            zones = list(dict.fromkeys(z for g in gpus for z in regions[g, region]))
            orders[region] = self._order(gpus, zones)
        self._places = [
            ((gpu, region), {zone: zones[zone] for zone in orders[region] if zone in zones})
            for (gpu, region), zones in regions.items()
        ]
        self.sites = tuple(
            Site(
                name=f"{gpu} in {region}",
                gpu=gpu,
                num_gpus=sum(zones.values()),
                dollars_per_gpu_hour=DOLLARS_PER_HOUR.get(gpu, 0.0),
            )  # fmt: skip
            for (gpu, region), zones in self._places
        )
        self._all_reduce: dict[tuple[object, ...], float] = {}
        self._sent: dict[tuple[int, int, int, int, float], float] = {}
        self._prefix = {degree: _sums(values) for degree, values in self.model.parameters.items()}

    def _order(self, gpus: list[str], zones: list[str]) -> list[str]:
        """The zones of a region in the order that gives rings their fastest slowest neighbours:
        bandwidths differ by direction."""
        if len(zones) > 6:  # too many orders to look at: take them as they come
            return zones

        def slowest(order: Sequence[str]) -> float:
            return sum(
                max(
                    (
                        send_seconds(self.network.fit(a, gpu, 1, b, gpu, 1), 10e6)
                        for a, b in zip(order, order[1:], strict=False)
                    ),
                    default=0.0,
                )
                for gpu in gpus
            )

        return min((list(order) for order in permutations(zones)), key=slowest)

    @property
    def num_blocks(self) -> int:
        return self.model.num_layers - 2

    @property
    def global_batch_size(self) -> int:
        return self.model.global_batch_size

    @cached_property
    def ways(self) -> tuple[Way, ...]:
        found: list[Way] = []
        for index, site in enumerate(self.sites):
            for (gpu, size, degree), cell in sorted(self.model.seconds.items()):
                usable = degree in TENSOR_PARALLEL and degree in self.model.parameters
                if gpu != site.gpu or not usable or self.global_batch_size % size:
                    continue
                times = [layer.forward + layer.backward for layer in cell]
                block = times[2]
                # Profiled blocks differ by a little: what the sum over all of them has more than
                # equal ones goes to the first stage, which has block 1, the only odd one.
                odd = sum(times[1:-1]) - (len(times) - 2) * block
                found.append(
                    Way(
                        index=len(found),
                        site=index,
                        tensor_parallel=degree,
                        microbatch_size=size,
                        recompute=False,
                        block=block,
                        first=times[0] + odd,
                        last=times[-1],
                    )  # fmt: skip
                )
        return tuple(found)

    def sends(self, row: Row) -> tuple[float, ...]:
        num_stages = len(row)
        if num_stages == 1:
            return (0.0,)
        num_bytes = self.model.activations_sent[1] * BYTES * row[0].microbatch_size
        # The head's gradient is counted at its own input size, as the published formulas do.
        tail = self.model.activations_sent[1] * BYTES * row[0].microbatch_size
        seconds = []
        for s, way in enumerate(row):
            forward = self._send(way, row[s + 1], num_bytes) if s < num_stages - 1 else 0.0
            backward = self._send(way, row[s - 1], tail) if s > 0 else 0.0
            if s == 0:
                seconds.append(forward if num_stages <= 3 else 2 * forward)
            elif s == num_stages - 1:
                seconds.append(2 * backward)
            else:
                seconds.append(forward + backward)
        return tuple(seconds)

    def _send(self, a: Way, b: Way, num_bytes: float) -> float:
        key = (a.site, a.tensor_parallel, b.site, b.tensor_parallel, num_bytes)
        if key not in self._sent:
            self._sent[key] = self._send_between(a, b, num_bytes)
        return self._sent[key]

    def _send_between(self, a: Way, b: Way, num_bytes: float) -> float:
        """Within a zone where both sites have one in common, over the slowest such zone."""
        here, there = self._places[a.site][1], self._places[b.site][1]
        pairs = [(zone, zone) for zone in here if zone in there]
        pairs = pairs or [(x, y) for x in here for y in there]
        gpus = self.sites[a.site].gpu, self.sites[b.site].gpu
        return max(
            send_seconds(
                self.network.fit(x, gpus[0], a.tensor_parallel, y, gpus[1], b.tensor_parallel),
                num_bytes,
            )
            for x, y in pairs
        )

    def most_blocks(self, way: Way, *, stage: int, num_stages: int) -> int:
        degree, size = way.tensor_parallel, way.microbatch_size
        parameters = self.model.parameters[degree]
        kept = self.model.activations_kept[degree]
        constant = CONSTANT_BYTES if degree == 1 else CONSTANT_BYTES_TENSOR_PARALLEL
        alive = BYTES * size * (num_stages - stage)
        left = MEMORY_GB[self.sites[way.site].gpu] * 2**30 - constant
        for layer, present in ((0, stage == 0), (-1, stage == num_stages - 1)):
            if present:
                left -= STATE_BYTES_PER_PARAMETER * parameters[layer] + alive * kept[layer]
        each = STATE_BYTES_PER_PARAMETER * parameters[2] + alive * kept[2]
        if stage == 0:  # block 1, the first stage's, is profiled a little apart from the others
            left -= STATE_BYTES_PER_PARAMETER * parameters[1] + alive * kept[1] - each
        return max(0, min(self.num_blocks, int(left // each)))

    def shared_seconds(self, crews: Sequence[tuple[Template, int]]) -> float:
        return self.sync_seconds(crews) + max(
            self._update(way) for template, _ in crews for way in dict.fromkeys(template.row)
        )

    def _update(self, way: Way) -> float:
        gpu = self.sites[way.site].gpu
        return self.model.seconds[gpu, way.microbatch_size, way.tensor_parallel][0].update

    def sync_seconds(self, crews: Sequence[tuple[Template, int]]) -> float:
        """The reduction of reference.py, on crews instead of single replicas."""
        owners = sum(count for _, count in crews)
        if owners < 2:
            return 0.0
        bounds = [_bounds(template.counts, self.model.num_layers) for template, _ in crews]
        edges = sorted({edge for cut in bounds for edge in cut})
        totals = [[0.0] * len(template.row) for template, _ in crews]
        at = [0] * len(crews)
        zones = self._spread(crews)
        prefix = self._prefix[1]
        for start, stop in zip(edges, edges[1:], strict=False):
            for c, cut in enumerate(bounds):
                while cut[at[c] + 1] <= start:
                    at[c] += 1
            holders = [template.row[at[c]] for c, (template, _) in enumerate(crews)]
            sharing = min(4, *(way.tensor_parallel for way in holders))
            num_bytes = (prefix[stop] - prefix[start]) * BYTES / sharing
            ring = tuple((way.site, zones[way.site]) for way in holders)
            seconds = self._ring(ring, num_bytes, owners)
            for c in range(len(crews)):
                totals[c][at[c]] += seconds
        return max(max(row) for row in totals)

    def _spread(self, crews: Sequence[tuple[Template, int]]) -> tuple[tuple[str, ...], ...]:
        """The zones of each site that the crews use: one zone for all if one is large enough, the
        one with the fastest ring; else zone after zone."""
        used = [0] * len(self.sites)
        for template, count in crews:
            for site, gpus in enumerate(template.usage):
                used[site] += gpus * count
        return self._spread_of(tuple(used))

    @lru_cache(maxsize=4096)  # noqa: B019  # lives as long as the search that asks
    def _spread_of(self, used: tuple[int, ...]) -> tuple[tuple[str, ...], ...]:
        needed = [site for site, gpus in enumerate(used) if gpus]
        roomy = [
            zone
            for zone in self._places[needed[0]][1]
            if all(self._places[site][1].get(zone, 0) >= used[site] for site in needed)
        ]
        if roomy:
            zone = min(roomy, key=lambda z: sum(self._slowness(site, z) for site in needed))
            return tuple((zone,) if gpus else () for gpus in used)
        return tuple(self._first_zones(site, gpus) for site, gpus in enumerate(used))

    def _slowness(self, site: int, zone: str) -> float:
        gpu = self.sites[site].gpu
        return send_seconds(self.network.fit(zone, gpu, 1, zone, gpu, 1), 10e6)

    def _first_zones(self, site: int, gpus: int) -> tuple[str, ...]:
        needed = []
        for zone, count in self._places[site][1].items():
            if gpus > 0:
                needed.append(zone)
            gpus -= count
        return tuple(needed)

    def _ring(self, ring: _Ring, num_bytes: float, owners: int) -> float:
        """Slowest neighbour pair of a ring that visits crew after crew, zone after zone; each
        entry is a crew's site and the zones used there."""
        if min(num_bytes, BUCKET_BYTES) / owners < LEAST_BYTES:
            return inf
        key = (ring, num_bytes, owners)
        if key not in self._all_reduce:
            self._all_reduce[key] = max(
                all_reduce_seconds(fit, num_bytes, owners) for fit in self._ring_fits(ring)
            )
        return self._all_reduce[key]

    @lru_cache(maxsize=1024)  # noqa: B019  # lives as long as the search that asks
    def _ring_fits(self, ring: _Ring) -> tuple[tuple[float, float, float], ...]:
        """Every neighbour pair that a ring over these sites may have."""
        fits: set[tuple[float, float, float]] = set()
        for site, zones in dict.fromkeys(ring):
            gpu = self.sites[site].gpu
            pairs = [(zone, zone) for zone in zones] + list(zip(zones, zones[1:], strict=False))
            fits.update(self.network.fit(a, gpu, 1, b, gpu, 1) for a, b in pairs)
        for (site, zones), (other, others) in zip(ring, ring[1:], strict=False):
            if site != other:
                gpus = self.sites[site].gpu, self.sites[other].gpu
                fits.update(
                    self.network.fit(a, gpus[0], 1, b, gpus[1], 1) for a in zones for b in others
                )
        return tuple(sorted(fits))

    def ring_guess(
        self, shares: FloatArray, owners: IntArray, widths: IntArray, *, sites: tuple[int, ...]
    ) -> FloatArray:
        block_bytes = self.model.parameters[1][2] * BYTES
        num_bytes = np.maximum(shares * block_bytes, 1.0)
        owners = np.maximum(owners, 2)
        message = np.minimum(num_bytes, BUCKET_BYTES) / owners
        u = np.log2(message / 1e6)
        slowest = np.full(u.shape, inf)
        ring = tuple((site, tuple(self._places[site][1])) for site in sites)
        for a, b, c in self._ring_fits(ring):
            slowest = np.minimum(slowest, a * u * u + b * u + c)
        rate = np.maximum(slowest, 0.05)
        seconds: FloatArray = 2 * (owners - 1) / owners * num_bytes / 1e9 / rate
        return seconds

    def step_dollars(self, fleet: Fleet, *, seconds: float) -> float:
        rent = sum(
            crew.count * gpus * self.sites[site].dollars_per_gpu_hour / 3600
            for crew in fleet
            for site, gpus in enumerate(crew.template.usage)
        )
        return rent * seconds + self._egress(fleet)

    def _egress(self, fleet: Fleet) -> float:
        """Boundaries between sites, and rings that leave a zone, taken as they will be dealt out
        but for replicas that straddle two zones."""
        dollars = 0.0
        sent = self.model.activations_sent[2] * BYTES / 1e9
        for crew in fleet:
            rounds = crew.num_microbatches * crew.template.microbatch_size * crew.count
            for a, b in zip(crew.template.row, crew.template.row[1:], strict=False):
                if a.site != b.site:
                    there = next(iter(self._places[a.site][1]))
                    back = next(iter(self._places[b.site][1]))
                    price = self.network.price(there, back) + self.network.price(back, there)
                    dollars += rounds * sent * price
        spread = self._spread([(crew.template, crew.count) for crew in fleet])
        zones = {zone for used in spread for zone in used}
        if len(zones) > 1:
            around = sorted(zones)
            price = sum(
                self.network.price(a, b)
                for a, b in zip(around, around[1:] + around[:1], strict=True)
            )
            dollars += price * 2 * self._prefix[1][-1] * BYTES / 1e9
        return dollars

    def plan(self, fleet: Fleet) -> Plan:
        """The fleet with a zone for every stage, replicas one zone after another."""
        places = self._spread([(crew.template, crew.count) for crew in fleet])
        left = [
            {zone: self._places[site][1][zone] for zone in zones}
            for site, zones in enumerate(places)
        ]
        replicas: list[Replica] = []
        for crew in fleet:
            seated: list[Replica] = []
            bounds = _bounds(crew.template.counts, self.model.num_layers)
            for _ in range(crew.count):
                stages = []
                together = _common_zone(crew.template, left)
                for s, way in enumerate(crew.template.row):
                    zone = together or _first_zone(left[way.site], way.tensor_parallel)
                    left[way.site][zone] -= way.tensor_parallel
                    gpu = self.sites[way.site].gpu
                    stages.append(
                        Stage(
                            layers=range(bounds[s], bounds[s + 1]),
                            gpu=gpu,
                            machine_type=f"{gpu}x{way.tensor_parallel}",
                            zone=zone,
                            tensor_parallel=way.tensor_parallel,
                        )  # fmt: skip
                    )
                seated.append(
                    Replica(
                        stages=tuple(stages),
                        num_microbatches=crew.num_microbatches,
                        microbatch_size=crew.template.microbatch_size,
                    )  # fmt: skip
                )
            # A replica over two zones stands between those of the one and of the other.
            row = crew.template.row
            seated.sort(
                key=lambda replica: [
                    places[way.site].index(stage.zone)
                    for way, stage in zip(row, replica.stages, strict=True)
                ]
            )
            replicas += seated
        return Plan(
            model=self.model.name,
            sequence_length=self.model.sequence_length,
            replicas=tuple(exact_batch(replicas, self.global_batch_size)),
        )


def _bounds(counts: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Layer indices where stages begin, and the end: the ends belong to the outer stages."""
    edges, at = [0], 1
    for count in counts[:-1]:
        at += count
        edges.append(at)
    return (*edges, num_layers)


def _sums(values: Sequence[float]) -> tuple[float, ...]:
    total, sums = 0.0, [0.0]
    for value in values:
        total += value
        sums.append(total)
    return tuple(sums)


def _common_zone(template: Template, left: Sequence[dict[str, int]]) -> str | None:
    """A zone that holds a whole replica, if there is one."""
    needed = [site for site, gpus in enumerate(template.usage) if gpus]
    for zone in left[needed[0]]:
        if all(left[site].get(zone, 0) >= template.usage[site] for site in needed):
            return zone
    return None


def _first_zone(zones: Mapping[str, int], gpus: int) -> str:
    for zone, left in zones.items():
        if left >= gpus:
            return zone
    raise ValueError(f"no zone has {gpus} GPUs left")
