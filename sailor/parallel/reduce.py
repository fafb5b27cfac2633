"""From each microbatch's gradients to the sum over the global batch, on every owner.

Two ways, of one interface. ``FastSum`` adds up in fp32, over owners while backward still runs.
``ExactSum`` rounds every microbatch's gradient to a fixed grid and adds multiples of the grid in
fp64, which is exact in any order: however the microbatches are dealt to replicas, and the blocks to
stages, the sum has the same bits. The price is a second pass over the gradients per microbatch and
twice the bytes on the wire.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from sailor.parallel import products
from sailor.parallel.buckets import Bucket, buckets_of
from sailor.parallel.comm import Communicator, Pending
from sailor.parallel.slots import Segment, Slot
from sailor.parallel.state import StageState

# Grid of the exact sum, on gradients of the mean loss, give or take a factor of two for making it
# a power of two of the summed loss: multiples of 2^-44 are exact in fp64 up to 2^9 = 512, more
# than any gradient of a mean loss that is going to be clipped to a norm of about 1, and finer than
# fp32 itself down to gradients of 2^-20 = 1e-6.
GRID_BITS = 44
EXACT_BITS = 53


PORTION = 1 << 21  # elements of a fast sum that travel together: 8 MiB, as long as a link is busy
CHUNK = 1 << 15  # elements converted to fp64 at a time: they stay in the nearest caches


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chunk:
    """Some rows of a parameter: where they are summed, and where they become fp64 on the way."""

    start: int
    stop: int
    total: torch.Tensor
    scratch: torch.Tensor


class GradientSum(Protocol):
    """Gradients of one step. ``seed`` is what the summed loss of a microbatch is multiplied by.

    Backward passes between ``begin`` and ``reduce`` are taken in as they go.
    """

    seed: float

    def begin(
        self, groups: Mapping[tuple[int, ...], Communicator], *, num_microbatches: int
    ) -> None:
        """Forget the last step. So many backward passes will come, then ``reduce``.

        ``groups`` by owners; a box with one owner needs none.
        """

    def reduce(self) -> None:
        """Sum over owners; afterwards ``state.gradients`` has the gradient of the mean loss of all
        that this rank keeps. Collective. Raises Aborted.
        """

    def magnitude(self) -> torch.Tensor:
        """Bound on the size of partial sums here, in units in which 1 is too large. 0: no bound.

        A scalar, on the device: nobody waits for it.
        """

    def renew(self) -> None:
        """Take fresh memory if an abandoned operation may still write into the old."""

    def detach(self) -> torch.Tensor | None:
        """Take no gradients in any more: another sum over the same parameters is to, and may have
        this memory."""


class FastSum:
    """fp32 throughout, and over owners while backward still runs.

    Gradients add up in the flat array: by autograd itself, or where they come in bf16 on their way.
    As soon as the last microbatch has passed through all parameters of a bucket, its sum over the
    owners starts. The order of buckets is that of backward, the same on all owners, for operations
    of one group must start in one order everywhere: a bucket that is complete early waits its turn.
    """

    def __init__(
        self,
        state: StageState,
        parameters: tuple[tuple[str, torch.nn.Parameter], ...],
        *,
        tokens_per_step: int,
        memory: torch.Tensor | None = None,
        portion: int = PORTION,
    ) -> None:
        """``memory`` is not needed: gradients are summed where they lie."""
        self.seed = 1.0 / tokens_per_step
        self._state = state
        self._parameters = tuple((name, p) for name, p in parameters if p.requires_grad)
        self._in_place = state.weights.dtype is torch.float32

        # Backward is done with a bucket when it has come to the earliest of its tensors.
        def earliest(bucket: Bucket) -> int:
            return min(state.order[name] for name in bucket.tensors)

        self._buckets = sorted(
            buckets_of(state, most=portion), key=lambda b: (-earliest(b), b.keeper or 0)
        )
        self._awaits: list[list[int]] = [
            [at for at, bucket in enumerate(self._buckets) if name in bucket.tensors]
            for name, _ in self._parameters
        ]
        self._groups: Mapping[tuple[int, ...], Communicator] = {}
        self._passes: list[int] = []  # by parameter: backward passes that are to come
        self._missing: list[int] = []  # by bucket: parameters that are not complete
        self._queues: dict[tuple[int, ...], deque[int]] = {}
        self._under_way: list[tuple[Bucket, torch.Tensor, Pending | None]] = []
        self._fresh: set[str] = set()  # tensors that hold the last step's sum still
        taken_in = {name for name, _ in self._parameters}
        self._idle = [slot for slot in state.slots if slot.logical.name not in taken_in]
        self._attach()
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._passed, index))
            for index, (_, parameter) in enumerate(self._parameters)
        ]
        if self._in_place:
            for index, (_, parameter) in enumerate(self._parameters):
                setattr(parameter, "gradient_sink", _Sink(self, index))  # noqa: B010

    def _attach(self) -> None:
        state, device = self._state, self._state.gradients.device
        self._views = [state.by_name[name].of(state.gradients) for name, _ in self._parameters]
        if self._in_place:
            for (_, parameter), view in zip(self._parameters, self._views, strict=True):
                parameter.grad = view
        self._flats = [
            torch.zeros(bucket.size, device=device)
            if bucket.staged
            else state.gradients[bucket.start : bucket.stop]
            for bucket in self._buckets
        ]

    def begin(
        self, groups: Mapping[tuple[int, ...], Communicator], *, num_microbatches: int
    ) -> None:
        # The first microbatch's gradient replaces what is there: cheaper than zeros to add it to.
        self._fresh = {name for name, _ in self._parameters}
        for _, parameter in self._parameters:
            parameter.grad = None
        for slot in self._idle:
            slot.of(self._state.gradients).zero_()
        self._groups = groups
        self._passes = [num_microbatches] * len(self._parameters)
        self._missing = [0] * len(self._buckets)
        self._under_way = []
        for buckets in self._awaits:
            for at in buckets:
                self._missing[at] += 1
        self._queues = {}
        for at, bucket in enumerate(self._buckets):
            self._queues.setdefault(bucket.owners, deque()).append(at)

    def magnitude(self) -> torch.Tensor:
        return self._state.gradients.new_zeros(())

    def _passed(self, index: int, parameter: torch.Tensor) -> None:
        """Backward of one microbatch has come through a parameter."""
        if parameter.grad is None:
            return  # its gradient has been taken in and counted by ``add``
        view, name = self._views[index], self._parameters[index][0]
        if parameter.grad is not view:
            if name in self._fresh:
                view.copy_(parameter.grad)
                self._fresh.discard(name)
            else:
                view.add_(parameter.grad)
            parameter.grad = view if self._in_place else None
        self._count(index)

    def add(self, index: int, grad_NO: torch.Tensor, x_NI: torch.Tensor) -> None:
        """The same of a parameter whose gradient comes as two factors: grad^T x."""
        view, name = self._views[index], self._parameters[index][0]
        products.add_grad_weight(view, grad_NO, x_NI, fresh=name in self._fresh)
        self._fresh.discard(name)
        self._count(index)

    def _count(self, index: int) -> None:
        if not self._passes:
            return  # nobody began: gradients are wanted, sums are not
        self._passes[index] -= 1
        if self._passes[index] == 0:
            for at in self._awaits[index]:
                self._missing[at] -= 1
                self._advance(self._buckets[at].owners)

    def _advance(self, owners: tuple[int, ...]) -> None:
        """Start what is complete, in order."""
        queue = self._queues[owners]
        while queue and self._missing[queue[0]] == 0:
            at = queue.popleft()
            bucket, flat = self._buckets[at], self._flats[at]
            if len(owners) > 1:
                for segment, view in bucket.views(flat):
                    view.copy_(segment.of(self._gradient(segment)))
            self._under_way.append((bucket, flat, bucket.start_sum(flat, self._groups)))

    def reduce(self) -> None:
        for owners, queue in self._queues.items():
            self._advance(owners)
            assert not queue, "a parameter had fewer backward passes than were announced"
        for bucket, flat, pending in self._under_way:
            if pending is not None:
                pending.wait()
                if bucket.wanted_by(self._state.rank):
                    for segment, view in bucket.views(flat):
                        segment.of(self._gradient(segment)).copy_(view)
        self._passes = []

    def _gradient(self, segment: Segment) -> torch.Tensor:
        return self._state.by_name[segment.tensor].of(self._state.gradients)

    def renew(self) -> None:
        self._state.gradients = torch.zeros_like(self._state.gradients)
        self._attach()

    def detach(self) -> torch.Tensor | None:
        for hook in self._hooks:
            hook.remove()
        for _, parameter in self._parameters:
            parameter.grad = None
        return None


class _Sink:
    """What a linear layer hands its weight's gradient to (sailor/models/fused.py)."""

    def __init__(self, total: FastSum, index: int) -> None:
        self._total = total
        self._index = index

    def add(self, grad_NO: torch.Tensor, x_NI: torch.Tensor) -> None:
        self._total.add(self._index, grad_NO, x_NI)


