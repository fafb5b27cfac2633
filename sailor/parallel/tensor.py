"""Tensor parallelism inside one stage: the operations where its ranks exchange partial results.

Between them every rank computes on its own share of the heads, the feed-forward columns and the
vocabulary (Shoeybi et al. 2019). The residual stream between them is replicated, all ranks of a
stage hold the same numbers; or with ``split_sequences`` each has a run of every sequence's tokens
(Korthikanti et al. 2022): the same bytes travel, norms and what they keep for backward are cut as
well, and what all ranks hold of parameters gets a part of its gradient on each. With one rank every
operation here is the plain one.
"""

# B batch, T tokens, t this rank's run of them, N = B * T rows, D model, V vocabulary, v this rank's
# share of it, R ranks

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from sailor.parallel.comm import Communicator, LoopbackCommunicator


class TensorGroup:
    """The ranks of one stage. ``communicator`` is a stand-in until the trainer connects one."""

    def __init__(self, *, rank: int, size: int, split_sequences: bool = False) -> None:
        self.rank = rank
        self.size = size
        self.splits = split_sequences and size > 1
        self.communicator: Communicator = LoopbackCommunicator(rank=rank, size=size)

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """Into the cut part. Same on all ranks before and after; gradients are summed ("f").

        Of split sequences: before, each rank its run [B, t, D]; after, everybody all [B, T, D].
        """
        if self.splits:
            return _apply(_Along, x, self.communicator, _gathered, _scattered)
        return x if self.size == 1 else _apply(_Enter, x, self.communicator)

    def leave(self, partial: torch.Tensor) -> torch.Tensor:
        """Out of the cut part. Before: partial sums; after: the sum on all ranks ("g").

        Of split sequences: after, each rank the sum of its run.
        """
        if self.splits:
            return _apply(_Along, partial, self.communicator, _scattered, _gathered)
        return partial if self.size == 1 else _apply(_Leave, partial, self.communicator)

    def divide(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Into a stage: before, all ranks the whole; after, each its run, if sequences are split.

        Gradients come back whole, on all ranks.
        """
        if not self.splits:
            return x_BTD
        return _apply(_Along, x_BTD, self.communicator, _own_run, _gathered)

    def unite(self, x: torch.Tensor) -> torch.Tensor:
        """Out of a stage: the inverse of ``divide``. Gradients come in whole, the same on all."""
        if not self.splits:
            return x
        return _apply(_Along, x, self.communicator, _gathered, _own_run)

    def run_of(self, num_tokens: int) -> range:
        """The tokens of a sequence that the residual stream has here."""
        if not self.splits:
            return range(num_tokens)
        share = num_tokens // self.size
        return range(self.rank * share, (self.rank + 1) * share)

    def embed(self, tokens_BT: torch.Tensor, weight_vD: torch.Tensor) -> torch.Tensor:
        """Rows of the token matrix, of which each rank holds a run of ``v``. [B, T, D]."""
        if self.size == 1:
            return _rows(tokens_BT, weight_vD)
        local_BT = tokens_BT - self.rank * weight_vD.shape[0]
        absent_BT = (local_BT < 0) | (local_BT >= weight_vD.shape[0])
        rows_BTD = _rows(local_BT.masked_fill(absent_BT, 0), weight_vD)
        return self.leave(rows_BTD.masked_fill(absent_BT.unsqueeze(-1), 0.0))

    def cross_entropy(self, logits_Nv: torch.Tensor, targets_N: torch.Tensor) -> torch.Tensor:
        """-log softmax(logits)[target] of every row, [N], the same on all ranks."""
        if self.size == 1:
            return F.cross_entropy(logits_Nv, targets_N, reduction="none")
        return _apply(_CrossEntropy, logits_Nv, targets_N, self)


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> torch.Tensor:
    """Function.apply has no types of its own; all of ours return one tensor."""
    output: torch.Tensor = function.apply(*arguments)
    return output


def _rows(tokens_BT: torch.Tensor, weight_vD: torch.Tensor) -> torch.Tensor:
    """Rows of a matrix. Gradients of a row add up in fp32 whatever the matrix is in."""
    if weight_vD.dtype is not torch.bfloat16:
        return F.embedding(tokens_BT, weight_vD)
    return _apply(_Rows, tokens_BT, weight_vD)


class _Rows(torch.autograd.Function):
    """A frequent token has hundreds of gradients: a sum in bf16 would stop growing at 256 ones."""

    @staticmethod
    def forward(ctx: Any, tokens_BT: torch.Tensor, weight_vD: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(tokens_BT)
        ctx.num_rows = weight_vD.shape[0]
        return F.embedding(tokens_BT, weight_vD)

    @staticmethod
    def backward(ctx: Any, grad_BTD: torch.Tensor) -> tuple[None, torch.Tensor]:
        (tokens_BT,) = ctx.saved_tensors
        grad_vD = torch.ops.aten.embedding_dense_backward(
            grad_BTD.float(), tokens_BT, ctx.num_rows, -1, False
        )
        return None, grad_vD.to(grad_BTD.dtype)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, communicator: Communicator) -> torch.Tensor:
        ctx.communicator = communicator
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        # The gradient comes fresh out of the matrices behind, nobody else reads it: sum in place.
        grad = grad.contiguous()
        ctx.communicator.all_reduce(grad).wait()
        return grad, None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: torch.Tensor, communicator: Communicator) -> torch.Tensor:
        communicator.all_reduce(partial).wait()
        ctx.mark_dirty(partial)
        return partial

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def _gathered(x_BtD: torch.Tensor, communicator: Communicator) -> torch.Tensor:
    """Before: each rank its run; after: every rank all runs, [B, T, D]."""
    parts_RBtD = x_BtD.new_empty(communicator.size, *x_BtD.shape)
    parts_RBtD[communicator.rank] = x_BtD
    communicator.all_gather(parts_RBtD).wait()
    return parts_RBtD.transpose(0, 1).flatten(1, 2)


def _scattered(x_BTD: torch.Tensor, communicator: Communicator) -> torch.Tensor:
    """Before: each rank an addend of all; after: each the sum of its run, [B, t, D]."""
    batch, num_tokens, width = x_BTD.shape
    runs = (batch, communicator.size, num_tokens // communicator.size, width)
    parts_RBtD = x_BTD.reshape(runs).transpose(0, 1).contiguous()
    communicator.reduce_scatter(parts_RBtD).wait()
    return parts_RBtD[communicator.rank].clone()  # the others' runs can go


def _own_run(x_BTD: torch.Tensor, communicator: Communicator) -> torch.Tensor:
    return x_BTD.chunk(communicator.size, dim=1)[communicator.rank].contiguous()


Change = Callable[[torch.Tensor, Communicator], torch.Tensor]


class _Along(torch.autograd.Function):
    """One of the two above and its way back: a change of who holds which run of a sequence."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, communicator: Communicator, there: Change, back: Change
    ) -> torch.Tensor:
        ctx.communicator, ctx.back = communicator, back
        return there(x, communicator)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return ctx.back(grad, ctx.communicator), None, None, None


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_Nv: torch.Tensor, targets_N: torch.Tensor, group: TensorGroup
    ) -> torch.Tensor:
        num_rows, share = logits_Nv.shape
        local_N = targets_N - group.rank * share
        absent_N = (local_N < 0) | (local_N >= share)
        local_N = local_N.masked_fill(absent_N, 0)
        target_N = logits_Nv.gather(1, local_N.unsqueeze(1)).squeeze(1).masked_fill(absent_N, 0.0)
        highest_N = logits_Nv.amax(dim=1)
        exponentials_Nv = (logits_Nv - highest_N.unsqueeze(1)).exp_()
        # One sum carries everybody's maximum and sum, each in rows of its own, and the target's
        # logit, which only one rank has.
        shared = logits_Nv.new_zeros(2 * group.size + 1, num_rows)
        shared[group.rank] = highest_N
        shared[group.size + group.rank] = exponentials_Nv.sum(dim=1)
        shared[-1] = target_N
        group.communicator.all_reduce(shared).wait()
        highest_RN, sums_RN = shared[: group.size], shared[group.size : -1]
        top_N = highest_RN.amax(dim=0)
        total_N = (sums_RN * (highest_RN - top_N).exp()).sum(dim=0)
        losses_N = total_N.log() + top_N - shared[-1]
        softmax_Nv = exponentials_Nv.mul_(((highest_N - top_N).exp() / total_N).unsqueeze(1))
        ctx.save_for_backward(softmax_Nv, local_N, absent_N)
        return losses_N

    @staticmethod
    def backward(ctx: Any, grad_N: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        softmax_Nv, local_N, absent_N = ctx.saved_tensors
        present_N = (~absent_N).to(softmax_Nv.dtype).unsqueeze(1)
        grad_Nv = softmax_Nv.scatter_add(1, local_N.unsqueeze(1), -present_N)
        return grad_Nv.mul_(grad_N.unsqueeze(1)), None, None
