"""Every fleet there is, one by one: the yardstick of the search on instances small enough for it.

All rows of stages over all ways of one microbatch size, all cuts of the model that memory allows,
all multisets of the pipelines that fit on the GPUs. Used by tests and benchmarks only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from sailor.planner.costs import Costs, Row, Template
from sailor.planner.fleet import FleetSearch, Found, Goal
from sailor.planner.templates import Templates


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The best of all, and how many there were."""

    found: Found | None
    num_templates: int
    num_fleets: int


def best_of_all(costs: Costs, goal: Goal) -> Exhausted:
    """Works out every fleet with the same evaluator as the search."""
    search = FleetSearch(costs, goal)
    templates = list(all_templates(costs, search.templates))
    limits = [site.num_gpus for site in costs.sites]
    best: Found | None = None
    number = 0
    for crews in _fleets(templates, limits, costs.global_batch_size):
        number += 1
        found = search.work_out(crews)
        if found is not None and (best is None or found.value(goal) < best.value(goal)):
            best = found
    if best is not None and best.value(goal) == float("inf"):
        best = None
    return Exhausted(best, len(templates), number)


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
