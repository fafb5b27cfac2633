"""What a profile answers: how long one part of a model takes on one GPU. No torch.

A profile belongs to one (model, sequence length, numerics). The analytic one answers for any GPU,
a measured one for the GPUs it was measured on. Everything that estimates asks through this seam.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from sailor.cluster.gpu import GpuType


class Mark(Enum):
    """Where a number comes from. Printed beside every number."""

    measured = "measured"
    calibrated = "calibrated"
    modelled = "modelled"


class Part(Enum):
    """A pipeline stage is an embedding at most, some blocks, a head at most."""

    embedding = "embedding"
    block = "block"
    head = "head"


@dataclass(frozen=True, kw_only=True, slots=True)
class Numerics:
    """What the engine computes and keeps.

    Weights, gradients and both Adam moments are fp32. ``compute_bytes`` is the width of matrix
    products and activations (2: bf16 or fp16, with a 16-bit copy of the weights; 4: fp32).
    ``deterministic`` adds an fp64 accumulator per weight, which makes sums independent of order.
    """

    compute_bytes: int = 2
    deterministic: bool = False

    def __post_init__(self) -> None:
        if self.compute_bytes not in (2, 4):
            raise ValueError(f"compute_bytes must be 2 or 4, got {self.compute_bytes}")


@dataclass(frozen=True, kw_only=True, slots=True)
class PartSeconds:
    """One microbatch through one part on one tensor-parallel rank, in seconds.

    ``communication`` is what tensor parallelism spends, forward and backward together; it is not
    contained in ``forward`` and ``backward``.
    """

    forward: float
    backward: float
    communication: float = 0.0

    @property
    def total(self) -> float:
        """Forward, backward and communication."""
        return self.forward + self.backward + self.communication


class Profile(Protocol):
    """Times of one model's parts. ``relative_error`` is the half width of the error bar."""

    @property
    def mark(self) -> Mark: ...

    @property
    def relative_error(self) -> float: ...

    def __hash__(self) -> int:
        """Profiles are values: searches remember what they were told."""
        ...

    def part_seconds(
        self, part: Part, *, gpu: GpuType, tensor_parallel: int, microbatch_size: int
    ) -> PartSeconds:
        """Seconds of one microbatch. Raises KeyError when a measured profile lacks the cell."""
        ...

    def update_seconds(self, *, gpu: GpuType, num_parameters: float) -> float:
        """Seconds of the optimizer step over the parameters of one GPU."""
        ...

    def host_seconds(self, *, gpu: GpuType) -> float:
        """Seconds per step that no device work hides: data, logging, Python."""
        ...
