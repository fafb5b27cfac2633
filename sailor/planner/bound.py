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
_LONGER = 1.02  # from one step time to the next
_WINDOW = 2.0  # how far below the known step the bound is looked for
_DEPTHS = (1.0, 2.0, 5.0, inf)  # that prices are for
_LEVELS = 2  # of the head's work, which differs from way to way
_ALIVE = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # microbatches of a stage, counted from the last one
# Replicas of at most so many microbatches, and how many of them are alive in a deep one at least.
_COUNTS = ((1.0, 1), (2.0, 2), (4.0, 3), (8.0, 4), (16.0, 8), (inf, 16))
_RATES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5)  # prices of room for a block, relative to the usual one


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ways:
    """Ways to run a stage, one entry each, by microbatch size.

    ``speed``: blocks per second; ``room`` (way, alive): blocks that fit with so many microbatches
    alive; ``head``: what the head takes, in blocks of this way. Of the ways of the same size:
    ``front``, least work of an embedding, in blocks; ``ends``, least memory of embedding and head,
    in blocks.
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
    hold = max(1.0, costs.num_blocks / (ways.room[:, 0] / ways.degree).max())
    most = min(costs.global_batch_size / ways.size.min(), counts.sum() / hold)
    replicas = _numbers(max(1, int(most)))
    rings = _ring_seconds(costs, counts, replicas)
    most_seconds = known - host
    pipelines = _pipeline_seconds(costs, ways, counts, replicas, most_seconds)
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
            best = min(best, float(_pipeline_seconds(costs, here, one, some, most_seconds).min()))
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
    found: list[tuple[Way, list[float]]] = []
    for way in sorted(costs.ways, key=lambda way: way.microbatch_size):
        size = way.microbatch_size
        room, needs = _room(costs, way)
        if room[0] >= 1:
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


def _room(costs: OwnCosts, way: Way) -> tuple[list[float], float]:
    """Blocks that fit for each number of microbatches alive, and what the ends take at least, in
    blocks. Peaks are affine in blocks."""

    def peak(num_blocks: int, alive: int = 1, *, first: bool = False, last: bool = False) -> float:
        cut = Cut(num_blocks=num_blocks, first=first, last=last)
        return costs.peak_bytes(way, cut, num_in_flight=alive)

    capacity = costs.grounds[way.site].machine_type.gpu.memory_bytes
    bare, each = peak(1), peak(2) - peak(1)
    # In microbatches alive they are affine as well.
    more, more_each = peak(1, 2) - bare, peak(2, 2) - peak(1, 2) - each
    rooms = [
        max(0.0, 1 + (capacity - bare - (n - 1) * more) / (each + (n - 1) * more_each))
        for n in _ALIVE
    ]
    apart = peak(1, first=True) + peak(1, last=True) - 2 * bare
    needs = min(apart, peak(1, first=True, last=True) - bare)
    return rooms, max(0.0, needs / each)


def _numbers(most: int) -> FloatArray:
    found = [1.0]
    while found[-1] < most:
        found.append(min(float(most), max(found[-1] + 1, found[-1] * _WIDER)))
    return np.array(found)


def _pipeline_seconds(
    costs: OwnCosts, ways: _Ways, counts: FloatArray, replicas: FloatArray, known: float
) -> FloatArray:
    """For each number of replicas the longest step looked at that is too short."""
    per_gpu = np.zeros(len(counts))
    np.maximum.at(per_gpu, ways.site, ways.speed / ways.degree)
    work = costs.num_blocks + ways.front.min() + ways.head.min()
    found = np.full(len(replicas), costs.global_batch_size * work / (per_gpu @ counts))
    num_steps = int(np.log(_WINDOW) / np.log(_LONGER))
    grid: FloatArray = known / _LONGER ** np.arange(num_steps, -1, -1, dtype=float)
    priced, first = _prices(costs.num_blocks, ways, counts, grid)
    for d, number in enumerate(replicas.tolist()):
        # (T, price): samples that so many replicas do at most; the best price binds.
        enough = (priced + number * first).min(axis=1) >= costs.global_batch_size
        short = int(np.argmax(enough)) if enough.any() else len(grid)
        found[d] = max(found[d], grid[short - 1]) if short else found[d]
    return found


def _prices(
    blocks: int, ways: _Ways, counts: FloatArray, seconds: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """For each T and each price: what all GPUs are worth, and what a replica adds to that at most,
    in samples."""
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
                for size in np.unique(ways.size).tolist():
                    alike = ways.size == size
                    lost = _least_loss(
                        blocks, loss[:, alike], ways.room[alike], float(ways.ends[alike][0]),
                        last=level[alike] == k,
                    )  # fmt: skip
                    held = (paid[:, alike] / ways.room[alike, 0]).min(axis=1) * blocks
                    for (most, _), each in zip(_COUNTS, lost, strict=True):
                        # Nor does a replica do more than its microbatches, at what its GPUs cost.
                        bounded = size - each
                        if most < inf:
                            bounded = np.minimum(bounded, most * size - held)
                        gain = np.maximum(gain, bounded)
            priced[:, column], first[:, column] = price @ counts, gain
            column += 1
    return priced, first


def _least_loss(
    blocks: int, loss: FloatArray, room: FloatArray, ends: float, *, last: npt.NDArray[np.bool_]
) -> list[FloatArray]:
    """At least what the stages of one replica lose, for each entry of _COUNTS and each T: its
    stages hold the model, the last one is of certain ways. ``loss`` (T, way), ``room`` (way,
    alive)."""
    best = [np.full(len(loss), -inf if last.any() else inf) for _ in _COUNTS]
    if not last.any():
        return best
    usual = np.maximum((loss / room[:, 0]).min(axis=1), 0.0)
    stages = np.maximum(np.diff([*_ALIVE, blocks + 1]), 0)
    for rate in _RATES:
        price = rate * usual
        # (T, way, alive): a price on room, as there is one on GPUs
        net = loss[:, :, None] - price[:, None, None] * room[None]
        end = price * (blocks + ends) + net[:, last, 0].min(axis=1)
        each = np.minimum(net.min(axis=1), 0.0)
        for i, (_, alive) in enumerate(_COUNTS):
            # The last stage is counted; further ones as many as pay, the fuller the earlier.
            at = np.minimum(np.arange(len(_ALIVE)), _ALIVE.index(alive))
            total = end + (each[:, at] * stages).sum(axis=1) - each[:, 0]
            best[i] = np.maximum(best[i], total)
    return best


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
    messages = np.minimum(steps, 4 * np.ceil(np.log2(replicas)))
    seconds: FloatArray = messages * latency + steps / replicas * num_bytes / shares / rate
    return seconds
