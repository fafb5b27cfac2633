"""Pipelines worth seating: every depth on one site, and the promising mixes of two sites.

A row of stages is cut exactly (partition.py) once it looks promising. Mixed rows are many, so they
are ranked first by a bound that splits blocks like water.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations

import numpy as np

from sailor.planner.costs import Costs, Row, Template, Way
from sailor.planner.partition import best_cut
from sailor.planner.timing import PipelineSeconds

MANY = 1_000  # microbatches: the cut for a long step, where the pace is what counts


class Templates:
    """Makes templates and remembers them."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self._made: dict[tuple[tuple[int, ...], int], Template | None] = {}
        self._most: dict[tuple[int, int, int], int] = {}
        self._sends: dict[tuple[int, ...], tuple[float, ...]] = {}

    def of(self, row: Row, *, num_microbatches: int = MANY) -> Template | None:
        """The row with its best cut; None when memory leaves none."""
        key = (tuple(way.index for way in row), num_microbatches)
        if key not in self._made:
            self._made[key] = self._cut(row, num_microbatches)
        return self._made[key]

    def with_counts(self, row: Row, counts: tuple[int, ...]) -> Template | None:
        """The row with a given cut; None when memory forbids it."""
        num_stages = len(row)
        if any(n < 1 or n > self._room(row[s], s, num_stages) for s, n in enumerate(counts)):
            return None
        return self._template(row, counts)

    def _cut(self, row: Row, num_microbatches: int) -> Template | None:
        num_stages = len(row)
        most = [self._room(way, s, num_stages) for s, way in enumerate(row)]
        counts = best_cut(
            self.costs.num_blocks,
            per_block=[way.block for way in row],
            extra=self._extra(row),
            most=most,
            num_microbatches=num_microbatches,
        )
        return None if counts is None else self._template(row, counts)

    def _template(self, row: Row, counts: tuple[int, ...]) -> Template:
        extra = self._extra(row)
        busy = [n * way.block + e for n, way, e in zip(counts, row, extra, strict=True)]
        usage = [0] * len(self.costs.sites)
        for way in row:
            usage[way.site] += way.tensor_parallel
        return Template(row, counts, PipelineSeconds.of(busy), tuple(usage))

    def _extra(self, row: Row) -> list[float]:
        key = tuple(way.index for way in row)
        if key not in self._sends:
            self._sends[key] = self.costs.sends(row)
        extra = list(self._sends[key])
        extra[0] += row[0].first
        extra[-1] += row[-1].last
        return extra

    def _room(self, way: Way, stage: int, num_stages: int) -> int:
        # What a stage holds depends on how many stages follow, and on the ends.
        key = (way.index, num_stages - stage, (stage == 0) + 2 * (stage == num_stages - 1))
        if key not in self._most:
            self._most[key] = self.costs.most_blocks(way, stage=stage, num_stages=num_stages)
        return self._most[key]


def single_site_rows(costs: Costs, site: int, *, deepest: int) -> Iterable[Row]:
    """Equal stages on one site, every depth that its GPUs allow."""
    for way in costs.ways:
        if way.site != site:
            continue
        limit = min(deepest, costs.num_blocks, costs.sites[site].num_gpus // way.tensor_parallel)
        for num_stages in range(1, limit + 1):
            yield (way,) * num_stages


def mixed_rows(costs: Costs, *, deepest: int, keep: int) -> list[Row]:
    """Rows over two sites, one site's stages before the other's: for several exchange rates between
    the sites' GPUs, the rows that work through most blocks per GPU.

    Bounds only: the water-filled pace, sends of the ends left out.
    """
    kept: dict[tuple[int, ...], Row] = {}
    by_key: dict[tuple[int, int], list[Way]] = {}
    for way in costs.ways:
        by_key.setdefault((way.site, way.microbatch_size), []).append(way)
    sizes = sorted({way.microbatch_size for way in costs.ways})
    for a, b in permutations(range(len(costs.sites)), 2):
        for size in sizes:
            for row in _promising(
                costs, by_key.get((a, size), []), by_key.get((b, size), []),
                deepest=deepest, keep=keep,
            ):  # fmt: skip
                kept.setdefault(tuple(way.index for way in row), row)
    return list(kept.values())


def _promising(
    costs: Costs, first: Sequence[Way], second: Sequence[Way], *, deepest: int, keep: int
) -> list[Row]:
    entries = [
        (x, p, y, q)
        for x in first
        for y in second
        for p in range(1, deepest)
        for q in range(1, deepest + 1 - p)
        if p * x.tensor_parallel <= costs.sites[x.site].num_gpus
        and q * y.tensor_parallel <= costs.sites[y.site].num_gpus
        and p + q <= costs.num_blocks
    ]
    if not entries:
        return []
    table = np.array(
        [
            (x.block, x.first, p, x.tensor_parallel, y.block, y.last, q, y.tensor_parallel)
            for x, p, y, q in entries
        ]
    )
    block_x, ends_x, p, tp_x, block_y, ends_y, q, tp_y = table.T
    speed = p / block_x + q / block_y
    pace = (costs.num_blocks + ends_x / block_x + ends_y / block_y) / speed
    chosen: dict[int, None] = {}
    for rate in (0.1, 0.25, 0.5, 1.0, 2.0, 4.0):
        worth = 1.0 / (pace * (p * tp_x + rate * q * tp_y))
        chosen.update(dict.fromkeys(np.argsort(-worth, kind="stable")[:keep].tolist()))
    return [
        (entries[i][0],) * entries[i][1] + (entries[i][2],) * entries[i][3] for i in chosen
    ]
