"""How long a run will still take, as it has gone so far: a middle guess and a cautious one.

From one kept step to the next passes what the step took and whatever came in between. Most such
gaps are steps; a few, longer than three times the median, have an interruption in them: a pause, a
wait for machines, work that was set back. Both go on as they were seen in k gaps, n being left:

    steps           n m, variance v n (1 + n / k), of mean m and variance v known from k of them
    interruptions   a Poisson number of exponential lengths of mean L; with c seen and one more
                    assumed, as long as the longest: N = n (c + 1) / k of them are expected, and the
                    variance of their sum is N (1 + n / k) L² + N L² + (N L)² / (c + 1)

    P50 = the sum of both means, without the one assumed
    P90 = n m + N L + 1.2816 times the root of both variances

With five interruptions seen, nine in ten runs do keep P90 (tests/observe/test_outlook.py); of what
has not happened yet it knows nothing: that is the plan's business. The newest gaps count, for
layouts change. Time between two starts of a run is no gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median, pvariance

from sailor.observe.history import RunHistory

_NEWEST = 500  # gaps
_LEAST = 3
_LONG = 3.0  # times the median, and a gap is an interruption
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
    gaps = _gaps(history, newest=newest)
    if total <= newest or len(gaps) < _LEAST:
        return None
    return _ahead(gaps, left=total - newest)


def _ahead(gaps: Sequence[float], *, left: int) -> Outlook:
    seen, usual = len(gaps), median(gaps)
    steady = [gap for gap in gaps if gap <= _LONG * usual]
    extra = [gap - usual for gap in gaps if gap > _LONG * usual]
    mean = fmean(steady)
    unknown = 1.0 + left / seen
    variance = pvariance(steady, mean) * left * unknown
    if not extra:
        p50 = left * mean
        return Outlook(p50_s=p50, p90_s=p50 + _Z90 * sqrt(variance))
    count = len(extra) + 1
    length = (sum(extra) + max(extra)) / count
    expected = left * count / seen
    variance += expected * length**2 * (unknown + 1.0) + (expected * length) ** 2 / count
    return Outlook(
        p50_s=left * (mean + sum(extra) / seen),
        p90_s=left * mean + expected * length + _Z90 * sqrt(variance),
    )


def _gaps(history: RunHistory, *, newest: int) -> list[float]:
    began = history.starts[-1].t if history.starts else 0.0
    gaps = []
    for step in range(newest, max(0, newest - _NEWEST), -1):
        point, before = history.kept.get(step), history.kept.get(step - 1)
        if point is None or before is None or before.t < began:
            break
        gaps.append(max(0.0, point.t - before.t))
    return gaps
