"""Sets of crews: as columns that are compared by arrays, and with their shares of a batch.

For a step of T seconds a replica finishes N(T) = 1 + (T - fill) / pace microbatches, so that two
sums over a set of crews say how long it takes for a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from sailor.planner.costs import IntArray, Template
from sailor.planner.dealing import taken_away
from sailor.planner.whole_rounds import Pipelines

_MORE_ROUNDS = 2  # that are tried until shares of unlike sizes add up


@dataclass(frozen=True, slots=True)
class Arms:
    """Sets of crews as columns, one entry each.

    ``pipelines`` give the time of a set's pipelines; ``usage`` has a row for each site, ``least``
    is the batch that gives each replica a microbatch, ``divisor`` is what divides all microbatch
    sizes. What a guess of the reduction needs: ``owners`` replicas, ``blocks`` the most of a stage,
    ``slim`` the least tensor-parallel degree, ``width`` the most GPUs a replica takes of a site,
    and ``sites``, a bit each.
    """

    crews: list[tuple[tuple[Template, int], ...]]
    pipelines: Pipelines
    usage: IntArray
    divisor: IntArray
    least: IntArray
    owners: IntArray
    blocks: IntArray
    slim: IntArray
    width: IntArray
    sites: IntArray

    @staticmethod
    def of(crews: list[tuple[tuple[Template, int], ...]], num_sites: int) -> Arms:
        size = len(crews)
        usage = np.zeros((num_sites, size), dtype=np.int64)
        least, owners, blocks, width, sites, divisor = (
            np.zeros(size, dtype=np.int64) for _ in range(6)
        )
        slim = np.full(size, 1 << 20, dtype=np.int64)
        for i, arm in enumerate(crews):
            for template, count in arm:
                for site, gpus in enumerate(template.usage):
                    if gpus:
                        usage[site, i] += count * gpus
                        sites[i] |= 1 << site
                least[i] += count * template.microbatch_size
                divisor[i] = gcd(int(divisor[i]), template.microbatch_size)
                owners[i] += count
                blocks[i] = max(blocks[i], *template.counts)
                slim[i] = min(slim[i], *(way.tensor_parallel for way in template.row))
                width[i] = max(width[i], *template.usage)
        return Arms(
            crews, Pipelines.of(crews), usage, divisor, least, owners, blocks, slim, width, sites
        )


def samples_per_second(template: Template) -> float:
    """Samples of a pipeline that has been filled."""
    return template.microbatch_size / template.pipeline.pace


def exact_shares(crews: Sequence[tuple[Template, int]], *, batch: int) -> tuple[int, ...] | None:
    """``share_crews`` such that single microbatches can be taken away until the batch is exact, be
    it with some rounds more; None where that does not come out."""
    sizes = [template.microbatch_size for template, _ in crews]
    if batch % gcd(*sizes):
        return None
    shares = list(share_crews(crews, batch=batch))
    for _ in range(_MORE_ROUNDS + 1):
        held = [n * count for n, (_, count) in zip(shares, crews, strict=True)]
        spare = [(n - 1) * count if n else 0 for n, (_, count) in zip(shares, crews, strict=True)]
        excess = sum(n * size for n, size in zip(held, sizes, strict=True)) - batch
        if taken_away(sizes, spare, excess) is not None:
            return tuple(shares)
        _one_round_more(crews, shares)
    return None


def fewer(crews: Sequence[tuple[Template, int]], *, batch: int) -> list[tuple[Template, int]]:
    """Without the replicas that do more than the batch: of those that do least as many as may go.

    Where each takes a microbatch or two there are none to take away, but there are replicas.
    """
    shares = share_crews(crews, batch=batch)
    done = [n * t.microbatch_size for n, (t, _) in zip(shares, crews, strict=True)]
    excess = sum(each * count for each, (_, count) in zip(done, crews, strict=True)) - batch
    counts = [count for _, count in crews]
    for i in sorted((i for i, each in enumerate(done) if each), key=lambda i: done[i]):
        gone = min(counts[i], excess // done[i])
        counts[i] -= gone
        excess -= gone * done[i]
    return [(t, left) for (t, _), left in zip(crews, counts, strict=True) if left]


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
        late = [i for i in useful if pipelines[i].fill - pipelines[i].pace > seconds]
        if not late or len(useful) == 1:
            break
        # Whoever is not through a part of a microbatch by then lends nothing; the slowest such
        # goes first.
        useful.remove(max(late, key=lambda i: pipelines[i].fill - pipelines[i].pace))
    # The time for shares like water is a lower bound; from there whole rounds, first come first.
    shares = [0] * len(crews)
    for i in useful:
        shares[i] = pipelines[i].microbatches_within(seconds)
    held = sum(size * share for size, share in zip(sizes, shares, strict=True))
    while held < batch:
        held += sizes[_one_round_more(crews, shares)]
    return tuple(shares)


def _one_round_more(crews: Sequence[tuple[Template, int]], shares: list[int]) -> int:
    """Another microbatch for each replica of the crew that is through with it soonest; which."""
    soonest = min(range(len(crews)), key=lambda i: crews[i][0].pipeline.seconds(shares[i] + 1))
    shares[soonest] += 1
    return soonest
