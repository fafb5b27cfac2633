"""A number of seconds that no plan can beat: the yardstick beside a plan that was found.

A step is pipelines, then the reduction, then host and optimizer. How long a reduction is allowed to
take decides which links it may run over and how many blocks a replica may hold behind slow ones;
what is left of the step is for the pipelines, and relaxed.py says whether any replicas could do the
batch in it. The least step whose every such division is refuted is the bound, over

* few replicas, whose rings may stay inside machines: the reduction is counted as free;
* replicas in one region;
* replicas over several regions whose every ring leaves a region;
* replicas that all have blocks in one region, some of them other blocks elsewhere, behind rings
  that leave their region;
* pipelines over regions, all of them, with no ring that leaves one.

Holds for plans on these grounds whose replicas keep the stages of one machine type in one zone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, exp, inf, log

import numpy as np
import numpy.typing as npt

from sailor.cluster.network import LATENCY_SECONDS, Tier
from sailor.planner.costs import FloatArray
from sailor.planner.memory import most_blocks
from sailor.planner.own_costs import OwnCosts
from sailor.planner.relaxed import Question, Relaxation
from sailor.planner.timing import message_steps
from sailor.planner.way_columns import fastest_link

_FINE = 0.006  # the share of a step that its reduction is known to
_EXACT, _COARSE = 0.01, 0.04  # and the bound: where it is close to the known step, and elsewhere
_FARTHEST = 64.0  # times below the known step nothing is looked for


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scope:
    """Where replicas may stand: GPUs of each site, and what is known of every plan there. Sites may
    be entered twice, for one region and for all others: ``far`` are those whose rings leave a
    region."""

    counts: FloatArray
    far: npt.NDArray[np.bool_]
    least_reduction: float = 0.0  # seconds besides the starts of messages
    crossing: int = 0


def least_step_seconds(costs: OwnCosts, *, known: float) -> float:
    """A lower bound on the seconds of a step of any plan; ``known`` is that of one.

    ``costs`` should count on as many owners as there may be, so that memory rules nothing out that
    could be had.
    """
    return _Bound(costs).least(known)


class _Bound:
    """One question: replicas of a job on some grounds."""

    def __init__(self, costs: OwnCosts) -> None:
        self.costs = costs
        self.relaxation = Relaxation(costs)
        self.host = min(
            costs.profile.host_seconds(gpu=ground.machine_type.gpu) for ground in costs.grounds
        )
        links = [fastest_link(costs, site, inside=False) for site in range(len(costs.grounds))]
        self.rates = np.array([link.bytes_per_second for link in links])
        self.start = min(LATENCY_SECONDS[Tier.zone], *(link.seconds_per_message for link in links))
        self.rings = 2 if self.relaxation.tied_blocks else 1  # of a first stage, one after another
        self.counts = np.array([float(site.num_gpus) for site in costs.sites])
        self._regions()
        self.scopes = list(self._scopes())
        self.beyond = dict.fromkeys(map(id, self.scopes), 0.0)  # seconds refuted of each

    def _regions(self) -> None:
        """Zones of each region, and what a message between regions takes at least."""
        network = self.costs.network
        self.regions: dict[tuple[str, str], list[str]] = {}
        for name in dict.fromkeys(z for ground in self.costs.grounds for z in ground.zones):
            zone = network.zones[name]
            self.regions.setdefault((zone.cloud, zone.region), []).append(name)
        heads = [zones[0] for zones in self.regions.values()]
        kinds = [ground.machine_type.name for ground in self.costs.grounds]
        far = [
            network.between(a, kind, b, other)
            for a in heads for b in heads if a != b
            for kind in kinds for other in kinds
        ]  # fmt: skip
        self.far_start = min((link.seconds_per_message for link in far), default=0.0)
        self.far_rate = max((link.bytes_per_second for link in far), default=inf)

    def _gpus(self, zones: list[str]) -> FloatArray:
        """GPUs of each site in some zones."""
        found = [
            sum(ground.zones.get(zone, 0) for zone in zones) * ground.machine_type.num_gpus
            for ground in self.costs.grounds
        ]
        return np.array(found, dtype=float)

    def _scopes(self) -> Iterator[_Scope]:
        near = np.zeros(len(self.counts), dtype=bool)
        seen, besides = set(), set()
        for zones in self.regions.values():
            # Of how many zones there are nothing follows: where replicas have two kinds of machine
            # in two zones, and others the same the other way round, no ring leaves a zone.
            counts = self._gpus(zones)
            if (key := tuple(counts)) not in seen:
                seen.add(key)
                yield _Scope(counts=counts, far=near)
        if len(self.regions) == 1:
            return
        block = self.relaxation.block_bytes
        yield _Scope(counts=self.counts, far=~near, least_reduction=block / self.far_rate)
        for zones in self.regions.values():
            here = self._gpus(zones)
            if (key := tuple(here)) not in besides:
                besides.add(key)
                yield _Scope(
                    counts=np.concatenate([here, self.counts - here]),
                    far=np.concatenate([near, ~near]), least_reduction=block / self.far_rate,
                )  # fmt: skip
        tied = self.relaxation.tied_blocks * block / self.far_rate
        yield _Scope(counts=self.counts, far=near, crossing=1, least_reduction=tied)
        if tied:  # first and last stage in one region, some others elsewhere
            yield _Scope(counts=self.counts, far=near, crossing=2)

    def least(self, known: float) -> float:
        """By bisection, from the known step down; the closer to it, the finer."""
        if not self.relaxation.any:
            return known
        width = _EXACT
        while width < log(_FARTHEST) and not self._refuted(known / exp(width)):
            width *= 3
        low, high = width, (width / 3 if width > _EXACT else 0.0)
        while low - high > max(_EXACT, min(_COARSE, low / 5)):
            middle = (low + high) / 2
            if self._refuted(known / exp(middle)):
                low = middle
            else:
                high = middle
        return known / exp(low)

    def _refuted(self, seconds: float) -> bool:
        """Whether no plan takes so long or less."""
        left = seconds - self.host
        if left <= 0:
            return True
        few = int(max(ground.machine_type.num_gpus for ground in self.costs.grounds))
        free = Question(
            seconds=left, counts=self.counts, rooms=np.full(len(self.counts), inf),
            most_replicas=few,
        )  # fmt: skip
        if not self.relaxation.impossible(free):
            return False
        enough = self.costs.global_batch_size / self.relaxation.most_samples(left)
        owners = max(few + 1, ceil(enough))
        # The scope that was hardest to refute last time comes first; what takes longer than so
        # much takes longer than less.
        for i, scope in enumerate(self.scopes):
            if left <= self.beyond[id(scope)]:
                continue
            if not self._refuted_in(scope, left, owners):
                self.scopes.insert(0, self.scopes.pop(i))
                return False
            self.beyond[id(scope)] = left
        return True

    def _refuted_in(self, scope: _Scope, left: float, owners: int) -> bool:
        """The same for pipelines and reduction of at least so many owners in one scope."""
        passes = 2 * (owners - 1) / owners
        starts = message_steps(owners) * self.start
        whole = self.relaxation.block_bytes * passes
        # A first stage has all its rings one after another, one between two others has one.
        least = self.rings * starts + max(
            scope.least_reduction * passes,
            (1 + self.relaxation.tied_blocks) * whole / float(self.rates.max()),
        )
        pending = [(least, left)]
        while pending:
            low, high = pending.pop()
            if low >= left:
                continue
            times = len(scope.counts) // len(self.rates)
            rates = np.where(
                scope.far,
                np.minimum(np.tile(self.rates, times), self.far_rate),
                np.tile(self.rates, times),
            )
            question = Question(
                seconds=left - low, counts=scope.counts,
                rooms=np.maximum(high - starts, 0.0) * rates / whole,
                crossing=scope.crossing, far_seconds=self.far_start,
                far_seconds_each=self.relaxation.boundary_bytes / self.far_rate,
            )  # fmt: skip
            if self.relaxation.impossible(question):
                continue
            if high - low <= _FINE * left:
                return False
            middle = (low + high) / 2
            pending += [(middle, high), (low, middle)]
        return True


def least_dollars(costs: OwnCosts) -> float:
    """A lower bound on the rent of a step: all work where it costs the least."""
    least: dict[int, tuple[float, float]] = {}  # microbatch size -> a block, the head
    for way in costs.ways:
        coefficients = costs.coefficients(way)
        gpu = costs.grounds[way.site].machine_type.gpu
        if not most_blocks(
            coefficients, num_blocks=1, first=False, last=False, num_in_flight=1,
            num_owners=max(2, costs.num_owners), optimizer_sharding=costs.num_owners > 1, gpu=gpu,
        ):  # fmt: skip
            continue
        site = costs.sites[way.site]
        price = site.dollars_per_gpu_hour / 3600 * way.tensor_parallel / way.microbatch_size
        block, head = least.get(way.microbatch_size, (inf, inf))
        least[way.microbatch_size] = (min(block, way.block * price), min(head, way.last * price))
    each = min((costs.num_blocks * block + head for block, head in least.values()), default=inf)
    return each * costs.global_batch_size
