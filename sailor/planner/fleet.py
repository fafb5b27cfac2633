"""Which pipelines to seat on GPUs of several kinds, and how many of each: the core of the search.

Replicas need not be alike: a fleet is a few crews, each some copies of one template, with shares of
the batch in proportion to their speed. For a step of T seconds a replica is worth the microbatches
it finishes,

    N(T) = 1 + (T - fill) / pace, in whole ones,

and tens of thousands of sets are compared at once with arrays (whole_rounds.py). The best are then
worked out exactly (the batch to a sample, the gradient reduction over the real owners) and improved
by small moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf

import numpy as np
import numpy.typing as npt

from sailor.planner.costs import Costs, Crew, Fleet, FloatArray, IntArray, Template, Way
from sailor.planner.crews import Arms, exact_shares, fewer, samples_per_second, share_crews
from sailor.planner.exhaustive import all_fleets, few_templates
from sailor.planner.fleet_moves import Moves
from sailor.planner.site_crews import SiteCrews
from sailor.planner.templates import Templates, mixed_rows
from sailor.planner.whole_rounds import Pipelines

DEEPER = 6  # stages beyond the fewest that hold the model
DEEPEST_MIX = 12
MIXES = 40  # mixed rows that are cut
EFFICIENT = 0.45  # of the best pipeline's samples per GPU, that others must reach
SIZED = 15  # crews of one site whose microbatch sizes are those of mixed rows
EXACT = 48  # sets that are worked out exactly
IMPROVED = 1  # of each kind, improved by moves
MARGIN = 0.05  # a start further behind the best one is given up
ROUNDS = 20  # of moves
FEW_TEMPLATES, FEW_FLEETS = 1_000, 1_500  # up to here all of them are looked at


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """What to minimise per step, and what must hold. ``num_stages`` and ``num_replicas``: of every
    pipeline and of the fleet, where the user has set them."""

    dollars: bool = False  # else seconds
    max_seconds: float = inf
    max_dollars: float = inf
    num_stages: int | None = None
    num_replicas: int | None = None


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
        self.templates = Templates(costs, depth=goal.num_stages)
        self.batch = costs.global_batch_size
        self.limits = np.array([site.num_gpus for site in costs.sites])
        self._price = np.array([s.dollars_per_gpu_hour / 3600 for s in costs.sites])
        self._shared: dict[tuple[tuple[int, int], ...], float] = {}
        self._tried: set[frozenset[tuple[int, int]]] = set()
        self._moves = Moves(costs, self.templates, self.limits, num_replicas=goal.num_replicas)

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
        pools = self._pools()
        kinds = [pools]
        if len(pools) > 1:
            beam = pools[0]
            for pool in pools[1:]:
                beam = self._pairs(beam, pool)
            kinds.append([beam])
        if len(self.costs.sites) > 1:  # be it that no site holds the model alone
            mixed = self._mixed_arms(pools)
            rest = mixed
            for pool in pools:
                if rest.crews:
                    rest = self._pairs(rest, pool)
            kinds += [[mixed], [rest]]
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
            arms.pipelines, arms.owners, arms.blocks, arms.slim, arms.width, arms.sites
        )
        usable: npt.NDArray[np.bool_] = np.all(arms.usage <= self.limits[:, None], axis=0)
        usable &= self.batch % arms.divisor == 0
        if self.goal.num_replicas is not None:
            usable &= (arms.owners == self.goal.num_replicas) & (arms.least <= self.batch)
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
        self, pipelines: Pipelines, owners: IntArray, blocks: IntArray, slim: IntArray,
        width: IntArray, sites: IntArray,
    ) -> FloatArray:  # fmt: skip
        seconds = pipelines.seconds(self.batch)
        for mask in np.flatnonzero(np.bincount(sites)).tolist():
            members = tuple(s for s in range(len(self.limits)) if mask >> s & 1)
            here = sites == mask
            share = blocks[here] / slim[here]
            seconds[here] += self.costs.ring_guess(share, owners[here], width[here], sites=members)
        return seconds

    def _pools(self) -> list[Arms]:
        """Crews of each site that has any: the best of every template in every number, some of them
        with a smaller one on what they leave over; and those that do most in a part of the time
        that the fastest site takes, for sites side by side."""
        num_sites = len(self.costs.sites)
        sites = []
        for site, limit in enumerate(self.limits.tolist()):
            templates = self._efficient(site)
            most = [self._moves.most(template, self.limits) for template in templates]
            if templates:
                sites.append(SiteCrews.of(self.costs, site, limit, templates, most))
        if not sites:
            return []
        chosen = [
            each.best(self._value(each.seconds, self._price[each.site] * each.gpus, each.exact))
            for each in sites
        ]
        fastest = min(each.fastest for each in sites)
        pools = []
        for each, some in zip(sites, chosen, strict=True):
            crews = each.crews(some) + each.filled(some)
            if len(sites) > 1 and fastest < inf:
                crews += each.crews([k for k in each.most_within(fastest) if k not in set(some)])
            pools.append(Arms.of(crews, num_sites))
        return pools

    def _efficient(self, site: int) -> list[Template]:
        """Pipelines of equal stages, but for those that waste over half of their GPUs. Ways whose
        work alone is too slow for that are not cut at all."""
        blocks = self.costs.num_blocks
        ways = [way for way in self.costs.ways if way.site == site]
        if self.goal.num_replicas is not None:  # each is to have a microbatch
            most = self.batch // self.goal.num_replicas
            ways = [way for way in ways if way.microbatch_size <= most]

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

    def _mixed_arms(self, pools: Sequence[Arms]) -> Arms:
        """Pipelines over two sites, with microbatches of the sizes that do well on one; of any,
        where no site holds a pipeline alone."""
        sizes: set[int] = set()
        for arms in pools:
            # Arms of a site are in the order of their worth.
            sizes |= {crews[0][0].microbatch_size for crews in arms.crews[:SIZED]}
        if not sizes:
            sizes = {way.microbatch_size for way in self.costs.ways}
        crews: list[tuple[tuple[Template, int], ...]] = []
        for row in mixed_rows(
            self.costs, deepest=DEEPEST_MIX, keep=MIXES, sizes=sorted(sizes),
            depth=self.goal.num_stages,
        ):  # fmt: skip
            template = self.templates.of(row)
            if template is not None:
                most = self._moves.most(template, self.limits)
                wanted = {most, most - 1, most * 7 // 8, most * 3 // 4, most // 2}
                crews += [((template, count),) for count in sorted(wanted) if count >= 1]
        return Arms.of(crews, len(self.costs.sites))

    def _pairs(self, a: Arms, b: Arms) -> Arms:
        """The best of all sets of one entry of each that fit, and the best of ``a`` alone."""
        fits = np.ones((len(a.crews), len(b.crews)), dtype=bool)
        for site, limit in enumerate(self.limits.tolist()):
            fits &= a.usage[site][:, None] + b.usage[site][None, :] <= limit
        wanted = self.goal.num_replicas
        if wanted is not None:
            fits &= a.owners[:, None] + b.owners[None, :] <= wanted
            fits &= a.least[:, None] + b.least[None, :] <= self.batch
        i, j = np.nonzero(fits)
        owners = a.owners[i] + b.owners[j]
        seconds = self._seconds(
            a.pipelines.beside(b.pipelines, mine=i, others=j), owners,
            np.maximum(a.blocks[i], b.blocks[j]), np.minimum(a.slim[i], b.slim[j]),
            np.maximum(a.width[i], b.width[j]), a.sites[i] | b.sites[j],
        )  # fmt: skip
        price = self._price @ (a.usage[:, i] + b.usage[:, j])
        value = self._value(seconds, price, np.ones(len(i), dtype=bool))
        # More replicas may come, and other sizes, but those that are enough as they are come first.
        short = self.batch % np.gcd(a.divisor[i], b.divisor[j]) != 0
        if wanted is not None:
            short |= owners < wanted
        order = np.lexsort((value, short))[: 2 * EXACT].tolist()
        chosen = [a.crews[i[k]] + b.crews[j[k]] for k in order if value[k] < inf]
        alone = np.argsort(self._score(a), kind="stable")[: EXACT // 2].tolist()
        chosen += [a.crews[k] for k in alone]
        return Arms.of(chosen, len(self.costs.sites))

    # Exactly.

    def work_out(self, crews: Sequence[tuple[Template, int]]) -> Found | None:
        """Whole microbatches for each crew, and the step that follows. None where memory, the
        batch or the number of replicas wanted forbids it."""
        shares = exact_shares(crews, batch=self.batch)
        if shares is None or shares != share_crews(crews, batch=self.batch):
            # Rounds more than would be enough: replicas fewer may be better.
            some = fewer(crews, batch=self.batch)
            if some != list(crews) and self.goal.num_replicas is None:
                other = self.work_out(some)
                if shares is None:
                    return other
                more = self._with(crews, shares)
                return min((f for f in (more, other) if f), key=self._rank, default=None)
        return None if shares is None else self._with(crews, shares)

    def _with(
        self, crews: Sequence[tuple[Template, int]], shares: Sequence[int]
    ) -> Found | None:  # fmt: skip
        used = [(template, count) for (template, count), n in zip(crews, shares, strict=True) if n]
        fleet = tuple(
            Crew(template, count, n)
            for (template, count), n in zip(crews, shares, strict=True)
            if n
        )
        wanted = self.goal.num_replicas
        if wanted is not None and sum(crew.count for crew in fleet) != wanted:
            return None
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
        for moves in (self._moves.recounted, self._moves.neighbours):
            for _ in range(ROUNDS):
                better = best
                for crews in moves(best.fleet):
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
