"""Crews of one site: every pipeline in every number at once, and which of them to keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from sailor.planner.costs import Costs, FloatArray, IntArray, Template

ARMS = 120  # crews that are combined with others
# Of the time that the fastest crew of any site takes alone: how long sites side by side may.
_PARTS = (1.0, 0.95, 0.9, 0.8, 0.7, 0.6)
_MOST = 3  # crews that do most in each of those


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteCrews:
    """An entry for each template and number of replicas: GPUs they take, seconds of the reduction
    and of the whole batch alone, and whether their microbatches come to exactly the batch."""

    site: int
    num_gpus: int
    templates: Sequence[Template]
    index: IntArray
    counts: IntArray
    size: IntArray
    fill: FloatArray
    pace: FloatArray
    gpus: IntArray
    rings: FloatArray
    seconds: FloatArray
    exact: npt.NDArray[np.bool_]

    @staticmethod
    def of(
        costs: Costs, site: int, num_gpus: int, templates: Sequence[Template], most: Sequence[int]
    ) -> SiteCrews:
        """``most`` replicas of each template."""
        numbers = [_numbers(limit) for limit in most]
        index = np.repeat(np.arange(len(templates)), [len(some) for some in numbers])
        counts = np.array([n for some in numbers for n in some], dtype=np.int64)
        size = np.array([t.microbatch_size for t in templates])[index]
        fill = np.array([t.pipeline.fill for t in templates])[index]
        pace = np.array([t.pipeline.pace for t in templates])[index]
        gpus = np.array([t.usage[site] for t in templates])[index] * counts
        blocks = np.array([max(t.counts) for t in templates])[index]
        slim = np.array([t.row[0].tensor_parallel for t in templates])[index]
        rings = costs.ring_guess(blocks / slim, counts, gpus // counts, sites=(site,))
        batch = costs.global_batch_size
        return SiteCrews(
            site=site, num_gpus=num_gpus, templates=templates, index=index, counts=counts,
            size=size, fill=fill, pace=pace, gpus=gpus, rings=rings,
            seconds=fill + (-(-batch // (counts * size)) - 1) * pace + rings,
            exact=batch % size == 0,
        )  # fmt: skip

    @property
    def fastest(self) -> float:
        """Seconds of the fastest one that does the batch alone."""
        return float(self.seconds[self.exact].min(initial=inf))

    def best(self, value: FloatArray) -> list[int]:
        """Entries worth keeping: half by what they are worth as fleets of their own, half by what
        each GPU does."""
        chosen = dict.fromkeys(np.argsort(value, kind="stable")[: ARMS // 2].tolist())
        for k in np.argsort(self.gpus * self.seconds, kind="stable").tolist():
            if len(chosen) >= ARMS:
                break
            chosen.setdefault(k)
        return list(chosen)

    def most_within(self, seconds: float) -> list[int]:
        """Those that do most in whole microbatches in parts of so many seconds, of every template
        one."""
        chosen: dict[int, None] = {}
        for part in _PARTS:
            left = part * seconds - self.rings - self.fill
            rounds = np.where(left >= 0, 1 + np.floor(left / self.pace * (1 + 1e-12) + 1e-9), 0.0)
            samples = self.counts * self.size * rounds
            taken: set[int] = set()
            for k in np.lexsort((self.gpus, -samples)).tolist():
                if len(taken) == _MOST or not samples[k]:
                    break
                if int(self.index[k]) not in taken:
                    taken.add(int(self.index[k]))
                    chosen.setdefault(k)
        return list(chosen)

    def crews(self, chosen: Sequence[int]) -> list[tuple[tuple[Template, int], ...]]:
        """Entries as sets of one crew."""
        return [((self.templates[self.index[k]], int(self.counts[k])),) for k in chosen]

    def filled(self, chosen: Sequence[int]) -> list[tuple[tuple[Template, int], ...]]:
        """The best of these with another template on what they leave over."""
        fillers = sorted(
            self.templates, key=lambda t: t.pipeline.pace / t.microbatch_size * sum(t.usage)
        )
        crews: list[tuple[tuple[Template, int], ...]] = []
        for k in chosen[: ARMS // 4]:
            template, count = self.templates[self.index[k]], int(self.counts[k])
            left = self.num_gpus - count * template.usage[self.site]
            fitting = [t for t in fillers if t.usage[self.site] <= left and t is not template][:2]
            crews += [((template, count), (t, left // t.usage[self.site])) for t in fitting]
        return crews


def _numbers(most: int) -> tuple[int, ...]:
    """How many replicas of a template to look at, when ``most`` fit: all, or if those are too many,
    all of the largest and ever fewer below."""
    if most <= 64:
        return tuple(range(1, most + 1))
    low = {round(most * 0.93**step) for step in range(8, 60)}
    return tuple(sorted({n for n in low if n >= 1} | set(range(most - 16, most + 1))))
