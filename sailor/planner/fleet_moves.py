"""Fleets one small step away from another: how a found one is improved (fleet.py decides if it is).

Some replicas more or less, a block from one stage to another, another microbatch size, degree or
depth, what is left over put to use.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sailor.planner.costs import Costs, Fleet, IntArray, Template, Way
from sailor.planner.templates import Templates

MOST_CREWS = 4
ALL_WAYS = 12  # up to so many ways of a microbatch size, a stage may change to any of them


class Moves:
    """Of one question: GPUs by site; ``num_replicas`` in all, where that is set."""

    def __init__(
        self, costs: Costs, templates: Templates, limits: IntArray, *,
        num_replicas: int | None = None,
    ) -> None:  # fmt: skip
        self.costs, self.templates, self.limits = costs, templates, limits
        self.num_replicas = num_replicas
        self._ways = {
            (way.site, way.tensor_parallel, way.microbatch_size, way.recompute): way
            for way in costs.ways
        }
        self._alike: dict[int, list[Way]] = {}
        for way in costs.ways:
            self._alike.setdefault(way.microbatch_size, []).append(way)

    def most(self, template: Template, free: IntArray) -> int:
        """How many replicas of it fit on so many free GPUs by site."""
        fits = min(int(free[site]) // gpus for site, gpus in enumerate(template.usage) if gpus)
        fits = min(fits, self.costs.global_batch_size // template.microbatch_size)
        return fits if self.num_replicas is None else min(fits, self.num_replicas)

    def recounted(self, fleet: Fleet) -> Iterable[list[tuple[Template, int]]]:
        """Some replicas more or less of one crew."""
        crews = [(crew.template, crew.count) for crew in fleet]
        usage = sum(count * np.array(template.usage) for template, count in crews)
        for c, (template, count) in enumerate(crews):
            others = [*crews[:c], *crews[c + 1 :]]
            most = self.most(template, self.limits - usage + count * np.array(template.usage))
            for number in {count - 4, count - 1, count + 1, count + 4, most}:
                if 1 <= number <= most and number != count:
                    yield [*others, (template, number)]
            if others:
                yield others

    def neighbours(self, fleet: Fleet) -> Iterable[list[tuple[Template, int]]]:
        """A replica more or less; a block from one stage to another; a crew's microbatch size or a
        stage's degree halved or doubled; one stage more or less; a crew dropped; what is left over
        used."""
        yield from self.recounted(fleet)
        crews = [(crew.template, crew.count) for crew in fleet]
        usage = sum(count * np.array(template.usage) for template, count in crews)
        for c, (template, count) in enumerate(crews):
            others = [*crews[:c], *crews[c + 1 :]]
            free = self.limits - usage + count * np.array(template.usage)
            for changed in self._changed(template):
                most = self.most(changed, free)
                for number in {min(count, most), most}:
                    if number >= 1:
                        yield [*others, (changed, number)]
        if len(crews) >= MOST_CREWS:
            return
        free = self.limits - usage
        for way in self.costs.ways:
            depth = self.templates.shallowest(way)
            if depth and free[way.site] >= depth * way.tensor_parallel:
                newcomer = self.templates.of((way,) * depth)
                if newcomer is not None:
                    yield [*crews, (newcomer, self.most(newcomer, free))]

    def _changed(self, template: Template) -> Iterable[Template]:
        """Templates one step away."""
        row, counts = template.row, template.counts
        stages = range(len(row))
        busy = [n * way.block for n, way in zip(counts, row, strict=True)]
        held = [n / way.tensor_parallel for n, way in zip(counts, row, strict=True)]
        # Only a stage that sets the pace or the reduction has a reason to give a block away; the
        # ends, whose embedding and head are not in these sums, may set either.
        givers = {busy.index(max(busy)), held.index(max(held)), 0, len(row) - 1}
        for a in sorted(givers):
            if counts[a] == 1:
                continue
            for b in stages:
                if a != b:
                    moved = list(counts)
                    moved[a] -= 1
                    moved[b] += 1
                    changed = self.templates.with_counts(row, tuple(moved))
                    if changed is not None:
                        yield changed
        rows = [
            tuple(self._way(way, size=size) for way in row)
            for size in (template.microbatch_size * 2, template.microbatch_size // 2)
        ]
        for s in stages:
            starts, ends = (
                s == 0 or row[s] is not row[s - 1],
                s == stages[-1] or row[s] is not row[s + 1],
            )
            if not starts and not ends:
                continue  # among equal neighbours the outer two stand for all
            rows += [(*row[:s], other, *row[s + 1 :]) for other in self._other_ways(row[s])]
            if not starts:
                continue
            rows.append((*row[:s], row[s], *row[s:]))
            if len(row) > 1:
                rows.append((*row[:s], *row[s + 1 :]))
        for changed_row in rows:
            if all(way is not None for way in changed_row):
                changed = self.templates.of(tuple(way for way in changed_row if way is not None))
                if changed is not None:
                    yield changed

    def _other_ways(self, way: Way) -> list[Way | None]:
        """What a stage may run as instead: half or twice the degree, with recompute or without; or
        anything, when there is not much."""
        alike = self._alike[way.microbatch_size]
        if len(alike) <= ALL_WAYS:
            return [other for other in alike if other is not way]
        degrees = (way.tensor_parallel * 2, way.tensor_parallel, way.tensor_parallel // 2)
        keys = [
            (way.site, degree, way.microbatch_size, again)
            for degree in degrees
            for again in (False, True)
        ]
        return [other for key in keys if (other := self._ways.get(key)) not in (None, way)]

    def _way(self, way: Way, *, size: int | None = None, degree: int | None = None) -> Way | None:
        """The same site's way with another microbatch size or degree."""
        key = (
            way.site, degree or (0 if degree == 0 else way.tensor_parallel),
            size or (0 if size == 0 else way.microbatch_size), way.recompute,
        )  # fmt: skip
        return self._ways.get(key)
