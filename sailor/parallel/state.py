"""The memory of one worker's share of the model: weights, gradients and Adam moments, as boxes.

Four flat fp32 arrays of one order. The order puts next to each other what is reduced over the same
ranks, so that a reduction works on the gradients where they lie; inside that, what decays and what
does not, so that the optimizer runs over long stretches. A box is a view into them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from math import prod

import torch

from sailor.models.spec import LogicalTensor
from sailor.parallel.boxes import Box
from sailor.parallel.layout import Layout

# Parameters start on 64-byte lines: vector loops then have no ragged end, and what an element
# becomes does not depend on where in the array it lies.
_ALIGN = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class BoxTensors:
    """Views of one box's state, fp32, each of the box's shape."""

    weight: torch.Tensor
    moment1: torch.Tensor
    moment2: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A run of boxes of one parameter that the same ranks own; usually the whole parameter.

    ``start`` and ``extent`` are along ``axis`` of this rank's share. ``contributes`` is false where
    every rank of a tensor group holds a copy and another one's gradient counts.
    """

    tensor: str
    axis: int
    start: int
    extent: int
    shape: tuple[int, ...]
    owners: tuple[int, ...]
    contributes: bool

    @property
    def numel(self) -> int:
        """Its elements."""
        return prod(self.shape)

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """Its part of a tensor of the parameter's shape."""
        return whole.narrow(self.axis, self.start, self.extent)


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """One parameter's place in the flat arrays."""

    logical: LogicalTensor
    shape: tuple[int, ...]
    offset: int
    boxes: tuple[Box, ...]
    segments: tuple[Segment, ...]

    @property
    def numel(self) -> int:
        """Elements of this rank's share."""
        return prod(self.shape)

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """The parameter's view of a flat array."""
        return flat[self.offset : self.offset + self.numel].view(self.shape)

    def box_of(self, whole: torch.Tensor, box: Box) -> torch.Tensor:
        """A box's view of a tensor of the parameter's shape."""
        return whole.narrow(box.axis, box.offset - self.boxes[0].offset, box.extent)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """A run of the flat arrays that the optimizer treats alike."""

    start: int
    stop: int
    decay: bool


class StageState:
    """Where every parameter, gradient and moment of one rank lies."""

    def __init__(self, layout: Layout, rank: int, *, device: torch.device) -> None:
        self.slots = _slots(layout, rank)
        last = self.slots[-1]
        size = padded(last.offset + last.numel)
        self.weights = torch.zeros(size, device=device)
        self.moments1 = torch.zeros(size, device=device)
        self.moments2 = torch.zeros(size, device=device)
        self.gradients = torch.zeros(size, device=device)
        self.stretches = tuple(_stretches(self.slots, size))
        self.by_name = {slot.logical.name: slot for slot in self.slots}
        self.boxes = {
            box: BoxTensors(
                weight=slot.box_of(slot.of(self.weights), box),
                moment1=slot.box_of(slot.of(self.moments1), box),
                moment2=slot.box_of(slot.of(self.moments2), box),
            )
            for box, slot in _in_order(layout.boxes[rank], self.slots)
        }

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


def padded(numel: int) -> int:
    """The next multiple of the alignment."""
    return -(-numel // _ALIGN) * _ALIGN


def _in_order(boxes: tuple[Box, ...], slots: tuple[Slot, ...]) -> Iterator[tuple[Box, Slot]]:
    by_name = {slot.logical.name: slot for slot in slots}
    return ((box, by_name[box.tensor]) for box in boxes)


def _slots(layout: Layout, rank: int) -> tuple[Slot, ...]:
    """Every parameter of a rank with its place.

    Order: by the owners of its boxes, then decaying or not, then the model's order. Parameters
    whose boxes have different owners (tensor parallelism differs between replicas) come last.
    """
    logical = {tensor.name: tensor for tensor in layout.spec.tensors}
    order = {name: index for index, name in enumerate(logical)}
    tensor_rank = layout.coordinates[rank].tensor_rank
    parameters: list[tuple[tuple[int, ...], LogicalTensor, tuple[Box, ...], list[Segment]]] = []
    for name, run in groupby(layout.boxes[rank], key=lambda box: box.tensor):
        boxes = tuple(run)
        contributes = logical[name].split_axis is not None or tensor_rank == 0
        segments = _segments(boxes, layout, contributes=contributes)
        owners = segments[0].owners if len(segments) == 1 else ()
        parameters.append((owners, logical[name], boxes, segments))
    parameters.sort(key=lambda p: (p[0] == (), p[0], not p[1].decay, order[p[1].name]))
    slots = []
    offset = 0
    for _, tensor, boxes, segments in parameters:
        shape = list(boxes[0].shape)
        shape[boxes[0].axis] = sum(box.extent for box in boxes)
        slot = Slot(
            logical=tensor, shape=tuple(shape), offset=offset, boxes=boxes,
            segments=tuple(segments),
        )  # fmt: skip
        slots.append(slot)
        offset = padded(offset + slot.numel)
    return tuple(slots)


def _segments(boxes: tuple[Box, ...], layout: Layout, *, contributes: bool) -> list[Segment]:
    """The boxes of one parameter, joined where neighbours have the same owners."""
    segments = []
    for owners, run in groupby(boxes, key=lambda box: layout.owners[box]):
        joined = tuple(run)
        extent = sum(box.extent for box in joined)
        axis = joined[0].axis
        shape = tuple(extent if a == axis else n for a, n in enumerate(joined[0].shape))
        segments.append(
            Segment(
                tensor=joined[0].tensor, axis=axis, start=joined[0].offset - boxes[0].offset,
                extent=extent, shape=shape, owners=owners, contributes=contributes,
            )
        )  # fmt: skip
    return segments


def _stretches(slots: tuple[Slot, ...], size: int) -> Iterator[Stretch]:
    """Neighbouring slots that decay alike, joined."""
    runs = [(decay, list(run)) for decay, run in groupby(slots, key=lambda s: s.logical.decay)]
    starts = [run[0].offset for _, run in runs] + [size]
    for (decay, _), start, stop in zip(runs, starts, starts[1:], strict=False):
        yield Stretch(start=start, stop=stop, decay=decay)
