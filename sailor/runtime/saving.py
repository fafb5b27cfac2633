"""A wish for a durable checkpoint now, from when somebody asks until there is one. Pure.

Ranks snapshot together or not at all, and a wish must not part them: what becomes durable is the
next snapshot that is due anyway. Every agent is told which is the first step that counts, far
enough ahead that all have heard by then; who has heard too late is told again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

HEARD_S = 0.5  # in which every agent has heard, as a rule
AGAIN_S = 20.0  # after that long without one, agents are told again


@dataclass(kw_only=True, slots=True)
class Saving:
    """One controller's. ``asked_at_step`` None: nobody has asked."""

    asked_at_step: int | None = None
    first: int = 0  # the first step whose snapshot counts
    told_generation: int = 0
    told_at: float = 0.0

    def ask(self, *, step: int, step_seconds: float) -> None:
        """Somebody wants what has been done by ``step``, or more, to be durable."""
        if self.asked_at_step is not None:
            return  # the wish before is under way and will do
        self.asked_at_step = step
        self.first = step + 1 + math.ceil(HEARD_S / max(step_seconds, 1e-3))
        self.told_generation = 0

    def due(self, *, at: float, generation: int, durable_step: int) -> int | None:
        """The first step that counts, if the agents of ``generation`` are to be told now."""
        if self.asked_at_step is None:
            return None
        if durable_step >= self.asked_at_step:
            self.asked_at_step = None
            return None
        if generation == self.told_generation and at - self.told_at < AGAIN_S:
            return None
        self.told_generation, self.told_at = generation, at
        return self.first
