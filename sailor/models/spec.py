"""What a model is, as arithmetic: its tensors, parameters and FLOPs. No torch.

The planner counts with it, the engine builds its modules by it, and state is named by it: every
tensor here has one global name ("blocks.7.attention.query.weight") whatever the layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property


class Family(Enum):
    """Which module builds it."""

    gpt = "gpt"
    llama = "llama"


class Activation(Enum):
    """The feed-forward non-linearity. swiglu has a third matrix (the gate)."""

    gelu = "gelu"
    gelu_tanh = "gelu_tanh"
    relu = "relu"
    swiglu = "swiglu"


class Norm(Enum):
    """Layer normalisation with bias, or root-mean-square without."""

    layernorm = "layernorm"
    rmsnorm = "rmsnorm"


class Positions(Enum):
    """Learned absolute positions, or rotary embeddings (no parameters)."""

    learned = "learned"
    rotary = "rotary"


@dataclass(frozen=True, kw_only=True, slots=True)
class LogicalTensor:
    """One weight of the whole model, before any cutting.

    ``split_axis`` is the axis tensor parallelism cuts, or None when every rank holds all of it.
    ``block`` is the transformer block it belongs to; None for the embedding (first stage) and the
    head (last stage), told apart by ``part``. ``granularity`` is the number of equal pieces the
    split axis allows (heads, rows of a matrix). ``decay`` says whether weight decay applies.
    """

    name: str
    shape: tuple[int, ...]
    split_axis: int | None
    part: str  # "embedding" | "block" | "head"
    block: int | None
    granularity: int
    init_std: float  # normal(0, std); 0 means zeros, -1 means ones
    decay: bool

    @property
    def numel(self) -> int:
        """Number of elements."""
        total = 1
        for extent in self.shape:
            total *= extent
        return total


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """The shape of a decoder-only transformer. Field meanings are those of conf/model."""

    name: str
    family: Family
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    ffn_hidden_size: int
    vocab_size: int
    max_positions: int
    tied_embeddings: bool
    activation: Activation
    norm: Norm
    norm_epsilon: float
    positions: Positions
    rope_theta: float = 10_000.0
    attention_bias: bool = True
    attention_output_bias: bool = True
    ffn_bias: bool = True
    vocab_padding: int = 0
    position_offset: int = 0
    rope_scaling_factor: float = 1.0
    rope_low_freq_factor: float = 1.0
    rope_high_freq_factor: float = 4.0
    rope_original_positions: int = 8192
    sliding_window: int = 0

    def __post_init__(self) -> None:
        for field in (
            "num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_size",
            "ffn_hidden_size", "vocab_size", "max_positions",
        ):  # fmt: skip
            if getattr(self, field) < 1:
                raise ValueError(f"{self.name}: {field} must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.name}: num_heads {self.num_heads} must be a multiple of "
                f"num_kv_heads {self.num_kv_heads}"
            )
        for field in ("vocab_padding", "position_offset", "sliding_window"):
            if getattr(self, field) < 0:
                raise ValueError(f"{self.name}: {field} must not be negative")
        if self.num_tokens < 1:
            raise ValueError(f"{self.name}: vocab_padding leaves no row for a token")
        if self.rope_scaling_factor != 1.0 and (
            self.rope_low_freq_factor >= self.rope_high_freq_factor
        ):
            raise ValueError(f"{self.name}: rope_low_freq_factor must be below the high one")

    def __hash__(self) -> int:
        """Of the fields, worked out once: caches of the planner ask for it all the time."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, field) for field in self.__dataclass_fields__))

    @property
    def num_tokens(self) -> int:
        """Different tokens: rows of the token matrix, the padding aside."""
        return self.vocab_size - self.vocab_padding

    @cached_property
    def tensors(self) -> tuple[LogicalTensor, ...]:
        """Every weight once, in the fixed global order: embedding, blocks, head.

        With tied embeddings the head has no matrix of its own: the last stage reads
        "embedding.tokens.weight", which then has owners on the first and on the last stage.
        """
        return tuple(self._embedding()) + tuple(self._blocks()) + tuple(self._head())

    @cached_property
    def num_parameters(self) -> int:
        """All weights, a tied matrix counted once."""
        return sum(tensor.numel for tensor in self.tensors)

    @property
    def block_parameters(self) -> int:
        """Weights of one transformer block."""
        return sum(tensor.numel for tensor in self._block(0))

    def flops_per_token(self, *, sequence_length: int) -> float:
        """Forward + backward floating-point operations for one token.

        6 per matrix parameter (Kaplan et al. 2020, the embedding look-up counts nothing, the
        output matrix does) plus causal attention 6 * layers * tokens * (heads * head size):
        12 * for the full score matrix (PaLM, appendix B), halved because half of it is masked.
        """
        matrices = sum(t.numel for t in self.tensors if len(t.shape) == 2 and t.part != "embedding")
        if self.tied_embeddings:
            matrices += self.vocab_size * self.hidden_size
        attention = 6.0 * self.num_layers * sequence_length * self.num_heads * self.head_size
        return 6.0 * matrices + attention

    def tensors_of(self, *, blocks: range, first: bool, last: bool) -> tuple[LogicalTensor, ...]:
        """The weights a stage needs: its blocks, the embedding if first, the head if last.

        A last stage that is not first also needs a tied token matrix.
        """
        wanted = []
        for tensor in self.tensors:
            match tensor.part:
                case "embedding":
                    tied = self.tied_embeddings and tensor.name == TOKEN_EMBEDDING
                    if first or (last and tied):
                        wanted.append(tensor)
                case "block":
                    if tensor.block in blocks:
                        wanted.append(tensor)
                case _:
                    if last:
                        wanted.append(tensor)
        return tuple(wanted)

    # The parts, in the order they are listed above.

    def _embedding(self) -> Iterator[LogicalTensor]:
        yield _tensor(
            TOKEN_EMBEDDING, (self.vocab_size, self.hidden_size), 0, part="embedding",
            granularity=self.vocab_size, std=0.02,
        )  # fmt: skip
        if self.positions is Positions.learned:
            yield _tensor(
                "embedding.positions.weight",
                (self.max_positions + self.position_offset, self.hidden_size), None,
                part="embedding", std=0.02,
            )  # fmt: skip

    def _blocks(self) -> Iterator[LogicalTensor]:
        for block in range(self.num_layers):
            yield from self._block(block)

    def _block(self, block: int) -> Iterator[LogicalTensor]:
        prefix = f"blocks.{block}."
        hidden, ffn = self.hidden_size, self.ffn_hidden_size
        width, kv_width = self.num_heads * self.head_size, self.num_kv_heads * self.head_size
        # Projections that feed the residual stream start smaller (GPT-2, section 2.3).
        residual_std = 0.02 / (2 * self.num_layers) ** 0.5
        heads, kv_heads = self.num_heads, self.num_kv_heads

        def matrix(
            name: str, shape: tuple[int, int], axis: int, granularity: int, std: float, bias: bool
        ) -> Iterator[LogicalTensor]:
            yield _tensor(f"{prefix}{name}.weight", shape, axis, part="block", block=block,
                          granularity=granularity, std=std)  # fmt: skip
            if bias:  # a row-parallel bias is added once, after the sum: not cut
                bias_axis = 0 if axis == 0 else None
                yield _tensor(
                    f"{prefix}{name}.bias", shape[:1], bias_axis, part="block", block=block,
                    granularity=granularity, std=0.0,
                )  # fmt: skip

        yield from self._norm(f"{prefix}attention_norm", part="block", block=block)
        bias = self.attention_bias
        yield from matrix("attention.query", (width, hidden), 0, heads, 0.02, bias)
        yield from matrix("attention.key", (kv_width, hidden), 0, kv_heads, 0.02, bias)
        yield from matrix("attention.value", (kv_width, hidden), 0, kv_heads, 0.02, bias)
        yield from matrix(
            "attention.output", (hidden, width), 1, heads, residual_std, self.attention_output_bias
        )
        yield from self._norm(f"{prefix}ffn_norm", part="block", block=block)
        if self.activation is Activation.swiglu:
            yield from matrix("ffn.gate", (ffn, hidden), 0, ffn, 0.02, self.ffn_bias)
        yield from matrix("ffn.up", (ffn, hidden), 0, ffn, 0.02, self.ffn_bias)
        yield from matrix("ffn.down", (hidden, ffn), 1, ffn, residual_std, self.ffn_bias)

    def _head(self) -> Iterator[LogicalTensor]:
        yield from self._norm("head.norm", part="head", block=None)
        if not self.tied_embeddings:
            yield _tensor(
                "head.output.weight", (self.vocab_size, self.hidden_size), 0, part="head",
                granularity=self.vocab_size, std=0.02,
            )  # fmt: skip

    def _norm(self, name: str, *, part: str, block: int | None) -> Iterator[LogicalTensor]:
        shape = (self.hidden_size,)
        yield _tensor(f"{name}.weight", shape, None, part=part, block=block, std=-1.0)
        if self.norm is Norm.layernorm:
            yield _tensor(f"{name}.bias", shape, None, part=part, block=block, std=0.0)


TOKEN_EMBEDDING = "embedding.tokens.weight"


def _tensor(
    name: str, shape: tuple[int, ...], split_axis: int | None, *, part: str,
    block: int | None = None, granularity: int = 1, std: float,
) -> LogicalTensor:  # fmt: skip
    return LogicalTensor(
        name=name, shape=shape, split_axis=split_axis, part=part, block=block,
        granularity=granularity if split_axis is not None else 1, init_std=std,
        decay=len(shape) == 2,
    )  # fmt: skip
