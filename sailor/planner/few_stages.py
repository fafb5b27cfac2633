"""Replicas of so few stages that parts of stages say nothing: looked at one by one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import permutations
from math import inf

import numpy as np

from sailor.planner.costs import FloatArray, IntArray
from sailor.planner.pipelines import EPSILON, FEW, Cells, Crossing
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
        enough: FloatArray, crossing: Crossing,
    ) -> FloatArray:  # fmt: skip
        """What replicas of two to FEW stages cost at least in each cell: all of them, one by one,
        cut so that they are filled soonest. Cells after one that costs less than ``enough`` are
        left at nothing."""
        least = np.full(len(cells.pace), inf)
        # What costs just as much as it does is not refuted: all of the batch may be done by such.
        enough = enough * (1 + 4 * EPSILON)
        paid = prices[ways.site] * ways.degree
        fleets = []
        for number in range(max(2, crossing.times + 1), FEW + 1):
            rows = _rows(len(ways.site), number)
            cost = paid[rows].sum(axis=1)
            near = cost < enough.max()
            near &= ways.degree[rows].sum(axis=1) >= crossing.gpus
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
                fill = self._soonest(ways, rows[near], share[near], cells, c, crossing)
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
        self, ways: SizedWays, rows: IntArray, share: FloatArray, cells: Cells, c: int,
        crossing: Crossing,
    ) -> FloatArray:  # fmt: skip
        """The least fill of rows of stages at a cell's pace; infinity where they cannot keep it."""
        pace = cells.pace[c]
        block, send, degree = ways.block[rows], ways.send[rows], ways.degree[rows]
        sent = np.maximum(
            send.sum(axis=1), crossing.sent + 2 * (rows.shape[1] - 1 - crossing.times) * send.min()
        )
        # Where every link is between regions, an end has one of them and a stage between two.
        all_far = crossing.times == rows.shape[1] - 1
        between, beside = (2 * crossing.far, crossing.far) if all_far else (send, send)
        room = (ways.room_two if cells.rounds[c] >= 2 else ways.room)[rows]
        held = np.floor(np.minimum(np.minimum((pace - between) / block, room), share) + EPSILON)
        first, last = ways.first[rows], ways.last[rows]
        first_held, last_held = (
            np.floor(
                np.minimum(np.minimum((pace - beside - end) / block, most), share - blocks)
                + EPSILON
            )
            for end, most, blocks in (
                (first, np.minimum(ways.room_first[rows], room), self.first_blocks),
                (last, ways.room_last[rows], self.last_blocks),
            )
        )
        best = np.full(len(rows), inf)
        # A last stage keeps one microbatch alive only.
        most_held = np.maximum(np.maximum(held, first_held), last_held)
        able = (most_held >= 1).all(axis=1) & (most_held.sum(axis=1) >= self.blocks)
        if not able.all():
            if able.any():
                best[able] = self._soonest(ways, rows[able], share[able], cells, c, crossing)
            return best
        order = np.argsort(block, axis=1, kind="stable")
        for head, tail in permutations(range(rows.shape[1]), 2):
            most = held.copy()
            most[:, head] = first_held[:, head]
            most[:, tail] = last_held[:, tail]
            fits = (most >= 1).all(axis=1) & (most.sum(axis=1) >= self.blocks)
            if all_far:  # every stage but the two ends is alone in its region
                here = degree[:, head] + (degree[:, tail] if crossing.times > 1 else 0.0)
                fits &= (here >= crossing.gpus_beside) & (
                    degree.sum(axis=1) - here >= crossing.gpus_beside
                )
            # The fastest take as much as they may, each has a block at least.
            spare = np.take_along_axis(most - 1, order, axis=1)
            left = self.blocks - rows.shape[1]
            taken = np.clip(left - (np.cumsum(spare, axis=1) - spare), 0.0, spare)
            time = (taken * np.take_along_axis(block, order, axis=1)).sum(axis=1)
            fill = time + block.sum(axis=1) + sent + first[:, head] + last[:, tail]
            best = np.where(fits, np.minimum(best, fill), best)
        return best


@cache
def _rows(number: int, stages: int) -> IntArray:
    """Every choice of so many of a number of ways, in order, one row each."""
    grid = np.indices((number,) * stages).reshape(stages, -1)
    rows: IntArray = grid[:, (np.diff(grid, axis=0) >= 0).all(axis=0)].T
    return rows
