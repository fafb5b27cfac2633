"""Which tensors a Hugging Face model keeps its weights in, and how ours lie in them. No torch.

A tensor of theirs is one of ours, or several joined along their first axis (GPT-2 keeps query, key
and value together), and may be transposed (GPT-2's Conv1D is [in, out], ours are [out, in]).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sailor.models.hf.config import model_type_of
from sailor.models.spec import TOKEN_EMBEDDING, LogicalTensor, ModelSpec

HEAD_OUTPUT = "head.output.weight"
_VOCABULARY = (TOKEN_EMBEDDING, HEAD_OUTPUT)  # with padding rows, which theirs have not


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One of our tensors inside one of theirs: rows [start, start + rows) before transposing.

    ``rows`` is without the padding of a vocabulary.
    """

    tensor: LogicalTensor
    start: int
    rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TheirTensor:
    """A tensor of a Hugging Face model."""

    name: str
    parts: tuple[Part, ...]
    transposed: bool

    @property
    def rows(self) -> int:
        """Rows of all parts, before transposing."""
        return sum(part.rows for part in self.parts)

    @property
    def shape(self) -> tuple[int, ...]:
        """As it is in the file."""
        joined = (self.rows, *self.parts[0].tensor.shape[1:])
        return joined[::-1] if self.transposed else joined


def their_tensors(spec: ModelSpec) -> tuple[TheirTensor, ...]:
    """Every tensor of the model's architecture, in file order. Raises DataError E514."""
    kind = model_type_of(spec)
    ours = {tensor.name: tensor for tensor in spec.tensors}
    names = _names(kind, spec.num_layers)
    found = []
    used: set[str] = set()
    for name, sources in names:
        present = [ours[source] for source in sources if source in ours]
        if not present:
            continue  # a bias the model has not, or a tied output matrix
        used.update(tensor.name for tensor in present)
        parts, start = [], 0
        for tensor in present:
            rows = spec.num_tokens if tensor.name in _VOCABULARY else tensor.shape[0]
            parts.append(Part(tensor=tensor, start=start, rows=rows))
            start += rows
        transposed = kind == "gpt2" and name.endswith(_CONV1D)
        found.append(TheirTensor(name=name, parts=tuple(parts), transposed=transposed))
    assert used == set(ours), f"{kind} has no place for {sorted(set(ours) - used)}"
    return tuple(found)


# Theirs -> ours. Block numbers are put in where the braces are; weight and bias are added.

_GPT2_BLOCK = {
    "ln_1": ("attention_norm",),
    "attn.c_attn": ("attention.query", "attention.key", "attention.value"),
    "attn.c_proj": ("attention.output",),
    "ln_2": ("ffn_norm",),
    "mlp.c_fc": ("ffn.up",),
    "mlp.c_proj": ("ffn.down",),
}
_CONV1D = ("c_attn.weight", "c_proj.weight", "c_fc.weight")

_OPT_BLOCK = {
    "self_attn_layer_norm": ("attention_norm",),
    "self_attn.q_proj": ("attention.query",),
    "self_attn.k_proj": ("attention.key",),
    "self_attn.v_proj": ("attention.value",),
    "self_attn.out_proj": ("attention.output",),
    "final_layer_norm": ("ffn_norm",),
    "fc1": ("ffn.up",),
    "fc2": ("ffn.down",),
}

_LLAMA_BLOCK = {
    "input_layernorm": ("attention_norm",),
    "self_attn.q_proj": ("attention.query",),
    "self_attn.k_proj": ("attention.key",),
    "self_attn.v_proj": ("attention.value",),
    "self_attn.o_proj": ("attention.output",),
    "post_attention_layernorm": ("ffn_norm",),
    "mlp.gate_proj": ("ffn.gate",),
    "mlp.up_proj": ("ffn.up",),
    "mlp.down_proj": ("ffn.down",),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Naming:
    tokens: str
    positions: str
    block: str
    block_parts: Mapping[str, tuple[str, ...]]
    norm: str


_LLAMA = _Naming(
    tokens="model.embed_tokens", positions="", block="model.layers.{}.",
    block_parts=_LLAMA_BLOCK, norm="model.norm",
)  # fmt: skip
_NAMINGS = {
    "gpt2": _Naming(
        tokens="transformer.wte", positions="transformer.wpe", block="transformer.h.{}.",
        block_parts=_GPT2_BLOCK, norm="transformer.ln_f",
    ),
    "opt": _Naming(
        tokens="model.decoder.embed_tokens", positions="model.decoder.embed_positions",
        block="model.decoder.layers.{}.", block_parts=_OPT_BLOCK,
        norm="model.decoder.final_layer_norm",
    ),
    "llama": _LLAMA, "qwen2": _LLAMA, "mistral": _LLAMA,
}  # fmt: skip


def _names(kind: str, num_layers: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    naming = _NAMINGS[kind]
    yield f"{naming.tokens}.weight", (TOKEN_EMBEDDING,)
    yield f"{naming.positions}.weight", ("embedding.positions.weight",)
    for block in range(num_layers):
        prefix = naming.block.format(block)
        for theirs, ours in naming.block_parts.items():
            for kind_of in ("weight", "bias"):
                sources = tuple(f"blocks.{block}.{name}.{kind_of}" for name in ours)
                yield f"{prefix}{theirs}.{kind_of}", sources
    for kind_of in ("weight", "bias"):
        yield f"{naming.norm}.{kind_of}", (f"head.norm.{kind_of}",)
    yield "lm_head.weight", (HEAD_OUTPUT,)