class ExactSum:
    """Multiples of a grid, in fp64.

    A gradient is taken in while it is warm in the cache, as soon as backward has made it, and its
    memory is free for the next one.
    """

    def __init__(
        self,
        state: StageState,
        parameters: tuple[tuple[str, torch.nn.Parameter], ...],
        *,
        tokens_per_step: int,
        memory: torch.Tensor | None = None,
    ) -> None:
        """``memory``: of an earlier sum over the same arrays."""
        # With a power of two for a seed, backward computes exactly the bits it would compute
        # without one, only larger, and the grid becomes the whole numbers.
        self.seed = 2.0 ** (GRID_BITS - (tokens_per_step - 1).bit_length())
        self._to_mean = 1.0 / (self.seed * tokens_per_step)
        self._state = state
        self._slots = [state.by_name[name] for name, p in parameters if p.requires_grad]
        self._buckets = buckets_of(state)
        self._groups: Mapping[tuple[int, ...], Communicator] = {}
        # By tensor: a tied matrix is two parameters that are added to one sum.
        self._extremes: dict[str, list[torch.Tensor]] = {s.logical.name: [] for s in self._slots}
        self._allocate(memory)
        wanted = (parameter for _, parameter in parameters if parameter.requires_grad)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._take, index))
            for index, parameter in enumerate(wanted)
        ]

    def _allocate(self, memory: torch.Tensor | None) -> None:
        device = self._state.gradients.device
        sizes = [bucket.size for bucket in self._buckets]
        if memory is None or memory.numel() < sum(sizes):
            memory = torch.zeros(sum(sizes), dtype=torch.float64, device=device)
        self._memory = memory
        self._writing = False  # others' numbers may still be written into it
        self._sums = list(memory[: sum(sizes)].split(sizes))
        self._scratch = torch.empty(CHUNK, dtype=torch.float64, device=device)
        self._targets = [self._targets_of(slot) for slot in self._slots]

    def _targets_of(self, slot: Slot) -> list[tuple[Segment | None, list[_Chunk]]]:
        """Where a parameter's gradient is added: whole, or segment by segment."""
        targets: list[tuple[Segment | None, list[_Chunk]]] = []
        for bucket, sums in zip(self._buckets, self._sums, strict=True):
            if bucket.start <= slot.offset < bucket.stop:
                at = slot.offset - bucket.start
                total = sums[at : at + slot.numel].view(slot.shape)
                targets.append((None, self._chunks(total)))
            for segment, view in bucket.views(sums):
                if segment.tensor == slot.logical.name:
                    targets.append((segment, self._chunks(view)))
        return targets

    def _chunks(self, total: torch.Tensor) -> list[_Chunk]:
        rows = max(1, CHUNK // max(1, total[0].numel()))
        chunks = []
        for start in range(0, len(total), rows):
            part = total[start : start + rows]
            # A row that is longer than the scratch converts on its own memory.
            scratch = self._scratch[: part.numel()] if part.numel() <= CHUNK else None
            chunks.append(
                _Chunk(
                    start=start,
                    stop=start + len(part),
                    total=part,
                    scratch=torch.empty_like(part) if scratch is None else scratch.view_as(part),
                )
            )
        return chunks

    def begin(
        self, groups: Mapping[tuple[int, ...], Communicator], *, num_microbatches: int
    ) -> None:
        self._groups = groups
        for sums in self._sums:
            sums.zero_()
        for extremes in self._extremes.values():
            extremes.clear()

    def _take(self, index: int, parameter: torch.Tensor) -> None:
        """Round one parameter's gradient of one microbatch and add it."""
        gradient = parameter.grad
        assert gradient is not None
        parameter.grad = None
        gradient.round_()
        self._extremes[self._slots[index].logical.name].extend(torch.aminmax(gradient))
        for segment, chunks in self._targets[index]:
            part = gradient if segment is None else segment.of(gradient)
            for chunk in chunks:
                chunk.scratch.copy_(part[chunk.start : chunk.stop])
                chunk.total.add_(chunk.scratch)

    def magnitude(self) -> torch.Tensor:
        # No partial sum of a tensor's elements exceeds the sum of its largest ones.
        bounds = [
            torch.stack(extremes).abs_().view(-1, 2).amax(dim=1).double().sum()
            for extremes in self._extremes.values()
            if extremes
        ]
        if not bounds:
            return self._state.gradients.new_zeros(())
        return torch.stack(bounds).max() / 2.0**EXACT_BITS

    def reduce(self) -> None:
        self._writing = True
        under_way = [
            bucket.start_sum(sums, self._groups)
            for bucket, sums in zip(self._buckets, self._sums, strict=True)
        ]
        for bucket, sums, pending in zip(self._buckets, self._sums, under_way, strict=True):
            if pending is not None:
                pending.wait()
            if not bucket.wanted_by(self._state.rank):
                continue
            sums.mul_(self._to_mean)
            if not bucket.staged:
                self._state.gradients[bucket.start : bucket.stop].copy_(sums)
            for segment, view in bucket.views(sums):
                slot = self._state.by_name[segment.tensor]
                segment.of(slot.of(self._state.gradients)).copy_(view)
        self._writing = False

    def renew(self) -> None:
        # Most steps are left in a pass or in a wait for a neighbour: their sums were nobody else's.
        if self._writing:
            self._allocate(None)

    def detach(self) -> torch.Tensor | None:
        for hook in self._hooks:
            hook.remove()
        return None if self._writing else self._memory
