"""Whether replicas could do a batch in so much time, when a replica need not be built of whole
stages: the question behind bound.py, answered "no" only with a proof.

A price in samples on every GPU, such that all GPUs together are worth one batch, proves it: if
every replica there could be does fewer samples than its GPUs cost, all of them together do less
than a batch. What a replica can do is looked at for each microbatch size m, each number N of whole
microbatches, and each narrow range of its pace p and of its fill F <= T - (N - 1) p:

* a stage of b blocks is busy for b block + send <= p, so that b is at most a whole number;
* its stages hold all L blocks, and one of them holds the head as well;
* together they are busy for F at most;
* a site whose links would be too slow for a whole model's gradients holds so many blocks at most.

The cheapest such replica is a linear program over blocks by site. It is bounded by its dual: a
price mu on a block, pi on the room of a site, nu on a second of F,

    cost >= mu L - sum of pi room - nu F + what the stage with the head costs more than its blocks.

Many microbatches need not be whole; then nu is m / p. Where that is not enough, replicas of at most
FEW stages are looked at one by one, and others pay for whole stages: for a replica of a few stages,
parts of stages are what makes the program too cheap.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cache, cached_property
from math import inf

import numpy as np

from sailor.planner.costs import FloatArray, IntArray, Way
from sailor.planner.memory import Cut
from sailor.planner.own_costs import OwnCosts
from sailor.planner.pipelines import EPSILON, FEW, RATES, Cells, CountedStages, cells_of, filled
from sailor.planner.reduction import gradient_bytes
from sailor.planner.way_columns import SizedWays, fastest_link, sized_ways

_HOPELESS = 1.3  # samples over price, where other prices will not help
_WORST = 6  # cells that are looked at closer first
_ROUNDS = 3  # of bettering the prices of GPUs


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is to be refuted: that a batch is done by pipelines of at most ``seconds`` on at most
    ``counts`` GPUs of each site.

    ``rooms``: blocks whose gradients the links of each site can take, of one replica (infinity:
    any). ``most_replicas``: how many there are at most. ``crossing``: how often every replica
    crosses from region to region at least, each time sending for ``far_seconds`` + microbatch size
    x ``far_seconds_each``.
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
    """The replica that does most for its price: samples over price, and GPUs by site."""

    ratio: float
    usage: FloatArray


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
        one = costs.coefficients(costs.ways[0])
        degree = costs.ways[0].tensor_parallel
        whole = Cut(num_blocks=self.blocks, first=True, last=True)
        # Bytes of a block's gradients, and what ends and the whole model have, in blocks.
        self.block_bytes = one.block_parameters * gradient_bytes(one) * degree
        self.tied_blocks = one.tied_parameters / one.block_parameters
        self.last_blocks = (one.last_parameters + one.tied_parameters) / one.block_parameters
        self.whole_blocks = one.parameters(whole) / one.block_parameters
        self.boundary_bytes = min(
            costs.coefficients(way).boundary / way.microbatch_size for way in costs.ways
        )

    @cached_property
    def _twice(self) -> Relaxation:
        """The same with every site a second time, after all others."""
        other = copy(self)
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
        shares = (0.0,) if question.most_replicas >= self.batch else (0.0, 0.5, 0.9)
        return any(self._refuted(question, share) for share in shares)

    def _refuted(self, question: Question, share: float) -> bool:
        """``share`` of the batch is the price of there being so many replicas."""
        each = share * self.batch / question.most_replicas if share else 0.0
        worth = (1 - share) * self.batch
        least, usual = self._first_prices(question, each)
        # What no replica of one stage may cost less than is paid first, then what is left.
        left = worth - float(least @ question.counts)
        weights = usual * question.counts
        if left <= 0 or not weights.any():
            return False
        last = inf
        for _ in range(_ROUNDS):
            usual = usual * (left / float(usual @ question.counts))
            found = self._most(question, least + usual, each)
            if found.ratio < 1 - EPSILON:
                return True
            # What the best replica stands on is too cheap.
            paid = (least + usual) * found.usage
            if found.ratio > _HOPELESS or not paid.sum() or found.ratio > 1.1 * last:
                return False
            last = min(last, found.ratio)
            usual = usual * (1 + 6 * (found.ratio - 1)) ** (paid / paid.max())
        return False

    def _first_prices(self, question: Question, each: float) -> tuple[FloatArray, FloatArray]:
        """What a GPU does at most in replicas of one stage, and about what in a pipeline."""
        alone, usual = np.zeros(len(question.counts)), np.zeros(len(question.counts))
        for ways in self._sizes:
            if not question.crossing:
                done = self._rounds_alone(ways, question) * ways.size - each
                np.maximum.at(alone, ways.site, np.maximum(done, 0.0) / ways.degree)
            among = ways.size * question.seconds / (self.blocks * ways.block + ways.last)
            held = question.rooms[ways.site] * ways.degree >= 1
            np.maximum.at(usual, ways.site, among * held / ways.degree)
        return alone * (1 + 4 * EPSILON), usual

    def _rounds_alone(self, ways: SizedWays, question: Question) -> FloatArray:
        """Microbatches of a replica of one stage."""
        rounds = np.floor(question.seconds / ways.alone * (1 + 1e-12) + EPSILON)
        whole = question.rooms[ways.site] >= self.whole_blocks * (1 - EPSILON)
        found: FloatArray = np.where(whole, rounds, 0.0)
        return found

    def _most(self, question: Question, prices: FloatArray, each: float) -> _Found:
        """The replica of several stages that does most for its price. The first one that is hardly
        worth a look at others."""
        best = _Found(0.0, np.zeros(len(prices)))
        for sized in self._sizes:
            usable = question.counts[sized.site] > 0
            some = sized if usable.all() else sized.where(usable)
            if not len(some.site):
                continue
            for whole in (True, False):
                found = self._pipelines(some, question, prices, each, whole=whole)
                best = max(best, found, key=_ratio)
                if best.ratio > _HOPELESS:
                    return best
        return best

    def _pipelines(
        self, ways: SizedWays, question: Question, prices: FloatArray, each: float, *, whole: bool
    ) -> _Found:  # fmt: skip
        """Replicas of several stages, over any sites."""
        nothing = _Found(0.0, np.zeros(len(prices)))
        far = 0.0
        if question.crossing:
            far = question.far_seconds + ways.size * question.far_seconds_each
        cells = cells_of(
            ways, question.seconds, self.blocks, far=far, fars=2 * question.crossing * far,
            whole=whole,
        )  # fmt: skip
        if not len(cells.pace):
            return nothing
        rooms = question.rooms[ways.site]
        free = rooms >= self.blocks
        wide = ~free & (rooms * ways.degree / self.machine[ways.site] >= 1)
        # A site with little room for gradients is entered twice: for replicas that take less than a
        # machine there, and for those that take more, whose every stage has its share of the links.
        entry = np.concatenate([2 * ways.site, 2 * ways.site[wide] + 1])
        index = np.concatenate([np.arange(len(ways.site)), np.flatnonzero(wide)])
        share = np.concatenate(
            [np.where(free, inf, rooms), (rooms * ways.degree / self.machine[ways.site])[wide]]
        )
        order = np.argsort(entry, kind="stable")
        entry, index, share = entry[order], index[order], share[order]
        block, send, price = ways.block[index], ways.send[index], prices[ways.site][index]
        paid = price * ways.degree[index]
        alive_two = (cells.rounds >= 2)[:, None]
        room = np.where(alive_two, ways.room_two[index], ways.room[index])
        held = np.floor(
            np.minimum(np.minimum((cells.pace[:, None] - send) / block, room), share) + EPSILON
        )
        last_held = np.floor(
            np.minimum(
                np.minimum((cells.pace[:, None] - send - ways.last[index]) / block,
                           ways.room_last[index]),
                share - self.last_blocks,
            ) + EPSILON
        )  # fmt: skip
        first = np.flatnonzero(np.diff(entry, prepend=-1))
        entries = entry[first]
        place = np.cumsum(np.diff(entry, prepend=-1) != 0) - 1
        caps = np.where(entries % 2 == 1, self.blocks, question.rooms[entries // 2])
        caps = np.minimum(caps, self.blocks)
        best = np.full(len(cells.pace), -inf)
        best_used = np.zeros((len(cells.pace), len(entries)))
        best_mu = np.zeros(len(cells.pace))
        open_cells = np.arange(len(cells.pace))
        for rate in RATES if whole else (1.0,):
            second = rate * cells.second[open_cells]
            some_held, some_last = held[open_cells], last_held[open_cells]
            with np.errstate(divide="ignore", invalid="ignore"):
                per_block = (paid + second[:, None] * send) / some_held + second[:, None] * block
            per_block = np.where(some_held >= 1, per_block, inf)
            by_entry = np.minimum.reduceat(per_block, first, axis=1)
            mu, used, lost = filled(by_entry, caps, self.blocks)
            worth = np.minimum(mu[:, None], by_entry)[:, place]
            more = paid + second[:, None] * (send + ways.last[index])
            gain = np.maximum(worth - second[:, None] * block, 0.0)
            with np.errstate(invalid="ignore"):
                last = np.where(some_last >= 1, more - gain * some_last, inf).min(axis=1)
            cost = mu * self.blocks - lost - second * cells.fill[open_cells] + last
            if question.crossing:
                # Both stages at a crossing send: of all those ends one may be the last stage's.
                ends = [
                    self._across(
                        cells.pace[open_cells], n * far, block, some_held, paid, second, gain
                    )
                    for n in (1, 2)
                ]
                cost += ends[0]
                if question.crossing > 1:
                    cost += np.minimum(ends[1], 2 * ends[0])
            cost = np.where(np.isnan(cost), inf, cost)
            better = cost > best[open_cells]
            best[open_cells] = np.where(better, cost, best[open_cells])
            best_used[open_cells] = np.where(better[:, None], used, best_used[open_cells])
            best_mu[open_cells] = np.where(better, mu, best_mu[open_cells])
            refuted = cells.samples[open_cells] < (best[open_cells] + each) * (1 - 2 * EPSILON)
            open_cells = open_cells[~refuted]
            if not len(open_cells):
                return nothing
        # One cell that stays open is enough: those furthest from refuted are looked at first.
        worst = np.argsort(best[open_cells] - cells.samples[open_cells], kind="stable")
        for part in (worst[:_WORST], worst[_WORST:]):
            if not len(part):
                break
            chosen = open_cells[part]
            some = cells.where(chosen)
            stages = CountedStages(
                paid=paid, block=block, send=send, last=ways.last[index], held=held[chosen],
                last_held=last_held[chosen], usual=best_mu[chosen],
            )  # fmt: skip
            enough = some.samples - each
            many = stages.least(some, self.blocks, enough=enough, free=not whole)
            if (many < enough).any():
                few = many
            else:
                few = self._counted(ways, question, prices, some, enough)
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
        usage = np.zeros(len(prices))
        np.add.at(usage, entries // 2, best_used[open_cells[i]])
        speed = np.zeros(len(prices))
        np.maximum.at(speed, ways.site, 1 / (ways.block * ways.degree))
        usage = np.divide(usage, speed, out=np.zeros(len(prices)), where=speed > 0)
        return _Found(float(ratio[i]), usage)

    def _across(
        self, pace: FloatArray, sends: float, block: FloatArray, held: FloatArray,
        paid: FloatArray, second: FloatArray, gain: FloatArray,
    ) -> FloatArray:  # fmt: skip
        """What a stage that sends for so long costs at least, beside the price of its blocks."""
        near = np.minimum(np.floor((pace[:, None] - sends) / block + EPSILON), held)
        across = paid + second[:, None] * sends - gain * np.maximum(near, 0.0)
        least: FloatArray = np.where(near >= 1, across, inf).min(axis=1)
        return least

    def _counted(
        self, ways: SizedWays, question: Question, prices: FloatArray, cells: Cells,
        enough: FloatArray,
    ) -> FloatArray:  # fmt: skip
        """What replicas of two to FEW stages cost at least in each cell: all of them, one by one,
        cut so that they are filled soonest. Cells after one that costs less than ``enough`` are
        left at nothing."""
        least = np.full(len(cells.pace), inf)
        paid = prices[ways.site] * ways.degree
        fleets = []
        for number in range(2, FEW + 1):
            rows = _rows(len(ways.site), number)
            cost = paid[rows].sum(axis=1)
            near = cost < enough.max()
            rows, cost = rows[near], cost[near]
            site, degree = ways.site[rows], ways.degree[rows]
            width = (degree[:, None, :] * (site[:, :, None] == site[:, None, :])).sum(axis=2)
            share = question.rooms[site] * degree / np.minimum(width, self.machine[site])
            fleets.append((rows, cost, share))
        for c in range(len(cells.pace)):
            for rows, cost, share in fleets:
                near = cost < enough[c]
                if not near.any():
                    continue
                fill = self._soonest(ways, rows[near], share[near], cells, c)
                if cells.fill[c] > 0:
                    value = np.where(fill <= cells.fill[c] * (1 + EPSILON), cost[near], inf)
                else:
                    value = cost[near] + cells.second[c] * fill
                least[c] = min(least[c], float(value.min()))
            if least[c] < enough[c]:
                least[c + 1 :] = 0.0
                break
        return least

    def _soonest(
        self, ways: SizedWays, rows: IntArray, share: FloatArray, cells: Cells, c: int
    ) -> FloatArray:
        """The least fill of rows of stages at a cell's pace; infinity where they cannot keep it."""
        pace = cells.pace[c]
        block, send, last = ways.block[rows], ways.send[rows], ways.last[rows]
        room = (ways.room_two if cells.rounds[c] >= 2 else ways.room)[rows]
        held = np.floor(np.minimum(np.minimum((pace - send) / block, room), share) + EPSILON)
        ends = np.floor(
            np.minimum(
                np.minimum((pace - send - last) / block, ways.room_last[rows]),
                share - self.last_blocks,
            ) + EPSILON
        )  # fmt: skip
        best = np.full(len(rows), inf)
        able = (held >= 1).all(axis=1) & (held.sum(axis=1) >= self.blocks)
        if not able.all():
            if able.any():
                best[able] = self._soonest(ways, rows[able], share[able], cells, c)
            return best
        order = np.argsort(block, axis=1, kind="stable")
        extra = send.sum(axis=1)
        for head in range(rows.shape[1]):
            most = held.copy()
            most[:, head] = ends[:, head]
            fits = (most >= 1).all(axis=1) & (most.sum(axis=1) >= self.blocks)
            # The fastest take as much as they may, each has a block at least.
            spare = np.take_along_axis(most - 1, order, axis=1)
            left = self.blocks - rows.shape[1]
            taken = np.clip(left - (np.cumsum(spare, axis=1) - spare), 0.0, spare)
            time = (taken * np.take_along_axis(block, order, axis=1)).sum(axis=1)
            fill = time + block.sum(axis=1) + extra + last[:, head]
            best = np.where(fits, np.minimum(best, fill), best)
        return best


@cache
def _rows(number: int, stages: int) -> IntArray:
    """Every choice of so many of a number of ways, in order, one row each."""
    grid = np.indices((number,) * stages).reshape(stages, -1)
    rows: IntArray = grid[:, (np.diff(grid, axis=0) >= 0).all(axis=0)].T
    return rows


def _ratio(found: _Found) -> float:
    return found.ratio
