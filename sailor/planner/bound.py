"""A number of seconds that no plan can beat: the yardstick beside a plan that was found.

Let a replica of microbatches of m samples have stages s that do v blocks per second, and let a
sample be L blocks of work, embedding and head counted as blocks. If stage s is busy for a share x
of the pace, fill + (N - 1) pace <= T says that in T seconds it takes at most

    m + sum over s of x (v T / L - m)

samples: every stage adds what it does in all that time, less one microbatch of filling. A price on
every GPU (Lagrange) then bounds what D replicas do together without knowing how they are built:
whatever they are, their stages hold the model, and one is the last. Several prices are tried, right
for deep pipelines or for shallow ones; each gives a bound. The reduction is bounded from below as
well: one replica has at most (GPUs / D) GPUs, so that some rank holds its share of the gradients.
What more replicas gain in the pipelines they lose there; the bound is the least sum over all D.

Holds for plans on these grounds whose replicas keep the stages of one machine type in one zone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from sailor.planner.costs import FloatArray, IntArray, Way
from sailor.planner.memory import Cut
from sailor.planner.own_costs import OwnCosts
from sailor.planner.reduction import gradient_bytes

_WIDER = 1.02  # from one number of replicas to the next that is looked at
_LONGER = 1.002  # from one step time to the next
_WINDOW = 1.6  # how far below the known step the bound is looked for closely
_DEPTHS = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 16.0, inf)  # that prices are for
_LEVELS = 5  # of the head's work, which differs from way to way


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ways:
    """Ways to run a stage, one entry each, by microbatch size.

    ``speed``: blocks per second; ``room``: blocks that fit beside one microbatch alive; ``head``:
    what the head takes, in blocks of this way. Of the ways of the same size: ``front``, least work
    of an embedding, in blocks; ``ends``, least memory of embedding and head, in blocks.
    """

    size: FloatArray
    site: IntArray
    degree: FloatArray
    speed: FloatArray
    room: FloatArray
    head: FloatArray
    front: FloatArray
    ends: FloatArray

    def where(self, kept: npt.NDArray[np.bool_]) -> _Ways:
        """Some of them."""
        return _Ways(
            size=self.size[kept], site=self.site[kept], degree=self.degree[kept],
            speed=self.speed[kept], room=self.room[kept], head=self.head[kept],
            front=self.front[kept], ends=self.ends[kept],
        )  # fmt: skip


def least_step_seconds(costs: OwnCosts, *, known: float) -> float:
    """A lower bound on the seconds of a step of any plan; ``known`` is that of one.

    ``costs`` should count on as many owners as
    there may be, so that memory rules nothing out that could be had.
    """
    ways = _ways(costs)
    counts = np.array([site.num_gpus for site in costs.sites], dtype=float)
    host = min(costs.profile.host_seconds(gpu=ground.machine_type.gpu) for ground in costs.grounds)
    hold = max(1.0, costs.num_blocks / (ways.room / ways.degree).max())
    most = min(costs.global_batch_size / ways.size.min(), counts.sum() / hold)
    replicas = _numbers(max(1, int(most)))
    rings = _ring_seconds(costs, counts, replicas)
    grid = (known - host) / _LONGER ** np.arange(int(np.log(_WINDOW) / np.log(_LONGER)), -1, -1)
    pipelines = _pipeline_seconds(costs, ways, counts, replicas, grid)
    # Between two numbers looked at: the pipelines of the larger, the ring of the smaller.
    apart = np.concatenate([pipelines[1:], pipelines[-1:]]) + rings
    # Few replicas may share a machine and its links: their reduction is counted as free.
    best = min(known - host, float(apart.min()))
    for site, ground in enumerate(costs.grounds):
        one = np.zeros(len(counts))
        one[site] = min(ground.machine_type.num_gpus, counts[site])
        some = replicas[replicas <= max(1.0, one[site])]
        here = ways.where(ways.site == site)
        if len(here.size):
            best = min(best, float(_pipeline_seconds(costs, here, one, some, grid).min()))
    return best + host


def least_dollars(costs: OwnCosts) -> float:
    """A lower bound on the rent of a step: all work where it costs the least."""
    ways = _ways(costs)
    price = np.array([site.dollars_per_gpu_hour / 3600 for site in costs.sites])[ways.site]
    each = ways.degree * price / ways.speed
    found = inf
    for size in np.unique(ways.size).tolist():
        alike = ways.size == size
        block = each[alike].min()
        head = (each * ways.head)[alike].min()
        found = min(found, float(costs.num_blocks * block + head))
    return found * costs.global_batch_size


def _ways(costs: OwnCosts) -> _Ways:
    front: dict[int, float] = {}
    ends: dict[int, float] = {}
    found: list[tuple[Way, float]] = []
    for way in sorted(costs.ways, key=lambda way: way.microbatch_size):
        size = way.microbatch_size
        room, needs = _room(costs, way)
        if room > 0:
            found.append((way, room))
            front[size] = min(front.get(size, inf), way.first / way.block)
            ends[size] = min(ends.get(size, inf), needs)
    return _Ways(
        size=np.array([w.microbatch_size for w, _ in found], dtype=float),
        site=np.array([w.site for w, _ in found], dtype=np.int64),
        degree=np.array([w.tensor_parallel for w, _ in found], dtype=float),
        speed=np.array([w.microbatch_size / w.block for w, _ in found]),
        room=np.array([room for _, room in found]),
        head=np.array([w.last / w.block for w, _ in found]),
        front=np.array([front[w.microbatch_size] for w, _ in found]),
        ends=np.array([ends[w.microbatch_size] for w, _ in found]),
    )


def _room(costs: OwnCosts, way: Way) -> tuple[float, float]:
    """Blocks that fit beside one microbatch alive, and what the ends take at least, in blocks.
    Peaks are affine in blocks."""

    def peak(num_blocks: int, *, first: bool = False, last: bool = False) -> float:
        cut = Cut(num_blocks=num_blocks, first=first, last=last)
        return costs.peak_bytes(way, cut, num_in_flight=1)

    bare = peak(1)
    each = peak(2) - bare
    free = costs.grounds[way.site].machine_type.gpu.memory_bytes - bare
    apart = peak(1, first=True) + peak(1, last=True) - 2 * bare
    needs = min(apart, peak(1, first=True, last=True) - bare)
    return 1 + free / each, max(0.0, needs / each)


def _numbers(most: int) -> FloatArray:
    found = [1.0]
    while found[-1] < most:
        found.append(min(float(most), max(found[-1] + 1, found[-1] * _WIDER)))
    return np.array(found)


def _pipeline_seconds(
    costs: OwnCosts, ways: _Ways, counts: FloatArray, replicas: FloatArray, grid: FloatArray
) -> FloatArray:
    """For each number of replicas the longest step of the grid that is too short."""
    per_gpu = np.zeros(len(counts))
    np.maximum.at(per_gpu, ways.site, ways.speed / ways.degree)
    work = costs.num_blocks + ways.front.min() + ways.head.min()
    least = costs.global_batch_size * work / (per_gpu @ counts)
    priced, first = _prices(costs.num_blocks, ways, counts, grid)
    found = np.zeros(len(replicas))
    for d, number in enumerate(replicas.tolist()):
        # (T, price): samples that so many replicas do at most; the best price binds.
        enough = (priced + number * first).min(axis=1) >= costs.global_batch_size
        short = int(np.argmax(enough)) if enough.any() else len(grid)
        found[d] = grid[short - 1] if short else least
    return found


def _prices(
    blocks: int, ways: _Ways, counts: FloatArray, seconds: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """For each T and each price: what all GPUs are worth, and what a replica adds to that at most,
    in samples."""
    groups = np.flatnonzero(np.r_[True, ways.size[1:] != ways.size[:-1]])
    size = ways.size[groups]
    sites = np.unique(ways.site)
    edges = np.unique(np.quantile(ways.head, np.linspace(0, 1, _LEVELS + 1)[:-1]))
    level = np.searchsorted(edges, ways.head, side="right") - 1
    # (level, T, way): samples a stage adds, less its one microbatch of filling
    adds = np.array(
        [seconds[:, None] * ways.speed / (blocks + ways.front + edge) for edge in edges]
    )
    priced = np.empty((len(seconds), len(edges) * len(_DEPTHS)))
    first = np.empty_like(priced)
    column = 0
    for guess in range(len(edges)):
        for depth in _DEPTHS:
            worth = (adds[guess] - (1 - 1 / depth) * ways.size) / ways.degree
            price = np.zeros((len(seconds), len(counts)))
            for site in sites.tolist():
                price[:, site] = np.maximum(worth[:, ways.site == site].max(axis=1), 0.0)
            paid = price[:, ways.site] * ways.degree
            gain = np.zeros(len(seconds))
            for k in range(len(edges)):
                loss = paid - adds[k] + ways.size
                ends = np.where(level == k, loss, inf)
                last = np.minimum.reduceat(ends, groups, axis=1)
                least = np.minimum.reduceat(loss, groups, axis=1)
                held = (blocks + ways.ends) * loss / ways.room
                hold = np.minimum.reduceat(held, groups, axis=1)
                # The last stage and none, or as many more as there are blocks; all of the model.
                total = last + (blocks - 1) * np.minimum(least, 0.0)
                total = np.where(least > 0, np.maximum(total, hold), total)
                gain = np.maximum(gain, (size - total).max(axis=1))
            priced[:, column], first[:, column] = price @ counts, gain
            column += 1
    return priced, first


def _ring_seconds(costs: OwnCosts, counts: FloatArray, replicas: FloatArray) -> FloatArray:
    """The least reduction when owners stand on different machines."""
    coefficients = costs.coefficients(costs.ways[0])
    whole = coefficients.parameters(Cut(num_blocks=costs.num_blocks, first=True, last=True))
    num_bytes = whole * costs.ways[0].tensor_parallel * gradient_bytes(coefficients)
    wide = counts.sum() / replicas
    links = [
        (costs.network.between(zone, kind.name, zone, kind.name), kind.num_gpus)
        for ground in costs.grounds
        for zone, kind in [(next(iter(ground.zones)), ground.machine_type)]
    ]
    rate = max(link.bytes_per_second for link, _ in links)
    latency = min(link.seconds_per_message for link, _ in links)
    machine = max(gpus for _, gpus in links)
    # The bytes over the sum of max(w / machine, 1) over the machine types of a replica.
    kinds = np.minimum(len(costs.grounds), wide)
    shares = np.maximum(wide / machine + kinds - 1, kinds)
    steps = 2 * (replicas - 1)
    seconds: FloatArray = steps * latency + steps / replicas * num_bytes / shares / rate
    return seconds
