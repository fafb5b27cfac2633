"""What if: chances by budget and deadline, and how a choice fares when the world is dearer or
rougher than believed. Curves as plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sailor.planner.futures import Futures, Stand
from sailor.planner.risk import Choice, Guard, Speed, judge

SHARES = tuple(round(0.05 * i, 2) for i in range(1, 20))


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One point of a sweep: P50 and P90 of dollars and hours at a factor."""

    factor: float
    dollars: tuple[float, float]
    hours: tuple[float, float]


def chances(futures: Futures) -> dict[str, list[tuple[float, float]]]:
    """(limit, chance to finish within it) for budgets in dollars and deadlines in hours."""
    finished = np.isfinite(futures.finish_hours)
    return {
        "dollars": _curve(np.where(finished, futures.finish_dollars, np.inf)),
        "hours": _curve(futures.finish_hours),
    }


def _curve(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[tuple[float, float]]:
    finite = np.sort(values[np.isfinite(values)])
    if not len(finite):
        return []
    points = []
    for share in SHARES:
        index = min(len(finite) - 1, int(share * len(values)))
        if share * len(values) <= len(finite):
            points.append((float(finite[index]), float(np.mean(values <= finite[index]))))
    return points


def sweep_hazard(
    choice: Choice, guard: Guard, speed: Speed, *, factors: Sequence[float], number: int, seed: int
) -> list[Point]:
    """Losses that come so many times as often."""

    def rougher(stand: Stand, factor: float) -> Stand:
        return replace(stand, hazard=replace(stand.hazard, rate=stand.hazard.rate / factor))

    return _sweep(choice, guard, speed, rougher, factors=factors, number=number, seed=seed)


def sweep_price(
    choice: Choice, guard: Guard, speed: Speed, *, factors: Sequence[float], number: int, seed: int
) -> list[Point]:
    """Spot machines that cost so many times their price."""

    def dearer(stand: Stand, factor: float) -> Stand:
        spot = bool(stand.hazard.shape)
        return replace(stand, price_per_hour=stand.price_per_hour * (factor if spot else 1.0))

    return _sweep(choice, guard, speed, dearer, factors=factors, number=number, seed=seed)


def _sweep(
    choice: Choice, guard: Guard, speed: Speed, change: Callable[[Stand, float], Stand], *,
    factors: Sequence[float], number: int, seed: int,
) -> list[Point]:  # fmt: skip
    points = []
    for factor in factors:
        stands = tuple(change(stand, factor) for stand in choice.stands)
        (judged,) = judge([replace(choice, stands=stands)], guard, speed, number=number, seed=seed)
        points.append(Point(factor=factor, dollars=judged.dollars, hours=judged.hours))
    return points
