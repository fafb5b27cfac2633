"""The parts models are made of, cut for tensor parallelism. Torch modules.

Every parameter has the name and, along its split axis, this rank's share of the shape that
``ModelSpec.tensors`` gives it. Modules are built on the meta device, without storage: the stage's
state (sailor/parallel/state.py) gives them their memory.
"""

# B batch, T tokens, D model, H heads of this rank, G its key/value heads, K head size, h half of
# it, F this rank's share of the feed-forward width

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import nn

from sailor.models.fused import linear, rms_norm, turn
from sailor.models.spec import Activation, ModelSpec, Positions
from sailor.parallel.tensor import TensorGroup


def unset(*shape: int) -> nn.Parameter:
    """A parameter that has a shape and no memory yet."""
    return nn.Parameter(torch.empty(shape, device="meta"))


class ColumnLinear(nn.Module):
    """x W^T + b, of which this rank holds some output columns. In: whole; out: its share."""

    def __init__(self, width_in: int, width_out: int, *, bias: bool, group: TensorGroup) -> None:
        super().__init__()
        share = width_out // group.size
        self.weight = unset(share, width_in)
        self.bias = unset(share) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)


class RowLinear(nn.Module):
    """x W^T + b, of which this rank holds some input columns. In: its share; out: whole."""

    def __init__(self, width_in: int, width_out: int, *, bias: bool, group: TensorGroup) -> None:
        super().__init__()
        self.weight = unset(width_out, width_in // group.size)
        self.bias = unset(width_out) if bias else None
        self._group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._group.size == 1:
            return linear(x, self.weight, self.bias)
        whole = self._group.leave(linear(x, self.weight))
        return whole if self.bias is None else whole + self.bias  # once, after the sum


class LayerNorm(nn.Module):
    """(x - mean) / deviation * weight + bias, over the model width."""

    def __init__(self, width: int, *, epsilon: float) -> None:
        super().__init__()
        self.weight = unset(width)
        self.bias = unset(width)
        self._shape = (width,)
        self._epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self._shape, self.weight, self.bias, self._epsilon)


class RMSNorm(nn.Module):
    """x / root mean square * weight (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, *, epsilon: float) -> None:
        super().__init__()
        self.weight = unset(width)
        self._epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, epsilon=self._epsilon)


class TokenEmbedding(nn.Module):
    """Rows of a matrix, of which this rank holds the rows of its share of the vocabulary."""

    def __init__(self, vocab_size: int, width: int, *, group: TensorGroup) -> None:
        super().__init__()
        self.weight = unset(vocab_size // group.size, width)
        self._group = group

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        return self._group.embed(tokens_BT, self.weight)


class PositionEmbedding(nn.Module):
    """A learned row for each position, held whole by every rank. The first ``offset`` are idle."""

    def __init__(self, max_positions: int, width: int, *, offset: int, group: TensorGroup) -> None:
        super().__init__()
        self.weight = unset(offset + max_positions, width)
        self._offset = offset
        self._group = group

    def forward(self, num_tokens: int) -> torch.Tensor:
        run = self._group.run_of(num_tokens)
        return self.weight[self._offset + run.start : self._offset + run.stop]


class Rotary:
    """Rotary position embedding in the halves convention (Su et al. 2021; as in GPT-NeoX, Llama).

    No parameters; the tables are computed once per length and shared by all blocks of a stage.
    """

    def __init__(self, frequencies: torch.Tensor) -> None:
        """``frequencies`` of the K / 2 pairs, in radians per position, fp64."""
        self._frequencies = frequencies
        self._tables: dict[tuple[int, torch.device], tuple[torch.Tensor, torch.Tensor]] = {}

    def rotate(self, x_BHTK: torch.Tensor) -> torch.Tensor:
        """Turn each pair (k, k + K/2) by its position's angle."""
        cos_Th, sin_Th = self._table(x_BHTK.shape[-2], x_BHTK.device)
        return turn(x_BHTK, cos_Th, sin_Th)

    def _table(self, num_tokens: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        key = (num_tokens, device)
        if key not in self._tables:
            positions = torch.arange(num_tokens, dtype=torch.float64)
            angles_Th = torch.outer(positions, self._frequencies)
            self._tables[key] = (
                angles_Th.cos().float().to(device),
                angles_Th.sin().float().to(device),
            )
        return self._tables[key]


class Attention(nn.Module):
    """Causal self-attention over this rank's heads; query heads share key/value heads in groups."""

    def __init__(self, spec: ModelSpec, *, group: TensorGroup, rotary: Rotary | None) -> None:
        super().__init__()
        width, kv_width = spec.num_heads * spec.head_size, spec.num_kv_heads * spec.head_size
        bias = spec.attention_bias
        self.query = ColumnLinear(spec.hidden_size, width, bias=bias, group=group)
        self.key = ColumnLinear(spec.hidden_size, kv_width, bias=bias, group=group)
        self.value = ColumnLinear(spec.hidden_size, kv_width, bias=bias, group=group)
        self.output = RowLinear(
            width, spec.hidden_size, bias=spec.attention_output_bias, group=group
        )
        self._group = group
        self._rotary = rotary
        self._head_size = spec.head_size
        self._grouped = spec.num_kv_heads != spec.num_heads
        self._window = spec.sliding_window

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        x_BTD = self._group.enter(x_BTD)
        batch, num_tokens, _ = x_BTD.shape
        heads = (batch, num_tokens, -1, self._head_size)
        q_BHTK = self.query(x_BTD).view(heads).transpose(1, 2)
        k_BGTK = self.key(x_BTD).view(heads).transpose(1, 2)
        v_BGTK = self.value(x_BTD).view(heads).transpose(1, 2)
        if self._rotary is not None:
            q_BHTK, k_BGTK = self._rotary.rotate(q_BHTK), self._rotary.rotate(k_BGTK)
        near_TT = None  # a sequence within the window does not notice it
        if 0 < self._window < num_tokens:
            near_TT = _window_mask(num_tokens, self._window, x_BTD.device)
        y_BHTK = F.scaled_dot_product_attention(
            q_BHTK, k_BGTK, v_BGTK, attn_mask=near_TT, is_causal=near_TT is None,
            enable_gqa=self._grouped,
        )  # fmt: skip
        output: torch.Tensor = self.output(y_BHTK.transpose(1, 2).flatten(2))
        return output


@lru_cache(maxsize=2)
def _window_mask(num_tokens: int, window: int, device: torch.device) -> torch.Tensor:
    """[T, T] of bool: whether token q (row) sees token k, k in (q - window, q]."""
    every_TT = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=device)
    return every_TT.tril().triu(1 - window)


