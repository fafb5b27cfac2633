"""A profile of any model on any GPU, from data sheets and class priors. No GPU needed, no torch.

GPUs: the formulas and fitted numbers of sustained.py. CPUs: per operation the larger of arithmetic
and memory traffic at the rates local.py measures, plus what launching costs. A measured step time
scales either (``scale``), and the result is then marked calibrated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from sailor.cluster.gpu import GpuType
from sailor.models.spec import Activation, ModelSpec, Positions
from sailor.profile import sustained
from sailor.profile.profile import Mark, Numerics, Part, PartSeconds

# A CPU under eager torch on x86: shares of the best matrix product and of the memory bandwidth that
# sailor/measure/core.py measures.
_CPU_MATMUL, _CPU_ATTENTION, _CPU_BANDWIDTH = 0.75, 0.30, 0.6
_LAUNCH_SECONDS = 12e-6

# Forward operations of a block in eager torch, counted in sailor/models: launches, not work.
_LAUNCHES = {Part.embedding: 3, Part.block: 22, Part.head: 8}
_BACKWARD_LAUNCHES = 2.0
# Flash attention's backward does 2.5 times the arithmetic at 0.75-0.8 of the rate.
_ATTENTION_BACKWARD = 2.5 / 0.78
# Exchange between processes of one computer: start, and share of the copy rate.
_RING_SECONDS_PER_MEMBER = 10e-6
_RING_SHARE = 0.85
# Fused AdamW reads weight, gradient, two moments and writes three of them; the norm reads the
# gradient once more, and clearing it writes it once.
_UPDATE_BYTES_PER_PARAMETER = 36
# Exact sums, once a microbatch: read the gradient in fp32, scale and round it in fp64, and read and
# write the fp64 accumulator.
_EXACT_SUM_BYTES_PER_PARAMETER = 4 + 2 * 16 + 24


@dataclass(frozen=True, kw_only=True)
class AnalyticProfile:
    """Times from arithmetic. ``scale`` multiplies all of them: one calibration run divides out.

    ``relative_error``: published runs of sources that the numbers were not fitted to are off by
    15 % in the mean (benchmarks/accuracy.py), four of five by less than a quarter.
    """

    spec: ModelSpec
    sequence_length: int
    numerics: Numerics = Numerics()
    scale: float = 1.0
    relative_error: float = 0.25

    @property
    def mark(self) -> Mark:
        """Modelled until a measured run has set the scale."""
        return Mark.modelled if self.scale == 1.0 else Mark.calibrated

    def part_seconds(
        self, part: Part, *, gpu: GpuType, tensor_parallel: int, microbatch_size: int
    ) -> PartSeconds:
        """Roofline times of one part. Cached: a search asks the same thing many times."""
        return _part_seconds(self, part, gpu, tensor_parallel, microbatch_size)

    def update_seconds(self, *, gpu: GpuType, num_parameters: float) -> float:
        """Memory-bound: every state is read and written once."""
        if gpu.has_context:
            return self.scale * sustained.update_seconds(gpu, num_parameters=num_parameters)
        rate = gpu.memory_bytes_per_second * _CPU_BANDWIDTH
        return self.scale * num_parameters * _UPDATE_BYTES_PER_PARAMETER / rate

    def host_seconds(self, *, gpu: GpuType) -> float:
        """Batch assembly, scalars read back, logging: a few milliseconds of Python."""
        return sustained.host_seconds() if gpu.has_context else 2e-3


@dataclass(frozen=True, slots=True)
class _Work:
    """One operation: arithmetic of which kind, and bytes moved, forward."""

    matmul_flops: float = 0.0
    attention_flops: float = 0.0
    num_bytes: float = 0.0


@lru_cache(maxsize=65536)
def _part_seconds(
    profile: AnalyticProfile, part: Part, gpu: GpuType, tensor_parallel: int, microbatch_size: int
) -> PartSeconds:
    spec, numerics = profile.spec, profile.numerics
    tokens = microbatch_size * profile.sequence_length
    if gpu.has_context:
        seconds = sustained.part_seconds(
            spec, part, gpu=gpu, tensor_parallel=tensor_parallel, tokens=tokens,
            sequence_length=profile.sequence_length, numerics=numerics,
        )  # fmt: skip
        rate = sustained.memory_rate(gpu)
    else:
        seconds = _cpu_seconds(profile, part, gpu, tokens, tensor_parallel)
        rate = gpu.memory_bytes_per_second * _CPU_BANDWIDTH
    backward = seconds.backward
    if numerics.deterministic:
        backward += _exact_sum_bytes(spec, part, tensor_parallel) / rate
    scale = profile.scale
    return PartSeconds(
        forward=scale * seconds.forward,
        backward=scale * backward,
        communication=scale * seconds.communication,
    )


def _exact_sum_bytes(spec: ModelSpec, part: Part, tensor_parallel: int) -> float:
    return _parameters(spec, part) / tensor_parallel * _EXACT_SUM_BYTES_PER_PARAMETER


def exact_sum_seconds(spec: ModelSpec, part: Part, gpu: GpuType, tensor_parallel: int) -> float:
    """What exact sums add to the backward pass of a microbatch; bound by memory."""
    rate = gpu.memory_bytes_per_second * _CPU_BANDWIDTH
    if gpu.has_context:
        rate = sustained.memory_rate(gpu)
    return _exact_sum_bytes(spec, part, tensor_parallel) / rate


def _cpu_seconds(
    profile: AnalyticProfile, part: Part, gpu: GpuType, tokens: int, degree: int
) -> PartSeconds:
    """Roofline, operation by operation: a CPU computes and launches one after the other."""
    numerics = profile.numerics
    ceiling = gpu.peak_flops_fp32
    if numerics.compute_bytes == 2:
        ceiling = gpu.matmul_flops or 0.85 * gpu.peak_flops
    matmul_rate, attention_rate = ceiling * _CPU_MATMUL, ceiling * _CPU_ATTENTION
    bandwidth = gpu.memory_bytes_per_second * _CPU_BANDWIDTH
    launching = _LAUNCHES[part] * _LAUNCH_SECONDS
    forward, backward = launching, _BACKWARD_LAUNCHES * launching
    for work in _works(profile.spec, part, tokens, profile.sequence_length, degree, numerics):
        arithmetic = work.matmul_flops / matmul_rate
        attention = work.attention_flops / attention_rate
        moving = work.num_bytes / bandwidth
        forward += max(arithmetic + attention, moving)
        backward += max(2 * arithmetic + _ATTENTION_BACKWARD * attention, 2 * moving)
    ring = _ring_seconds(profile.spec, part, tokens, gpu, degree, numerics)
    return PartSeconds(forward=forward, backward=backward, communication=ring)


def _parameters(spec: ModelSpec, part: Part) -> int:
    """Weights of one part, a tied output matrix counted with the head as well: it is summed there
    on its own."""
    match part:
        case Part.block:
            return spec.block_parameters
        case Part.embedding:
            return sum(t.numel for t in spec.tensors if t.part == "embedding")
        case Part.head:
            tied = spec.vocab_size * spec.hidden_size if spec.tied_embeddings else 0
            return tied + sum(t.numel for t in spec.tensors if t.part == "head")


def _works(
    spec: ModelSpec, part: Part, tokens: int, sequence_length: int, degree: int, numerics: Numerics
) -> Iterator[_Work]:
    """Forward operations of a part on one of ``degree`` tensor-parallel ranks."""
    width = numerics.compute_bytes
    hidden, ffn = spec.hidden_size, spec.ffn_hidden_size / degree
    heads_width = spec.num_heads * spec.head_size / degree
    kv_width = spec.num_kv_heads * spec.head_size / degree

    def product(inputs: float, outputs: float) -> _Work:
        moved = tokens * (inputs + outputs) + inputs * outputs
        return _Work(matmul_flops=2.0 * tokens * inputs * outputs, num_bytes=moved * width)

    def traffic(elements_per_token: float) -> _Work:
        return _Work(num_bytes=tokens * elements_per_token * width)

    match part:
        case Part.embedding:
            yield traffic(3 * hidden)
        case Part.block:
            yield traffic(2 * hidden)  # norm: in and out
            yield product(hidden, heads_width + 2 * kv_width)
            if spec.positions is Positions.rotary:
                yield traffic(2 * (heads_width + kv_width))
            yield _Work(
                # scores and weighted sum, half of them masked away
                attention_flops=2.0 * tokens * sequence_length * heads_width,
                num_bytes=tokens * (2 * heads_width + 2 * kv_width) * width,
            )
            yield product(heads_width, hidden)
            yield traffic(3 * hidden + 2 * hidden)  # residual sum, second norm
            gates = 2 if spec.activation is Activation.swiglu else 1
            yield product(hidden, gates * ffn)
            yield traffic((gates + 1) * ffn)
            yield product(ffn, hidden)
            yield traffic(3 * hidden)
        case Part.head:
            yield traffic(2 * hidden)
            vocab = spec.vocab_size / degree
            yield product(hidden, vocab)
            # cross entropy in fp32: read 16-bit logits, write and read fp32 ones twice
            yield _Work(num_bytes=tokens * vocab * (width + 4 * 4))


def _ring_seconds(
    spec: ModelSpec, part: Part, tokens: int, gpu: GpuType, degree: int, numerics: Numerics
) -> float:
    """All-reduces of tensor parallelism, forward and backward: two each way in a block."""
    if degree == 1:
        return 0.0
    rings = {Part.embedding: 1, Part.block: 4, Part.head: 1}[part]
    num_bytes = tokens * spec.hidden_size * numerics.compute_bytes
    moved = 2 * (degree - 1) / degree * num_bytes
    rate = gpu.link_bytes_per_second * _RING_SHARE
    return rings * (_RING_SECONDS_PER_MEMBER * degree + moved / rate)
