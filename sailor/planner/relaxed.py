"""Whether replicas could do a batch in so much time, when a replica need not be built of whole
stages: the question behind bound.py, answered "no" only with a proof.

A price in samples on every GPU (and on there being one more replica, where those are few), such
that all together are worth one batch, proves it: if every replica there could be does fewer samples
than its GPUs cost, all of them together do less than a batch. Prices are looked for round by round:
those found too low for some replica are raised, no more than needed for all such (prices.py).

What a replica can do is looked at for each microbatch size m, each number N of whole microbatches,
and each narrow range of its pace p and of its fill F <= T - (N - 1) p:

* a stage of b blocks is busy for b block + send <= p, so that b is at most a whole number;
* its stages hold all L blocks, one of them the embedding as well and another one the head;
* together they are busy for F at most;
* a site whose links would be too slow for a whole model's gradients holds so many blocks at most.

The cheapest such replica is a linear program over blocks by site. It is bounded by its dual: a
price mu on a block, pi on the room of a site, nu on a second of F,

    cost >= mu L - sum of pi room - nu F + what the two ends cost more than their blocks.

Many microbatches need not be whole; then nu is m / p. Where that is not enough, replicas of at most
FEW stages are looked at one by one, and others pay for whole stages: for a replica of a few stages,
parts of stages are what makes the program too cheap.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import inf

import numpy as np

from sailor.planner.costs import FloatArray, Way
from sailor.planner.few_stages import FewStages
from sailor.planner.memory import Cut
from sailor.planner.own_costs import OwnCosts
from sailor.planner.pipelines import EPSILON, RATES, CountedStages, Crossing, cells_of, filled
from sailor.planner.prices import fair_prices
from sailor.planner.reduction import gradient_bytes
from sailor.planner.way_columns import SizedWays, fastest_link, sized_ways

_HOPELESS = 1.3  # samples over price, where other prices will not help
_WORST = 6  # cells that are looked at closer first
_KEPT = 2  # prices that refuted a question, for the next one
_ROUNDS = 12  # of bettering the prices of GPUs


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is to be refuted: that a batch is done by pipelines of at most ``seconds`` on at most
    ``counts`` GPUs of each site.

    ``rooms``: blocks whose gradients the links of each site can take, of one replica (infinity:
    any). ``most_replicas``: how many there are at most. ``crossing``: how often every replica
    crosses from region to region at least, each time sending for ``far_seconds`` + microbatch size
    x ``far_seconds_each``, and that times the replicas of a machine, which send at once.
    """

    seconds: float
    counts: FloatArray
    rooms: FloatArray
    most_replicas: float = inf
    crossing: int = 0
    far_seconds: float = 0.0
    far_seconds_each: float = 0.0


@dataclass(frozen=True, slots=True)
class _Found:
    """The replica that does most for its price: samples over price, the GPUs that it uses of each
    site, and what those would have to cost at least."""

    ratio: float
    usage: FloatArray
    worth: float


