"""One address space for all state: boxes. No torch.

Every logical tensor is cut on its tensor-parallel axis into the finest equal fragments that any
degree allowed in this run needs (their least common multiple, ``pieces``). The cut is chosen once
per run and never changes, so a box of generation 1 is the same box in generation 9 whatever the
layouts between. A box always travels whole, as its fp32 weight and both Adam moments. Gradient
reduction, snapshots, resharding and migration are all "who owns this box". Nothing is ever indexed
by rank or stage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import lcm

from sailor.models.spec import LogicalTensor, ModelSpec
from sailor.plan import tensor_parallel_problems

BYTES_PER_ELEMENT = 12  # fp32 weight + first moment + second moment
KINDS = ("weight", "moment1", "moment2")


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Box:
    """Fragment ``index`` of ``of`` equal fragments of one logical tensor along ``axis``.

    ``offset`` and ``extent`` are in elements along that axis; ``shape`` is the fragment's own.
    An uncut tensor is one box with axis 0 and the whole extent.
    """

    tensor: str
    axis: int
    offset: int
    extent: int
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """Unique in the run for one cut: 'blocks.3.ffn.up.weight[64:128]'."""
        return f"{self.tensor}[{self.offset}:{self.offset + self.extent}]"

    @property
    def numel(self) -> int:
        """Elements of the fragment."""
        total = 1
        for extent in self.shape:
            total *= extent
        return total

    @property
    def num_bytes(self) -> int:
        """Bytes of the box in a snapshot: weight and both moments in fp32."""
        return self.numel * BYTES_PER_ELEMENT


def cut(tensor: LogicalTensor, *, pieces: int) -> tuple[Box, ...]:
    """The tensor as ``pieces`` equal boxes along its split axis (one if it has none).

    Raises ValueError when the axis does not divide.
    """
    if tensor.split_axis is None or pieces == 1:
        return (
            Box(tensor=tensor.name, axis=0, offset=0, extent=tensor.shape[0], shape=tensor.shape),
        )
    axis = tensor.split_axis
    if tensor.granularity % pieces or tensor.shape[axis] % pieces:
        raise ValueError(f"{tensor.name} {tensor.shape} does not divide into {pieces} pieces")
    extent = tensor.shape[axis] // pieces
    shape = tuple(extent if a == axis else n for a, n in enumerate(tensor.shape))
    return tuple(
        Box(tensor=tensor.name, axis=axis, offset=i * extent, extent=extent, shape=shape)
        for i in range(pieces)
    )


def finest_pieces(spec: ModelSpec, *, max_degree: int) -> int:
    """The cut of a run: the least common multiple of every tensor-parallel degree it may use.

    Degrees are the powers of two up to ``max_degree`` (GPUs of the largest machine) that the
    model divides by.
    """
    degrees = allowed_degrees(spec, max_degree=max_degree)
    return lcm(*degrees)


def allowed_degrees(spec: ModelSpec, *, max_degree: int) -> tuple[int, ...]:
    """Tensor-parallel degrees this model can be cut into: powers of two that divide it."""
    degrees = []
    degree = 1
    while degree <= max_degree:
        if not tensor_parallel_problems(spec, degree):
            degrees.append(degree)
        degree *= 2
    return tuple(degrees)


def pieces_of_rank(boxes: tuple[Box, ...], *, tensor_rank: int, degree: int) -> tuple[Box, ...]:
    """The boxes of one cut tensor that tensor-parallel rank ``tensor_rank`` of ``degree`` holds.

    An uncut tensor is held whole by every rank.
    """
    if len(boxes) == 1:
        return boxes
    share = len(boxes) // degree
    return boxes[tensor_rank * share : (tensor_rank + 1) * share]


def all_boxes(spec: ModelSpec, *, pieces: int) -> tuple[Box, ...]:
    """Every box of the model in the fixed global order."""
    return tuple(box for tensor in spec.tensors for box in cut(tensor, pieces=pieces))


def total_bytes(boxes: Iterable[Box]) -> int:
    """Snapshot bytes of some boxes."""
    return sum(box.num_bytes for box in boxes)
