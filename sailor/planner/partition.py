"""Cuts a row of blocks into stages, unevenly, at the least time that memory allows. Exact.

Blocks are identical, so a stage is a count. Stage i takes ``per_block[i]`` seconds for each of its
blocks and ``extra[i]`` besides (embedding, head, sending). The time of a step is
``sum + (N - 1) * max``, so one searches the bound on the slowest stage, of which only
``num_stages * num_blocks`` values matter, and fills the cheapest stages first under that bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, inf


def cut_evenly(num_blocks: int, num_stages: int) -> tuple[int, ...]:
    """Counts that differ by one at most, the larger ones last (early stages keep more in flight).

    Raises ValueError when a stage would be empty.
    """
    if num_stages > num_blocks:
        raise ValueError(f"{num_blocks} blocks cannot fill {num_stages} stages")
    quotient, remainder = divmod(num_blocks, num_stages)
    return tuple(quotient + (stage >= num_stages - remainder) for stage in range(num_stages))


def best_cut(
    num_blocks: int,
    *,
    per_block: Sequence[float],
    extra: Sequence[float],
    most: Sequence[int],
    num_microbatches: int,
) -> tuple[int, ...] | None:
    """The counts of least ``sum + (N - 1) * max``; None when memory (``most``) leaves no cut.

    Every stage gets one block at least. Deterministic: ties go to the lower bound, then to later
    stages.
    """
    num_stages = len(per_block)
    if num_stages > num_blocks or min(most) < 1 or sum(most) < num_blocks:
        return None
    largest: dict[tuple[float, float], int] = {}
    for each, other, room in zip(per_block, extra, most, strict=True):
        largest[each, other] = max(largest.get((each, other), 0), room)
    bounds = sorted(
        {
            count * each + other
            for (each, other), room in largest.items()
            for count in range(1, min(room, num_blocks - num_stages + 1) + 1)
        }
    )
    uniform = max(per_block) - min(per_block) <= 1e-15
    low = _lowest_feasible(bounds, num_blocks, per_block, extra, most)
    if low is None:
        return None
    best: tuple[int, ...] | None = None
    best_seconds = inf
    floor_sum = sum(extra) + num_blocks * min(per_block)
    for bound in bounds[low:]:
        if floor_sum + (num_microbatches - 1) * bound >= best_seconds:
            break
        counts = _fill(num_blocks, bound, per_block, extra, most)
        assert counts is not None
        busy = [c * p + e for c, p, e in zip(counts, per_block, extra, strict=True)]
        seconds = sum(busy) + (num_microbatches - 1) * max(busy)
        if seconds < best_seconds * (1 - 1e-12):
            best, best_seconds = counts, seconds
        if uniform:
            break  # the sum is the same for every cut: the lowest bound wins
    return best


def _lowest_feasible(
    bounds: Sequence[float],
    num_blocks: int,
    per_block: Sequence[float],
    extra: Sequence[float],
    most: Sequence[int],
) -> int | None:
    """Index of the least bound that admits a cut; feasibility is monotone in the bound."""
    low, high = 0, len(bounds)
    while low < high:
        middle = (low + high) // 2
        if sum(_room(bounds[middle], per_block, extra, most)) < num_blocks:
            low = middle + 1
        else:
            high = middle
    return low if low < len(bounds) else None


def _room(
    bound: float, per_block: Sequence[float], extra: Sequence[float], most: Sequence[int]
) -> list[int]:
    """Blocks each stage can take and stay within the bound; empty when one cannot take any."""
    room = []
    for fits, seconds, other in zip(most, per_block, extra, strict=True):
        if seconds > 0:
            # A bound that was made from a count must admit that count.
            fits = min(fits, floor((bound - other) / seconds * (1 + 1e-12) + 1e-9))
        if fits < 1:
            return []
        room.append(fits)
    return room


def _fill(
    num_blocks: int,
    bound: float,
    per_block: Sequence[float],
    extra: Sequence[float],
    most: Sequence[int],
) -> tuple[int, ...] | None:
    """The cheapest counts with every stage busy for at most ``bound``, or None."""
    room = _room(bound, per_block, extra, most)
    if sum(room) < num_blocks:
        return None
    counts = [1] * len(room)
    left = num_blocks - len(room)
    # Cheapest stages first; among equals the later ones, which keep fewer microbatches in flight.
    for seconds in sorted(set(per_block)):
        stages = [stage for stage in range(len(room)) if per_block[stage] == seconds]
        left = _spread(counts, room, stages, left)
    return tuple(counts)


def _spread(counts: list[int], room: Sequence[int], stages: Sequence[int], left: int) -> int:
    """Give blocks to equal stages as evenly as their room allows; returns what is left."""
    while left > 0:
        open_stages = [stage for stage in stages if counts[stage] < room[stage]]
        if not open_stages:
            return left
        least = min(counts[stage] for stage in open_stages)
        lowest = [stage for stage in open_stages if counts[stage] == least]
        for stage in reversed(lowest):
            if left == 0:
                break
            counts[stage] += 1
            left -= 1
    return 0
