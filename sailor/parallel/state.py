"""The memory of one worker's share of the model: weights, gradients and Adam moments, as boxes.

Flat arrays. What is computed with, weights (fp32 or bf16) and fp32 gradients, is there for every
box of the rank; the state, fp32 weights and both moments, for those it keeps: all of them, or with
optimizer sharding its part. In fp32 the weights that are kept are the state, there is no copy.

A box is a view into them; what lies where is ``sailor/parallel/slots.py``'s to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

import torch

from sailor.parallel.boxes import Box
from sailor.parallel.layout import Layout
from sailor.parallel.slots import Segment, Slot, padded, slots_of


@dataclass(frozen=True, kw_only=True, slots=True)
class BoxTensors:
    """Views of one box's state, fp32, each of the box's shape."""

    weight: torch.Tensor
    moment1: torch.Tensor
    moment2: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A parameter whose state is here, or where ``segment`` is one a part of it.

    ``at`` is its place in the arrays of state.
    """

    slot: Slot
    segment: Segment | None
    at: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what is kept."""
        return self.slot.shape if self.segment is None else self.segment.shape

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """Its view of an array of state."""
        return flat[self.at : self.at + prod(self.shape)].view(self.shape)

    def part_of(self, whole: torch.Tensor) -> torch.Tensor:
        """What is kept, of a tensor of the parameter's shape."""
        return whole if self.segment is None else self.segment.of(whole)

    def boxes(self) -> Iterator[tuple[Box, int]]:
        """Its boxes, each with where it starts along the axis of what is kept."""
        first = self.slot.boxes[0].offset
        start, stop = 0, self.slot.shape[self.slot.boxes[0].axis]
        if self.segment is not None:
            start, stop = self.segment.start, self.segment.start + self.segment.extent
        for box in self.slot.boxes:
            if start <= box.offset - first < stop:
                yield box, box.offset - first - start


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """A run of the arrays that the optimizer treats alike.

    [start, stop) of weights and gradients; in the arrays of state it begins at ``at``.
    """

    start: int
    stop: int
    at: int
    decay: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """What the optimizer works on at once: contiguous fp32 tensors of one shape."""

    weight: torch.Tensor
    gradient: torch.Tensor
    moment1: torch.Tensor
    moment2: torch.Tensor
    decay: bool


