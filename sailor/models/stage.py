"""The part of a model that one worker holds: some blocks, with the embedding or the head at an end.

Names of parameters are the model's own ("blocks.7.attention.query.weight"), never the stage's.
"""

# B batch, T tokens, D model, v this rank's share of the vocabulary

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import nn

from sailor.models.gpt import Gpt
from sailor.models.layers import ColumnLinear
from sailor.models.llama import Llama
from sailor.models.spec import TOKEN_EMBEDDING, Family, ModelSpec
from sailor.parallel.tensor import TensorGroup

HEAD_OUTPUT = "head.output.weight"


class Parts(Protocol):
    """What a family provides."""

    def embedding(self) -> nn.Module: ...
    def block(self) -> nn.Module: ...
    def norm(self) -> nn.Module: ...


def parts_of(spec: ModelSpec, group: TensorGroup) -> Parts:
    """The parts of the model's family."""
    match spec.family:
        case Family.gpt:
            return Gpt(spec, group=group)
        case Family.llama:
            return Llama(spec, group=group)


class Head(nn.Module):
    """Final norm and output matrix. This rank's share of the logits, [B, T, v]."""

    def __init__(self, spec: ModelSpec, norm: nn.Module, *, group: TensorGroup) -> None:
        super().__init__()
        self.norm = norm
        self.output = ColumnLinear(spec.hidden_size, spec.vocab_size, bias=False, group=group)
        self._group = group
        share = spec.vocab_size // group.size
        self._num_tokens = max(0, min(share, spec.num_tokens - group.rank * share))  # of the share

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        logits_BTv: torch.Tensor = self.output(self._group.enter(self.norm(x_BTD)))
        if self._num_tokens < logits_BTv.shape[-1]:
            # Rows that are no tokens are never predicted. Finite, for a rank that has no others.
            nothing = torch.finfo(logits_BTv.dtype).min
            logits_BTv[..., self._num_tokens :] = nothing
        return logits_BTv


class StageModule(nn.Module):
    """Tokens or activations in; activations, or on the last stage losses, out."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        blocks: range,
        first: bool,
        last: bool,
        recompute: bool,
        group: TensorGroup,
        compiled: bool = False,
    ) -> None:
        """``compiled``: each block goes through torch.compile, when it first computes."""
        super().__init__()
        parts = parts_of(spec, group)
        self.embedding = parts.embedding() if first else None
        self.blocks = nn.ModuleDict({str(block): parts.block() for block in blocks})
        self.head = Head(spec, parts.norm(), group=group) if last else None
        self._tied = spec.tied_embeddings
        self._recompute = recompute
        self._group = group
        self._order = list(self.blocks.values())
        if compiled:
            for block in self._order:
                block.compile()  # in place: names stay

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T] tokens on the first stage, [B, T, D] activations elsewhere -> [B, T, D].

        Of split sequences the last stage returns this rank's run, which its head puts together.
        """
        x_BTD = self._group.divide(x) if self.embedding is None else self.embedding(x)
        recompute = self._recompute and torch.is_grad_enabled()
        for block in self._order:
            x_BTD = _recomputed(block, x_BTD) if recompute else block(x_BTD)
        return x_BTD if self.head is not None else self._group.unite(x_BTD)

    def losses(self, x_BTD: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of every token, [B * T] in nats, in fp32. Last stage only."""
        assert self.head is not None
        logits_Nv = self.head(x_BTD).flatten(0, 1).float()
        return self._group.cross_entropy(logits_Nv, targets_BT.flatten())

    def leaves(self) -> Iterator[tuple[str, nn.Module, str]]:
        """(name in ModelSpec.tensors, module, attribute) of every parameter.

        A tied output matrix is a parameter of its own under the name of the token embedding, so
        that both uses can be summed apart, on one stage as on two.
        """
        for path, module in self.named_modules():
            for attribute in module._parameters:
                if module._parameters[attribute] is not None:
                    name = f"{path}.{attribute}"
                    tied = self._tied and name == HEAD_OUTPUT
                    yield (TOKEN_EMBEDDING if tied else name), module, attribute


class _Recomputed(torch.autograd.Function):
    """A block that keeps its input alone, and runs forward once more when backward comes.

    torch.utils.checkpoint does the same, but its first call loads the compiler (almost 2 s). There
    are no random numbers in a block, so there is no generator to rewind.
    """

    @staticmethod
    def forward(ctx: Any, x_BTD: torch.Tensor, block: nn.Module) -> torch.Tensor:
        ctx.block = block
        ctx.save_for_backward(x_BTD)
        y_BTD: torch.Tensor = block(x_BTD)
        return y_BTD

    @staticmethod
    def backward(ctx: Any, grad_BTD: torch.Tensor) -> tuple[torch.Tensor | None, None]:
        (x_BTD,) = ctx.saved_tensors
        with torch.enable_grad():
            x_BTD = x_BTD.detach().requires_grad_()
            y_BTD = ctx.block(x_BTD)
        torch.autograd.backward((y_BTD,), (grad_BTD,))
        return x_BTD.grad, None


def _recomputed(block: nn.Module, x_BTD: torch.Tensor) -> torch.Tensor:
    y_BTD: torch.Tensor = _Recomputed.apply(x_BTD, block)  # type: ignore[no-untyped-call]
    return y_BTD