class Relaxation:
    """Replicas of a job on some sites, without the whole stages."""

    def __init__(self, costs: OwnCosts) -> None:
        self.blocks = costs.num_blocks
        self.batch = costs.global_batch_size
        self.num_sites = len(costs.grounds)
        self.machine = np.array(
            [ground.machine_type.num_gpus for ground in costs.grounds], dtype=float
        )
        ways: dict[int, list[Way]] = {}
        for way in costs.ways:
            ways.setdefault(way.microbatch_size, []).append(way)
        links = [fastest_link(costs, site, inside=True) for site in range(len(costs.grounds))]
        sized = [sized_ways(costs, size, group, links) for size, group in sorted(ways.items())]
        self._sizes = [each for each in sized if len(each.site)]
        self._before: dict[tuple[int, bytes], list[tuple[FloatArray, float]]] = {}
        # The more GPUs share a tensor, the more of it is held twice: the fewest count least.
        slim = min(costs.ways, key=lambda way: way.tensor_parallel)
        one, degree = costs.coefficients(slim), slim.tensor_parallel
        whole = Cut(num_blocks=self.blocks, first=True, last=True)
        # Bytes of a block's gradients, and what ends and the whole model have, in blocks.
        self.block_bytes = one.block_parameters * gradient_bytes(one) * degree
        self.tied_blocks = one.tied_parameters / one.block_parameters
        self.first_blocks = one.first_parameters / one.block_parameters
        self.last_blocks = (one.last_parameters + one.tied_parameters) / one.block_parameters
        self.whole_blocks = one.parameters(whole) / one.block_parameters
        self.boundary_bytes = min(
            costs.coefficients(way).boundary / way.microbatch_size for way in costs.ways
        )

    @cached_property
    def _twice(self) -> Relaxation:
        """The same with every site a second time, after all others."""
        other = copy(self)
        other._before = {}
        other.num_sites = 2 * self.num_sites
        other.machine = np.tile(self.machine, 2)
        other._sizes = [ways.twice(self.num_sites) for ways in self._sizes]
        return other

    @property
    def any(self) -> bool:
        """Whether a stage fits anywhere."""
        return bool(self._sizes)

    def most_samples(self, seconds: float) -> float:
        """More than one replica does."""
        return max(
            each.size * (1 + seconds / float((each.block + each.last).min()))
            for each in self._sizes
        )

    def impossible(self, question: Question) -> bool:
        """Whether it is proven that no replicas do the batch."""
        if question.seconds <= 0 or not question.counts.any():
            return True
        if len(question.counts) > self.num_sites:
            return self._twice.impossible(question)
        return self._refuted(question)

    def _refuted(self, question: Question) -> bool:
        """Whether there are prices: those of the replicas that were found too cheap so far, and of
        what is left for the batch about as much for each GPU as it does."""
        few = question.most_replicas < self.batch
        # A price on the number of replicas is one more store.
        stores = np.append(question.counts, question.most_replicas if few else 0.0)
        uses, worths = self._alone(question, few=few)
        alone = slice(len(worths))
        usual = self._usual(question)
        if not usual.any():
            return False
        usual /= float(usual @ question.counts)
        rows = slice(None) if few else slice(-1)
        # Prices that refuted the last question of the kind are about right in this one.
        key = (question.crossing, stores.tobytes())
        for known in self._before.get(key, ()):
            if (uses[alone, :-1] @ known[0] + known[1] < worths[alone] * (1 - EPSILON)).any():
                continue
            found = self._most(question, *known)
            if not found:
                return True
            uses = np.concatenate([uses, [np.append(f.usage, 1.0) for f in found]])
            worths = np.concatenate([worths, [f.worth for f in found]])
        for _ in range(_ROUNDS):
            priced = fair_prices(uses[:, rows], worths, stores[rows])
            if priced is None or priced.worth >= self.batch * (1 - 1e-6):
                return False
            prices = priced.prices[: len(question.counts)]
            prices = prices + (self.batch - priced.worth) * usual
            each = float(priced.prices[-1]) if few else 0.0
            if (uses[alone, :-1] @ prices + each < worths[alone] * (1 - EPSILON)).any():
                return False  # the program was not solved so closely
            found = self._most(question, prices, each)
            if not found:
                self._before[key] = [(prices, each), *self._before.get(key, ())][:_KEPT]
                return True
            uses = np.concatenate([uses, [np.append(f.usage, 1.0) for f in found]])
            worths = np.concatenate([worths, [f.worth for f in found]])
        return False

    def _alone(self, question: Question, *, few: bool) -> tuple[FloatArray, FloatArray]:
        """What replicas of one stage use and do: the most of each site and degree."""
        most: dict[tuple[int, int], float] = {}
        if not question.crossing:
            for ways in self._sizes:
                done = self._rounds_alone(ways, question) * ways.size
                for site, degree, samples in zip(
                    ways.site.tolist(), ways.degree.tolist(), done.tolist(), strict=True
                ):
                    key = (site, int(degree))
                    most[key] = max(most.get(key, 0.0), samples)
        uses = np.zeros((len(most), len(question.counts) + 1))
        for row, (site, degree) in enumerate(most):
            uses[row, site], uses[row, -1] = degree, 1.0
        return uses, np.array(list(most.values())) * (1 + 4 * EPSILON)

    def _usual(self, question: Question) -> FloatArray:
        """About what a GPU of each site does in a pipeline."""
        usual = np.zeros(len(question.counts))
        for ways in self._sizes:
            among = ways.size * question.seconds / (self.blocks * ways.block + ways.last)
            held = question.rooms[ways.site] * ways.degree >= 1
            np.maximum.at(usual, ways.site, among * held / ways.degree)
        return np.where(question.counts > 0, usual, 0.0)

    def _rounds_alone(self, ways: SizedWays, question: Question) -> FloatArray:
        """Microbatches of a replica of one stage."""
        rounds = np.floor(question.seconds / ways.alone * (1 + 1e-12) + EPSILON)
        whole = question.rooms[ways.site] >= self.whole_blocks * (1 - EPSILON)
        found: FloatArray = np.where(whole, rounds, 0.0)
        return found

    def _most(self, question: Question, prices: FloatArray, each: float) -> list[_Found]:
        """For each microbatch size the replica of several stages that does most for its price,
        where it does as much as that. None are looked at after one that does far more."""
        all_found: list[_Found] = []
        for sized in self._sizes:
            usable = question.counts[sized.site] > 0
            some = sized if usable.all() else sized.where(usable)
            if not len(some.site):
                continue
            for crossing, whole in product(self._crossings(question, some.size), (True, False)):
                found = self._pipelines(some, question, prices, each, crossing, whole=whole)
                if found is not None and found.ratio >= 1 - EPSILON:
                    all_found.append(found)
                    if found.ratio > _HOPELESS:
                        return all_found
        return all_found

    def _crossings(self, question: Question, size: int) -> list[Crossing]:
        """All kinds of crossing, by how many replicas send at once over the fastest of a replica's:
        so many fit on a machine beside each other on one side, or fewer on both (stage.py)."""
        if not question.crossing:
            return [Crossing()]
        kinds = [int(gpus) for gpus in np.unique(self.machine)]
        found = []
        for at_once in sorted({gpus // taken for gpus in kinds for taken in range(1, gpus + 1)}):
            each = at_once * size * question.far_seconds_each
            beside = min(gpus // (at_once + 1) + 1 for gpus in kinds)
            found.append(Crossing(question.crossing, question.far_seconds + each, beside))
        return found

    def _pipelines(
        self, ways: SizedWays, question: Question, prices: FloatArray, each: float,
        crossing: Crossing, *, whole: bool,
    ) -> _Found | None:  # fmt: skip
        """Replicas of several stages, over any sites."""
        far = crossing.far
        cells = cells_of(ways, question.seconds, self.blocks, crossing=crossing, whole=whole)
        if not len(cells.pace):
            return None
        rooms = question.rooms[ways.site]
        free = rooms >= self.blocks
        wide = ~free & (rooms * ways.degree / self.machine[ways.site] >= 1)
        # A site with little room for gradients is entered twice: for replicas that take less than a
        # machine there, and for those that take more, whose every stage has its share of the links.
        entry = np.concatenate([2 * ways.site, 2 * ways.site[wide] + 1])
        index = np.concatenate([np.arange(len(ways.site)), np.flatnonzero(wide)])
        share = np.concatenate([rooms, (rooms * ways.degree / self.machine[ways.site])[wide]])
        order = np.argsort(entry, kind="stable")
        entry, index, share = entry[order], index[order], share[order]
        block, send, price = ways.block[index], ways.send[index], prices[ways.site][index]
        paid = price * ways.degree[index]
        alive_two = (cells.rounds >= 2)[:, None]
        room = np.where(alive_two, ways.room_two[index], ways.room[index])
        held = np.floor(
            np.minimum(np.minimum((cells.pace[:, None] - send) / block, room), share) + EPSILON
        )
        # What an end is busy with besides its blocks, and how many of those it holds.
        ends = [
            (
                end[index],
                np.floor(
                    np.minimum(
                        np.minimum((cells.pace[:, None] - send - end[index]) / block, most[index]),
                        share - extra,
                    ) + EPSILON
                ),
            )
            for end, most, extra in (
                (ways.first, ways.room_first, self.first_blocks),
                (ways.last, ways.room_last, self.last_blocks),
            )
        ]  # fmt: skip
        # A last stage keeps one microbatch alive, whatever the others do; a first one as many.
        ends[0] = (ends[0][0], np.minimum(ends[0][1], held))
        held = np.maximum(held, ends[1][1])
        first = np.flatnonzero(np.diff(entry, prepend=-1))
        entries = entry[first]
        place = np.cumsum(np.diff(entry, prepend=-1) != 0) - 1
        caps = np.where(entries % 2 == 1, self.blocks, question.rooms[entries // 2])
        caps = np.minimum(caps, self.blocks)
        best = np.full(len(cells.pace), -inf)
        best_rate = np.zeros(len(cells.pace))
        best_mu = np.zeros(len(cells.pace))
        open_cells = np.arange(len(cells.pace))
        for rate in RATES if whole else (1.0,):
            second = rate * cells.second[open_cells]
            some_held = held[open_cells]
            with np.errstate(divide="ignore", invalid="ignore"):
                per_block = (paid + second[:, None] * send) / some_held + second[:, None] * block
            per_block = np.where(some_held >= 1, per_block, inf)
            by_entry = np.minimum.reduceat(per_block, first, axis=1)
            mu, _, lost = filled(by_entry, caps, self.blocks)
            worth = np.minimum(mu[:, None], by_entry)[:, place]
            gain = np.maximum(worth - second[:, None] * block, 0.0)
            more = np.zeros(len(open_cells))
            if question.crossing:
                once, twice = (
                    self._across(
                        cells.pace[open_cells], n * far, block, some_held, paid, second, gain
                    )
                    for n in (1, 2)
                )
            for end, most in ends:
                able = most[open_cells] >= 1
                each_end = paid + second[:, None] * (send + end)
                each_end = each_end - np.where(able, gain, 0.0) * most[open_cells]
                cheapest = np.where(able, each_end, inf).min(axis=1)
                if question.crossing:
                    # Before or behind a crossing stands the end itself, or another stage.
                    across = self._across(
                        cells.pace[open_cells], far + end, block, most[open_cells], paid, second,
                        gain,
                    )  # fmt: skip
                    cheapest = np.minimum(across, cheapest + once)
                more += cheapest
            if question.crossing > 1:  # between the crossings, one stage or two
                more += np.minimum(twice, 2 * once)
            cost = mu * self.blocks - lost - second * cells.fill[open_cells] + more
            cost = np.where(np.isnan(cost), inf, cost)
            better = cost > best[open_cells]
            best[open_cells] = np.where(better, cost, best[open_cells])
            best_rate[open_cells] = np.where(better, rate, best_rate[open_cells])
            best_mu[open_cells] = np.where(better, mu, best_mu[open_cells])
            refuted = cells.samples[open_cells] < (best[open_cells] + each) * (1 - 2 * EPSILON)
            open_cells = open_cells[~refuted]
            if not len(open_cells):
                return None
        # One cell that stays open is enough: those furthest from refuted are looked at first.
        worst = np.argsort(best[open_cells] - cells.samples[open_cells], kind="stable")
        for part in (worst[:_WORST], worst[_WORST:]):
            if not len(part):
                break
            chosen = open_cells[part]
            some = cells.where(chosen)
            stages = CountedStages(
                paid=paid, block=block, send=send, first=ends[0][0], last=ends[1][0],
                held=held[chosen], first_held=ends[0][1][chosen], last_held=ends[1][1][chosen],
                usual=best_mu[chosen], degree=ways.degree[index], crossing=crossing,
            )  # fmt: skip
            enough = some.samples - each
            many = stages.least(some, self.blocks, enough=enough, free=not whole)
            if (many < enough).any():
                few = many
            else:
                few = FewStages(
                    blocks=self.blocks, first_blocks=self.first_blocks,
                    last_blocks=self.last_blocks, machine=self.machine,
                ).least(
                    ways, some, rooms=question.rooms, prices=prices, enough=enough,
                    crossing=crossing,
                )  # fmt: skip
            best[chosen] = np.maximum(best[chosen], np.minimum(few, many))
            if (best[chosen] + each < some.samples).any():
                open_cells = chosen
                break
        best, samples = best[open_cells], cells.samples[open_cells]
        cost = np.maximum(best, 1e-12) + each
        ratio = samples / cost
        if not whole:
            # Samples and cost share the term of the fill: the gain decides, not the ratio.
            ratio = 1 + (samples - cost) / np.maximum(cells.typical[open_cells], 1e-12)
        i = int(np.argmax(ratio))
        cell = open_cells[i]
        price_of_second = float(best_rate[cell] * cells.second[cell])
        with np.errstate(divide="ignore", invalid="ignore"):
            each_block = (paid + price_of_second * send) / held[cell] + price_of_second * block
        each_block = np.where(held[cell] >= 1, each_block, inf)
        _, used, _ = filled(np.minimum.reduceat(each_block, first)[None, :], caps, self.blocks)
        usage = np.zeros(len(prices))  # of the program at these prices: what better ones go by
        for e, blocks in enumerate(used[0].tolist()):
            if blocks > 0:
                stop = first[e + 1] if e + 1 < len(first) else len(entry)
                way = first[e] + int(np.argmin(each_block[first[e] : stop]))
                usage[entry[way] // 2] += blocks * ways.degree[index[way]] / held[cell, way]
        least = float(samples[i]) - float(cost[i]) + float(usage @ prices) + each
        return _Found(float(ratio[i]), usage, least)

    def _across(
        self, pace: FloatArray, busy: float | FloatArray, block: FloatArray, held: FloatArray,
        paid: FloatArray, second: FloatArray, gain: FloatArray,
    ) -> FloatArray:  # fmt: skip
        """What a stage that is busy for so long besides costs at least, beside the price of its
        blocks."""
        near = np.minimum(np.floor((pace[:, None] - busy) / block + EPSILON), held)
        across = paid + second[:, None] * busy - np.where(near >= 1, gain, 0.0) * near
        least: FloatArray = np.where(near >= 1, across, inf).min(axis=1)
        return least
