"""Pipelines by their pace and fill, and what they cost at least: the linear programs of the bound.

``Cells`` are narrow ranges of pace and fill; ``filled`` holds the blocks of a model where that is
cheapest; ``CountedStages`` adds a price on every stage, so that parts of stages are not for free.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from sailor.planner.costs import FloatArray, IntArray
from sailor.planner.way_columns import SizedWays

_WHOLE = 20  # microbatches of a replica, up to here counted exactly
# Fill over pace: as many stages as a pipeline has at least. Ever wider apart.
_DEPTHS = (1, 1.01, 1.03, 1.06, 1.1, 1.15, 1.22, 1.3, 1.4, 1.5, 1.65, 1.8, 2, 2.25, 2.5, 2.8, 3.2,
           3.7, 4.4, 5.3, 6.5, 8, 10, 13, 17, 24, 40, 1e9)  # fmt: skip
_CLOSER = 1.006  # from one pace to the next, where microbatches need not be whole
_FACTORS = (1.0, 0.6, 1.6, 0.3, 2.5, 0.0)  # prices of a block, relative to the usual one
RATES = (1.0, 0.3, 3.0, 0.0, 10.0)  # prices of a second of fill, in what a replica does in one
EPSILON = 1e-9
FEW = 3  # stages; replicas of so many or fewer are looked at one by one


@dataclass(frozen=True, slots=True)
class Crossing:
    """How often pipelines cross from region to region at least, what a stage on either side then
    sends for at least, and the GPUs of one kind that a replica has on either side of one of these
    crossings at least."""

    times: int = 0
    far: float = 0.0
    gpus_beside: int = 0

    @property
    def sent(self) -> float:
        """Seconds that the stages on both sides of all crossings send for."""
        return 2 * self.times * self.far

    @property
    def gpus(self) -> int:
        """Of a replica at least: the two sides are different machines."""
        return 2 * self.gpus_beside


@dataclass(frozen=True, slots=True)
class Cells:
    """Ranges of pace and fill: the most pace and fill, the fewest microbatches, samples at most,
    the price of a second of fill; and about what such a replica does."""

    rounds: FloatArray
    pace: FloatArray
    fill: FloatArray
    samples: FloatArray
    second: FloatArray
    typical: FloatArray

    def where(self, kept: npt.NDArray[np.bool_] | IntArray) -> Cells:
        """Some of them."""
        return Cells(*(getattr(self, name)[kept] for name in self.__slots__))


def cells_of(
    ways: SizedWays, seconds: float, blocks: int, *, crossing: Crossing, whole: bool
) -> Cells:  # fmt: skip
    """Those in which any pipeline of these ways could be."""
    ends = float(ways.first.min() + ways.last.min())
    shortest = blocks * float(ways.block.min()) + ends + crossing.sent
    least_pace = float((ways.block + ways.send).min())
    least_pace = max(least_pace, float((ways.block + ways.last + ways.send).min()))
    if crossing.times:
        least_pace = max(least_pace, crossing.far + float(ways.block.min()))
    if whole:
        depths = np.array(_DEPTHS, dtype=float)
        rounds, low = (
            grid.ravel()
            for grid in np.meshgrid(np.arange(1.0, _WHOLE + 1), depths[:-1], indexing="ij")
        )
        high = np.tile(depths[1:], _WHOLE)
        pace = seconds / (rounds - 1 + low)
        fill = seconds * high / (rounds - 1 + high)
        samples = rounds * ways.size
        second = samples / seconds
        kept = (fill >= shortest) & (pace >= least_pace)
        return Cells(rounds, pace, fill, samples, second, samples).where(kept)
    top = (seconds - shortest) / _WHOLE
    if top < least_pace:
        return Cells(*(np.zeros(0) for _ in range(6)))
    number = int(np.log(top / least_pace) / np.log(_CLOSER)) + 1
    paces: FloatArray = top / _CLOSER ** np.arange(number, dtype=float)
    slow = paces / _CLOSER
    second = ways.size / slow
    samples = ways.size + second * seconds
    typical = ways.size + second * (seconds - shortest)
    rounds = np.full(number, float(_WHOLE))
    return Cells(rounds, paces, np.zeros(number), samples, second, typical)


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedStages:
    """Stages that are counted: what each way costs and holds, by cell. ``usual``: about what a
    block costs there."""

    paid: FloatArray
    block: FloatArray
    send: FloatArray
    first: FloatArray
    last: FloatArray
    held: FloatArray
    first_held: FloatArray
    last_held: FloatArray
    usual: FloatArray
    degree: FloatArray
    crossing: Crossing

    def least(
        self, cells: Cells, blocks: int, *, enough: FloatArray, free: bool
    ) -> FloatArray:  # fmt: skip
        """At least what replicas of more than FEW stages cost: a price sigma >= 0 on a stage
        beside those on a block and on a second (``free``: on a second there is one price only),

            cost >= mu L + sigma P - nu F + what the two ends cost more,

        or on a GPU, where a replica has some at least: cost >= mu L + sigma G - nu F. What stages
        send from region to region is paid by the second besides.

        Cells that are known to cost ``enough`` are not looked at closer.
        """
        best = np.full(len(cells.pace), -inf)
        left = np.arange(len(cells.pace))
        for rate in (1.0,) if free else RATES:
            for factor in _FACTORS:
                if not len(left):
                    break
                cost = self._cost(left, cells, blocks, rate=rate, factor=factor)
                best[left] = np.maximum(best[left], cost)
                left = left[best[left] <= enough[left] * (1 + 2 * EPSILON)]
        return best

    def _cost(
        self, left: IntArray, cells: Cells, blocks: int, *, rate: float, factor: float
    ) -> FloatArray:
        second = (rate * cells.second[left])[:, None]
        mu = (factor * self.usual[left])[:, None]
        held = self.held[left]
        # A block more saves its price, or costs more than that: then a stage has one block.
        gain = mu - second * self.block
        stage = self.paid + second * self.send
        sigma = np.where(held >= 1, stage - np.where(gain > 0, gain * held, gain), inf)
        ends = np.zeros(len(left))
        for end, most in ((self.first, self.first_held[left]), (self.last, self.last_held[left])):
            cost = stage + second * end - np.where(gain > 0, gain * most, gain)
            ends += np.where(most >= 1, cost, inf).min(axis=1)
        each_gpu = (sigma / self.degree).min(axis=1)
        sigma = sigma.min(axis=1)
        more = sigma * (FEW - 1) + ends
        if self.crossing.times:
            more = np.maximum(more, each_gpu * self.crossing.gpus)
            longer = self.crossing.far - float(self.send.max())
            more += 2 * self.crossing.times * second[:, 0] * max(0.0, longer)
        with np.errstate(invalid="ignore"):
            cost = mu[:, 0] * blocks + more - second[:, 0] * cells.fill[left]
        cost = np.where(np.isnan(cost), inf, cost)
        return np.where(sigma < 0, -inf, cost)  # yet more stages must not be cheaper


def filled(
    by_entry: FloatArray, caps: FloatArray, blocks: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The cheapest entries that hold all blocks: the price of the last block (infinity where they
    do not), blocks on each entry, and what the cheaper ones save against that price."""
    if (caps >= blocks).all():
        mu = by_entry.min(axis=1)
        used = np.where(by_entry <= mu[:, None], float(blocks), 0.0)
        return mu, used, np.zeros(len(mu))
    order = np.argsort(by_entry, axis=1, kind="stable")
    price = np.take_along_axis(by_entry, order, axis=1)
    usable = np.isfinite(price)
    room = np.where(usable, caps[order], 0.0)
    taken = np.clip(blocks - (np.cumsum(room, axis=1) - room), 0.0, room)
    held = taken.sum(axis=1) >= blocks - EPSILON
    price = np.where(usable, price, 0.0)
    last = np.where(taken > 0, price, -inf).max(axis=1)
    saved = np.where(taken > 0, np.where(held, last, 0.0)[:, None] - price, 0.0)
    used = np.zeros_like(taken)
    np.put_along_axis(used, order, taken, axis=1)
    lost = (np.maximum(saved, 0.0) * room).sum(axis=1)
    return np.where(held, last, inf), used, lost
