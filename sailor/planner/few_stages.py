"""Replicas of so few stages that parts of stages say nothing: looked at one by one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import permutations
from math import inf

import numpy as np

from sailor.planner.costs import FloatArray, IntArray
from sailor.planner.pipelines import EPSILON, FEW, Cells
from sailor.planner.way_columns import SizedWays


@dataclass(frozen=True, kw_only=True, slots=True)
class FewStages:
    """Of a model of so many blocks, whose ends have gradients of so many more; ``machine``: GPUs of
    one, by site."""

    blocks: int
    first_blocks: float
    last_blocks: float
    machine: FloatArray

    def least(
        self, ways: SizedWays, cells: Cells, *, rooms: FloatArray, prices: FloatArray,
        enough: FloatArray,
    ) -> FloatArray:  # fmt: skip
        """What replicas of two to FEW stages cost at least in each cell: all of them, one by one,
        cut so that they are filled soonest. Cells after one that costs less than ``enough`` are
        left at nothing."""
        least = np.full(len(cells.pace), inf)
        # What costs just as much as it does is not refuted: all of the batch may be done by such.
        enough = enough * (1 + 4 * EPSILON)
        paid = prices[ways.site] * ways.degree
        fleets = []
        for number in range(2, FEW + 1):
            rows = _rows(len(ways.site), number)
            cost = paid[rows].sum(axis=1)
            near = cost < enough.max()
            rows, cost = rows[near], cost[near]
            site, degree = ways.site[rows], ways.degree[rows]
            width = (degree[:, None, :] * (site[:, :, None] == site[:, None, :])).sum(axis=2)
            share = rooms[site] * degree / np.minimum(width, self.machine[site])
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
        block, send = ways.block[rows], ways.send[rows]
        room = (ways.room_two if cells.rounds[c] >= 2 else ways.room)[rows]
        held = np.floor(np.minimum(np.minimum((pace - send) / block, room), share) + EPSILON)
        first, last = ways.first[rows], ways.last[rows]
        first_held, last_held = (
            np.floor(
                np.minimum(np.minimum((pace - send - end) / block, most[rows]), share - blocks)
                + EPSILON
            )
            for end, most, blocks in (
                (first, ways.room_first, self.first_blocks),
                (last, ways.room_last, self.last_blocks),
            )
        )
        best = np.full(len(rows), inf)
        most_held = np.maximum(held, last_held)  # a last stage keeps one microbatch alive only
        able = (most_held >= 1).all(axis=1) & (most_held.sum(axis=1) >= self.blocks)
        if not able.all():
            if able.any():
                best[able] = self._soonest(ways, rows[able], share[able], cells, c)
            return best
        order = np.argsort(block, axis=1, kind="stable")
        extra = send.sum(axis=1)
        for head, tail in permutations(range(rows.shape[1]), 2):
            most = held.copy()
            most[:, head] = np.minimum(held[:, head], first_held[:, head])
            most[:, tail] = last_held[:, tail]
            fits = (most >= 1).all(axis=1) & (most.sum(axis=1) >= self.blocks)
            # The fastest take as much as they may, each has a block at least.
            spare = np.take_along_axis(most - 1, order, axis=1)
            left = self.blocks - rows.shape[1]
            taken = np.clip(left - (np.cumsum(spare, axis=1) - spare), 0.0, spare)
            time = (taken * np.take_along_axis(block, order, axis=1)).sum(axis=1)
            fill = time + block.sum(axis=1) + extra + first[:, head] + last[:, tail]
            best = np.where(fits, np.minimum(best, fill), best)
        return best


@cache
def _rows(number: int, stages: int) -> IntArray:
    """Every choice of so many of a number of ways, in order, one row each."""
    grid = np.indices((number,) * stages).reshape(stages, -1)
    rows: IntArray = grid[:, (np.diff(grid, axis=0) >= 0).all(axis=0)].T
    return rows
