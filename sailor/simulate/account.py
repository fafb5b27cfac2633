"""Where simulated time goes: every second has one cause, and the parts add up to the wall time.

The causes are those of ``sailor/observe/goodput.py``, so that a simulated run and a real one are
read alike; policies of other systems add ``restart``, ``checkpoint``, ``redundancy`` and ``idle``.
Steps are booked in rows, not one by one: a week of them costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import fsum

GOOD = "good"


@dataclass(slots=True)
class _Row:
    """``count`` equal steps that followed each other."""

    count: int
    good_seconds: float  # each
    samples: float  # each


@dataclass(slots=True)
class Account:
    """Books time from 0 on, without gaps and without overlap."""

    cursor: float = 0.0  # everything before it has a cause
    seconds: dict[str, float] = field(default_factory=dict)
    redone_steps: int = 0
    _rows: list[_Row] = field(default_factory=list)
    _kept_steps: int = 0

    def book(self, until: float, cause: str) -> None:
        """Everything up to ``until`` that has no cause yet has this one."""
        if until > self.cursor:
            self.add(cause, until - self.cursor)
            self.cursor = until

    def add(self, cause: str, seconds: float) -> None:
        """Seconds of a cause whose place in time does not matter; the caller moves the cursor."""
        self.seconds[cause] = self.seconds.get(cause, 0.0) + seconds

    def steps(
        self,
        count: int,
        *,
        good_seconds: float,
        samples: float,
        others: Mapping[str, float] | None = None,
    ) -> None:
        """``count`` equal steps from the cursor on, each ``good_seconds`` of work and ``others``.

        Moves the cursor by ``count`` times the sum of both.
        """
        if count <= 0:
            return
        self.add(GOOD, count * good_seconds)
        whole = good_seconds
        for cause, seconds in (others or {}).items():
            if seconds:
                self.add(cause, count * seconds)
                whole += seconds
        self.cursor += count * whole
        self._kept_steps += count
        last = self._rows[-1] if self._rows else None
        if last is not None and (last.good_seconds, last.samples) == (good_seconds, samples):
            last.count += count
        else:
            self._rows.append(_Row(count, good_seconds, samples))

    def undo(self, count: int) -> None:
        """The newest ``count`` steps are set back: their time was spent on what is done again."""
        left = min(count, self._kept_steps)
        self._kept_steps -= left
        self.redone_steps += left
        while left:
            row = self._rows[-1]
            taken = min(left, row.count)
            self.add(GOOD, -taken * row.good_seconds)
            self.add("redone", taken * row.good_seconds)
            row.count -= taken
            left -= taken
            if not row.count:
                self._rows.pop()

    @property
    def kept_steps(self) -> int:
        """Steps that count."""
        return self._kept_steps

    @property
    def samples(self) -> float:
        """Samples of the steps that count."""
        return fsum(row.count * row.samples for row in self._rows)

    def parts(self) -> dict[str, float]:
        """Seconds by cause, largest first; what cancelled out to nothing is left out."""
        kept = {cause: s for cause, s in self.seconds.items() if s > 1e-9}
        return dict(sorted(kept.items(), key=lambda entry: (-entry[1], entry[0])))
