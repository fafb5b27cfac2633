"""The losses of a run's newest steps, which every generation is told on its way. No torch.

A worker that comes new to a run must judge a loss as those judge that were there all the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from sailor.runtime.messages import StepRecord
from sailor.training.guard import REMEMBERED


class RecentLosses:
    """By step; a step that is done again counts as it was done last."""

    def __init__(self, earlier: Mapping[int, float]) -> None:
        """``earlier``: from starts of the run before this one; NaN for a step left out."""
        self._by_step: dict[int, tuple[int, float]] = {
            step: (0, loss) for step, loss in earlier.items()
        }

    def note(self, record: StepRecord) -> None:
        """A step was applied, or left out."""
        known, _ = self._by_step.get(record.step, (0, 0.0))
        if record.num_samples and record.generation >= known:
            loss = math.nan if record.skipped else record.loss
            self._by_step[record.step] = (record.generation, loss)
            # What may still be gone back to is far less than this.
            self._by_step.pop(record.step - 100 * REMEMBERED, None)

    def until(self, step: int) -> tuple[float, ...]:
        """Of the steps up to this one, oldest first; those that are not known are left out."""
        steps = range(max(1, step - REMEMBERED + 1), step + 1)
        return tuple(self._by_step[s][1] for s in steps if s in self._by_step)
