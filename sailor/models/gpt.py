"""GPT-2 and its kin (GPT-3, OPT): learned positions, LayerNorm before each half of a block."""

# B batch, T tokens, D model

from __future__ import annotations

import torch
from torch import nn

from sailor.models.layers import (
    Attention,
    FeedForward,
    LayerNorm,
    PositionEmbedding,
    TokenEmbedding,
)
from sailor.models.spec import Activation, ModelSpec, Norm, Positions
from sailor.parallel.tensor import TensorGroup


class Embedding(nn.Module):
    """Token plus position."""

    def __init__(self, spec: ModelSpec, *, group: TensorGroup) -> None:
        super().__init__()
        self.tokens = TokenEmbedding(spec.vocab_size, spec.hidden_size, group=group)
        self.positions = PositionEmbedding(
            spec.max_positions, spec.hidden_size, offset=spec.position_offset, group=group
        )

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        x_BTD: torch.Tensor = self.tokens(tokens_BT) + self.positions(tokens_BT.shape[1])
        return x_BTD


class Block(nn.Module):
    """Attention, then feed-forward, each on the normalised stream and added back to it."""

    def __init__(self, spec: ModelSpec, *, group: TensorGroup) -> None:
        super().__init__()
        self.attention_norm = LayerNorm(spec.hidden_size, epsilon=spec.norm_epsilon)
        self.attention = Attention(spec, group=group, rotary=None)
        self.ffn_norm = LayerNorm(spec.hidden_size, epsilon=spec.norm_epsilon)
        self.ffn = FeedForward(spec, group=group)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD))
        y_BTD: torch.Tensor = x_BTD + self.ffn(self.ffn_norm(x_BTD))
        return y_BTD


class Gpt:
    """The family: what a stage is built of."""

    def __init__(self, spec: ModelSpec, *, group: TensorGroup) -> None:
        if (
            spec.positions is not Positions.learned
            or spec.norm is not Norm.layernorm
            or spec.activation is Activation.swiglu
        ):
            raise ValueError(f"{spec.name}: gpt has learned positions, layernorm and no swiglu")
        self._spec = spec
        self._group = group

    def embedding(self) -> nn.Module:
        return Embedding(self._spec, group=self._group)

    def block(self) -> nn.Module:
        return Block(self._spec, group=self._group)

    def norm(self) -> nn.Module:
        return LayerNorm(self._spec.hidden_size, epsilon=self._spec.norm_epsilon)
