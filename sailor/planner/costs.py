"""What the search for a fleet asks of an evaluator. The seam between searching and estimating.

Two evaluators stand behind it: ours (own_costs.py) and the published simulator's formulas
(reference_costs.py), so that one search is judged under both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sailor.planner.timing import PipelineSeconds

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """GPUs that can stand in for each other: one type, in zones that are equally far apart."""

    name: str
    gpu: str
    num_gpus: int
    dollars_per_gpu_hour: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One way to run a stage on a site: seconds per microbatch of a block and of the two ends.

    ``index`` numbers the ways of one search.
    """

    index: int
    site: int
    tensor_parallel: int
    microbatch_size: int
    recompute: bool
    block: float
    first: float
    last: float


Row = tuple[Way, ...]  # the stages of a pipeline, first to last; one microbatch size


@dataclass(frozen=True, slots=True)
class Template:
    """A pipeline that may be seated any number of times: its stages and how many blocks each has.

    ``usage`` is GPUs by site.
    """

    row: Row
    counts: tuple[int, ...]
    pipeline: PipelineSeconds
    usage: tuple[int, ...]

    @property
    def microbatch_size(self) -> int:
        """Of every stage."""
        return self.row[0].microbatch_size


@dataclass(frozen=True, slots=True)
class Crew:
    """``count`` replicas of one template; each takes at most ``num_microbatches``."""

    template: Template
    count: int
    num_microbatches: int


Fleet = tuple[Crew, ...]


class Costs(Protocol):
    """The evaluator, in the pieces a search needs."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def global_batch_size(self) -> int: ...

    @property
    def sites(self) -> tuple[Site, ...]: ...

    @property
    def ways(self) -> tuple[Way, ...]:
        """Every way to run a stage anywhere."""
        ...

    def sends(self, row: Row) -> tuple[float, ...]:
        """Seconds each stage spends on sending, per microbatch."""
        ...

    def most_blocks(self, way: Way, *, stage: int, num_stages: int) -> int:
        """Most blocks that fit on a stage of a pipeline, for any number of owners."""
        ...

    def shared_seconds(self, crews: Sequence[tuple[Template, int]]) -> float:
        """Everything of a step that is not a pipeline: gradient reduction, optimizer, host.

        infinity where the formulas do not hold.
        """
        ...

    def ring_guess(
        self, shares: FloatArray, owners: IntArray, widths: IntArray, *, sites: tuple[int, ...]
    ) -> FloatArray:
        """About how long the reduction takes when a rank holds so many blocks' worth of gradients
        (blocks over tensor-parallel degree), replicas take ``widths`` GPUs of a site and the owners
        stand on these sites."""
        ...

    def step_dollars(self, fleet: Fleet, *, seconds: float) -> float:
        """Rent of what is used, and egress, for one step."""
        ...
