"""When each stage of a pipeline works on what: the 1F1B order on a clock. For pictures and tests.

The evaluator uses the closed form (timing.py); this plays the same order event by event, so that a
reader sees where the bubble is, and a test sees that both agree on equal stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sailor.parallel.schedule import Forward, Operation, one_forward_one_backward


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """One stage busy with one microbatch."""

    stage: int
    microbatch: int
    forward: bool
    begin: float
    end: float


def timeline(
    *, forward: Sequence[float], backward: Sequence[float], num_microbatches: int
) -> tuple[Slot, ...]:
    """Every slot of one step, in the order they begin. Seconds from the step's start.

    ``forward`` and ``backward`` are seconds per microbatch, one entry for each stage, sending
    included.
    """
    num_stages = len(forward)
    orders = [
        list(
            one_forward_one_backward(
                stage=stage, num_stages=num_stages, num_microbatches=num_microbatches
            )
        )
        for stage in range(num_stages)
    ]
    done: dict[tuple[int, int, bool], float] = {}
    free = [0.0] * num_stages
    at = [0] * num_stages
    slots: list[Slot] = []
    moved = True
    while moved:
        moved = False
        for stage in range(num_stages):
            while at[stage] < len(orders[stage]):
                operation = orders[stage][at[stage]]
                ready = _ready(operation, stage, num_stages, done)
                if ready is None:
                    break
                is_forward = isinstance(operation, Forward)
                begin = max(ready, free[stage])
                end = begin + (forward[stage] if is_forward else backward[stage])
                done[stage, operation.microbatch, is_forward] = end
                free[stage] = end
                slots.append(
                    Slot(
                        stage=stage, microbatch=operation.microbatch, forward=is_forward,
                        begin=begin, end=end,
                    )
                )  # fmt: skip
                at[stage] += 1
                moved = True
    assert all(at[s] == len(orders[s]) for s in range(num_stages)), "1F1B does not wait on itself"
    return tuple(sorted(slots, key=lambda slot: (slot.begin, slot.stage)))


def _ready(
    operation: Operation, stage: int, num_stages: int, done: dict[tuple[int, int, bool], float]
) -> float | None:
    """When the input is there; None when it is not made yet."""
    if isinstance(operation, Forward):
        return 0.0 if stage == 0 else done.get((stage - 1, operation.microbatch, True))
    if stage == num_stages - 1:
        return done.get((stage, operation.microbatch, True))
    return done.get((stage + 1, operation.microbatch, False))
