"""How long a run will still take, as it has gone so far: a middle guess and a cautious one.

From one kept step to the next passes what the step took and whatever came in between: pauses,
waits for machines, work that was set back. These gaps are taken for draws from one unknown
distribution. Then n of them add up to n m, with the variance n s² of the sum and n² s² / k for m
being known from k gaps only; the sum of many is close to normal:

    P50 = n m        P90 = n m + 1.2816 s sqrt(n (1 + n / k))

The newest gaps count, for layouts change. Time between two starts of a run is no gap.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from statistics import fmean, pvariance

from sailor.observe.history import RunHistory

_NEWEST = 500  # gaps
_LEAST = 3
_Z90 = 1.2816


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """Seconds until the last step: as likely more as less, and with one chance in ten more."""

    p50_s: float
    p90_s: float


def outlook(history: RunHistory) -> Outlook | None:
    """What the rest will take; None while too little is known, or nothing is left."""
    total = int(history.start("total_steps", 0) or 0)
    newest = max(history.kept, default=0)
    left = total - newest
    gaps = _gaps(history, newest=newest)
    if left <= 0 or len(gaps) < _LEAST:
        return None
    mean = fmean(gaps)
    spread = sqrt(pvariance(gaps, mean) * left * (1.0 + left / len(gaps)))
    return Outlook(p50_s=left * mean, p90_s=left * mean + _Z90 * spread)


def _gaps(history: RunHistory, *, newest: int) -> list[float]:
    began = history.starts[-1].t if history.starts else 0.0
    gaps = []
    for step in range(newest, max(0, newest - _NEWEST), -1):
        point, before = history.kept.get(step), history.kept.get(step - 1)
        if point is None or before is None or before.t < began:
            break
        gaps.append(max(0.0, point.t - before.t))
    return gaps
