"""Every way to run one pipeline on one machine type: degree, depth, microbatch, recompute.

A shape is timed twice: by arrays, all shapes at once, with a lower bound on its pace (blocks that
could be split like water), and exactly, with the best uneven cut that memory allows, when the
search gets to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf

import numpy as np
import numpy.typing as npt

from sailor.cluster.gpu import GpuType
from sailor.cluster.network import Link, Network
from sailor.cluster.pool import MachineType
from sailor.models.spec import ModelSpec
from sailor.parallel.schedule import in_flight
from sailor.planner.least_pace import least_pace
from sailor.planner.memory import (
    Cut,
    MemoryCoefficients,
    memory_coefficients,
    most_blocks,
)
from sailor.planner.pack import most_worth
from sailor.planner.partition import best_cut
from sailor.planner.question import Job, Space
from sailor.planner.reduction import (
    gradient_bytes,
    most_parameters,
    uniform_ring,
    uniform_ring_seconds,
)
from sailor.planner.shape_space import FloatArray, IntArray, Shape, all_shapes, as_column
from sailor.planner.stage import Seat, boundary_links, send_seconds, stage_seconds
from sailor.planner.timing import PipelineSeconds, Ring, ring_seconds, sharing
from sailor.profile.profile import Profile


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """A shape with its cut, and what that cut takes."""

    shape: Shape
    counts: tuple[int, ...]
    pipeline: PipelineSeconds
    optimizer_sharding: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class _Way:
    """What degree, microbatch and recompute alone decide: seconds of a block and of the ends."""

    block: float
    first: float
    last: float
    coefficients: MemoryCoefficients


class Shapes:
    """The shapes of one machine type, with their lower bounds.

    ``step_bound`` works on all shapes at once; ``fit`` cuts one of them for a number of replicas.
    Times inside one zone do not depend on which zone it is: ``zone`` stands for all.
    """

    def __init__(
        self, machine_type: MachineType, *, zone: str, spec: ModelSpec, job: Job, space: Space,
        profile: Profile, network: Network,
    ) -> None:  # fmt: skip
        self.machine_type, self.zone = machine_type, zone
        self.spec, self.job, self.space = spec, job, space
        self.profile, self.network = profile, network
        self.host = profile.host_seconds(gpu=machine_type.gpu)
        self._every = all_shapes(machine_type.num_gpus, spec, job, space)
        self.all = self._every.shapes
        self._ways: dict[tuple[int, int, bool], _Way] = {}
        self._links: dict[tuple[int, int], tuple[Link, ...]] = {}
        self._rooms: dict[tuple[object, ...], int] = {}
        self._sizes: dict[int, IntArray] = {}
        self._fitted: dict[tuple[int, bool, int, int], Fitted | None] = {}
        self._bound_all()

    def _bound_all(self) -> None:
        """The columns that bounds are computed from, one entry for each shape."""
        self.num_gpus = self._every.num_gpus
        self.microbatch_size = self._every.microbatch_size
        stages = self._every.num_stages
        ways = [self._way_for(key) for key in self._every.ways]
        way_of = self._every.way_of

        def column(value: Callable[[_Way], float]) -> FloatArray:
            """One number of each way, spread to its shapes."""
            spread: FloatArray = as_column(value(way) for way in ways)[way_of]
            return spread

        layers = self.spec.num_layers
        block = column(lambda way: way.block)
        first, last = column(lambda way: way.first), column(lambda way: way.last)
        latency, inverse = self._sending()
        sends = latency + inverse * column(lambda way: way.coefficients.boundary)
        self.fill: FloatArray = layers * block + first + last + sends[0]
        self.pace: FloatArray = least_pace(
            layers, stages, block=block, first=first + sends[1], last=last + sends[2],
            inner=sends[3], alone=self.fill,
        )  # fmt: skip
        whole = Cut(num_blocks=layers, first=True, last=True)
        parameters = column(lambda way: way.coefficients.parameters(whole))
        # An average stage; the fullest one needs no less. Stage i of P keeps the activations of
        # P - i microbatches, and of one at least.
        fixed = column(lambda way: way.coefficients.fixed_bytes_per_parameter)
        if True not in self.space.optimizer_sharding:
            fixed += column(lambda way: way.coefficients.state_bytes_per_parameter)
        kept = column(lambda way: way.coefficients.activations(whole))
        working = column(lambda way: way.coefficients.working)
        peak = (fixed * parameters + kept) / stages + working
        self.fits: npt.NDArray[np.bool_] = peak <= self.machine_type.gpu.memory_bytes
        # Some stage has its share of the blocks rounded up, and each end has a block at least.
        each = column(lambda way: way.coefficients.block_parameters)
        fullest = np.maximum.reduce(
            [
                parameters / stages,
                each * np.ceil(layers / stages),
                each + column(lambda way: way.coefficients.first_parameters),
                each + column(lambda way: way.coefficients.last_parameters),
            ]
        )
        self.gradient: FloatArray = fullest * column(lambda way: gradient_bytes(way.coefficients))
        per_parameter = self.profile.update_seconds(gpu=self.machine_type.gpu, num_parameters=1.0)
        self.update: FloatArray = fullest * per_parameter
        sharings = {
            gpus: sharing(gpus_per_machine=self.machine_type.num_gpus, gpus_per_replica=gpus)
            for gpus in set(self.num_gpus.tolist())
        }
        self.sharing: FloatArray = as_column(sharings[gpus] for gpus in self.num_gpus.tolist())

    def _sending(self) -> tuple[FloatArray, FloatArray]:
        """What a microbatch spends on sending, seconds that do not depend on bytes and seconds per
        byte (each boundary is crossed forward and backward). Rows: all stages together, the first,
        the last, the least of those between."""
        if not self.all:
            return np.zeros((4, 0)), np.zeros((4, 0))
        latency, inverse = [], []
        for degree, num_stages in self._every.rows:
            links = self._links_for(degree, num_stages)
            latency.append(_sent([link.seconds_per_message for link in links]))
            inverse.append(_sent([1 / link.bytes_per_second for link in links]))
        row_of = self._every.row_of
        return np.array(latency)[row_of].T, np.array(inverse)[row_of].T

    @property
    def num_rejected(self) -> int:
        """Shapes that fit in no cut and at no number of replicas."""
        return int(np.count_nonzero(~self.fits))

    def replicas(self, *, num_gpus: int) -> IntArray:
        """How many replicas of each shape the GPUs hold; 0 where the space forbids that number."""
        samples = self.job.global_batch_size // self.microbatch_size
        replicas = np.minimum(num_gpus // self.num_gpus, samples)
        wanted = self.space.num_replicas
        if wanted is not None:
            replicas = np.where(replicas >= wanted, wanted, 0)
        return replicas

    def step_bound(self, *, num_gpus: int) -> FloatArray:
        """A lower bound on the step with as many replicas as the GPUs hold, for every shape."""
        replicas = self.replicas(num_gpus=num_gpus)
        samples = self.job.global_batch_size // self.microbatch_size
        usable = self.fits & (replicas > 0)
        replicas = np.maximum(replicas, 1)
        rounds = -(-samples // replicas)
        pipeline = self.fill + (rounds - 1) * self.pace
        rings = self._ring_bound(replicas)
        sharding = replicas if True in self.space.optimizer_sharding else 1
        return np.where(usable, pipeline + rings + self.update / sharding + self.host, inf)

    def most_microbatches(self, seconds: float, *, size: int, num_gpus: int) -> tuple[float, float]:
        """What no unsharded pipelines of one microbatch size on so many GPUs finish in a step of
        the given time, host aside: one that stands alone, and several with gradients to reduce."""
        kept = self._of_size(size)
        kept = kept[self.num_gpus[kept] <= num_gpus]
        alone = self._within(seconds - self.update[kept], kept)
        # Two owners or more pass their whole gradient over a link at least once: over one that
        # leaves the machine, when one replica and a GPU of another are too many for it.
        outside = self._outside.bytes_per_second / self.sharing[kept]
        either = np.maximum(self._inside.bytes_per_second, outside)
        leave = self.num_gpus[kept] >= self.machine_type.num_gpus
        reduce = self.gradient[kept] / np.where(leave, outside, either)
        several = self._within(seconds - self.update[kept] - reduce, kept)
        best = np.zeros(num_gpus + 1)  # of a pipeline on so many GPUs
        np.maximum.at(best, self.num_gpus[kept], several)
        return float(alone.max(initial=0.0)), most_worth(best.tolist())

    def _of_size(self, size: int) -> IntArray:
        """Shapes of one microbatch size that may fit."""
        if size not in self._sizes:
            self._sizes[size] = np.flatnonzero(self.fits & (self.microbatch_size == size))
        return self._sizes[size]

    def _within(self, seconds: FloatArray, kept: IntArray) -> FloatArray:
        """PipelineSeconds.microbatches_within for some shapes, at bounds on fill and pace."""
        fill = self.fill[kept]
        done = 1 + np.floor((seconds - fill) / self.pace[kept] * (1 + 1e-12) + 1e-9)
        within: FloatArray = np.where(fill <= seconds, done, 0.0)
        return within

    @property
    def _inside(self) -> Link:
        return self.network.inside(self.machine_type.name)

    @property
    def _outside(self) -> Link:
        name = self.machine_type.name
        return self.network.between(self.zone, name, self.zone, name)

    def ring_of(self, seated: Sequence[Fitted]) -> Ring:
        """The ring over replicas on machines of this type in one zone."""
        if sum(fitted.shape.num_gpus for fitted in seated) <= self.machine_type.num_gpus:
            return Ring(link=self._inside)
        widths = {fitted.shape.num_gpus for fitted in seated}
        shared = max(
            sharing(gpus_per_machine=self.machine_type.num_gpus, gpus_per_replica=width)
            for width in widths
        )
        return Ring(link=self._outside, num_sharing=shared)

    def shared_bound(self, fitted: Fitted, *, num_replicas: int, ring: Ring) -> float:
        """The optimizer and the gradient reduction of a replica's fullest stage, unsharded: no less
        than this among ``num_replicas`` over such a ring."""
        coefficients = self.coefficients(fitted.shape)
        most = most_parameters(coefficients, fitted.counts)
        num_bytes = most * gradient_bytes(coefficients)
        return self.profile.update_seconds(
            gpu=self.machine_type.gpu, num_parameters=most
        ) + ring_seconds(num_bytes, num_owners=num_replicas, ring=ring)

    def _ring_bound(self, replicas: IntArray) -> FloatArray:
        """The gradient reduction of an average stage: the fullest one takes no less."""
        inside, outside = self._inside, self._outside
        one_machine = replicas * self.num_gpus <= self.machine_type.num_gpus
        steps = 2.0 * (replicas - 1)
        messages = np.minimum(steps, 4 * np.ceil(np.log2(np.maximum(replicas, 1))))
        alpha = np.where(one_machine, inside.seconds_per_message, outside.seconds_per_message)
        rate = np.where(
            one_machine, inside.bytes_per_second, outside.bytes_per_second / self.sharing
        )
        seconds: FloatArray = messages * alpha + steps / replicas * self.gradient / rate
        return seconds

    def fit(self, index: int, *, num_replicas: int, num_microbatches: int) -> Fitted | None:
        """The best cut of a shape that memory allows; None when there is none.

        ``num_microbatches`` is the most one replica takes. Sharding is tried last.
        """
        # One replica has nobody to share its state with, whatever is asked for.
        for sharding in self.space.optimizer_sharding if num_replicas > 1 else (False,):
            owners = num_replicas if sharding else min(num_replicas, 2)
            fitted = self._fitted_once(index, sharding, owners, num_microbatches)
            if fitted is not None:
                return fitted
        return None

    def fit_unsharded(self, index: int, *, num_microbatches: int) -> Fitted | None:
        """The best cut of a shape that is to stand beside others, each with all its state."""
        if False not in self.space.optimizer_sharding:
            return None
        return self._fitted_once(index, False, 2, num_microbatches)

    def _fitted_once(
        self, index: int, sharding: bool, num_owners: int, num_microbatches: int
    ) -> Fitted | None:
        shape = self.all[index]
        # Beyond the depth of the pipeline more microbatches keep no more activations alive, and
        # equal stages have the same best cut for any number of them.
        in_pipeline = min(num_microbatches, shape.num_stages)
        key = (index, sharding, num_owners, in_pipeline)
        if key not in self._fitted:
            self._fitted[key] = self._fit(shape, sharding, num_owners, in_pipeline)
        return self._fitted[key]

    def step_seconds(self, fitted: Fitted, *, num_replicas: int, num_microbatches: int) -> float:
        """The step of equal replicas: what ``estimate`` says of their plan, without building it."""
        shape = fitted.shape
        coefficients = self.coefficients(shape)
        name = self.machine_type.name
        ring = uniform_ring(
            zone=self.zone, machine_type=name, gpus_per_replica=shape.num_gpus,
            num_replicas=num_replicas, network=self.network,
        )  # fmt: skip
        rings = uniform_ring_seconds(
            coefficients, fitted.counts, num_replicas=num_replicas, ring=ring
        )
        most = most_parameters(coefficients, fitted.counts)
        share = num_replicas if fitted.optimizer_sharding else 1
        update = self.profile.update_seconds(gpu=self.machine_type.gpu, num_parameters=most / share)
        return fitted.pipeline.seconds(num_microbatches) + rings + update + self.host

    def coefficients(self, shape: Shape) -> MemoryCoefficients:
        """Memory of the shape, per rank."""
        return self._way(shape).coefficients

    def _fit(
        self, shape: Shape, sharding: bool, num_replicas: int, num_microbatches: int
    ) -> Fitted | None:
        way = self._way(shape)
        depth = shape.num_stages
        most = []
        for stage in range(depth):
            alive = in_flight(stage=stage, num_stages=depth, num_microbatches=num_microbatches)
            ends = (stage == 0, stage == depth - 1)
            most.append(self._room(way, *ends, alive, num_replicas, sharding))
            if not most[-1]:
                return None
        if sum(most) < self.spec.num_layers:
            return None
        sends = send_seconds(self._links_of(shape), boundary_bytes=way.coefficients.boundary)
        last = shape.num_stages - 1
        extra = [
            send + way.first * (s == 0) + way.last * (s == last) for s, send in enumerate(sends)
        ]
        counts = best_cut(
            self.spec.num_layers, per_block=[way.block] * shape.num_stages, extra=extra,
            most=most, num_microbatches=num_microbatches,
        )  # fmt: skip
        if counts is None:
            return None
        busy = [n * way.block + e for n, e in zip(counts, extra, strict=True)]
        return Fitted(
            shape=shape,
            counts=counts,
            pipeline=PipelineSeconds.of(busy),
            optimizer_sharding=sharding,
        )

    def _room(
        self, way: _Way, first: bool, last: bool, alive: int, num_owners: int, sharding: bool
    ) -> int:
        """Most blocks a stage can hold: it depends on the ends and on what is alive, not on which
        stage of how many it is."""
        key = (id(way), first, last, alive, num_owners, sharding)
        room = self._rooms.get(key)
        if room is None:
            room = self._rooms[key] = most_blocks(
                way.coefficients, num_blocks=self.spec.num_layers, first=first, last=last,
                num_in_flight=alive, num_owners=num_owners, optimizer_sharding=sharding,
                gpu=self.machine_type.gpu,
            )  # fmt: skip
        return room

    def _way(self, shape: Shape) -> _Way:
        return self._way_for((shape.tensor_parallel, shape.microbatch_size, shape.recompute))

    def _way_for(self, key: tuple[int, int, bool]) -> _Way:
        if key not in self._ways:
            self._ways[key] = _way(self.profile, self.machine_type.gpu, self.spec, self.job, *key)
        return self._ways[key]

    def _links_of(self, shape: Shape) -> tuple[Link, ...]:
        return self._links_for(shape.tensor_parallel, shape.num_stages)

    def _links_for(self, degree: int, num_stages: int) -> tuple[Link, ...]:
        key = (degree, num_stages)
        if key not in self._links:
            seat = Seat(
                zone=self.zone, machine_type=self.machine_type.name, tensor_parallel=degree
            )  # fmt: skip
            self._links[key] = boundary_links([seat] * num_stages, self.network)
        return self._links[key]


def _sent(links: Sequence[float]) -> FloatArray:
    """Of all stages, the first, the last, the least between, when each link costs so much."""
    if not links:
        return np.zeros(4)
    inner = [a + b for a, b in zip(links, links[1:], strict=False)]
    return np.array([2 * sum(links), links[0], links[-1], min(inner, default=0.0)])


@lru_cache(maxsize=4096)
def _way(
    profile: Profile, gpu: GpuType, spec: ModelSpec, job: Job, tensor_parallel: int,
    microbatch_size: int, recompute: bool,
) -> _Way:  # fmt: skip
    def seconds(num_blocks: int, *, first: bool = False, last: bool = False) -> float:
        return stage_seconds(
            profile, Cut(num_blocks=num_blocks, first=first, last=last), gpu=gpu,
            tensor_parallel=tensor_parallel, microbatch_size=microbatch_size, recompute=recompute,
        ).total  # fmt: skip

    return _Way(
        block=seconds(1),
        first=seconds(0, first=True),
        last=seconds(0, last=True),
        coefficients=memory_coefficients(
            spec, tensor_parallel=tensor_parallel, microbatch_size=microbatch_size,
            sequence_length=job.sequence_length, recompute=recompute, numerics=job.numerics,
        ),
    )  # fmt: skip
