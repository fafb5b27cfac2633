"""From each microbatch's gradients to the sum over the global batch, on every owner.

Two ways, of one interface. ``FastSum`` lets autograd add up in fp32 and sums over owners in fp32.
``ExactSum`` rounds every microbatch's gradient to a fixed grid and adds multiples of the grid in
fp64, which is exact in any order: however the microbatches are dealt to replicas, and the blocks to
stages, the sum has the same bits. The price is a second pass over the gradients per microbatch and
twice the bytes on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from sailor.parallel.comm import Communicator
from sailor.parallel.state import Segment, Slot, StageState, padded

# Grid of the exact sum, on gradients of the mean loss, give or take a factor of two for making it
# a power of two of the summed loss: multiples of 2^-44 are exact in fp64 up to 2^9 = 512, more
# than any gradient of a mean loss that is going to be clipped to a norm of about 1, and finer than
# fp32 itself down to gradients of 2^-20 = 1e-6.
GRID_BITS = 44
EXACT_BITS = 53


CHUNK = 1 << 15  # elements converted to fp64 at a time: they stay in the nearest caches


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chunk:
    """Some rows of a parameter: where they are summed, and where they become fp64 on the way."""

    start: int
    stop: int
    total: torch.Tensor
    scratch: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """What is summed over one set of owners in one operation.

    Either slots that the set owns whole, which lie together in the flat arrays at [start, stop), or
    ``staged`` segments of slots that several sets share. An owner with the highest tensor-parallel
    degree has the former where one with a lower degree has the latter: same elements, same order.
    """

    owners: tuple[int, ...]
    start: int
    stop: int
    staged: tuple[Segment, ...]

    @property
    def size(self) -> int:
        """Elements in the operation."""
        return self.stop - self.start + sum(padded(segment.numel) for segment in self.staged)

    def views(self, flat: torch.Tensor) -> list[tuple[Segment, torch.Tensor]]:
        """Each staged segment with its view of an array of ``size`` elements."""
        views = []
        at = 0
        for segment in self.staged:
            views.append((segment, flat[at : at + segment.numel].view(segment.shape)))
            at += padded(segment.numel)
        return views


def buckets_of(state: StageState) -> tuple[Bucket, ...]:
    """Every bucket of a rank, in the order of their owners: the same order on all of them."""
    owners = sorted({segment.owners for slot in state.slots for segment in slot.segments})
    buckets = []
    for ranks in owners:
        mine = [
            (slot, segment)
            for slot in state.slots
            for segment in slot.segments
            if segment.owners == ranks
        ]
        whole = [slot for slot, _ in mine if len(slot.segments) == 1]
        staged = tuple(segment for slot, segment in mine if len(slot.segments) > 1)
        assert not (whole and staged), "one set of owners cuts all its tensors alike"
        start = whole[0].offset if whole else 0
        stop = padded(whole[-1].offset + whole[-1].numel) if whole else 0
        buckets.append(Bucket(owners=ranks, start=start, stop=stop, staged=staged))
    return tuple(buckets)


class GradientSum(Protocol):
    """Gradients of one step. ``seed`` is what the summed loss of a microbatch is multiplied by.

    Backward passes between ``begin`` and ``reduce`` are taken in as they go.
    """

    seed: float

    def begin(self) -> None:
        """Forget the last step."""

    def reduce(self, groups: Mapping[tuple[int, ...], Communicator]) -> None:
        """Sum over owners; afterwards ``state.gradients`` has the gradient of the mean loss.

        ``groups`` by owners; a box with one owner needs none. Collective. Raises Aborted.
        """

    def magnitude(self) -> float:
        """Bound on the size of partial sums here, in units in which 1 is too large. 0: no bound."""

    def renew(self) -> None:
        """Take fresh memory: an abandoned operation may still write into the old."""


class FastSum:
    """fp32 throughout, in place: autograd adds to the flat array itself."""

    def __init__(
        self,
        state: StageState,
        parameters: tuple[tuple[str, torch.nn.Parameter], ...],
        *,
        tokens_per_step: int,
    ) -> None:
        self.seed = 1.0 / tokens_per_step
        self._state = state
        self._parameters = parameters
        self._buckets = buckets_of(state)
        self._attach()

    def _attach(self) -> None:
        device = self._state.gradients.device
        for name, parameter in self._parameters:
            if parameter.requires_grad:
                parameter.grad = self._state.by_name[name].of(self._state.gradients)
        self._flats = [
            torch.zeros(bucket.size, device=device)
            if bucket.staged
            else self._state.gradients[bucket.start : bucket.stop]
            for bucket in self._buckets
        ]

    def begin(self) -> None:
        self._state.gradients.zero_()

    def magnitude(self) -> float:
        return 0.0

    def reduce(self, groups: Mapping[tuple[int, ...], Communicator]) -> None:
        under_way = []
        for bucket, flat in zip(self._buckets, self._flats, strict=True):
            if len(bucket.owners) > 1:
                for segment, view in bucket.views(flat):
                    view.copy_(segment.of(self._gradient(segment)))
                under_way.append((bucket, flat, groups[bucket.owners].all_reduce(flat)))
        for bucket, flat, pending in under_way:
            pending.wait()
            for segment, view in bucket.views(flat):
                segment.of(self._gradient(segment)).copy_(view)

    def _gradient(self, segment: Segment) -> torch.Tensor:
        return self._state.by_name[segment.tensor].of(self._state.gradients)

    def renew(self) -> None:
        self._state.gradients = torch.zeros_like(self._state.gradients)
        self._attach()


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
    ) -> None:
        # With a power of two for a seed, backward computes exactly the bits it would compute
        # without one, only larger, and the grid becomes the whole numbers.
        self.seed = 2.0 ** (GRID_BITS - (tokens_per_step - 1).bit_length())
        self._to_mean = 1.0 / (self.seed * tokens_per_step)
        self._state = state
        self._slots = [state.by_name[name] for name, p in parameters if p.requires_grad]
        self._buckets = buckets_of(state)
        # By tensor: a tied matrix is two parameters that are added to one sum.
        self._extremes: dict[str, list[torch.Tensor]] = {s.logical.name: [] for s in self._slots}
        self._allocate()
        wanted = (parameter for _, parameter in parameters if parameter.requires_grad)
        for index, parameter in enumerate(wanted):
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(self._take, index)
            )

    def _allocate(self) -> None:
        device = self._state.gradients.device
        self._sums = [
            torch.zeros(bucket.size, dtype=torch.float64, device=device) for bucket in self._buckets
        ]
        self._scratch = torch.empty(CHUNK, dtype=torch.float64, device=device)
        self._targets = [self._targets_of(slot) for slot in self._slots]

    def _targets_of(self, slot: Slot) -> list[tuple[Segment | None, list[_Chunk]]]:
        """Where a parameter's gradient is added: whole, or segment by segment."""
        targets: list[tuple[Segment | None, list[_Chunk]]] = []
        for bucket, sums in zip(self._buckets, self._sums, strict=True):
            if len(slot.segments) == 1 and slot.segments[0].owners == bucket.owners:
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

    def begin(self) -> None:
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

    def magnitude(self) -> float:
        # No partial sum of a tensor's elements exceeds the sum of its largest ones.
        bounds = [
            torch.stack(extremes).abs_().view(-1, 2).amax(dim=1).double().sum()
            for extremes in self._extremes.values()
            if extremes
        ]
        return float(torch.stack(bounds).max()) / 2.0**EXACT_BITS if bounds else 0.0

    def reduce(self, groups: Mapping[tuple[int, ...], Communicator]) -> None:
        under_way = [
            None if len(bucket.owners) == 1 else groups[bucket.owners].all_reduce(sums)
            for bucket, sums in zip(self._buckets, self._sums, strict=True)
        ]
        for bucket, sums, pending in zip(self._buckets, self._sums, under_way, strict=True):
            if pending is not None:
                pending.wait()
            sums.mul_(self._to_mean)
            if not bucket.staged:
                self._state.gradients[bucket.start : bucket.stop].copy_(sums)
            for segment, view in bucket.views(sums):
                slot = self._state.by_name[segment.tensor]
                segment.of(slot.of(self._state.gradients)).copy_(view)

    def renew(self) -> None:
        self._allocate()
