"""Time as an argument: the same code runs on the wall clock and on a hand-moved one."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds from an arbitrary start. Never compared between machines."""

    def now(self) -> float: ...


class WallClock:
    """The computer's own monotonic clock."""

    def now(self) -> float:
        return time.monotonic()


class HandClock:
    """A clock that moves only when told to: for tests and simulation."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("a monotonic clock does not go back")
        self._now += seconds