class StageState:
    """Where every parameter, gradient and moment of one rank lies.

    ``dtype`` is that of the weights that are computed with. With ``split_sequences`` every rank of
    a tensor group sees other tokens, so that all of them contribute to what they all hold.
    """

    def __init__(
        self, layout: Layout, rank: int, *, device: torch.device,
        dtype: torch.dtype = torch.float32, split_sequences: bool = False,
    ) -> None:  # fmt: skip
        self._split_sequences = split_sequences
        self._see(layout, rank)
        self.order = {tensor.name: index for index, tensor in enumerate(layout.spec.tensors)}
        last = self.slots[-1]
        size = padded(last.offset + last.numel)
        self.weights = torch.zeros(size, device=device, dtype=dtype)
        self.gradients = torch.zeros(size, device=device)
        sharded = layout.plan.optimizer_sharding
        self.kept = _kept(self.slots, rank) if sharded else _all_kept(self.slots)
        self.stretches = tuple(_stretches(self.kept, size=None if sharded else size))
        state_size = size
        if sharded:
            state_size = max((k.at + padded(prod(k.shape)) for k in self.kept), default=0)
        # In fp32 a parameter that is kept whole needs no second copy of its weight; the others
        # stand behind all of these.
        self._copied_from = 0
        if dtype is torch.float32:
            whole = [k for k in self.kept if k.segment is None]
            self._copied_from = (
                state_size
                if len(whole) == len(self.kept)
                else (max((k.at + padded(prod(k.shape)) for k in whole), default=0))
            )
        self._copies = torch.zeros(state_size - self._copied_from, device=device)
        self.moments1 = torch.zeros(state_size, device=device)
        self.moments2 = torch.zeros(state_size, device=device)
        boxes = {
            box: BoxTensors(
                weight=self.master_of(kept).narrow(box.axis, start, box.extent),
                moment1=kept.of(self.moments1).narrow(box.axis, start, box.extent),
                moment2=kept.of(self.moments2).narrow(box.axis, start, box.extent),
            )
            for kept in self.kept
            for box, start in kept.boxes()
        }
        self.boxes = {box: boxes[box] for box in layout.kept[rank]}

    def _see(self, layout: Layout, rank: int) -> None:
        self.rank = rank
        self.slots = slots_of(layout, rank, split_sequences=self._split_sequences)
        self.by_name = {slot.logical.name: slot for slot in self.slots}

    def move_to(self, layout: Layout, rank: int) -> None:
        """Other owners, the same memory: see ``slots.same_places``. No optimizer sharding."""
        self._see(layout, rank)
        self.kept = _all_kept(self.slots)

    @property
    def state_bytes(self) -> int:
        """Bytes of weights, masters and moments: all but gradients."""
        arrays = (self.weights, self._copies, self.moments1, self.moments2)
        return sum(array.numel() * array.element_size() for array in arrays)

    def bind(
        self, leaves: Iterable[tuple[str, torch.nn.Module, str]]
    ) -> tuple[tuple[str, torch.nn.Parameter], ...]:
        """Give every parameter of a module its memory; (tensor name, parameter) of each.

        ``leaves`` are the parameters' (tensor name, module, attribute). A parameter whose gradient
        another rank contributes does not ask for one. Raises ValueError when they are not those of
        the layout.
        """
        bound = []
        for name, owner, attribute in leaves:
            if name not in self.by_name:
                raise ValueError(f"this rank has no tensor {name}")
            slot = self.by_name[name]
            expected = owner._parameters[attribute]
            if expected is None or expected.shape != torch.Size(slot.shape):
                raise ValueError(f"{name}: the module wants another shape than {slot.shape}")
            parameter = torch.nn.Parameter(
                slot.of(self.weights), requires_grad=slot.segments[0].contributes
            )
            setattr(owner, attribute, parameter)
            bound.append((name, parameter))
        if {name for name, _ in bound} != set(self.by_name):
            raise ValueError("the module and the model's list of tensors do not agree")
        return tuple(bound)

    def master_of(self, kept: Kept) -> torch.Tensor:
        """The fp32 weight of something kept."""
        if kept.segment is None and self.weights.dtype is torch.float32:
            return kept.slot.of(self.weights)
        start = kept.at - self._copied_from
        return self._copies[start : start + prod(kept.shape)].view(kept.shape)

    def updates(self) -> Iterator[Update]:
        """Everything the optimizer has to work on, once."""
        in_place = self.weights.dtype is torch.float32
        for s in self.stretches:
            state = slice(s.at, s.at + s.stop - s.start)
            yield Update(
                weight=self.weights[s.start : s.stop] if in_place else self._copies[state],
                gradient=self.gradients[s.start : s.stop],
                moment1=self.moments1[state], moment2=self.moments2[state], decay=s.decay,
            )  # fmt: skip
        for kept in self.kept:
            if kept.segment is not None:
                yield Update(
                    weight=self.master_of(kept),
                    gradient=kept.part_of(kept.slot.of(self.gradients)).contiguous(),
                    moment1=kept.of(self.moments1), moment2=kept.of(self.moments2),
                    decay=kept.slot.logical.decay,
                )  # fmt: skip

    def publish(self) -> None:
        """Let the weights that are computed with be those of the state, rounded to their type."""
        if self.weights.dtype is not torch.float32:
            for s in self.stretches:
                self.weights[s.start : s.stop].copy_(self._copies[s.at : s.at + s.stop - s.start])
        for kept in self.kept:
            if kept.segment is not None:
                kept.part_of(kept.slot.of(self.weights)).copy_(self.master_of(kept))

    def clear(self) -> None:
        """All weights and moments zero."""
        for flat in (self.weights, self._copies, self.moments1, self.moments2):
            flat.zero_()


def _all_kept(slots: tuple[Slot, ...]) -> tuple[Kept, ...]:
    """Without sharding the arrays of state are those of the weights, place for place."""
    return tuple(Kept(slot=slot, segment=None, at=slot.offset) for slot in slots)


def _kept(slots: tuple[Slot, ...], rank: int) -> tuple[Kept, ...]:
    """What a rank keeps: whole parameters in their order, then parts of others."""
    whole = [slot for slot in slots if all(s.keeper == rank for s in slot.segments)]
    wanted: list[tuple[Slot, Segment | None]] = [(slot, None) for slot in whole]
    wanted += [
        (slot, segment)
        for slot in slots
        if slot not in whole
        for segment in slot.segments
        if segment.keeper == rank
    ]
    kept, at = [], 0
    for slot, segment in wanted:
        kept.append(Kept(slot=slot, segment=segment, at=at))
        at += padded(prod(kept[-1].shape))
    return tuple(kept)


def _stretches(kept: tuple[Kept, ...], *, size: int | None) -> Iterator[Stretch]:
    """Parameters kept whole that are neighbours and decay alike, joined.

    With the ``size`` of the arrays the last one goes to their end.
    """
    joined: list[Stretch] = []
    for here in (k for k in kept if k.segment is None):
        start, decay = here.slot.offset, here.slot.logical.decay
        stop = padded(start + here.slot.numel)
        before = joined[-1] if joined else None
        if before is not None and before.stop == start and before.decay is decay:
            joined[-1] = Stretch(start=before.start, stop=stop, at=before.at, decay=decay)
        else:
            joined.append(Stretch(start=start, stop=stop, at=here.at, decay=decay))
    assert size is None or joined[-1].stop == size
    yield from joined
