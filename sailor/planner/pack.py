"""Which replicas to seat on some GPUs, and how many microbatches each takes. Pure arithmetic.

Replicas may differ: five GPUs hold a two-stage and a three-stage pipeline, and the faster takes
more of the batch. For a given step time a replica is worth the microbatches it finishes, so seating
is a knapsack for each group of machines, and the least step time whose knapsacks hold the whole
batch is found by bisection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from sailor.planner.timing import PipelineSeconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """A replica that may be seated: GPUs it takes, and its pipeline."""

    num_gpus: int
    pipeline: PipelineSeconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Equal GPUs, and what may be seated on them."""

    num_gpus: int
    options: tuple[Option, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Seated:
    """One replica: which group and option, and its share of the batch."""

    group: int
    option: int
    num_microbatches: int


def pack(groups: Sequence[Group], *, num_microbatches: int, bar: float = inf) -> tuple[Seated, ...]:
    """The replicas of least step time; empty when none can be seated, or none in less than ``bar``.

    Exact for pipelines alone. Gradient reduction is not weighed here: it changes little with the
    number of replicas.
    """
    high = _enough(groups, num_microbatches)
    if high == inf:
        return ()
    if bar < high:
        if sum(_worth(group, bar)[-1] for group in groups) < num_microbatches:
            return ()
        high = bar
    low = min(high, _least(groups, num_microbatches))
    # The seating is a set of whole replicas: it settles long before the time does.
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        if sum(_worth(group, middle)[-1] for group in groups) >= num_microbatches:
            high = middle
        else:
            low = middle
    chosen = [(g, option) for g, group in enumerate(groups) for option in _chosen(group, high)]
    pipelines = [groups[g].options[option].pipeline for g, option in chosen]
    shares = share_out(pipelines, num_microbatches=num_microbatches)
    return tuple(
        Seated(group=g, option=option, num_microbatches=share)
        for (g, option), share in zip(chosen, shares, strict=True)
        if share
    )


def most_worth(values: Sequence[float]) -> float:
    """The most that pieces of a row are worth together: a piece of n is worth ``values[n]``, and
    the row is ``len(values) - 1`` long. Pieces may repeat, and some of the row may be left."""
    pieces = [(size, value) for size, value in enumerate(values) if value > 0]
    worth = [0.0] * len(values)
    for length in range(1, len(values)):
        worth[length] = max(
            (worth[length - size] + value for size, value in pieces if size <= length),
            default=0.0,
        )
    return max(worth, default=0.0)


def share_out(pipelines: Sequence[PipelineSeconds], *, num_microbatches: int) -> tuple[int, ...]:
    """Microbatches for each pipeline, in all exactly ``num_microbatches``, at the least maximum.

    A pipeline too slow to be of use gets none.
    """
    if not pipelines:
        return ()
    kinds = Counter(pipelines)
    low = 0.0
    high = min(pipeline.seconds(num_microbatches) for pipeline in kinds)
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if sum(n * p.microbatches_within(middle) for p, n in kinds.items()) >= num_microbatches:
            high = middle
        else:
            low = middle
    shares = [pipeline.microbatches_within(high) for pipeline in pipelines]
    # Take back where it shortens the slowest most; one pipeline may have to give several.
    for _ in range(sum(shares) - num_microbatches):
        last = max(
            (i for i, share in enumerate(shares) if share),
            key=lambda i: (pipelines[i].seconds(shares[i]), i),
        )
        shares[last] -= 1
    return tuple(shares)


def _enough(groups: Sequence[Group], num_microbatches: int) -> float:
    """A step time in which one replica alone could do it all."""
    return min(
        (
            option.pipeline.seconds(num_microbatches)
            for group in groups
            for option in group.options
            if option.num_gpus <= group.num_gpus
        ),
        default=inf,
    )


def _least(groups: Sequence[Group], num_microbatches: int) -> float:
    """A step time nothing can beat: every GPU at the pace of its group's best replica, no fill."""
    rate = sum(
        group.num_gpus / min(o.num_gpus * o.pipeline.pace for o in group.options)
        for group in groups
        if group.options
    )
    return num_microbatches / rate * 0.5 if rate else 0.0


def _values(group: Group, seconds: float) -> dict[int, tuple[int, int]]:
    """GPUs of a replica -> (most microbatches within the time, which option)."""
    best: dict[int, tuple[int, int]] = {}
    for index, option in enumerate(group.options):
        value = option.pipeline.microbatches_within(seconds)
        if value > best.get(option.num_gpus, (0, -1))[0]:
            best[option.num_gpus] = (value, index)
    return best


def _worth(group: Group, seconds: float) -> list[int]:
    """Most microbatches within the time, for every number of GPUs up to the group's."""
    values = [(size, value) for size, (value, _) in _values(group, seconds).items()]
    worth = [0] * (group.num_gpus + 1)
    for gpus in range(1, group.num_gpus + 1):
        best = worth[gpus - 1]
        for size, value in values:
            if size <= gpus and worth[gpus - size] + value > best:
                best = worth[gpus - size] + value
        worth[gpus] = best
    return worth


def _chosen(group: Group, seconds: float) -> list[int]:
    """The options of one best seating, largest replicas first."""
    values = _values(group, seconds)
    worth = _worth(group, seconds)
    chosen = []
    gpus = group.num_gpus
    while gpus > 0 and worth[gpus] > 0:
        if worth[gpus] == worth[gpus - 1]:
            gpus -= 1
            continue
        for size in sorted(values, reverse=True):
            value, option = values[size]
            if size <= gpus and worth[gpus - size] + value == worth[gpus]:
                chosen.append((size, option))
                gpus -= size
                break
    return [option for _, option in sorted(chosen, key=lambda c: (-c[0], c[1]))]
