"""How many steps lie between two in-memory snapshots: from what one costs and what a loss costs.

Only a loss that takes every copy of a box makes steps be done again; the rate of all losses is an
upper bound for it, so the interval errs on the short side. Pure, no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

MOST_STEPS = 1000


def steps_between(*, stall_s: float, step_s: float, losses_per_s: float) -> int:
    """Steps from one snapshot to the next that lose the least time, at least 1.

    Per second of training, snapshots every k steps of ``step_s`` cost stall / (k step) and losses
    half an interval each, rate k step / 2; the sum is least at k step = sqrt(2 stall / rate)
    (Young 1974, first order; CACM 17(9)). A cost that has not been measured yet (``stall_s`` or
    ``step_s`` of 0) or a rate of 0 gives no reason to wait: 1 and MOST_STEPS.
    """
    if stall_s <= 0 or step_s <= 0:
        return 1
    if losses_per_s <= 0:
        return MOST_STEPS
    best = math.sqrt(2 * stall_s / losses_per_s) / step_s
    return max(1, min(MOST_STEPS, round(best)))


@dataclass(frozen=True, kw_only=True, slots=True)
class LossRate:
    """Belief about machines lost per machine-second: a Gamma of this shape and rate.

    It is sharpened by what is seen: a loss adds 1 to the shape, time of machines to the rate
    (conjugate: BDA3, section 2.6).
    """

    losses: float
    machine_s: float

    @property
    def per_machine_s(self) -> float:
        """The mean of the belief."""
        return self.losses / self.machine_s

    def lost(self) -> LossRate:
        """One more machine was lost without notice."""
        return replace(self, losses=self.losses + 1)

    def watched(self, machine_s: float) -> LossRate:
        """So many machine-seconds more have passed."""
        return replace(self, machine_s=self.machine_s + machine_s)
