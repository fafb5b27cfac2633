"""What a GPU, or this computer's CPU posing as one, can do. Facts only; each carries its source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuType:
    """One accelerator model. Peaks are dense (no sparsity), with fp32 accumulation.

    ``link_bytes_per_second`` is one direction between two GPUs of the same machine.
    """

    name: str
    memory_bytes: int
    peak_flops: float  # bf16 where it has it, else fp16 tensor cores
    peak_flops_fp32: float
    memory_bytes_per_second: float
    link_bytes_per_second: float
    has_bf16: bool
    source: str
