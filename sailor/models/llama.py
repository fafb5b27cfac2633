"""Llama and its kin: rotary positions, RMSNorm before each half of a block, gated feed-forward."""

# B batch, T tokens, D model

from __future__ import annotations

import torch
from torch import nn

from sailor.models.layers import Attention, FeedForward, RMSNorm, TokenEmbedding, rotary_of
from sailor.models.spec import ModelSpec, Norm, Positions
from sailor.parallel.tensor import TensorGroup


class Embedding(nn.Module):
    """The token alone: positions come in by turning the heads."""

    def __init__(self, spec: ModelSpec, *, group: TensorGroup) -> None:
        super().__init__()
        self.tokens = TokenEmbedding(spec.vocab_size, spec.hidden_size, group=group)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        x_BTD: torch.Tensor = self.tokens(tokens_BT)
        return x_BTD


class Block(nn.Module):
    """Attention, then feed-forward, each on the normalised stream and added back to it."""

    def __init__(self, attention: Attention, spec: ModelSpec, *, group: TensorGroup) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(spec.hidden_size, epsilon=spec.norm_epsilon)
        self.attention = attention
        self.ffn_norm = RMSNorm(spec.hidden_size, epsilon=spec.norm_epsilon)
        self.ffn = FeedForward(spec, group=group)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD))
        y_BTD: torch.Tensor = x_BTD + self.ffn(self.ffn_norm(x_BTD))
        return y_BTD


class Llama:
    """The family: what a stage is built of."""

    def __init__(self, spec: ModelSpec, *, group: TensorGroup) -> None:
        if spec.positions is not Positions.rotary or spec.norm is not Norm.rmsnorm:
            raise ValueError(f"{spec.name}: llama has rotary positions and rmsnorm")
        self._spec = spec
        self._group = group
        self._rotary = rotary_of(spec)

    def embedding(self) -> nn.Module:
        return Embedding(self._spec, group=self._group)

    def block(self) -> nn.Module:
        attention = Attention(self._spec, group=self._group, rotary=self._rotary)
        return Block(attention, self._spec, group=self._group)

    def norm(self) -> nn.Module:
        return RMSNorm(self._spec.hidden_size, epsilon=self._spec.norm_epsilon)
