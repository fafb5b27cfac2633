"""Which pipelines to seat on GPUs of several kinds, and how many of each: the core of the search.

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
from itertools import islice
from math import inf

import numpy as np
import numpy.typing as npt

from sailor.planner.costs import Costs, Crew, Fleet, FloatArray, IntArray, Template, Way
from sailor.planner.crews import Arms, samples_per_second, share_crews
from sailor.planner.exhaustive import all_fleets, few_templates
from sailor.planner.templates import Templates, mixed_rows

DEEPER = 6  # stages beyond the fewest that hold the model
DEEPEST_MIX = 12
MIXES = 40  # mixed rows that are cut
EFFICIENT = 0.45  # of the best pipeline's samples per GPU, that others must reach
ARMS = 120  # crews of one site that are combined with others
EXACT = 48  # sets that are worked out exactly
IMPROVED = 1  # of each kind, improved by moves
MARGIN = 0.05  # a start further behind the best one is given up
ROUNDS = 20  # of moves
MOST_CREWS = 4
FEW_TEMPLATES, FEW_FLEETS = 1_000, 1_500  # up to here all of them are looked at
ALL_WAYS = 12  # up to so many ways of a microbatch size, a stage may change to any of them


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """What to minimise per step, and what must hold."""

    dollars: bool = False  # else seconds
    max_seconds: float = inf
    max_dollars: float = inf


@dataclass(frozen=True, slots=True)
class Found:
    """A fleet and what it takes per step; dollars only where the goal has to do with them."""

    fleet: Fleet
    seconds: float
    dollars: float

    def value(self, goal: Goal) -> float:
        """What is minimised; infinity when a limit is broken."""
        if self.seconds > goal.max_seconds or self.dollars > goal.max_dollars:
            return inf
        return self.dollars if goal.dollars else self.seconds


class FleetSearch:
    """One question: GPUs by site, an evaluator, a goal."""

    def __init__(self, costs: Costs, goal: Goal) -> None:
        self.costs, self.goal = costs, goal
        self._priced = goal.dollars or goal.max_dollars < inf
        self.templates = Templates(costs)
        self.batch = costs.global_batch_size
        self.limits = np.array([site.num_gpus for site in costs.sites])
        self._price = np.array([s.dollars_per_gpu_hour / 3600 for s in costs.sites])
        self._shared: dict[tuple[tuple[int, int], ...], float] = {}
        self._tried: set[frozenset[tuple[int, int]]] = set()
        self._ways = {
            (way.site, way.tensor_parallel, way.microbatch_size, way.recompute): way
            for way in costs.ways
        }
        self._alike: dict[int, list[Way]] = {}
        for way in costs.ways:
            self._alike.setdefault(way.microbatch_size, []).append(way)

    def best(self, known: Sequence[Fleet] = ()) -> Found | None:
        """The best fleet found; None when nothing fits. Where fleets are few, all are looked at.

        ``known``: good fleets of a like question, which are looked at as well.
        """
        everything = self._everything()
        if everything is not None:
            return self.best_of(everything)
        starts: list[Found] = []
        for sets in self._candidate_sets():
            found = [self.work_out(crews) for crews in sets]
            kept = [f for f in found if f is not None and f.value(self.goal) < inf]
            # The best of every kind is improved: which kind wins is not known before.
            starts += sorted(kept, key=self._rank)[:IMPROVED]
        starts += [again for fleet in known if (again := self._again(fleet)) is not None]
        if not starts:
            return None
        bar = min(f.value(self.goal) for f in starts) * (1 + MARGIN)
        improved = [self._improve(f) for f in starts if f.value(self.goal) <= bar]
        return min(improved, key=self._rank)

    def _again(self, fleet: Fleet) -> Found | None:
        """A fleet of another search under this one's memory and costs."""
        crews = []
        for crew in fleet:
            template = self.templates.with_counts(crew.template.row, crew.template.counts)
            if template is None:
                return None
            crews.append((template, crew.count))
        found = self.work_out(crews)
        return found if found is not None and found.value(self.goal) < inf else None

    def best_of(self, fleets: Iterable[Sequence[tuple[Template, int]]]) -> Found | None:
        """The best of these; None when none keeps the limits."""
        found = (self.work_out(crews) for crews in fleets)
        return min(
            (f for f in found if f is not None and f.value(self.goal) < inf),
            key=self._rank, default=None,
        )  # fmt: skip

    def _everything(self) -> list[list[tuple[Template, int]]] | None:
        """All fleets there are, when they are few."""
        if not few_templates(self.costs, most=FEW_TEMPLATES):
            return None
        fleets = list(islice(all_fleets(self.costs, self.templates), FEW_FLEETS + 1))
        return fleets if len(fleets) <= FEW_FLEETS else None

    def _rank(self, found: Found) -> tuple[float, float]:
        return found.value(self.goal), found.seconds

    # Sets of crews, by arrays.

    def _candidate_sets(self) -> list[list[tuple[tuple[Template, int], ...]]]:
        """The most promising sets of each kind: one site alone, sites side by side, pipelines over
        two sites, and those with the rest of the GPUs used too."""
        num_sites = len(self.costs.sites)
        alone = [self._site_arms(site) for site in range(num_sites)]
        pools = [arms for arms in alone if arms.crews]
        kinds = [pools]
        if len(pools) > 1:
            beam = pools[0]
            for pool in pools[1:]:
                beam = self._pairs(beam, pool)
            mixed = self._mixed_arms(pools)
            rest = mixed
            for pool in pools:
                if rest.crews:
                    rest = self._pairs(rest, pool)
            kinds += [[beam], [mixed], [rest]]
        return [self._best_of(kind) for kind in kinds]

    def _best_of(self, pools: Sequence[Arms]) -> list[tuple[tuple[Template, int], ...]]:
        """At most EXACT sets of some pools, best first by the guess."""
        scored: list[tuple[float, int, tuple[tuple[Template, int], ...]]] = []
        for arms in pools:
            value = self._score(arms)
            for i in np.argsort(value, kind="stable")[:EXACT].tolist():
                if value[i] < inf:
                    scored.append((float(value[i]), len(scored), arms.crews[i]))
        scored.sort(key=lambda entry: entry[:2])
        return [crews for _, _, crews in scored[:EXACT]]

    def _score(self, arms: Arms) -> FloatArray:
        """A guess of the goal for each set as a whole fleet."""
        if not arms.crews:
            return np.zeros(0)
        seconds = self._seconds(
            arms.rate, arms.delay, arms.owners, arms.blocks, arms.slim, arms.width, arms.sites
        )
        usable: npt.NDArray[np.bool_] = np.all(arms.usage <= self.limits[:, None], axis=0)
        return self._value(seconds, (self._price[:, None] * arms.usage).sum(axis=0), usable)

    def _value(
        self, seconds: FloatArray, price: FloatArray, usable: npt.NDArray[np.bool_]
    ) -> FloatArray:
        value = price * seconds if self.goal.dollars else seconds
        # A guess may be off by some per cent: limits are applied with that much leniency.
        usable = usable & (seconds <= self.goal.max_seconds * 1.1)
        usable &= price * seconds <= self.goal.max_dollars * 1.1
        return np.where(usable, value, inf)

    def _seconds(
        self, rate: FloatArray, delay: FloatArray, owners: IntArray, blocks: IntArray,
        slim: IntArray, width: IntArray, sites: IntArray,
    ) -> FloatArray:  # fmt: skip
        seconds = (self.batch + delay) / rate
        for mask in np.flatnonzero(np.bincount(sites)).tolist():
            members = tuple(s for s in range(len(self.limits)) if mask >> s & 1)
            here = sites == mask
            share = blocks[here] / slim[here]
            seconds[here] += self.costs.ring_guess(share, owners[here], width[here], sites=members)
        return seconds

    def _site_arms(self, site: int) -> Arms:
        """Crews of one site: every template in every number at once, the best ARMS of them; and
        leftovers filled with a smaller one."""
        templates = self._efficient(site)
        num_sites = len(self.costs.sites)
        if not templates:
            return Arms.of([], num_sites)
        most = [self._most(template, self.limits) for template in templates]
        index = np.repeat(np.arange(len(templates)), [len(self._numbers(n)) for n in most])
        counts = np.array([n for limit in most for n in self._numbers(limit)], dtype=np.int64)
        chosen = self._best_counts(templates, site, index, counts)
        crews: list[tuple[tuple[Template, int], ...]] = [
            ((templates[index[k]], int(counts[k])),) for k in chosen
        ]
        fillers = sorted(
            templates, key=lambda t: t.pipeline.pace / t.microbatch_size * sum(t.usage)
        )
        for k in chosen[: ARMS // 4]:
            template, count = templates[index[k]], int(counts[k])
            left = int(self.limits[site]) - count * template.usage[site]
            fitting = [t for t in fillers if t.usage[site] <= left and t is not template][:2]
            crews += [((template, count), (t, left // t.usage[site])) for t in fitting]
        return Arms.of(crews, num_sites)

    def _efficient(self, site: int) -> list[Template]:
        """Pipelines of equal stages, but for those that waste over half of their GPUs. Ways whose
        work alone is too slow for that are not cut at all."""
        blocks = self.costs.num_blocks
        ways = [way for way in self.costs.ways if way.site == site]

        def at_most(way: Way) -> float:
            """Samples per GPU and second, were stages equally busy and nothing sent."""
            work = blocks * way.block + way.first + way.last
            return way.microbatch_size / work / way.tensor_parallel

        found: dict[int, list[tuple[float, Template]]] = {}
        bar = 0.0
        for way in sorted(ways, key=at_most, reverse=True):
            if at_most(way) * (1 + 1e-9) < bar:
                break
            found[way.index] = [
                (samples_per_second(t) / sum(t.usage), t)
                for t in self.templates.uniform(way, deeper=DEEPER)
            ]
            bar = max([bar, *(EFFICIENT * each for each, _ in found[way.index])])
        return [
            template for way in ways for each, template in found.get(way.index, ()) if each >= bar
        ]

    def _best_counts(
        self, templates: Sequence[Template], site: int, index: IntArray, counts: IntArray
    ) -> list[int]:
        """The entries worth keeping, half by the goal as fleets of their own, half by what each GPU
        does."""
        size = np.array([t.microbatch_size for t in templates])[index]
        fill = np.array([t.pipeline.fill for t in templates])[index]
        pace = np.array([t.pipeline.pace for t in templates])[index]
        gpus = np.array([t.usage[site] for t in templates])[index] * counts
        blocks = np.array([max(t.counts) for t in templates])[index]
        slim = np.array([t.row[0].tensor_parallel for t in templates])[index]
        rounds = -(-self.batch // (counts * size))
        seconds = fill + (rounds - 1) * pace
        width = gpus // counts
        seconds += self.costs.ring_guess(blocks / slim, counts, width, sites=(site,))
        value = self._value(seconds, self._price[site] * gpus, np.ones(len(gpus), dtype=bool))
        chosen = dict.fromkeys(np.argsort(value, kind="stable")[: ARMS // 2].tolist())
        for k in np.argsort(gpus * seconds, kind="stable").tolist():
            if len(chosen) >= ARMS:
                break
            chosen.setdefault(k)
        return list(chosen)

    def _numbers(self, most: int) -> tuple[int, ...]:
        """How many replicas of a template to look at, when ``most`` fit: all, or if those are too
        many, all of the largest and ever fewer below."""
        if most <= 64:
            return tuple(range(1, most + 1))
        low = {round(most * 0.93**step) for step in range(8, 60)}
        return tuple(sorted({n for n in low if n >= 1} | set(range(most - 16, most + 1))))

    def _mixed_arms(self, pools: Sequence[Arms]) -> Arms:
        """Pipelines over two sites, with microbatches of the sizes that do well on one."""
        sizes: set[int] = set()
        for arms in pools:
            # Arms of a site are in the order of their worth.
            sizes |= {crews[0][0].microbatch_size for crews in arms.crews[: ARMS // 8]}
        crews: list[tuple[tuple[Template, int], ...]] = []
        for row in mixed_rows(self.costs, deepest=DEEPEST_MIX, keep=MIXES, sizes=sorted(sizes)):
            template = self.templates.of(row)
            if template is not None:
                most = self._most(template, self.limits)
                wanted = {most, most - 1, most * 7 // 8, most * 3 // 4, most // 2}
                crews += [((template, count),) for count in sorted(wanted) if count >= 1]
        return Arms.of(crews, len(self.costs.sites))

    def _most(self, template: Template, free: IntArray) -> int:
        """How many replicas of it fit on so many free GPUs."""
        fits = min(int(free[site]) // gpus for site, gpus in enumerate(template.usage) if gpus)
        return min(fits, self.batch // template.microbatch_size)

    def _pairs(self, a: Arms, b: Arms) -> Arms:
        """The best of all sets of one entry of each that fit, and the best of ``a`` alone."""
        fits = np.ones((len(a.crews), len(b.crews)), dtype=bool)
        for site, limit in enumerate(self.limits.tolist()):
            fits &= a.usage[site][:, None] + b.usage[site][None, :] <= limit
        i, j = np.nonzero(fits)
        seconds = self._seconds(
            a.rate[i] + b.rate[j], a.delay[i] + b.delay[j], a.owners[i] + b.owners[j],
            np.maximum(a.blocks[i], b.blocks[j]), np.minimum(a.slim[i], b.slim[j]),
            np.maximum(a.width[i], b.width[j]), a.sites[i] | b.sites[j],
        )  # fmt: skip
        price = self._price @ (a.usage[:, i] + b.usage[:, j])
        value = self._value(seconds, price, np.ones(len(i), dtype=bool))
        order = np.argsort(value, kind="stable")[: 2 * EXACT].tolist()
        chosen = [a.crews[i[k]] + b.crews[j[k]] for k in order if value[k] < inf]
        alone = np.argsort(self._score(a), kind="stable")[: EXACT // 2].tolist()
        chosen += [a.crews[k] for k in alone]
        return Arms.of(chosen, len(self.costs.sites))

    # Exactly.

    def work_out(self, crews: Sequence[tuple[Template, int]]) -> Found | None:
        """Whole microbatches for each crew, and the step that follows."""
        shares = share_crews(crews, batch=self.batch)
        used = [(template, count) for (template, count), n in zip(crews, shares, strict=True) if n]
        fleet = tuple(
            Crew(template, count, n)
            for (template, count), n in zip(crews, shares, strict=True)
            if n
        )
        seconds = max(c.template.pipeline.seconds(c.num_microbatches) for c in fleet)
        seconds += self._shared_seconds(used)
        if seconds == inf:
            return None
        if not self._priced:
            return Found(fleet, seconds, 0.0)
        return Found(fleet, seconds, self.costs.step_dollars(fleet, seconds=seconds))

    def _shared_seconds(self, crews: Sequence[tuple[Template, int]]) -> float:
        key = tuple((id(template), count) for template, count in crews)
        if key not in self._shared:
            self._shared[key] = self.costs.shared_seconds(crews)
        return self._shared[key]

    def _improve(self, found: Found) -> Found:
        """Small moves as long as one helps, the best move of all each time: first of numbers alone,
        which are few, then of everything."""
        best = found
        for moves in (self._recounted, self._neighbours):
            for _ in range(ROUNDS):
                better = best
                for crews in moves(best):
                    key = frozenset((id(template), count) for template, count in crews)
                    if key in self._tried:
                        continue
                    self._tried.add(key)
                    other = self.work_out(crews)
                    if other is not None and other.value(self.goal) < better.value(self.goal) * (
                        1 - 1e-9
                    ):
                        better = other
                if better is best:
                    break
                best = better
        return best

    def _recounted(self, found: Found) -> Iterable[list[tuple[Template, int]]]:
        """Some replicas more or less of one crew."""
        crews = [(crew.template, crew.count) for crew in found.fleet]
        usage = sum(count * np.array(template.usage) for template, count in crews)
        for c, (template, count) in enumerate(crews):
            others = [*crews[:c], *crews[c + 1 :]]
            most = self._most(template, self.limits - usage + count * np.array(template.usage))
            for number in {count - 4, count - 1, count + 1, count + 4, most}:
                if 1 <= number <= most and number != count:
                    yield [*others, (template, number)]
            if others:
                yield others

    def _neighbours(self, found: Found) -> Iterable[list[tuple[Template, int]]]:
        """A replica more or less; a block from one stage to another; a crew's microbatch size or a
        stage's degree halved or doubled; one stage more or less; a crew dropped; what is left over
        used."""
        yield from self._recounted(found)
        crews = [(crew.template, crew.count) for crew in found.fleet]
        usage = sum(count * np.array(template.usage) for template, count in crews)
        for c, (template, count) in enumerate(crews):
            others = [*crews[:c], *crews[c + 1 :]]
            free = self.limits - usage + count * np.array(template.usage)
            for changed in self._changed(template):
                most = self._most(changed, free)
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
                    yield [*crews, (newcomer, self._most(newcomer, free))]

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
