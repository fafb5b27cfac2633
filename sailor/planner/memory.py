"""Peak bytes on each GPU of a stage, term by term. An upper bound: a plan that fits here fits.

Everything is linear in the number of blocks, so the coefficients of one (model, tensor-parallel
degree, microbatch) are computed once and a search evaluates them thousands of times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

from sailor.cluster.gpu import GpuType
from sailor.models.spec import TOKEN_EMBEDDING, Activation, LogicalTensor, ModelSpec
from sailor.planner.term import Term, total
from sailor.profile.profile import Numerics
from sailor.units import GIB, MIB

# A CUDA context takes 0.4-0.6 GiB, NCCL's channels and the caching allocator's rounding the rest.
CONTEXT_BYTES = int(1.3 * GIB)
# Blocks of the caching allocator that are free and of no use: share of what comes and goes.
FRAGMENTATION_SHARE = 0.06
# Gradients are reduced in pieces of at most this size, each copied once.
REDUCE_BUFFER_BYTES = 64 * MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """What of a model one tensor-parallel rank holds: how many blocks, and which ends."""

    num_blocks: int
    first: bool
    last: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryCoefficients:
    """Per tensor-parallel rank. Parameters are counts; activations are bytes per microbatch."""

    block_parameters: float
    first_parameters: float
    last_parameters: float
    tied_parameters: float  # the token matrix, held again by a last stage that is not first
    block_activations: float
    first_activations: float
    last_activations: float
    working: float  # what one block needs beside its kept activations while it computes
    logits: float  # fp32 logits and their gradient, one microbatch at a time
    boundary: float  # one tensor that crosses a stage boundary
    block_largest: float  # parameters of the largest tensor of a block, and of each end
    first_largest: float
    last_largest: float
    numerics: Numerics

    def parameters(self, cut: Cut) -> float:
        """Parameters of a rank."""
        ends = self.first_parameters * cut.first + self.last_parameters * cut.last
        tied = self.tied_parameters * (cut.last and not cut.first)
        return cut.num_blocks * self.block_parameters + ends + tied

    def activations(self, cut: Cut) -> float:
        """Bytes kept for the backward pass of one microbatch."""
        return (
            cut.num_blocks * self.block_activations
            + self.first_activations * cut.first
            + self.last_activations * cut.last
        )

    def kept(self, cut: Cut, *, num_owners: int) -> float:
        """Parameters whose state a rank keeps at most, when it is spread over the owners.

        A tensor's state is kept whole by one of them, the largest given away first, so that nobody
        keeps more than an even share and one tensor (sailor.parallel.layout, keepers).
        """
        largest = self.block_largest
        if cut.first:
            largest = max(largest, self.first_largest)
        if cut.last:
            largest = max(largest, self.last_largest)
        return self.parameters(cut) / num_owners + (1 - 1 / num_owners) * largest

    @property
    def fixed_bytes_per_parameter(self) -> float:
        """Weights as they are computed with, fp32 gradients, and the exact accumulator."""
        return self.numerics.compute_bytes + 4 + (8 if self.numerics.deterministic else 0)

    @property
    def state_bytes_per_parameter(self) -> float:
        """What can be spread over the owners (ZeRO-1): two fp32 moments, and the fp32 weights where
        those that are computed with are not fp32 themselves."""
        return 12 if self.numerics.compute_bytes == 2 else 8


@lru_cache(maxsize=4096)
def memory_coefficients(
    spec: ModelSpec,
    *,
    tensor_parallel: int,
    microbatch_size: int,
    sequence_length: int,
    recompute: bool,
    numerics: Numerics,
) -> MemoryCoefficients:
    """The coefficients of one way to run a model."""
    degree = tensor_parallel
    tokens = microbatch_size * sequence_length
    width = numerics.compute_bytes
    kept = tokens * _kept_elements(spec, degree) * width
    boundary = tokens * spec.hidden_size * width
    ends = {
        part: sum(_share(t, degree) for t in spec.tensors if t.part == part)
        for part in ("embedding", "head")
    }

    def largest(wanted: Callable[[LogicalTensor], bool]) -> float:
        return max((_share(t, degree) for t in spec.tensors if wanted(t)), default=0.0)

    token_matrix = next(t for t in spec.tensors if t.name == TOKEN_EMBEDDING)
    return MemoryCoefficients(
        block_parameters=sum(_share(t, degree) for t in spec.tensors if t.block == 0),
        first_parameters=ends["embedding"],
        last_parameters=ends["head"],
        tied_parameters=_share(token_matrix, degree) if spec.tied_embeddings else 0.0,
        block_activations=boundary if recompute else kept,
        first_activations=boundary,
        last_activations=2.0 * boundary,
        # With recompute one block's activations come back whole; the gradients of its widest
        # tensors exist beside them either way.
        working=(kept if recompute else 0.0)
        + tokens * width * (2.0 * spec.hidden_size + 2.0 * _widest(spec) / degree),
        logits=tokens * spec.vocab_size / degree * (4 + 4 + width),
        boundary=boundary,
        block_largest=largest(lambda t: t.block == 0),
        first_largest=largest(lambda t: t.part == "embedding"),
        last_largest=largest(
            lambda t: t.part == "head" or (spec.tied_embeddings and t.name == TOKEN_EMBEDDING)
        ),
        numerics=numerics,
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """The bytes behind the terms, without their names: a search adds them up very often."""

    parameters: float
    kept: float  # parameters whose state is here
    activations: float
    working: float
    logits: float
    buffers: float
    fragmentation: float
    context: float


def _parts(
    coefficients: MemoryCoefficients, cut: Cut, *, num_in_flight: int, num_owners: int,
    optimizer_sharding: bool, gpu: GpuType,
) -> _Parts:  # fmt: skip
    parameters = coefficients.parameters(cut)
    kept = coefficients.kept(cut, num_owners=num_owners if optimizer_sharding else 1)
    activations = num_in_flight * coefficients.activations(cut)
    logits = coefficients.logits if cut.last else 0.0
    buffers = 2.0 * ((not cut.first) + (not cut.last)) * coefficients.boundary
    fragmentation = context = 0.0
    if gpu.has_context:
        if num_owners > 1:
            buffers += min(4 * parameters, REDUCE_BUFFER_BYTES)
        moving = activations + coefficients.working + logits + buffers
        fragmentation = FRAGMENTATION_SHARE * moving
        context = CONTEXT_BYTES
    return _Parts(
        parameters, kept, activations, coefficients.working, logits, buffers, fragmentation,
        context,
    )  # fmt: skip


def stage_memory(
    coefficients: MemoryCoefficients,
    cut: Cut,
    *,
    num_in_flight: int,
    num_owners: int,
    optimizer_sharding: bool,
    gpu: GpuType,
) -> tuple[Term, ...]:
    """The terms of one rank's peak, in bytes.

    ``num_in_flight`` is the most microbatches whose activations are alive at once
    (sailor.parallel.schedule.in_flight), ``num_owners`` how many replicas hold each box.
    """
    parts = _parts(
        coefficients, cut, num_in_flight=num_in_flight, num_owners=num_owners,
        optimizer_sharding=optimizer_sharding, gpu=gpu,
    )  # fmt: skip
    numerics = coefficients.numerics
    masters = 4 * parts.kept if numerics.compute_bytes == 2 else 0.0
    exact = 8 * parts.parameters if numerics.deterministic else 0.0
    terms = (
        Term(name="weights", value=numerics.compute_bytes * parts.parameters),
        Term(name="fp32 weights", value=masters),
        Term(name="gradients", value=4 * parts.parameters),
        Term(name="exact sums", value=exact),
        Term(name="optimizer", value=8 * parts.kept),
        Term(name="activations", value=parts.activations, relative_error=0.1),
        Term(name="working", value=parts.working, relative_error=0.2),
        Term(name="logits", value=parts.logits),
        Term(name="buffers", value=parts.buffers, relative_error=0.2),
        Term(name="fragmentation", value=parts.fragmentation),
        Term(name="context", value=parts.context, relative_error=0.3),
    )
    return tuple(term for term in terms if term.value)


def stage_bytes(
    coefficients: MemoryCoefficients,
    cut: Cut,
    *,
    num_in_flight: int,
    num_owners: int,
    optimizer_sharding: bool,
    gpu: GpuType,
) -> float:
    """The sum of stage_memory's terms."""
    parts = _parts(
        coefficients, cut, num_in_flight=num_in_flight, num_owners=num_owners,
        optimizer_sharding=optimizer_sharding, gpu=gpu,
    )  # fmt: skip
    return (
        coefficients.fixed_bytes_per_parameter * parts.parameters
        + coefficients.state_bytes_per_parameter * parts.kept
        + parts.activations
        + parts.working
        + parts.logits
        + parts.buffers
        + parts.fragmentation
        + parts.context
    )


