"""The order of work inside one pipeline stage: 1F1B, and forward-only for evaluation. No torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Forward:
    """Run the stage forward on one of the replica's microbatches."""

    microbatch: int


@dataclass(frozen=True, slots=True)
class Backward:
    """Run the stage backward on one of the replica's microbatches."""

    microbatch: int


Operation = Forward | Backward


def one_forward_one_backward(
    *, stage: int, num_stages: int, num_microbatches: int
) -> tuple[Operation, ...]:
    """The non-interleaved 1F1B order (Narayanan et al. 2019, PipeDream-flush).

    A stage warms up with as many forwards as there are stages behind it, then alternates, then
    drains. At most ``num_stages - stage`` microbatches are in flight.
    """
    if not 0 <= stage < num_stages or num_microbatches < 1:
        raise ValueError(f"stage {stage} of {num_stages}, {num_microbatches} microbatches")
    warm_up = min(num_stages - stage - 1, num_microbatches)
    order: list[Operation] = [Forward(m) for m in range(warm_up)]
    for m in range(warm_up, num_microbatches):
        order += [Forward(m), Backward(m - warm_up)]
    order += [Backward(m) for m in range(num_microbatches - warm_up, num_microbatches)]
    return tuple(order)


def in_flight(*, stage: int, num_stages: int, num_microbatches: int) -> int:
    """Most microbatches whose activations a stage holds at once under 1F1B."""
    return min(num_stages - stage, num_microbatches)


def forward_only(num_microbatches: int) -> tuple[Forward, ...]:
    """Evaluation: forwards in order."""
    return tuple(Forward(m) for m in range(num_microbatches))
