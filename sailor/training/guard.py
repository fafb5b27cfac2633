"""Whether a step is fit to be applied: its loss is a number, and not far above the recent ones.

Decided from what the step's last collective tells every rank alike, and from the losses of recent
steps, which all ranks remember alike: they are told on the way into a generation, whoever trained
before. So all apply a step or none does, and membership changes nothing about it. What follows on
a refusal is for others to say. No torch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from statistics import median

REMEMBERED = 32  # steps whose losses are compared with
_LEAST = 8  # of them that must be known before a loss can be called a spike
MOST_SKIPPED = 10  # steps in a row: then it is not the step that is wrong


class Guard:
    """Judges step after step. ``spike_factor`` times the median of recent losses is a spike; 0:
    none ever is."""

    def __init__(self, *, spike_factor: float) -> None:
        self._factor = spike_factor
        self._losses: deque[float] = deque(maxlen=REMEMBERED)

    def recall(self, losses: Iterable[float]) -> None:
        """The losses of the newest steps, oldest first; NaN for one that was skipped."""
        self._losses.clear()
        self._losses.extend(losses)

    def fault(self, *, loss: float, grad_norm: float) -> str:
        """What is wrong with a step, in words that follow "its"; "" when nothing is."""
        if not math.isfinite(loss):
            return "loss is not finite"
        if not math.isfinite(grad_norm):
            return "gradient norm is not finite"
        known = [value for value in self._losses if not math.isnan(value)]
        if self._factor <= 0 or len(known) < _LEAST:
            return ""
        usual = median(known)
        if loss > self._factor * usual:
            return f"loss {loss:.4g} is {loss / usual:.2f} times the usual {usual:.4g}"
        return ""

    def applied(self, loss: float) -> None:
        """The step was taken."""
        self._losses.append(loss)

    def may_skip(self) -> bool:
        """Whether another step may be left out; if so, it counts as left out from now on."""
        newest = list(self._losses)[-MOST_SKIPPED:]
        if len(newest) == MOST_SKIPPED and all(map(math.isnan, newest)):
            return False
        self._losses.append(math.nan)
        return True
