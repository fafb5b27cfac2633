"""Sets of crews: as columns that are compared by arrays, and with their shares of a batch.

For a step of T seconds a replica finishes N(T) = 1 + (T - fill) / pace microbatches, so that two
sums over a set of crews say how long it takes for a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sailor.planner.costs import FloatArray, IntArray, Template


@dataclass(frozen=True, slots=True)
class Arms:
    """Sets of crews as columns, one entry each.

    ``rate`` and ``delay`` give the time of a set's pipelines, T = (batch + delay) / rate; ``usage``
    has a row for each site, ``least`` is the batch that gives each replica a microbatch. What a
    guess of the reduction needs: ``owners`` replicas, ``blocks`` the most of a stage, ``slim`` the
    least tensor-parallel degree, ``width`` the most GPUs a replica takes of a site, and ``sites``,
    a bit each.
    """

    crews: list[tuple[tuple[Template, int], ...]]
    rate: FloatArray
    delay: FloatArray
    usage: IntArray
    least: IntArray
    owners: IntArray
    blocks: IntArray
    slim: IntArray
    width: IntArray
    sites: IntArray

    @staticmethod
    def of(crews: list[tuple[tuple[Template, int], ...]], num_sites: int) -> Arms:
        size = len(crews)
        rate, delay = np.zeros(size), np.zeros(size)
        usage = np.zeros((num_sites, size), dtype=np.int64)
        least, owners, blocks, width, sites = (np.zeros(size, dtype=np.int64) for _ in range(5))
        slim = np.full(size, 1 << 20, dtype=np.int64)
        for i, arm in enumerate(crews):
            for template, count in arm:
                pipeline, samples = template.pipeline, count * template.microbatch_size
                rate[i] += samples / pipeline.pace
                delay[i] += samples * (pipeline.fill / pipeline.pace - 1)
                for site, gpus in enumerate(template.usage):
                    if gpus:
                        usage[site, i] += count * gpus
                        sites[i] |= 1 << site
                least[i] += samples
                owners[i] += count
                blocks[i] = max(blocks[i], *template.counts)
                slim[i] = min(slim[i], *(way.tensor_parallel for way in template.row))
                width[i] = max(width[i], *template.usage)
        return Arms(crews, rate, delay, usage, least, owners, blocks, slim, width, sites)


def samples_per_second(template: Template) -> float:
    """Samples of a pipeline that has been filled."""
    return template.microbatch_size / template.pipeline.pace


def share_crews(crews: Sequence[tuple[Template, int]], *, batch: int) -> tuple[int, ...]:
    """Most microbatches of each crew's replicas, at the least step that holds the batch. Exact.

    0 for a crew that is too slow to be of use.
    """
    pipelines = [template.pipeline for template, _ in crews]
    sizes = [count * template.microbatch_size for template, count in crews]
    useful = list(range(len(crews)))
    while True:
        rate = sum(sizes[i] / pipelines[i].pace for i in useful)
        delay = sum(sizes[i] * (pipelines[i].fill / pipelines[i].pace - 1) for i in useful)
        seconds = (batch + delay) / rate
        late = [i for i in useful if pipelines[i].fill > seconds]
        if not late or len(useful) == 1:
            break
        # Whoever has not even filled by then lends nothing; the slowest such goes first.
        useful.remove(max(late, key=lambda i: pipelines[i].fill))
    # The time for shares like water is a lower bound; from there whole rounds, first come first.
    shares = [0] * len(crews)
    for i in useful:
        shares[i] = pipelines[i].microbatches_within(seconds)
    held = sum(size * share for size, share in zip(sizes, shares, strict=True))
    while held < batch:
        soonest = min(range(len(crews)), key=lambda i: pipelines[i].seconds(shares[i] + 1))
        shares[soonest] += 1
        held += sizes[soonest]
    return tuple(shares)
