"""What a GPU sustains on one part of a model: the formulas of stacks/step.py for one shape.

Same physics and same fitted numbers (stacks/priors.py), so that what accuracy is scored on is what
plans are made with; tests compare the two. Scalars, no numpy: a search asks thousands of times.
"""

from __future__ import annotations

from functools import lru_cache
from math import hypot

from sailor.cluster.gpu import GpuType
from sailor.models.spec import Activation, ModelSpec
from sailor.profile.profile import Numerics, Part, PartSeconds
from sailor.profile.stacks.priors import ATTENTION_BACKWARD, LAUNCHES, STEP, gpu_class

_BYTES_PER_LOGIT = 24  # cross entropy in fp32, forward and backward
_UPDATE_BYTES_PER_PARAMETER = 30
_N = {name: entry.fitted for name, entry in STEP.items()}


def part_seconds(
    spec: ModelSpec, part: Part, *, gpu: GpuType, tensor_parallel: int, tokens: int,
    sequence_length: int, numerics: Numerics,
) -> PartSeconds:  # fmt: skip
    """One microbatch of ``tokens`` through one part on one tensor-parallel rank; seconds."""
    rates = _rates(gpu, numerics)
    width = numerics.compute_bytes
    exchange = 0.0
    if tensor_parallel > 1:
        moved = 2 * (tensor_parallel - 1) / tensor_parallel * tokens * spec.hidden_size * width
        exchange = moved / rates.link + _N["ring_seconds"] * tensor_parallel
    match part:
        case Part.embedding:
            moving = 3 * tokens * spec.hidden_size * width / rates.bandwidth
            return PartSeconds(forward=moving, backward=2 * moving, communication=exchange)
        case Part.head:
            matmul = rates.matmul * _saturation(spec, tensor_parallel, tokens)
            logits = tokens * spec.vocab_size / tensor_parallel
            seconds = _N["head"] * (
                6 * logits * spec.hidden_size / matmul + logits * _BYTES_PER_LOGIT / rates.bandwidth
            )
            return PartSeconds(
                forward=seconds / 3, backward=seconds * 2 / 3, communication=exchange
            )
        case Part.block:
            forward, backward = _block(spec, rates, tensor_parallel, tokens, sequence_length, width)
            return PartSeconds(forward=forward, backward=backward, communication=4 * exchange)


def update_seconds(gpu: GpuType, *, num_parameters: float) -> float:
    """The optimizer is bound by memory: every state is read and written once."""
    moved = _N["optimizer"] * num_parameters * _UPDATE_BYTES_PER_PARAMETER
    return moved / gpu.memory_bytes_per_second


def memory_rate(gpu: GpuType) -> float:
    """Bytes per second that streaming kernels sustain."""
    return gpu.memory_bytes_per_second * _N["memory_share"]


def host_seconds() -> float:
    """Of a step: batch assembly, scalars read back, logging."""
    return _N["host_seconds"]


class _Rates:
    """A GPU's sustained rates, per second."""

    __slots__ = ("attention", "bandwidth", "ceiling", "link", "matmul")

    def __init__(self, gpu: GpuType, numerics: Numerics) -> None:
        kind = gpu_class(gpu)
        if numerics.compute_bytes == 4:
            self.ceiling = gpu.peak_flops_fp32
        else:
            self.ceiling = gpu.matmul_flops or 0.85 * gpu.peak_flops
        self.matmul = self.ceiling * _N[f"matmul_{kind}"]
        self.attention = self.ceiling * _N.get(f"attention_{kind}", _N["attention_A100"])
        self.bandwidth = memory_rate(gpu)
        host = _N["host_share"] if kind in ("T4", "GeForce") else 1.0
        self.link = gpu.link_bytes_per_second * _N["link_share"] * host


@lru_cache(maxsize=256)
def _rates(gpu: GpuType, numerics: Numerics) -> _Rates:
    return _Rates(gpu, numerics)


def _saturation(spec: ModelSpec, tensor_parallel: int, tokens: int) -> float:
    """Share of the sustained rate that narrow or short matrix products reach."""
    width = spec.hidden_size / tensor_parallel
    share = 1 / (1 + _N["half_width"] / width) / (1 + _N["half_tokens"] / tokens)
    if width % 64 or (spec.ffn_hidden_size / tensor_parallel) % 64:
        share /= _N["misaligned"]
    return share


def _block(
    spec: ModelSpec, rates: _Rates, degree: int, tokens: int, sequence_length: int, width: int
) -> tuple[float, float]:
    """Forward and backward of one block."""
    hidden, inner = spec.hidden_size, spec.ffn_hidden_size
    heads = spec.num_heads * spec.head_size
    kv = spec.num_kv_heads * spec.head_size
    gates = 2 if spec.activation is Activation.swiglu else 1
    matrices = hidden * (2 * heads + 2 * kv + (gates + 1) * inner)
    products = 2 * tokens * matrices / degree
    products /= rates.matmul * _saturation(spec, degree, tokens)
    # Half of the scores are masked away.
    attention = 2 * tokens * sequence_length * heads / degree
    attention *= (1 + _N["half_sequence"] / sequence_length) / rates.attention
    elements = 10 * hidden + (4 * hidden + inner * (1 + 2 * gates)) / degree
    moving = tokens * elements * width * _N["elementwise"] / rates.bandwidth
    # Kernels queue behind the Python that launches them; ours is eager.
    launch = LAUNCHES * _N["launch_python"]
    forward = hypot(products + attention + moving, launch)
    backward = hypot(2 * (products + moving) + ATTENTION_BACKWARD * attention, 2 * launch)
    # The gradient is added to the sum of the microbatches before.
    backward += 3 * width * matrices / degree / rates.bandwidth
    return forward, backward
