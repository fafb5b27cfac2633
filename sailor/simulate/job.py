"""What a simulated run trains, and what became of it: values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What is trained, as far as time depends on it. Bytes are of the whole state.

    ``copies``: every machine's snapshot is also kept by so many others (0: only parts that live on
    one machine are, as the runtime does). ``total_steps`` None: the fleet's time is the end.
    """

    samples_per_step: float
    state_bytes: float
    total_steps: int | None = None
    snapshot_every: int = 1
    persist_every: int = 100
    copies: int = 0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of the simulated run. ``seconds`` by cause add up to ``wall_s``."""

    wall_s: float
    seconds: Mapping[str, float]
    steps: int
    samples: float
    redone_steps: int
    generations: int
    pauses: tuple[Mapping[str, Any], ...]
    end: str
    timeline: tuple[tuple[float, int], ...]  # (t, machines in the layout) at each change

    @property
    def goodput(self) -> float:
        """Share of the wall time spent on steps that were kept."""
        return self.seconds.get("good", 0.0) / self.wall_s if self.wall_s else 0.0

    @property
    def samples_per_second(self) -> float:
        """Kept samples over the wall time."""
        return self.samples / self.wall_s if self.wall_s else 0.0
