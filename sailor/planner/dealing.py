"""From how many replicas to which stands where: zones for stages, exact shares of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sailor.plan import Replica
from sailor.planner.costs import Template


@dataclass(frozen=True, slots=True)
class Dealt:
    """Equal replicas of a template that stand in the same zones, stage by stage."""

    template: Template
    zones: tuple[str, ...]
    count: int


def deal(crews: Sequence[tuple[Template, int]], places: Sequence[Mapping[str, int]]) -> list[Dealt]:
    """Zones for the crews' stages: whole replicas into one zone as long as one has room, the
    rest stage by stage. Counts only: thousands of replicas take no longer than one.

    Raises ValueError when the grounds are too small.
    """
    left = [dict(zones) for zones in places]
    dealt: list[Dealt] = []
    for template, count in crews:
        used = [(site, gpus) for site, gpus in enumerate(template.usage) if gpus]
        remaining = count
        for zone in dict.fromkeys(z for site, _ in used for z in left[site]):
            fits = min(left[site].get(zone, 0) // gpus for site, gpus in used)
            taken = min(fits, remaining)
            if taken > 0:
                for site, gpus in used:
                    left[site][zone] -= taken * gpus
                dealt.append(Dealt(template, (zone,) * len(template.row), taken))
                remaining -= taken
        for _ in range(remaining):
            zones = []
            for way in template.row:
                zone = _roomy(left[way.site], way.tensor_parallel)
                left[way.site][zone] -= way.tensor_parallel
                zones.append(zone)
            dealt.append(Dealt(template, tuple(zones), 1))
    return dealt


def edges_of(counts: Sequence[int]) -> Iterator[int]:
    """Where stages begin, in blocks, and the end."""
    edge = 0
    yield edge
    for count in counts:
        edge += count
        yield edge


def _roomy(zones: Mapping[str, int], gpus: int) -> str:
    for zone, left in zones.items():
        if left >= gpus:
            return zone
    raise ValueError(f"no zone has {gpus} GPUs left")


def exact_batch(replicas: Sequence[Replica], global_batch_size: int) -> list[Replica]:
    """Takes single microbatches away, the largest first, until the batch is exact.

    Raises ValueError when the sizes cannot make it exact.
    """
    kept = list(replicas)
    excess = sum(replica.num_samples for replica in kept) - global_batch_size
    sizes = sorted({replica.microbatch_size for replica in kept}, reverse=True)
    of = {size: [i for i, r in enumerate(kept) if r.microbatch_size == size] for size in sizes}
    spare = [sum(kept[i].num_microbatches - 1 for i in of[size]) for size in sizes]
    taken = taken_away(sizes, spare, excess)
    if taken is None:
        raise ValueError(f"shares miss the global batch by {excess} samples")
    for size, number in zip(sizes, taken, strict=True):
        left = number
        while left > 0:  # from one replica after another, the last ones first
            for i in reversed(of[size]):
                if left and kept[i].num_microbatches > 1:
                    kept[i] = replace(kept[i], num_microbatches=kept[i].num_microbatches - 1)
                    left -= 1
    return kept


def taken_away(
    sizes: Sequence[int], spare: Sequence[int], excess: int
) -> tuple[int, ...] | None:  # fmt: skip
    """How many microbatches of each size come to exactly so many samples, no more of any than there
    are to spare: as many large ones as there can be. None where nothing does."""
    order = sorted(range(len(sizes)), key=lambda k: -sizes[k])
    taken = [0] * len(sizes)
    left = excess
    for k in order:
        taken[k] = max(0, min(spare[k], left // sizes[k]))
        left -= taken[k] * sizes[k]
    if left == 0:
        return tuple(taken)
    if left < 0 or len(set(sizes)) < 2:
        return None
    # Bit n of a number is set where the smaller sizes can come to n.
    sums = [1]
    for k in reversed(order):
        reached = sums[-1]
        number, chunk = spare[k], 1
        while number > 0:
            now = min(chunk, number)
            reached |= reached << (now * sizes[k])
            number, chunk = number - now, chunk * 2
        sums.append(reached & ((1 << (excess + 1)) - 1))
    if not sums[-1] >> excess & 1:
        return None
    left = excess
    for place, k in enumerate(order):
        below = sums[len(order) - 1 - place]
        number = min(spare[k], left // sizes[k])
        while not below >> (left - number * sizes[k]) & 1:
            number -= 1
        taken[k] = number
        left -= number * sizes[k]
    return tuple(taken)
