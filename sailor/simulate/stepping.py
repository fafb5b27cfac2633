"""One generation that steps, undisturbed, as arithmetic on the clock: which step when. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from sailor.simulate.formation import Formation

EPSILON = 1e-6  # seconds; a step that ends this close after an event has ended


@dataclass(kw_only=True, slots=True)
class Stepping:
    """The generation that steps. ``base`` steps were done when it began at ``began``."""

    generation: int
    formation: Formation
    base: int
    began: float
    lead_s: float  # before the first step begins
    extra_s: float  # the first step's own surplus
    step_s: float  # work
    rest_s: float  # what follows each step: waits for snapshots and between steps

    def steps_by(self, t: float) -> int:
        """Whole steps since it began."""
        left = t - self.began - self.lead_s - self.extra_s + EPSILON
        return max(0, int(left // (self.step_s + self.rest_s))) if left > 0 else 0

    def end_of(self, count: int) -> float:
        """When that many steps are done."""
        return self.began + self.lead_s + self.extra_s + count * (self.step_s + self.rest_s)