def most_blocks(
    coefficients: MemoryCoefficients,
    *,
    num_blocks: int,
    first: bool,
    last: bool,
    num_in_flight: int,
    num_owners: int,
    optimizer_sharding: bool,
    gpu: GpuType,
) -> int:
    """Most of ``num_blocks`` whose ``stage_bytes`` stay within the GPU; 0 when not even one does.

    The peak is a straight line in the blocks, or the lower of two: the reduce buffer saturates.
    So it is solved, not searched; only a solution at a whole number needs a look at the sum itself.
    """

    def peak(blocks: int) -> float:
        return stage_bytes(
            coefficients, Cut(num_blocks=blocks, first=first, last=last),
            num_in_flight=num_in_flight, num_owners=num_owners,
            optimizer_sharding=optimizer_sharding, gpu=gpu,
        )  # fmt: skip

    capacity = gpu.memory_bytes
    share = FRAGMENTATION_SHARE if gpu.has_context else 0.0
    states = coefficients.state_bytes_per_parameter / (num_owners if optimizer_sharding else 1)
    states += coefficients.fixed_bytes_per_parameter
    each = states * coefficients.block_parameters
    each += (1 + share) * num_in_flight * coefficients.block_activations
    whole = peak(num_blocks)
    if whole <= capacity:
        return num_blocks
    # Both lines go through the peak of all blocks, or lie above it: the steep one counts the buffer
    # with every block.
    room = num_blocks - (whole - capacity) / each
    if gpu.has_context and num_owners > 1:
        none = peak(0)
        steep = each + (1 + share) * 4 * coefficients.block_parameters
        room = max(room, (capacity - none) / steep)
    guess = max(0, min(num_blocks - 1, int(room)))
    if abs(room - round(room)) > 1e-6:
        return guess
    while guess < num_blocks - 1 and peak(guess + 1) <= capacity:
        guess += 1
    while guess > 0 and peak(guess) > capacity:
        guess -= 1
    return guess


