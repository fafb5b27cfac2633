"""What nodes have to say of one switch, for its line in the log: bytes moved, processor time. Pure.

How long a switch takes depends on how many processes share a processor; what each of them spends
on it does not, and tells whether a switch costs more in a larger world.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sailor.runtime.messages import Switched


@dataclass(kw_only=True, slots=True)
class SwitchTally:
    """Of the newest change. Processor seconds are the controller's own where not said otherwise."""

    generation: int = 0
    bytes_moved: int = 0
    stayer_cpu_s: float = 0.0  # of the node that spent most, of those that trained before
    newcomer_cpu_s: float = 0.0  # and of the others
    controller_cpu_s: float = 0.0
    _began_cpu_s: float | None = None

    def halted(self, *, cpu_s: float) -> None:
        """A node stands still, the first one or another; ``cpu_s`` is spent so far."""
        if self._began_cpu_s is None:
            self._began_cpu_s = cpu_s

    def switched(self, told: Switched, *, stayed: bool) -> None:
        """A node has its boxes."""
        if told.generation != self.generation:
            self.generation, self.bytes_moved = told.generation, 0
            self.stayer_cpu_s = self.newcomer_cpu_s = 0.0
        self.bytes_moved += told.bytes_moved
        if stayed:
            self.stayer_cpu_s = max(self.stayer_cpu_s, told.cpu_s)
        else:
            self.newcomer_cpu_s = max(self.newcomer_cpu_s, told.cpu_s)

    def gone(self, *, cpu_s: float) -> None:
        """All were told to go."""
        self.controller_cpu_s = 0.0 if self._began_cpu_s is None else cpu_s - self._began_cpu_s
        self._began_cpu_s = None

    def fields(self, generation: int) -> dict[str, Any]:
        """For the pause of that generation: of another one, nothing is known."""
        if generation != self.generation:
            return {"bytes_moved": 0}
        return {
            "bytes_moved": self.bytes_moved,
            "stayer_cpu_s": self.stayer_cpu_s,
            "newcomer_cpu_s": self.newcomer_cpu_s,
            "controller_cpu_s": self.controller_cpu_s,
        }
