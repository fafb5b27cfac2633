"""A profile that was measured: times of a model's parts on one device, with where they come from.

Cells are what ``sailor.measure`` timed, for some microbatch sizes and tensor-parallel degrees on
one kind of GPU. Sizes between and beyond are read off straight lines through the nearest two. GPUs
and degrees that were not measured raise KeyError, or are answered by ``besides`` if there is one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from math import isfinite
from typing import Any

from sailor.cluster.gpu import GpuType
from sailor.models.spec import ModelSpec
from sailor.profile.analytic import AnalyticProfile, exact_sum_seconds
from sailor.profile.profile import Mark, Numerics, Part, PartSeconds

VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One part at one degree and microbatch size: seconds without any exchange, and the bytes that
    a backward pass would find kept."""

    part: str
    tensor_parallel: int
    microbatch_size: int
    forward: float
    backward: float
    kept_bytes: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Seconds of a message: ``alpha`` to start and ``beta`` for each byte (Hockney's model).

    ``worst`` is the largest relative miss of the points it was fitted to.
    """

    alpha: float
    beta: float
    worst: float

    def seconds(self, num_bytes: float) -> float:
        """One message."""
        return self.alpha + self.beta * num_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """A profile file. ``gpu`` is the name it was measured on, ``peak_flops`` what one worker's
    share of the device then was: a share half as large takes twice as long."""

    model: str  # digest of the shape, not the name
    sequence_length: int
    compute_bytes: int
    gpu: str
    peak_flops: float
    cells: tuple[Cell, ...]
    update_seconds_per_parameter: float
    point_to_point: Fit | None
    all_reduce: Fit | None  # of two processes
    provenance: tuple[tuple[str, str], ...]

    def to_json(self) -> str:
        """The file."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1) + "\n"


class BadProfile(ValueError):
    """A profile file that cannot be used, and why."""


def read_measurement(text: str) -> Measurement:
    """The measurement in a file. Raises BadProfile: another version, a missing field, a time that
    is no positive number."""
    try:
        found: dict[str, Any] = json.loads(text)
        if found.pop("version") != VERSION:
            raise BadProfile(f"it is not of version {VERSION}; measure again")
        cells = tuple(Cell(**cell) for cell in found.pop("cells"))
        one_way, reduce = found.pop("point_to_point"), found.pop("all_reduce")
        provenance = tuple((str(k), str(v)) for k, v in found.pop("provenance"))
        measurement = Measurement(
            cells=cells,
            provenance=provenance,
            point_to_point=None if one_way is None else Fit(**one_way),
            all_reduce=None if reduce is None else Fit(**reduce),
            **found,
        )
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise BadProfile(f"it is no profile: {error}") from error
    if not cells:
        raise BadProfile("it has no cells")
    for what, value, least in _numbers(measurement):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadProfile(f"{what} is {value!r}, no number")
        if not isfinite(value) or value < 0 or (least and not value):
            raise BadProfile(f"{what} is {value}")
    return measurement


def _numbers(measurement: Measurement) -> Iterator[tuple[str, Any, bool]]:
    """Every number in a file: what it is called, its value, whether it must be above zero."""
    for name in (
        "sequence_length", "compute_bytes", "peak_flops", "update_seconds_per_parameter",
    ):  # fmt: skip
        yield name, getattr(measurement, name), True
    for cell in measurement.cells:
        where = f"{cell.part} tp{cell.tensor_parallel} mb{cell.microbatch_size}"
        for name in ("tensor_parallel", "microbatch_size"):
            yield f"{where}: {name}", getattr(cell, name), True
        for name in ("forward", "backward", "kept_bytes"):
            yield f"{where}: {name}", getattr(cell, name), False
    for name in ("point_to_point", "all_reduce"):
        fit = getattr(measurement, name)
        if fit is not None:
            for part in ("alpha", "beta"):
                yield f"{name}: {part}", getattr(fit, part), False


def shape_digest(spec: ModelSpec) -> str:
    """The same for models of the same shape, whatever they are called."""
    fields = {
        name: str(getattr(spec, name)) for name in spec.__dataclass_fields__ if name != "name"
    }
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class MeasuredProfile:
    """Times of one model's parts, as measured. ``besides`` answers for GPUs and degrees that were
    not measured; its error bar and mark are then the profile's. ``scale`` as in AnalyticProfile."""

    measurement: Measurement
    spec: ModelSpec
    numerics: Numerics
    besides: AnalyticProfile | None = None
    scale: float = 1.0
    relative_error: float = 0.10

    def __post_init__(self) -> None:
        if self.measurement.model != shape_digest(self.spec):
            raise BadProfile(f"it was measured for another model than {self.spec.name}")
        if self.measurement.compute_bytes != self.numerics.compute_bytes:
            raise BadProfile(f"it was measured with {self.measurement.compute_bytes}-byte numbers")

    @property
    def mark(self) -> Mark:
        """Measured, until a run has set the scale."""
        return Mark.measured if self.scale == 1.0 else Mark.calibrated

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.measurement, self.spec, self.numerics, self.besides, self.scale))

    @cached_property
    def _cells(self) -> Mapping[tuple[str, int], tuple[Cell, ...]]:
        found: dict[tuple[str, int], list[Cell]] = {}
        for cell in self.measurement.cells:
            found.setdefault((cell.part, cell.tensor_parallel), []).append(cell)
        return {
            key: tuple(sorted(cells, key=lambda cell: cell.microbatch_size))
            for key, cells in found.items()
        }

    @cached_property
    def _answers(self) -> dict[tuple[object, ...], PartSeconds]:
        return {}

    def knows(self, gpu: GpuType) -> bool:
        """Whether it was measured on this kind of GPU."""
        return gpu.name == self.measurement.gpu

    def part_seconds(
        self, part: Part, *, gpu: GpuType, tensor_parallel: int, microbatch_size: int
    ) -> PartSeconds:
        """Read off the cells, slower by as much as the GPU's share is smaller."""
        key = (part, gpu, tensor_parallel, microbatch_size)
        if key not in self._answers:
            self._answers[key] = self._part_seconds(part, gpu, tensor_parallel, microbatch_size)
        return self._answers[key]

    def _part_seconds(self, part: Part, gpu: GpuType, degree: int, size: int) -> PartSeconds:
        cells = self._cells.get((part.value, degree), ())
        if not self.knows(gpu) or not cells:
            if self.besides is None:
                raise KeyError(f"{part.value} tp{degree} on {gpu.name} was not measured")
            return self.besides.part_seconds(
                part, gpu=gpu, tensor_parallel=degree, microbatch_size=size
            )
        slower = self.scale * self._slower(gpu)
        forward = _on_the_line(size, [(c.microbatch_size, c.forward) for c in cells])
        backward = _on_the_line(size, [(c.microbatch_size, c.backward) for c in cells])
        if self.numerics.deterministic:
            backward += exact_sum_seconds(self.spec, part, gpu, degree) / self._slower(gpu)
        communication = 0.0
        if degree > 1:
            communication = self.scale * self._exchange(part, degree, size)
        return PartSeconds(
            forward=slower * forward, backward=slower * backward, communication=communication
        )

    def _exchange(self, part: Part, degree: int, size: int) -> float:
        """All-reduces of tensor parallelism: four for a block, one at an end; ring over ``degree``
        from what two processes take."""
        fit = self.measurement.all_reduce
        if fit is None:
            return 0.0
        tokens = size * self.measurement.sequence_length
        num_bytes = tokens * self.spec.hidden_size * self.numerics.compute_bytes
        rings = 4 if part is Part.block else 1
        # A ring of two passes each byte once; one of n passes 2 (n - 1) / n of them.
        return rings * (fit.alpha * (degree - 1) + fit.beta * num_bytes * 2 * (degree - 1) / degree)

    def _slower(self, gpu: GpuType) -> float:
        return self.measurement.peak_flops / gpu.peak_flops_fp32 if not gpu.has_context else 1.0

    def update_seconds(self, *, gpu: GpuType, num_parameters: float) -> float:
        """The optimizer step, as measured per parameter."""
        if not self.knows(gpu) and self.besides is not None:
            return self.besides.update_seconds(gpu=gpu, num_parameters=num_parameters)
        each = self.measurement.update_seconds_per_parameter * self._slower(gpu)
        return self.scale * num_parameters * each

    def host_seconds(self, *, gpu: GpuType) -> float:
        """Not measured apart: the analytic profile's."""
        return AnalyticProfile(
            spec=self.spec, sequence_length=self.measurement.sequence_length,
            numerics=self.numerics,
        ).host_seconds(gpu=gpu)  # fmt: skip


def _on_the_line(x: float, points: list[tuple[int, float]]) -> float:
    """Between or beyond points sorted by x: the line through the nearest two; through the origin
    when there is but one."""
    if len(points) == 1:
        return points[0][1] * x / points[0][0]
    right = next((i for i, (at, _) in enumerate(points) if at >= x), len(points) - 1)
    right = max(1, right)
    (x0, y0), (x1, y1) = points[right - 1], points[right]
    return max(0.0, y0 + (y1 - y0) * (x - x0) / (x1 - x0))
