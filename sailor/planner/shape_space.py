"""Which shapes a replica may have on machines of one size: every degree, depth, microbatch and
recompute that the model, the batch and the user's wishes allow, as a list and as columns of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

import numpy as np
import numpy.typing as npt

from sailor.models.spec import ModelSpec
from sailor.plan import tensor_parallel_problems
from sailor.planner.question import Job, Space

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How one replica runs on one machine type. Cuts come later, they depend on memory."""

    tensor_parallel: int
    num_stages: int
    microbatch_size: int
    recompute: bool

    @property
    def num_gpus(self) -> int:
        """GPUs of one replica."""
        return self.tensor_parallel * self.num_stages


@dataclass(frozen=True, kw_only=True, slots=True)
class AllShapes:
    """All shapes on machines of so many GPUs, and as columns. ``ways`` are the different (degree,
    microbatch, recompute), ``rows`` the different (degree, stages); ``way_of`` and ``row_of`` say
    which is a shape's."""

    shapes: tuple[Shape, ...]
    num_gpus: IntArray
    microbatch_size: IntArray
    num_stages: FloatArray
    ways: tuple[tuple[int, int, bool], ...]
    way_of: IntArray
    rows: tuple[tuple[int, int], ...]
    row_of: IntArray


@lru_cache(maxsize=64)
def all_shapes(machine_gpus: int, spec: ModelSpec, job: Job, space: Space) -> AllShapes:
    """The same for all machine types of so many GPUs."""
    shapes = tuple(
        Shape(
            tensor_parallel=degree,
            num_stages=num_stages,
            microbatch_size=size,
            recompute=recompute,
        )
        for degree in space.tensor_parallel_degrees or (1,)
        if degree <= machine_gpus and not tensor_parallel_problems(spec, degree)
        for num_stages in _depths(spec, space)
        for size in microbatch_sizes(job, space)
        for recompute in space.recompute
    )
    ways = [(s.tensor_parallel, s.microbatch_size, s.recompute) for s in shapes]
    rows = [(s.tensor_parallel, s.num_stages) for s in shapes]
    return AllShapes(
        shapes=shapes,
        num_gpus=as_column(s.num_gpus for s in shapes).astype(np.int64),
        microbatch_size=as_column(s.microbatch_size for s in shapes).astype(np.int64),
        num_stages=as_column(s.num_stages for s in shapes),
        ways=tuple(dict.fromkeys(ways)), way_of=_places(ways),
        rows=tuple(dict.fromkeys(rows)), row_of=_places(rows),
    )  # fmt: skip


def _places(keys: Sequence[object]) -> IntArray:
    """For each key its place among the different ones."""
    place = {key: index for index, key in enumerate(dict.fromkeys(keys))}
    return np.fromiter((place[key] for key in keys), dtype=np.int64)


def _depths(spec: ModelSpec, space: Space) -> tuple[int, ...]:
    """Pipeline depths: all up to eight, then ever wider apart."""
    if space.num_stages is not None:
        return (space.num_stages,) if space.num_stages <= spec.num_layers else ()
    deepest = min(space.max_stages, spec.num_layers)
    usual = (*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64)
    return tuple(depth for depth in usual if depth <= deepest)


def microbatch_sizes(job: Job, space: Space) -> tuple[int, ...]:
    """Sizes that divide the global batch, so that replicas of any one of them keep it exactly."""
    return tuple(n for n in _wanted_sizes(space) if job.global_batch_size % n == 0)


def sizes_together(job: Job, space: Space) -> tuple[int, ...]:
    """Sizes of replicas that need not be alike: together they only have to add up to the batch.

    Empty where they cannot, whatever their numbers.
    """
    sizes = tuple(n for n in _wanted_sizes(space) if n <= job.global_batch_size)
    return sizes if sizes and job.global_batch_size % gcd(*sizes) == 0 else ()


def _wanted_sizes(space: Space) -> tuple[int, ...]:
    """Powers of two, and three times those, without which a batch of 12 would leave the fourth of
    four machines idle."""
    return space.microbatch_sizes or (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def as_column(values: Iterable[float]) -> FloatArray:
    """Numbers as an array."""
    return np.fromiter(values, dtype=np.float64)
