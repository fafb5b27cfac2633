"""The one evaluator: what a plan takes in seconds, bytes and dollars, each with its breakdown.

The search ranks by it, action=plan prints it, the simulator runs on it, and accuracy is measured
against it. Nothing else in the project estimates a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from sailor.cluster.gpu import GpuType
from sailor.cluster.network import Network
from sailor.models.spec import ModelSpec
from sailor.parallel.schedule import in_flight
from sailor.plan import Plan, Replica
from sailor.planner.memory import (
    Cut,
    MemoryCoefficients,
    memory_coefficients,
    peak_bytes,
    stage_memory,
)
from sailor.planner.price import Rental, egress_dollars, rent_terms
from sailor.planner.reduction import ReducingReplica, ReducingStage, reduction
from sailor.planner.stage import Seat, StageSeconds, boundary_links, send_seconds, stage_seconds
from sailor.planner.term import Term, half_width, total
from sailor.planner.timing import PipelineSeconds
from sailor.profile.profile import Mark, Numerics, Profile


@dataclass(frozen=True, kw_only=True, slots=True)
class StageEstimate:
    """One stage of one group of equal replicas."""

    replica: int  # the first of the group
    stage: int
    gpu: str
    num_blocks: int
    busy_seconds: float
    memory: tuple[Term, ...]
    capacity_bytes: int

    @property
    def peak_bytes(self) -> float:
        """The bound on the memory of each of its GPUs."""
        return peak_bytes(self.memory)

    @property
    def fits(self) -> bool:
        """Whether the bound stays within the GPU."""
        return self.peak_bytes <= self.capacity_bytes


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a plan takes. Seconds and dollars are for one step without interruption."""

    step_terms: tuple[Term, ...]
    stages: tuple[StageEstimate, ...]
    rent_terms: tuple[Term, ...]
    egress_dollars_per_step: float
    tokens_per_step: int

    @cached_property
    def step_seconds(self) -> float:
        """One optimizer step."""
        return total(self.step_terms)

    @property
    def step_relative_error(self) -> float:
        """Half width of the error bar on the step."""
        return half_width(self.step_terms) / self.step_seconds

    @property
    def tokens_per_second(self) -> float:
        """All replicas together."""
        return self.tokens_per_step / self.step_seconds

    @property
    def dollars_per_hour(self) -> float:
        """Rent, plus egress at full speed."""
        return total(self.rent_terms) + self.egress_dollars_per_step * 3600 / self.step_seconds

    @property
    def dollars_per_step(self) -> float:
        """Rent and egress of one step."""
        return self.dollars_per_hour * self.step_seconds / 3600

    @property
    def dollars_per_billion_tokens(self) -> float:
        """What a billion tokens cost."""
        return self.dollars_per_step / self.tokens_per_step * 1e9

    @property
    def fullest(self) -> StageEstimate:
        """The stage closest to, or furthest beyond, its GPU's memory."""
        return max(self.stages, key=lambda stage: stage.peak_bytes / stage.capacity_bytes)

    @property
    def fits(self) -> bool:
        """Whether every stage fits."""
        return all(stage.fits for stage in self.stages)


