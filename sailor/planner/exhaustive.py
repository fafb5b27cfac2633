"""Every fleet there is, one by one: the answer where they are few, else a yardstick of the search.

All rows of stages over all ways of one microbatch size, all cuts of the model that memory allows,
all multisets of the pipelines that fit on the GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import comb

from sailor.planner.costs import Costs, Row, Template
from sailor.planner.templates import Templates


def all_fleets(costs: Costs, made: Templates) -> Iterator[list[tuple[Template, int]]]:
    """Every set of crews, as (template, count). Their number explodes: stop when it is too many."""
    limits = [site.num_gpus for site in costs.sites]
    return _fleets(list(all_templates(costs, made)), limits, costs.global_batch_size)


def few_templates(costs: Costs, *, most: int) -> bool:
    """Whether there are at most so many pipelines, memory aside; counted, not made."""
    gpus = sum(site.num_gpus for site in costs.sites)
    deepest = min(costs.num_blocks, gpus)
    total = 0
    for size in {way.microbatch_size for way in costs.ways}:
        ways = sum(way.microbatch_size == size for way in costs.ways)
        for depth in range(1, deepest + 1):
            total += ways**depth * comb(costs.num_blocks - 1, depth - 1)
            if total > most:
                return False
    return True


def all_templates(costs: Costs, made: Templates) -> Iterator[Template]:
    """Every pipeline of one microbatch size that fits on all GPUs, with every cut."""
    limits = [site.num_gpus for site in costs.sites]
    deepest = min(costs.num_blocks, sum(limits))
    for size in sorted({way.microbatch_size for way in costs.ways}):
        ways = [way for way in costs.ways if way.microbatch_size == size]
        for depth in range(1, deepest + 1):
            for row in product(ways, repeat=depth):
                if _fits(row, limits):
                    for counts in _cuts(costs.num_blocks, depth):
                        template = made.with_counts(row, counts)
                        if template is not None:
                            yield template


def _fits(row: Row, limits: list[int]) -> bool:
    used = [0] * len(limits)
    for way in row:
        used[way.site] += way.tensor_parallel
    return all(a <= b for a, b in zip(used, limits, strict=True))


def _cuts(num_blocks: int, num_stages: int) -> Iterator[tuple[int, ...]]:
    """All ways to write the blocks as a sum of so many positive numbers."""
    if num_stages == 1:
        yield (num_blocks,)
        return
    for first in range(1, num_blocks - num_stages + 2):
        for rest in _cuts(num_blocks - first, num_stages - 1):
            yield (first, *rest)


def _fleets(
    templates: list[Template], limits: list[int], batch: int, start: int = 0
) -> Iterator[list[tuple[Template, int]]]:
    """All multisets of templates that fit, as (template, count)."""
    for index in range(start, len(templates)):
        template = templates[index]
        most = min(limits[site] // gpus for site, gpus in enumerate(template.usage) if gpus)
        for count in range(1, min(most, batch // template.microbatch_size) + 1):
            left = [
                limit - count * gpus for limit, gpus in zip(limits, template.usage, strict=True)
            ]
            yield [(template, count)]
            if any(left):
                for rest in _fleets(templates, left, batch, index + 1):
                    yield [(template, count), *rest]
