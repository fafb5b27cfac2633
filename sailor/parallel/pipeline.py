"""One replica as a pipeline: a stage works through its microbatches and hands on activations.

Stages speak leader to leader, one broadcast on a group of two per activation, then inside the
receiving tensor group: that fits any number of ranks on either side. Nobody waits to send, and the
next activation is asked for while the last one is worked on. Gradients go the other way alike.
"""

# B batch, T tokens, D model

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from sailor.parallel.comm import Communicator, LoopbackCommunicator, Pending
from sailor.parallel.layout import GroupKind, Layout
from sailor.parallel.schedule import Forward, forward_only, one_forward_one_backward


class Stage(Protocol):
    """What a stage computes; sailor/models/stage.py builds it."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T] tokens on the first stage, [B, T, D] activations elsewhere -> [B, T, D]."""

    def losses(self, x_BTD: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
        """Loss of every token, [B * T]. Last stage only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Microbatch:
    """Tokens [B, T] where the stage needs them: inputs on the first, targets on the last."""

    inputs: torch.Tensor | None
    targets: torch.Tensor | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """A rank's lines to its neighbours; None where there is no neighbour or it does not lead."""

    from_previous: Communicator | None = None  # activations in
    to_next: Communicator | None = None  # activations out
    from_next: Communicator | None = None  # gradients in
    to_previous: Communicator | None = None  # gradients out
    tensor: Communicator = LoopbackCommunicator()

    @staticmethod
    def of(layout: Layout, rank: int, groups: Mapping[str, Communicator]) -> Links:
        """The lines among a rank's groups. Forward and backward groups are (sender, receiver) of
        activations, so gradients come from their second member.
        """
        found: dict[str, Communicator] = {}
        for group in layout.groups_of(rank):
            sends = group.ranks[0] == rank
            match group.kind:
                case GroupKind.forward:
                    found["to_next" if sends else "from_previous"] = groups[group.key]
                case GroupKind.backward:
                    found["from_next" if sends else "to_previous"] = groups[group.key]
                case GroupKind.tensor:
                    found["tensor"] = groups[group.key]
                case _:
                    pass
        return Links(**found)


class _Inbox:
    """Tensors that arrive in order, asked for one ahead, on every rank of the stage."""

    def __init__(
        self, line: Communicator | None, *, root: int, tensor: Communicator,
        shape: tuple[int, ...], like: torch.Tensor, count: int,
    ) -> None:  # fmt: skip
        self._line = line
        self._root = root
        self._tensor = tensor
        self._shape = shape
        self._like = like  # of their type, on their device
        self._left = count
        self._next = self._ask()

    def _ask(self) -> tuple[torch.Tensor, Pending] | None:
        if self._line is None or self._left == 0:
            return None
        self._left -= 1
        buffer_BTD = self._like.new_empty(self._shape)
        return buffer_BTD, self._line.broadcast(buffer_BTD, root=self._root)

    def take(self) -> torch.Tensor:
        """Before: the leader's line has it; after: every rank of the stage. Raises Aborted."""
        if self._next is not None:
            arrived_BTD, pending = self._next
            pending.wait()
            self._next = self._ask()
        else:
            arrived_BTD = self._like.new_empty(self._shape)
        if self._tensor.size > 1:
            self._tensor.broadcast(arrived_BTD, root=0).wait()
        return arrived_BTD


class Pipeline:
    """One rank's stage at work."""

    def __init__(
        self, module: Stage, layout: Layout, rank: int, *, device: torch.device,
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        at = layout.coordinates[rank]
        self.first, self.last = layout.is_first(rank), layout.is_last(rank)
        self._module = module
        self._stage = at.stage
        self._num_stages = layout.plan.replicas[at.replica].num_stages
        self._length = layout.plan.sequence_length
        self._width = layout.spec.hidden_size
        self._like = torch.empty(0, device=device, dtype=dtype)
        self._links = Links()
        self._sent: list[Pending] = []
        self.seconds: dict[str, float] = {}  # of the last ``train``: forward, backward, wait

    def connect(self, links: Links) -> None:
        """Speak over these lines from now on."""
        self._links = links
        self._sent = []

    def train(
        self, microbatches: Sequence[Microbatch], *, size: int, seed: float
    ) -> list[torch.Tensor]:
        """Forward and backward of every microbatch of ``size`` sequences, in 1F1B order.

        ``seed`` multiplies the summed loss before backward. Returns each microbatch's summed loss
        in nats, on the last stage, else nothing. Raises Aborted.
        """
        activations = self._activations(size, len(microbatches))
        gradients = self._inbox(
            self._links.from_next, root=1, wanted=not self.last, size=size, count=len(microbatches)
        )
        order = one_forward_one_backward(
            stage=self._stage, num_stages=self._num_stages, num_microbatches=len(microbatches)
        )
        in_flight: dict[int, tuple[torch.Tensor | None, torch.Tensor]] = {}
        losses: list[torch.Tensor] = []
        spent = {"forward": 0.0, "backward": 0.0, "wait": 0.0}
        for operation in order:
            m = operation.microbatch
            began = time.monotonic()
            if isinstance(operation, Forward):
                came_BTD = activations.take().requires_grad_() if activations else None
                arrived = time.monotonic()
                out = self._forward(came_BTD, microbatches[m])
                if self.last:
                    losses.append(out.detach())
                else:
                    self._send(self._links.to_next, out.detach(), root=0)
                in_flight[m] = (came_BTD, out)
            else:
                came_BTD, out = in_flight.pop(m)
                grad = gradients.take() if gradients else torch.full_like(out, seed)
                arrived = time.monotonic()
                torch.autograd.backward((out,), (grad,))
                if came_BTD is not None:
                    assert came_BTD.grad is not None
                    self._send(self._links.to_previous, came_BTD.grad, root=1)
            spent["wait"] += arrived - began
            work = "forward" if isinstance(operation, Forward) else "backward"
            spent[work] += time.monotonic() - arrived
        began = time.monotonic()
        self._flush()
        spent["wait"] += time.monotonic() - began
        self.seconds = spent
        return losses

    @torch.no_grad()
    def evaluate(self, microbatches: Sequence[Microbatch], *, size: int) -> list[torch.Tensor]:
        """Losses of every token, [B, T] per microbatch, on the last stage. Raises Aborted."""
        activations = self._activations(size, len(microbatches))
        losses: list[torch.Tensor] = []
        for operation in forward_only(len(microbatches)):
            microbatch = microbatches[operation.microbatch]
            x = activations.take() if activations else microbatch.inputs
            assert x is not None
            out_BTD = self._module(x)
            if self.last:
                assert microbatch.targets is not None
                losses.append(self._module.losses(out_BTD, microbatch.targets).view(size, -1))
            else:
                self._send(self._links.to_next, out_BTD, root=0)
        self._flush()
        return losses

    def _forward(self, came_BTD: torch.Tensor | None, microbatch: Microbatch) -> torch.Tensor:
        """Activations, or on the last stage the summed loss."""
        x = microbatch.inputs if came_BTD is None else came_BTD
        assert x is not None
        out_BTD = self._module(x)
        if not self.last:
            return out_BTD
        assert microbatch.targets is not None
        return self._module.losses(out_BTD, microbatch.targets).sum()

    def _activations(self, size: int, count: int) -> _Inbox | None:
        return self._inbox(
            self._links.from_previous, root=0, wanted=not self.first, size=size, count=count
        )

    def _inbox(
        self, line: Communicator | None, *, root: int, wanted: bool, size: int, count: int
    ) -> _Inbox | None:
        if not wanted:
            return None
        return _Inbox(
            line, root=root, tensor=self._links.tensor, shape=(size, self._length, self._width),
            like=self._like, count=count,
        )  # fmt: skip

    def _send(self, line: Communicator | None, tensor_BTD: torch.Tensor, *, root: int) -> None:
        if line is not None:
            self._sent.append(line.broadcast(tensor_BTD.contiguous(), root=root))

    def _flush(self) -> None:
        """Nothing of this step is on its way any more."""
        for pending in self._sent:
            pending.wait()
        self._sent.clear()
