"""Seconds of many sets of crews at once, each crew at whole microbatches: share_crews by arrays.

Where every replica takes a few microbatches only, what a set could do in parts of them says little:
which sizes go together is a matter of whole ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from sailor.planner.costs import FloatArray, IntArray, Template


@dataclass(frozen=True, slots=True)
class Pipelines:
    """A row for each set, a column for each crew: fill and pace of its replicas, and samples that
    they do in a round together. Where a set has fewer crews, the others do nothing, ever."""

    fill: FloatArray
    pace: FloatArray
    samples: FloatArray

    @staticmethod
    def of(crews: Sequence[Sequence[tuple[Template, int]]]) -> Pipelines:
        shape = (len(crews), max((len(crew) for crew in crews), default=1))
        fill, pace, samples = np.full(shape, inf), np.ones(shape), np.zeros(shape)
        for row, some in enumerate(crews):
            for column, (template, count) in enumerate(some):
                fill[row, column] = template.pipeline.fill
                pace[row, column] = template.pipeline.pace
                samples[row, column] = count * template.microbatch_size
        return Pipelines(fill, pace, samples)

    def beside(self, other: Pipelines, *, mine: IntArray, others: IntArray) -> Pipelines:
        """Sets of one of these and one of the others."""
        return Pipelines(
            *(
                np.concatenate([getattr(self, name)[mine], getattr(other, name)[others]], axis=1)
                for name in self.__slots__
            )
        )

    def seconds(self, batch: int) -> FloatArray:
        """The least in which each set does the batch."""
        rows = np.arange(len(self.fill))
        rate = self.samples / self.pace
        used = self.samples > 0
        delay = np.where(used, rate * (np.where(used, self.fill, 0.0) - self.pace), 0.0)
        water = np.empty(len(rows))
        left = rows
        while len(left):
            some = used[left]
            water[left] = (batch + (delay[left] * some).sum(axis=1)) / (rate[left] * some).sum(
                axis=1
            )
            # As in share_crews: whoever is not through a part of a microbatch lends nothing.
            late = np.where(some, self.fill[left] - self.pace[left], 0.0)
            slowest = late.argmax(axis=1)
            goes = (late.max(axis=1) > water[left]) & (some.sum(axis=1) > 1)
            left, slowest = left[goes], slowest[goes]
            used[left, slowest] = False
        done = np.floor((water[:, None] - self.fill) / self.pace * (1 + 1e-12) + 1e-9) + 1
        done = np.where(used, np.maximum(done, 0.0), 0.0)
        held = (self.samples * done).sum(axis=1)
        left = np.flatnonzero(held < batch)
        while len(left):
            soonest = (self.fill[left] + done[left] * self.pace[left]).argmin(axis=1)
            done[left, soonest] += 1
            held[left] += self.samples[left, soonest]
            left = left[held[left] < batch]
        ends = np.where(done > 0, self.fill + (done - 1) * self.pace, 0.0)
        seconds: FloatArray = ends.max(axis=1, initial=0.0)
        return seconds
