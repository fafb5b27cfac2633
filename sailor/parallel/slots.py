"""Where each parameter of a rank lies in its flat arrays, and who owns which part of it. No torch.

The order puts next to each other what is reduced over the same ranks, so that a reduction works on
the gradients where they lie; inside that, what decays and what does not, so that the optimizer runs
over long stretches.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any, Protocol, Self, TypeVar

from sailor.models.spec import LogicalTensor
from sailor.parallel.boxes import Box
from sailor.parallel.layout import Layout


class Array(Protocol):
    """What is asked of a tensor here: views of parts of it."""

    def narrow(self, axis: int, start: int, extent: int, /) -> Self: ...
    def view(self, shape: tuple[int, ...], /) -> Self: ...
    def __getitem__(self, run: Any, /) -> Self: ...


A = TypeVar("A", bound=Array)

# Parameters start on 64-byte lines: vector loops then have no ragged end, and what an element
# becomes does not depend on where in the array it lies.
_ALIGN = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A run of boxes of one parameter that the same ranks own; usually the whole parameter.

    ``start`` and ``extent`` are along ``axis`` of this rank's share. ``keeper`` is the rank that
    keeps its state for all owners, None where each does. ``contributes`` is false where every rank
    of a tensor group holds a copy and another one's gradient counts.
    """

    tensor: str
    axis: int
    start: int
    extent: int
    shape: tuple[int, ...]
    owners: tuple[int, ...]
    keeper: int | None
    contributes: bool

    @property
    def numel(self) -> int:
        """Its elements."""
        return prod(self.shape)

    def of(self, whole: A) -> A:
        """Its part of a tensor of the parameter's shape."""
        return whole.narrow(self.axis, self.start, self.extent)


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """One parameter's place in the arrays of weights and gradients."""

    logical: LogicalTensor
    shape: tuple[int, ...]
    offset: int
    boxes: tuple[Box, ...]
    segments: tuple[Segment, ...]

    @property
    def numel(self) -> int:
        """Elements of this rank's share."""
        return prod(self.shape)

    def of(self, flat: A) -> A:
        """The parameter's view of a flat array."""
        return flat[self.offset : self.offset + self.numel].view(self.shape)

    def box_of(self, whole: A, box: Box) -> A:
        """A box's view of a tensor of the parameter's shape."""
        return whole.narrow(box.axis, box.offset - self.boxes[0].offset, box.extent)


def padded(numel: int) -> int:
    """The next multiple of the alignment."""
    return -(-numel // _ALIGN) * _ALIGN


def slots_of(layout: Layout, rank: int, *, split_sequences: bool) -> tuple[Slot, ...]:
    """Every parameter of a rank with its place.

    Order: by the owners of its boxes, then by their keeper, then decaying or not, then the model's
    order. Parameters whose boxes have different owners (tensor parallelism differs between
    replicas) come last.
    """
    logical = {tensor.name: tensor for tensor in layout.spec.tensors}
    order = {name: index for index, name in enumerate(logical)}
    every = split_sequences or layout.coordinates[rank].tensor_rank == 0
    parameters: list[tuple[LogicalTensor, tuple[Box, ...], list[Segment]]] = []
    for name, run in groupby(layout.boxes[rank], key=lambda box: box.tensor):
        boxes = tuple(run)
        contributes = every or logical[name].split_axis is not None
        parameters.append((logical[name], boxes, _segments(boxes, layout, contributes=contributes)))

    def place(
        parameter: tuple[LogicalTensor, tuple[Box, ...], list[Segment]],
    ) -> tuple[object, ...]:
        tensor, _, segments = parameter
        several = len(segments) > 1
        owners = () if several else segments[0].owners
        keeper = None if several else segments[0].keeper
        return (
            several,
            owners,
            -1 if keeper is None else keeper,
            not tensor.decay,
            order[tensor.name],
        )

    slots = []
    offset = 0
    for tensor, boxes, segments in sorted(parameters, key=place):
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
        keeper = layout.keepers[joined[0]][0] if layout.plan.optimizer_sharding else None
        segments.append(
            Segment(
                tensor=joined[0].tensor, axis=axis, start=joined[0].offset - boxes[0].offset,
                extent=extent, shape=shape, owners=owners, keeper=keeper, contributes=contributes,
            )
        )  # fmt: skip
    return segments


def same_places(old: Layout, old_rank: int, new: Layout, new_rank: int) -> bool:
    """Whether two ranks' arrays look alike: every parameter of one size, at one place, the same
    boxes kept. Owners may differ."""

    def places(layout: Layout, rank: int) -> list[tuple[str, int, tuple[Box, ...]]]:
        slots = slots_of(layout, rank, split_sequences=False)
        return [(slot.logical.name, slot.offset, slot.boxes) for slot in slots]

    return old.kept[old_rank] == new.kept[new_rank] and places(old, old_rank) == places(
        new, new_rank
    )
