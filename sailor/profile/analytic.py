"""A profile of any model on any GPU, from data sheets and class priors. No GPU needed, no torch.

Per operation: the larger of arithmetic (FLOPs over a sustained rate) and memory traffic (bytes over
a sustained bandwidth), plus what launching it costs. The priors are the only numbers here that are
not arithmetic; each says where it is from. A measured step time scales them (``scale``), and the
result is then marked calibrated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from sailor.cluster.gpu import GpuType
from sailor.models.spec import Activation, ModelSpec, Positions
from sailor.profile.profile import Mark, Numerics, Part, PartSeconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Prior:
    """What one class of device sustains, as shares of its ceilings.

    ``matmul`` of the best measured matrix product; ``attention`` of the same, for fused kernels;
    ``bandwidth`` of the memory; ``launch_seconds`` per operation.
    """

    matmul: float
    attention: float
    bandwidth: float
    launch_seconds: float
    source: str


# Published operator timings (9,344 of them on six GPU types) leave 4-7 % around one constant per
# GPU: 0.84 of the data sheet on A100, 0.74 and 0.68 on V100, 0.62 on GH200, all of the half rate
# on GeForce; here they are relative to the best measured product, hence nearer to one. Fused
# attention reaches 50-73 % of an A100's peak; Volta and Turing lack such a kernel.
_AMPERE = Prior(
    matmul=0.92, attention=0.55, bandwidth=0.8, launch_seconds=9e-6, source="operator timings"
)
_VOLTA = Prior(
    matmul=0.90, attention=0.35, bandwidth=0.8, launch_seconds=10e-6, source="operator timings"
)
_HOPPER = Prior(
    matmul=0.78, attention=0.50, bandwidth=0.8, launch_seconds=8e-6, source="operator timings"
)
_GEFORCE = Prior(
    matmul=0.95, attention=0.45, bandwidth=0.8, launch_seconds=10e-6, source="operator timings"
)
_CPU = Prior(
    matmul=0.75, attention=0.30, bandwidth=0.6, launch_seconds=12e-6, source="eager torch on x86"
)
# Devices nobody measured for us keep the low end of the data-centre range of 0.65-0.85.
_UNKNOWN = Prior(
    matmul=0.70, attention=0.40, bandwidth=0.75, launch_seconds=9e-6, source="class prior"
)

_PRIORS: tuple[tuple[str, Prior], ...] = (
    ("A100", _AMPERE), ("A800", _AMPERE), ("V100", _VOLTA), ("T4", _VOLTA), ("Titan", _VOLTA),
    ("H100", _HOPPER), ("H200", _HOPPER), ("GH200", _HOPPER), ("RTX", _GEFORCE), ("cpu", _CPU),
)  # fmt: skip

# Forward operations of a block in eager torch, counted in sailor/models: launches, not work.
_LAUNCHES = {Part.embedding: 3, Part.block: 22, Part.head: 8}
_BACKWARD_LAUNCHES = 2.0
# Flash attention's backward does 2.5 times the arithmetic at 0.75-0.8 of the rate.
_ATTENTION_BACKWARD = 2.5 / 0.78
# Ring all-reduce inside a machine: 8 A100 show 87 us at 1 MB and 134 us at 8 MB, that is 80 us and
# 270 GB/s, or 10 us for each member and 0.9 of the link.
_RING_SECONDS_PER_MEMBER = 10e-6
_RING_SHARE = 0.85
# Fused AdamW reads weight, gradient, two moments and writes three of them; the norm reads the
# gradient once more, and clearing it writes it once.
_UPDATE_BYTES_PER_PARAMETER = 36
# Exact sums, once a microbatch: read the gradient in fp32, scale and round it in fp64, and read and
# write the fp64 accumulator.
_EXACT_SUM_BYTES_PER_PARAMETER = 4 + 2 * 16 + 24


def prior_of(gpu: GpuType) -> Prior:
    """The prior of a device's class, by its name."""
    for prefix, prior in _PRIORS:
        if gpu.name.startswith(prefix):
            return prior
    return _UNKNOWN


@dataclass(frozen=True, kw_only=True)
class AnalyticProfile:
    """Times from arithmetic. ``scale`` multiplies all of them: one calibration run divides out."""

    spec: ModelSpec
    sequence_length: int
    numerics: Numerics = Numerics()
    scale: float = 1.0
    relative_error: float = 0.30

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
        rate = gpu.memory_bytes_per_second * prior_of(gpu).bandwidth
        return self.scale * num_parameters * _UPDATE_BYTES_PER_PARAMETER / rate

    def host_seconds(self, *, gpu: GpuType) -> float:
        """Batch assembly, scalars read back, logging: a few milliseconds of Python."""
        return 4e-3 if gpu.has_context else 2e-3


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
    spec, numerics, prior = profile.spec, profile.numerics, prior_of(gpu)
    tokens = microbatch_size * profile.sequence_length
    ceiling = _matmul_ceiling(gpu, numerics)
    matmul_rate = ceiling * prior.matmul
    attention_rate = ceiling * prior.attention
    bandwidth = gpu.memory_bytes_per_second * prior.bandwidth
    forward = backward = 0.0
    for work in _works(spec, part, tokens, profile.sequence_length, tensor_parallel, numerics):
        arithmetic = work.matmul_flops / matmul_rate
        attention = work.attention_flops / attention_rate
        moving = work.num_bytes / bandwidth
        forward += max(arithmetic + attention, moving)
        backward += max(2 * arithmetic + _ATTENTION_BACKWARD * attention, 2 * moving)
    launching = _LAUNCHES[part] * prior.launch_seconds
    # Kernels queue behind the Python that launches them: whichever is slower sets the pace. A CPU
    # does both itself, one after the other.
    shared = 0.2 if gpu.has_context else 1.0
    forward = max(forward, launching) + shared * min(forward, launching)
    launching *= _BACKWARD_LAUNCHES
    backward = max(backward, launching) + shared * min(backward, launching)
    if numerics.deterministic:
        parameters = _parameters(spec, part) / tensor_parallel
        backward += parameters * _EXACT_SUM_BYTES_PER_PARAMETER / bandwidth
    scale = profile.scale
    return PartSeconds(
        forward=scale * forward,
        backward=scale * backward,
        communication=scale * _ring_seconds(spec, part, tokens, gpu, tensor_parallel, numerics),
    )


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


def _matmul_ceiling(gpu: GpuType, numerics: Numerics) -> float:
    if numerics.compute_bytes == 4:
        return gpu.peak_flops_fp32
    return gpu.matmul_flops if gpu.matmul_flops is not None else 0.85 * gpu.peak_flops


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
