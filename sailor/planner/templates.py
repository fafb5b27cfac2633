"""Pipelines worth seating: every depth on one site, and the promising mixes of two sites.

A row of stages is cut exactly (partition.py) once it looks promising. Mixed rows are many, so they
are ranked first by a bound that splits blocks like water.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import permutations
from math import inf

import numpy as np
import numpy.typing as npt

from sailor.planner.costs import Costs, Row, Template, Way
from sailor.planner.partition import best_cut
from sailor.planner.timing import PipelineSeconds

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

MANY = 1_000  # microbatches: the cut for a long step, where the pace is what counts


class Templates:
    """Makes templates and remembers them; of ``depth`` stages alone, where that is set."""

    def __init__(self, costs: Costs, *, depth: int | None = None) -> None:
        self.costs, self.depth = costs, depth
        self._cuts: dict[tuple[tuple[int, ...], int], Template | None] = {}
        # One object for each template, alive as long as the search: others key by identity.
        self._made: dict[tuple[tuple[int, ...], tuple[int, ...]], Template] = {}
        self._shallowest: dict[int, int] = {}
        self._most: dict[tuple[int, int, int], int] = {}
        self._sends: dict[tuple[int, ...], tuple[float, ...]] = {}

    def of(self, row: Row, *, num_microbatches: int = MANY) -> Template | None:
        """The row with its best cut; None when memory leaves none."""
        key = (tuple(way.index for way in row), num_microbatches)
        if key not in self._cuts:
            self._cuts[key] = self._cut(row, num_microbatches)
        return self._cuts[key]

    def with_counts(self, row: Row, counts: tuple[int, ...]) -> Template | None:
        """The row with a given cut; None when memory forbids it."""
        num_stages = len(row)
        if self.depth not in (None, num_stages):
            return None
        if any(n < 1 or n > self._room(row[s], s, num_stages) for s, n in enumerate(counts)):
            return None
        return self._template(row, counts)

    def uniform(self, way: Way, *, deeper: int) -> list[Template]:
        """Equal stages: from the fewest that hold the model, ``deeper`` more."""
        depth = self.shallowest(way)
        if not depth:
            return []
        most = depth if self.depth is not None else min(self._deepest(way), depth + deeper)
        rows = range(depth, most + 1)
        made = (self.of((way,) * num_stages) for num_stages in rows)
        return [template for template in made if template is not None]

    def shallowest(self, way: Way) -> int:
        """The fewest equal stages that hold all blocks; 0 when no number does."""
        if way.index not in self._shallowest:
            depths = (self.depth,) if self.depth is not None else range(1, self._deepest(way) + 1)
            fitting = (n for n in depths if n <= self._deepest(way) and self._holds(way, n))
            self._shallowest[way.index] = next(fitting, 0)
        return self._shallowest[way.index]

    def _deepest(self, way: Way) -> int:
        gpus = self.costs.sites[way.site].num_gpus
        return min(self.costs.num_blocks, gpus // way.tensor_parallel)

    def _holds(self, way: Way, num_stages: int) -> bool:
        rooms = [self._room(way, stage, num_stages) for stage in range(num_stages)]
        return min(rooms) >= 1 and sum(rooms) >= self.costs.num_blocks

    def _cut(self, row: Row, num_microbatches: int) -> Template | None:
        num_stages = len(row)
        if self.depth not in (None, num_stages):
            return None
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
        key = (tuple(way.index for way in row), counts)
        if key not in self._made:
            self._made[key] = self._timed(row, counts)
        return self._made[key]

    def _timed(self, row: Row, counts: tuple[int, ...]) -> Template:
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


def mixed_rows(
    costs: Costs, *, deepest: int, keep: int, sizes: Sequence[int], depth: int | None = None
) -> list[Row]:
    """Rows over two sites, one site's stages before the other's, the fastest as fleets of their
    own.

    Of the given microbatch sizes; at most ``deepest`` stages, or ``depth`` of them. Ranked by
    estimates: blocks split like water between the sites as far as memory allows, the pipeline as
    long as its stages are busy, the reduction of an average stage.
    """
    ranked: list[tuple[float, int, Row]] = []
    ways: dict[tuple[int, int], list[Way]] = {}
    for way in costs.ways:
        if way.microbatch_size in sizes:
            ways.setdefault((way.site, way.microbatch_size), []).append(way)
    for key, group in ways.items():
        ways[key] = _not_wasteful(group)
    deepest = depth or deepest
    depths = np.arange(1, deepest)
    p, q = (grid.ravel() for grid in np.meshgrid(depths, depths, indexing="ij"))
    shallow = p + q <= min(deepest, costs.num_blocks)
    if depth is not None:
        shallow &= p + q == depth
    p, q = p[shallow], q[shallow]
    room = {way.index: _room(costs, way, deepest) for group in ways.values() for way in group}
    for a, b in permutations(range(len(costs.sites)), 2):
        pairs = [
            (x, y)
            for size in sizes
            for x in ways.get((a, size), [])
            for y in ways.get((b, size), [])
            if x.recompute == y.recompute
        ]
        if not pairs:
            continue
        seconds = _mixed_seconds(costs, pairs, p, q, room)
        best = np.argsort(seconds, axis=1, kind="stable")[:, :4]
        for (x, y), row_seconds, columns in zip(pairs, seconds, best.tolist(), strict=True):
            for i in columns:
                if row_seconds[i] < inf:
                    row = (x,) * int(p[i]) + (y,) * int(q[i])
                    ranked.append((float(row_seconds[i]), len(ranked), row))
    ranked.sort(key=lambda entry: entry[:2])
    return [row for _, _, row in ranked[:keep]]


def _not_wasteful(ways: Sequence[Way]) -> list[Way]:
    """Without those that take half as long again per GPU as the best of the same recompute."""
    best = {
        again: min((w.block * w.tensor_parallel for w in ways if w.recompute == again), default=inf)
        for again in (False, True)
    }
    return [w for w in ways if w.block * w.tensor_parallel <= 1.5 * best[w.recompute]]


def _room(costs: Costs, way: Way, deepest: int) -> FloatArray:
    """Entry n: blocks that n stages hold with 1, 2, ... n microbatches alive. Ends left out."""
    each = [
        costs.most_blocks(way, stage=1, num_stages=alive + 1) for alive in range(1, deepest + 1)
    ]
    return np.concatenate([[0.0], np.cumsum(each)])


def _mixed_seconds(
    costs: Costs, pairs: Sequence[tuple[Way, Way]], p: IntArray, q: IntArray,
    room: Mapping[int, FloatArray],
) -> FloatArray:  # fmt: skip
    """Estimated step of a fleet of rows with p stages of x and then q of y: an entry for each pair
    (x, y) and each (p, q). The pairs are of the same two sites."""

    def of(ways: Iterable[Way], value: Callable[[Way], float]) -> FloatArray:
        return np.array([value(way) for way in ways])[:, None]

    xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
    gpus_x, gpus_y = (costs.sites[way.site].num_gpus for way in pairs[0])
    wide_x = of(xs, lambda way: way.tensor_parallel).astype(np.int64)
    wide_y = of(ys, lambda way: way.tensor_parallel).astype(np.int64)
    size = of(xs, lambda way: way.microbatch_size).astype(np.int64)
    block_x, block_y = of(xs, lambda way: way.block), of(ys, lambda way: way.block)
    count = np.minimum(gpus_x // (p * wide_x), gpus_y // (q * wide_y))
    count = np.minimum(count, costs.global_batch_size // size)
    usable = count > 0
    count = np.maximum(count, 1)
    rounds = -(-costs.global_batch_size // (count * size))
    sends = _sends(costs, pairs, p, q)
    extra_x = of(xs, lambda way: way.first) + sends[0]
    extra_y = of(ys, lambda way: way.last) + sends[1]
    blocks = costs.num_blocks
    pace = (blocks + extra_x / block_x + extra_y / block_y) / (p / block_x + q / block_y)
    most_x = np.array([room[way.index][p + q] - room[way.index][q] for way in xs])
    most_y = np.array([room[way.index][q] for way in ys])
    on_x = np.clip((pace * p - extra_x) / block_x, blocks - most_y, most_x)
    on_y = blocks - on_x
    usable &= (on_x >= 0.5) & (on_y >= 0.5) & (most_x + most_y >= blocks)
    pace = np.maximum((on_x * block_x + extra_x) / p, (on_y * block_y + extra_y) / q)
    fill = on_x * block_x + extra_x + on_y * block_y + extra_y
    rings = [
        costs.ring_guess(on / (n * wide), count, n * wide, sites=(way.site,))
        for on, n, wide, way in zip((on_x, on_y), (p, q), (wide_x, wide_y), pairs[0], strict=True)
    ]
    return np.where(usable, fill + (rounds - 1) * pace + np.maximum(*rings), inf)


def _sends(
    costs: Costs, pairs: Sequence[tuple[Way, Way]], p: IntArray, q: IntArray
) -> tuple[FloatArray, FloatArray]:
    """What the stages of x and of y together spend on sending: looked up for short rows, further
    stages of a long one send as much as a middle one."""
    known: dict[tuple[int, int, int], FloatArray] = {}
    for x, y in pairs:
        key = (x.tensor_parallel, y.tensor_parallel, x.microbatch_size)
        if key not in known:
            known[key] = _sends_of(costs, x, y, p, q)
    both = [known[x.tensor_parallel, y.tensor_parallel, x.microbatch_size] for x, y in pairs]
    return np.array([each[0] for each in both]), np.array([each[1] for each in both])


def _sends_of(costs: Costs, x: Way, y: Way, p: IntArray, q: IntArray) -> FloatArray:
    table = np.empty((2, 3, 3))
    for a in (1, 2, 3):
        for b in (1, 2, 3):
            sends = costs.sends((x,) * a + (y,) * b)
            table[:, a - 1, b - 1] = sum(sends[:a]), sum(sends[a:])
    inner = costs.sends((x, x, x, y, y, y))
    near: FloatArray = table[:, np.minimum(p, 3) - 1, np.minimum(q, 3) - 1]
    near[0] += np.maximum(p - 3, 0) * inner[1]
    near[1] += np.maximum(q - 3, 0) * inner[4]
    return near