def estimate(
    plan: Plan,
    *,
    spec: ModelSpec,
    profile: Profile,
    network: Network,
    numerics: Numerics,
    rentals: Sequence[Rental] = (),
) -> Estimate:
    """Evaluate a plan. ``network`` knows every zone and machine type the plan names.

    Raises KeyError for a machine type the network does not know.
    """
    groups = _groups(plan)
    seconds = [_replica_seconds(replica, plan, spec, profile, network, numerics)
               for replica, _, _ in groups]  # fmt: skip
    reducing = [
        ReducingReplica(count=count, stages=_reducing(replica, plan, spec, numerics))
        for replica, _, count in groups
    ]
    hosts: set[str] = set()
    sums = reduction(reducing, network=network)
    num_owners = len(plan.replicas)
    stages: list[StageEstimate] = []
    update = 0.0
    for (replica, first, _), timed, owner in zip(groups, seconds, reducing, strict=True):
        for s, stage in enumerate(replica.stages):
            hosts.add(stage.machine_type)
            gpu = _gpu(network, stage.machine_type)
            coefficients, cut = owner.stages[s].coefficients, owner.stages[s].cut
            terms = stage_memory(
                coefficients,
                cut,
                num_in_flight=in_flight(
                    stage=s,
                    num_stages=replica.num_stages,
                    num_microbatches=replica.num_microbatches,
                ),
                num_owners=num_owners,
                optimizer_sharding=plan.optimizer_sharding,
                gpu=gpu,
            )
            stages.append(
                StageEstimate(
                    replica=first,
                    stage=s,
                    gpu=stage.gpu,
                    num_blocks=cut.num_blocks,
                    busy_seconds=timed.busy[s],
                    memory=terms,
                    capacity_bytes=gpu.memory_bytes,
                )
            )
            share = num_owners if plan.optimizer_sharding else 1
            parameters = coefficients.parameters(cut) / share
            update = max(update, profile.update_seconds(gpu=gpu, num_parameters=parameters))
    host = max(profile.host_seconds(gpu=_gpu(network, name)) for name in hosts)
    slowest = max(seconds, key=lambda timed: timed.seconds)
    crossing = sum(
        count * _crossing_dollars(replica, timed.boundary_bytes, network)
        for (replica, _, count), timed in zip(groups, seconds, strict=True)
    )
    return Estimate(
        step_terms=(
            *slowest.terms(profile),
            _term("gradient reduction", sums.seconds, profile, error=0.3),
            _term("optimizer", update, profile, error=0.2),
            _term("host", host, profile, error=0.5),
        ),
        stages=tuple(stages),
        rent_terms=rent_terms(rentals),
        egress_dollars_per_step=sums.dollars + crossing,
        tokens_per_step=plan.tokens_per_step,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _ReplicaSeconds:
    """The pipeline of one replica, taken apart."""

    stages: tuple[StageSeconds, ...]
    sends: tuple[float, ...]
    num_microbatches: int
    boundary_bytes: float

    @property
    def busy(self) -> tuple[float, ...]:
        return tuple(s.total + x for s, x in zip(self.stages, self.sends, strict=True))

    @property
    def seconds(self) -> float:
        return PipelineSeconds.of(self.busy).seconds(self.num_microbatches)

    def terms(self, profile: Profile) -> tuple[Term, ...]:
        """The slowest stage works through all microbatches; the rest of the time is bubble."""
        busy = self.busy
        pace = max(range(len(busy)), key=lambda stage: busy[stage])
        n, stage = self.num_microbatches, self.stages[pace]
        terms = (
            _term("compute", n * stage.compute, profile),
            _term("recompute", n * stage.recompute, profile),
            _term("tensor-parallel exchange", n * stage.exchange, profile),
            _term("stage to stage", n * self.sends[pace], profile, error=0.3),
            _term("pipeline bubble", sum(busy) - busy[pace], profile),
        )
        return tuple(term for term in terms if term.value)


def _term(name: str, value: float, profile: Profile, *, error: float | None = None) -> Term:
    """Links and optimizer are modelled whatever the profile is."""
    return Term(
        name=name,
        value=value,
        mark=profile.mark if error is None else Mark.modelled,
        relative_error=profile.relative_error if error is None else error,
    )


def _groups(plan: Plan) -> list[tuple[Replica, int, int]]:
    """(replica, index of the first such, how many) for each distinct replica."""
    found: dict[Replica, tuple[int, int]] = {}
    last: Replica | None = None
    same = 0
    for index, replica in enumerate(plan.replicas):
        if replica is last:  # the search hands out the same object: spare the hashing
            same += 1
            continue
        if last is not None:
            found[last] = (found[last][0], found[last][1] + same)
        last, same = replica, 1
        found.setdefault(replica, (index, 0))
    assert last is not None
    found[last] = (found[last][0], found[last][1] + same)
    return [(replica, first, count) for replica, (first, count) in found.items()]


def _cut(replica: Replica, stage: int) -> Cut:
    return Cut(
        num_blocks=len(replica.stages[stage].layers),
        first=stage == 0,
        last=stage == replica.num_stages - 1,
    )


def _seats(replica: Replica) -> tuple[Seat, ...]:
    return tuple(
        Seat(zone=s.zone, machine_type=s.machine_type, tensor_parallel=s.tensor_parallel)
        for s in replica.stages
    )


def _gpu(network: Network, machine_type: str) -> GpuType:
    return network.machine_types[machine_type].gpu


def _replica_seconds(
    replica: Replica, plan: Plan, spec: ModelSpec, profile: Profile, network: Network,
    numerics: Numerics,
) -> _ReplicaSeconds:  # fmt: skip
    tokens = replica.microbatch_size * plan.sequence_length
    boundary_bytes = float(tokens * spec.hidden_size * numerics.compute_bytes)
    links = boundary_links(_seats(replica), network)
    timed: dict[tuple[object, ...], StageSeconds] = {}  # most stages are like the one before
    stages = []
    for s, stage in enumerate(replica.stages):
        cut = _cut(replica, s)
        key = (stage.machine_type, stage.tensor_parallel, stage.recompute, cut)
        if key not in timed:
            timed[key] = stage_seconds(
                profile, cut, gpu=_gpu(network, stage.machine_type),
                tensor_parallel=stage.tensor_parallel, microbatch_size=replica.microbatch_size,
                recompute=stage.recompute,
            )  # fmt: skip
        stages.append(timed[key])
    return _ReplicaSeconds(
        stages=tuple(stages),
        sends=send_seconds(links, boundary_bytes=boundary_bytes),
        num_microbatches=replica.num_microbatches,
        boundary_bytes=boundary_bytes,
    )


def _reducing(
    replica: Replica, plan: Plan, spec: ModelSpec, numerics: Numerics
) -> tuple[ReducingStage, ...]:
    known: dict[tuple[int, bool], MemoryCoefficients] = {}
    stages = []
    for s, (stage, seat) in enumerate(zip(replica.stages, _seats(replica), strict=True)):
        key = (stage.tensor_parallel, stage.recompute)
        if key not in known:
            known[key] = memory_coefficients(
                spec, tensor_parallel=stage.tensor_parallel,
                microbatch_size=replica.microbatch_size, sequence_length=plan.sequence_length,
                recompute=stage.recompute, numerics=numerics,
            )  # fmt: skip
        stages.append(
            ReducingStage(
                start=stage.layers.start, cut=_cut(replica, s), seat=seat, coefficients=known[key]
            )
        )
    return tuple(stages)


def _crossing_dollars(replica: Replica, boundary_bytes: float, network: Network) -> float:
    """Activations one way, their gradients the other, over every boundary between zones."""
    num_bytes = replica.num_microbatches * boundary_bytes
    return sum(
        egress_dollars(num_bytes, network=network, zone=a.zone, other=b.zone)
        + egress_dollars(num_bytes, network=network, zone=b.zone, other=a.zone)
        for a, b in zip(replica.stages, replica.stages[1:], strict=False)
    )
