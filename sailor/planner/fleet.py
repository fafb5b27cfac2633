"""Which pipelines to seat, how many of each, on given GPUs of several kinds. The core of the search.

Replicas need not be alike: a fleet is a few crews, each some copies of one template, with shares of
the batch in proportion to their speed. For a step of T seconds a replica is worth the microbatches
it finishes,

    N(T) = 1 + (T - fill) / pace,

so the time of any set of crews follows from two sums over them, and hundreds of thousands of sets
are compared at once with arrays. The best are then worked out exactly (whole microbatches, the
gradient reduction over the real owners) and improved by small moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from sailor.planner.costs import Costs, Crew, Fleet, Template
from sailor.planner.templates import Templates, mixed_rows, single_site_rows

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

DEEPEST = 24  # stages; deeper pipelines are nearly all bubble at usual batches
DEEPEST_MIX = 10
EXACT = 240  # sets that are worked out exactly
IMPROVED = 4  # of those, the ones improved by moves
ROUNDS = 12  # of moves


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """What to minimise per step, and what must hold."""

    dollars: bool = False  # else seconds
    max_seconds: float = inf
    max_dollars: float = inf


@dataclass(frozen=True, slots=True)
class Found:
    """A fleet and what it takes per step."""

    fleet: Fleet
    seconds: float
    dollars: float

    def value(self, goal: Goal) -> float:
        """What is minimised; infinity when a limit is broken."""
        if self.seconds > goal.max_seconds or self.dollars > goal.max_dollars:
            return inf
        return self.dollars if goal.dollars else self.seconds


@dataclass(frozen=True, slots=True)
class _Arms:
    """Crews that may be chosen for a site, or a pair of sites: one entry each, as columns.

    ``rate`` and ``delay`` are the sums that give the time of a set:
    T = (batch + delays) / rates. ``usage`` has a row for each site.
    """

    crews: list[tuple[tuple[Template, int], ...]]
    rate: FloatArray
    delay: FloatArray
    usage: IntArray

    @staticmethod
    def of(crews: list[tuple[tuple[Template, int], ...]], num_sites: int) -> _Arms:
        rate, delay = np.zeros(len(crews)), np.zeros(len(crews))
        usage = np.zeros((num_sites, len(crews)), dtype=np.int64)
        for i, arm in enumerate(crews):
            for template, count in arm:
                pipeline, samples = template.pipeline, count * template.microbatch_size
                rate[i] += samples / pipeline.pace
                delay[i] += samples * (pipeline.fill / pipeline.pace - 1)
                for site, gpus in enumerate(template.usage):
                    usage[site, i] += count * gpus
        return _Arms(crews, rate, delay, usage)


class FleetSearch:
    """One question: GPUs by site, an evaluator, a goal."""

    def __init__(self, costs: Costs, goal: Goal) -> None:
        self.costs, self.goal = costs, goal
        self.templates = Templates(costs)
        self.batch = costs.global_batch_size
        self.limits = np.array([site.num_gpus for site in costs.sites])
        self._shared: dict[tuple[tuple[int, int], ...], float] = {}

    def best(self) -> Found | None:
        """The best fleet found; None when nothing fits."""
        sets = self._candidate_sets()
        found = [f for crews in sets if (f := self.work_out(crews)) is not None]
        found = [f for f in found if f.value(self.goal) < inf]
        if not found:
            return None
        found.sort(key=lambda f: (f.value(self.goal), f.seconds))
        improved = [self._improve(f) for f in found[:IMPROVED]]
        return min(improved, key=lambda f: (f.value(self.goal), f.seconds))

    # Sets of crews, by arrays.

    def _candidate_sets(self) -> list[tuple[tuple[Template, int], ...]]:
        """The most promising sets, at most EXACT of them."""
        num_sites = len(self.costs.sites)
        alone = [self._site_arms(site) for site in range(num_sites)]
        ranked: list[tuple[FloatArray, list[tuple[int, ...]], list[_Arms]]] = []
        pools: list[list[_Arms]] = [[arms] for arms in alone if arms.crews]
        if num_sites > 1:
            mixed = self._mixed_arms()
            beam = self._beam([arms for arms in alone if arms.crews])
            pools.append([beam])
            if mixed.crews:
                pools.append([mixed])
                pools.append([self._with_rest(mixed, alone)])
        scored: list[tuple[float, tuple[tuple[Template, int], ...]]] = []
        for (arms,) in pools:
            value = self._score(arms)
            for i in np.argsort(value, kind="stable")[:EXACT].tolist():
                if value[i] < inf:
                    scored.append((float(value[i]), arms.crews[i]))
        del ranked
        scored.sort(key=lambda entry: entry[0])
        return [crews for _, crews in scored[:EXACT]]

    def _score(self, arms: _Arms) -> FloatArray:
        """A guess of the goal for each arm as a whole fleet."""
        usable = (arms.rate > 0) & (arms.usage <= self.limits[:, None]).all(axis=0)
        rate = np.where(usable, arms.rate, 1.0)
        seconds = (self.batch + arms.delay) / rate + self._guess(arms)
        value = seconds
        if self.goal.dollars:
            price = np.array([s.dollars_per_gpu_hour / 3600 for s in self.costs.sites])
            value = (price[:, None] * arms.usage).sum(axis=0) * seconds
        # A guess may be off by a few per cent: a limit is applied with that much leniency.
        usable &= seconds <= self.goal.max_seconds * 1.1
        return np.where(usable, value, inf)

    def _guess(self, arms: _Arms) -> FloatArray:
        """The reduction of the arm's slimmest, deepest crew: exact for a few, scaled for the rest."""
        guess = np.zeros(len(arms.crews))
        cache: dict[tuple[object, ...], float] = {}
        for i, crews in enumerate(arms.crews):
            most = max(max(t.counts) for t, _ in crews)
            slim = min(way.tensor_parallel for t, _ in crews for way in t.row)
            sites = tuple(sorted({way.site for t, _ in crews for way in t.row}))
            owners = sum(n for _, n in crews)
            bucket = 1 << max(0, owners.bit_length() - 1)
            key = (most, slim, sites, bucket)
            if key not in cache:
                cache[key] = self._shared_seconds(crews)
            guess[i] = cache[key]
        return guess

    def _site_arms(self, site: int) -> _Arms:
        """Templates of one site, each in several numbers; leftovers filled with a smaller one."""
        rows = single_site_rows(self.costs, site, deepest=DEEPEST)
        templates = _efficient([t for row in rows if (t := self.templates.of(row)) is not None])
        available = int(self.limits[site])
        crews: list[tuple[tuple[Template, int], ...]] = []
        for template in templates:
            gpus = template.usage[site]
            most = min(available // gpus, self.batch // template.microbatch_size)
            for count in self._numbers(most):
                crews.append(((template, count),))
            left = available - most * gpus
            if 0 < left and most:
                fillers = [t for t in templates if t.usage[site] <= left and t is not template]
                for filler in sorted(fillers, key=lambda t: t.pipeline.pace / t.microbatch_size)[:2]:
                    crews.append(((template, most), (filler, left // filler.usage[site])))
        return _Arms.of(crews, len(self.costs.sites))

    def _numbers(self, most: int) -> tuple[int, ...]:
        if most < 1:
            return ()
        if self.goal.dollars and most <= 512:
            return tuple(range(1, most + 1))
        wanted = {most, most - 1, most - 2, most * 7 // 8, most * 3 // 4, most // 2}
        return tuple(sorted(n for n in wanted if n >= 1))

    def _mixed_arms(self) -> _Arms:
        crews: list[tuple[tuple[Template, int], ...]] = []
        for row in mixed_rows(self.costs, deepest=DEEPEST_MIX, keep=3):
            template = self.templates.of(row)
            if template is None:
                continue
            most = min(
                int(self.limits[site]) // gpus for site, gpus in enumerate(template.usage) if gpus
            )
            most = min(most, self.batch // template.microbatch_size)
            for count in self._numbers(most)[-4:]:
                crews.append(((template, count),))
        return _Arms.of(crews, len(self.costs.sites))

    def _beam(self, pools: Sequence[_Arms]) -> _Arms:
        """Sites side by side, one after another, the best sets kept on the way."""
        if not pools:
            return _Arms.of([], len(self.costs.sites))
        beam = pools[0]
        for pool in pools[1:]:
            beam = self._pairs(beam, pool, keep=3 * EXACT)
        return beam

    def _with_rest(self, mixed: _Arms, alone: Sequence[_Arms]) -> _Arms:
        """What a mixed crew leaves on each of its sites is used by a crew of that site alone."""
        sets = mixed
        for arms in alone:
            if arms.crews:
                sets = self._pairs(sets, arms, keep=2 * EXACT, optional=True)
        return sets

    def _pairs(self, a: _Arms, b: _Arms, *, keep: int, optional: bool = False) -> _Arms:
        """All sets of one entry of each that fit, the fastest kept. ``optional``: or of ``a``
        alone."""
        rate = a.rate[:, None] + b.rate[None, :]
        delay = a.delay[:, None] + b.delay[None, :]
        fits = np.ones(rate.shape, dtype=bool)
        for site, limit in enumerate(self.limits.tolist()):
            fits &= a.usage[site][:, None] + b.usage[site][None, :] <= limit
        seconds = np.where(fits, (self.batch + delay) / rate, inf)
        # A crew whose pipeline does not even fill in that time is of no use in the set.
        flat = seconds.ravel()
        order = np.argpartition(flat, min(keep, flat.size - 1))[:keep]
        chosen = [
            a.crews[i] + b.crews[j]
            for i, j in zip(*np.unravel_index(order, rate.shape), strict=True)
            if seconds[i, j] < inf
        ]
        if optional:
            alone = np.argsort((self.batch + a.delay) / a.rate, kind="stable")[: keep // 4]
            chosen += [a.crews[i] for i in alone.tolist()]
        return _Arms.of(chosen, len(self.costs.sites))

    # Exactly.

    def work_out(self, crews: Sequence[tuple[Template, int]]) -> Found | None:
        """Whole microbatches for each crew, and the step that follows."""
        shares = share_crews(crews, batch=self.batch)
        if shares is None:
            return None
        used = [
            (template, count) for (template, count), n in zip(crews, shares, strict=True) if n
        ]
        fleet = tuple(
            Crew(template, count, n)
            for (template, count), n in zip(crews, shares, strict=True)
            if n
        )
        seconds = max(c.template.pipeline.seconds(c.num_microbatches) for c in fleet)
        seconds += self._shared_seconds(used)
        if seconds == inf:
            return None
        return Found(fleet, seconds, self.costs.step_dollars(fleet, seconds=seconds))

    def _shared_seconds(self, crews: Sequence[tuple[Template, int]]) -> float:
        key = tuple((id(template), count) for template, count in crews)
        if key not in self._shared:
            self._shared[key] = self.costs.shared_seconds(crews)
        return self._shared[key]

    def _improve(self, found: Found) -> Found:
        """Small moves as long as one helps: a block from one stage to another, a replica more or
        less."""
        best = found
        for _ in range(ROUNDS):
            better = None
            for crews in self._neighbours(best):
                other = self.work_out(crews)
                if other is not None and other.value(self.goal) < (better or best).value(
                    self.goal
                ) * (1 - 1e-9):
                    better = other
            if better is None:
                return best
            best = better
        return best

    def _neighbours(self, found: Found) -> Iterable[list[tuple[Template, int]]]:
        crews = [(crew.template, crew.count) for crew in found.fleet]
        free = self.limits - sum(
            count * np.array(template.usage) for template, count in crews
        )
        for c, (template, count) in enumerate(crews):
            for change in (-1, 1):
                fits = (np.array(template.usage) <= free).all() if change > 0 else count > 1
                if fits:
                    yield [*crews[:c], (template, count + change), *crews[c + 1 :]]
            stages = range(len(template.counts))
            for a in stages:
                for b in stages:
                    if a != b and template.counts[a] > 1:
                        counts = list(template.counts)
                        counts[a] -= 1
                        counts[b] += 1
                        moved = self.templates.with_counts(template.row, tuple(counts))
                        if moved is not None:
                            yield [*crews[:c], (moved, count), *crews[c + 1 :]]


def _efficient(templates: Sequence[Template]) -> list[Template]:
    """Without those that waste over half of their GPUs, or are beaten in everything."""
    def per_gpu(template: Template) -> float:
        return template.microbatch_size / template.pipeline.pace / sum(template.usage)

    if not templates:
        return []
    bar = 0.45 * max(map(per_gpu, templates))
    return [template for template in templates if per_gpu(template) >= bar]


def share_crews(
    crews: Sequence[tuple[Template, int]], *, batch: int
) -> tuple[int, ...] | None:
    """Most microbatches of each crew's replicas, at the least step that holds the batch.

    0 for a crew that is too slow to be of use. None when there are more replicas than samples.
    """
    pipelines = [template.pipeline for template, _ in crews]
    sizes = [count * template.microbatch_size for template, count in crews]
    low = min(p.fill for p in pipelines)
    high = min(
        p.seconds(-(-batch // size)) for p, size in zip(pipelines, sizes, strict=True)
    )
    for _ in range(40):
        if high - low <= 1e-7 * high:
            break
        middle = (low + high) / 2
        held = sum(
            size * p.microbatches_within(middle) for p, size in zip(pipelines, sizes, strict=True)
        )
        if held >= batch:
            high = middle
        else:
            low = middle
    shares = [p.microbatches_within(high) for p in pipelines]
    # Whole rounds nobody needs: take them from whoever finishes last.
    while True:
        held = sum(size * n for size, n in zip(sizes, shares, strict=True))
        spare = [
            i
            for i, n in enumerate(shares)
            if n and held - sizes[i] >= batch
        ]
        if not spare:
            break
        last = max(spare, key=lambda i: pipelines[i].seconds(shares[i]))
        shares[last] -= 1
    return tuple(shares)