class FeedForward(nn.Module):
    """down(activation(up(x))), or down(silu(gate(x)) * up(x)) for swiglu (Shazeer 2020)."""

    def __init__(self, spec: ModelSpec, *, group: TensorGroup) -> None:
        super().__init__()
        hidden, ffn, bias = spec.hidden_size, spec.ffn_hidden_size, spec.ffn_bias
        self.gate = (
            ColumnLinear(hidden, ffn, bias=bias, group=group)
            if spec.activation is Activation.swiglu
            else None
        )
        self.up = ColumnLinear(hidden, ffn, bias=bias, group=group)
        self.down = RowLinear(ffn, hidden, bias=bias, group=group)
        self._activation = spec.activation
        self._group = group

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        x_BTD = self._group.enter(x_BTD)
        wide_BTF = self.up(x_BTD)
        match self._activation:
            case Activation.swiglu:
                assert self.gate is not None
                wide_BTF = F.silu(self.gate(x_BTD)) * wide_BTF
            case Activation.gelu:
                wide_BTF = F.gelu(wide_BTF)
            case Activation.gelu_tanh:
                wide_BTF = F.gelu(wide_BTF, approximate="tanh")
            case Activation.relu:
                wide_BTF = F.relu(wide_BTF)
        output: torch.Tensor = self.down(wide_BTF)
        return output


def rotary_of(spec: ModelSpec) -> Rotary | None:
    """The stage's rotary tables, if the model turns its heads."""
    if spec.positions is not Positions.rotary:
        return None
    return Rotary(rotary_frequencies(spec))


def rotary_frequencies(spec: ModelSpec) -> torch.Tensor:
    """Radians per position of each pair of a head, [K / 2] in fp64.

    theta^(-2i/K), and with a scaling factor as in Llama 3.1: what turns fewer than ``low`` times in
    the original length is slowed down by the factor, what turns more than ``high`` times is left,
    in between it goes over in a straight line (of turns).
    """
    half = torch.arange(0, spec.head_size, 2, dtype=torch.float64) / spec.head_size
    plain = spec.rope_theta**-half
    low, high = spec.rope_low_freq_factor, spec.rope_high_freq_factor
    if spec.rope_scaling_factor == 1.0:
        return plain
    turns = plain * spec.rope_original_positions / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return plain * (kept + (1.0 - kept) / spec.rope_scaling_factor)