class Rooms:
    """``most_blocks`` of one kind of stage for any number of microbatches in flight.

    Peaks are straight lines in those too: a few say all of them.
    """

    def __init__(
        self, coefficients: MemoryCoefficients, *, num_blocks: int, first: bool, last: bool,
        num_owners: int, optimizer_sharding: bool, gpu: GpuType,
    ) -> None:  # fmt: skip
        def peak(blocks: int, alive: int) -> float:
            return stage_bytes(
                coefficients, Cut(num_blocks=blocks, first=first, last=last),
                num_in_flight=alive, num_owners=num_owners,
                optimizer_sharding=optimizer_sharding, gpu=gpu,
            )  # fmt: skip

        self._exactly = partial(
            most_blocks, coefficients, num_blocks=num_blocks, first=first, last=last,
            num_owners=num_owners, optimizer_sharding=optimizer_sharding, gpu=gpu,
        )  # fmt: skip
        self._num_blocks, self._capacity = num_blocks, gpu.memory_bytes
        share = FRAGMENTATION_SHARE if gpu.has_context else 0.0
        states = coefficients.state_bytes_per_parameter / (num_owners if optimizer_sharding else 1)
        states += coefficients.fixed_bytes_per_parameter
        # Bytes of one more block: whatever is in flight, and for each in flight.
        self._fixed = states * coefficients.block_parameters
        self._each = (1 + share) * coefficients.block_activations
        self._whole = peak(num_blocks, 1)
        self._more = peak(num_blocks, 2) - self._whole
        self._buffered = gpu.has_context and num_owners > 1
        if self._buffered:  # most_blocks explains the second line
            self._steeper = (1 + share) * 4 * coefficients.block_parameters
            self._none = peak(0, 1)
            self._none_more = peak(0, 2) - self._none
        self._known: dict[int, int] = {}

    def most_blocks(self, num_in_flight: int) -> int:
        """0 when not even one fits."""
        if num_in_flight not in self._known:
            self._known[num_in_flight] = self._most_blocks(num_in_flight)
        return self._known[num_in_flight]

    def _most_blocks(self, alive: int) -> int:
        each = self._fixed + alive * self._each
        excess = self._whole + (alive - 1) * self._more - self._capacity
        room = self._num_blocks - excess / each
        if self._buffered and excess > 0:
            none = self._none + (alive - 1) * self._none_more
            room = max(room, (self._capacity - none) / (each + self._steeper))
        if abs(room - round(room)) <= 1e-6:  # at a whole number the sum itself decides
            return self._exactly(num_in_flight=alive)
        return max(0, min(self._num_blocks, int(room)))


def peak_bytes(terms: tuple[Term, ...]) -> float:
    """The bound that must not exceed the GPU's memory."""
    return total(terms)


def _share(tensor: LogicalTensor, degree: int) -> float:
    return tensor.numel if tensor.split_axis is None else tensor.numel / degree


def _kept_elements(spec: ModelSpec, degree: int) -> float:
    """Elements per token a block keeps for its backward pass, with fused attention.

    Whole on every rank: the inputs and outputs of both norms (Megatron counts 10 bytes at width 2,
    dropout masks included; Korthikanti et al. 2022, section 4). Cut: query, key, value and the
    attention's output, then the inner feed-forward tensors.
    """
    inner = 3 if spec.activation is Activation.swiglu else 2
    whole = 5.0 * spec.hidden_size
    cut = 2.0 * spec.num_heads * spec.head_size + 2.0 * spec.num_kv_heads * spec.head_size
    return whole + (cut + inner * spec.ffn_hidden_size) / degree


def _widest(spec: ModelSpec) -> float:
    return max(spec.ffn_hidden_size, spec.num_heads * spec.head_size)
