"""Seconds and dollars of the gradient reduction: who holds which blocks, over which links.

Replicas may cut the model differently and use different tensor-parallel degrees, so the owners of a
block stand on stages of different shape. A stage takes part in the rings of all its blocks, one
after another; the slowest stage decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sailor.cluster.network import Link, Network
from sailor.planner.memory import Cut, MemoryCoefficients
from sailor.planner.price import egress_dollars
from sailor.planner.stage import Seat
from sailor.planner.timing import Ring, ring_seconds, sharing


@dataclass(frozen=True, kw_only=True, slots=True)
class ReducingStage:
    """One stage as the reduction sees it."""

    start: int
    cut: Cut
    seat: Seat
    coefficients: MemoryCoefficients


@dataclass(frozen=True, kw_only=True, slots=True)
class ReducingReplica:
    """``count`` replicas cut and seated alike."""

    count: int
    stages: tuple[ReducingStage, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduction:
    """The slowest stage's seconds, per replica group and stage, and dollars of egress a step."""

    seconds: float
    per_stage: tuple[tuple[float, ...], ...]
    dollars: float


def gradient_bytes(coefficients: MemoryCoefficients) -> float:
    """Bytes per parameter that travel: fp32, or fp64 where sums must be exact."""
    return 8.0 if coefficients.numerics.deterministic else 4.0


def reduction(replicas: Sequence[ReducingReplica], *, network: Network) -> Reduction:
    """Time and price of summing gradients over the owners of each block."""
    num_owners = sum(replica.count for replica in replicas)
    num_blocks = sum(stage.cut.num_blocks for stage in replicas[0].stages)
    edges = sorted({stage.start for replica in replicas for stage in replica.stages} | {num_blocks})
    totals = [[0.0] * len(replica.stages) for replica in replicas]
    dollars = 0.0
    for start, stop in zip(edges, edges[1:], strict=False):
        owners = [
            (g, s)
            for g, replica in enumerate(replicas)
            for s, stage in enumerate(replica.stages)
            if stage.start <= start < stage.start + stage.cut.num_blocks
        ]
        seats = [(replicas[g], s) for g, s in owners]
        ring = _ring_over(seats, network=network)
        whole = 0.0
        for g, s in owners:
            stage = replicas[g].stages[s]
            each = stage.coefficients
            parameters = (stop - start) * each.block_parameters
            if start == 0:
                parameters += each.first_parameters - each.tied_parameters
            if stop == num_blocks:
                parameters += each.last_parameters
            num_bytes = parameters * gradient_bytes(each)
            totals[g][s] += ring_seconds(num_bytes, num_owners=num_owners, ring=ring)
            whole = max(whole, num_bytes * stage.seat.tensor_parallel)
        dollars += _ring_dollars(whole, seats, num_owners=num_owners, network=network)
    dollars += _tied(replicas, totals, num_owners=num_owners, network=network)
    return Reduction(
        seconds=max(max(stages) for stages in totals),
        per_stage=tuple(tuple(stages) for stages in totals),
        dollars=dollars,
    )


def uniform_ring_seconds(
    coefficients: MemoryCoefficients, counts: Sequence[int], *, num_replicas: int,
    ring: Ring,
) -> float:  # fmt: skip
    """``reduction`` for replicas that are all alike, in closed form: its inner loop in a search."""
    each = gradient_bytes(coefficients)
    tied_owners = num_replicas * (1 if len(counts) == 1 else 2)
    tied = ring_seconds(coefficients.tied_parameters * each, num_owners=tied_owners, ring=ring)
    slowest = 0.0
    for cut in _ends_and_fullest(counts):
        parameters = cut.num_blocks * coefficients.block_parameters
        if cut.first:
            parameters += coefficients.first_parameters - coefficients.tied_parameters
        if cut.last:
            parameters += coefficients.last_parameters
        seconds = ring_seconds(parameters * each, num_owners=num_replicas, ring=ring)
        slowest = max(slowest, seconds + (tied if cut.first or cut.last else 0.0))
    return slowest


def _ends_and_fullest(counts: Sequence[int]) -> tuple[Cut, ...]:
    """The stages of equal replicas that anything can be slowest or fullest on."""
    if len(counts) == 1:
        return (Cut(num_blocks=counts[0], first=True, last=True),)
    ends = (
        Cut(num_blocks=counts[0], first=True, last=False),
        Cut(num_blocks=counts[-1], first=False, last=True),
    )
    if len(counts) == 2:
        return ends
    return (*ends, Cut(num_blocks=max(counts[1:-1]), first=False, last=False))


def most_parameters(coefficients: MemoryCoefficients, counts: Sequence[int]) -> float:
    """Parameters of a rank of the fullest stage."""
    return max(coefficients.parameters(cut) for cut in _ends_and_fullest(counts))


def uniform_ring(
    *, zone: str, machine_type: str, gpus_per_replica: int, num_replicas: int, network: Network
) -> Ring:
    """The ring over equal replicas in one pool."""
    machine_gpus = network.machine_types[machine_type].num_gpus
    if num_replicas * gpus_per_replica <= machine_gpus:
        return Ring(link=network.inside(machine_type))
    shared = sharing(gpus_per_machine=machine_gpus, gpus_per_replica=gpus_per_replica)
    link = network.between(zone, machine_type, zone, machine_type)
    return Ring(link=link, num_sharing=shared)


def _tied(
    replicas: Sequence[ReducingReplica], totals: list[list[float]], *, num_owners: int,
    network: Network,
) -> float:  # fmt: skip
    """The token matrix of a model with tied embeddings has owners on first and last stages."""
    if not replicas[0].stages[0].coefficients.tied_parameters:
        return 0.0
    deep = [replica for replica in replicas if len(replica.stages) > 1]
    owners = num_owners + sum(replica.count for replica in deep)
    seats = [(replica, 0) for replica in replicas]
    seats += [(replica, len(replica.stages) - 1) for replica in deep]
    ring = _ring_over(seats, network=network)
    whole = 0.0
    for replica, stages in zip(replicas, totals, strict=True):
        for s in sorted({0, len(stages) - 1}):
            each = replica.stages[s].coefficients
            num_bytes = each.tied_parameters * gradient_bytes(each)
            stages[s] += ring_seconds(num_bytes, num_owners=owners, ring=ring)
            whole = max(whole, num_bytes * replica.stages[s].seat.tensor_parallel)
    return _ring_dollars(whole, seats, num_owners=owners, network=network)


def _ring_over(owners: Sequence[tuple[ReducingReplica, int]], *, network: Network) -> Ring:
    """The ring over these owners."""
    pools: dict[tuple[str, str], float] = {}
    in_pool: dict[tuple[str, str], int] = {}
    counted: set[tuple[int, tuple[str, str]]] = set()
    for replica, stage in owners:
        seat = replica.stages[stage].seat
        pool = (seat.zone, seat.machine_type)
        per_replica = sum(
            other.seat.tensor_parallel
            for other in replica.stages
            if (other.seat.zone, other.seat.machine_type) == pool
        )
        machine_gpus = network.machine_types[seat.machine_type].num_gpus
        shared = sharing(gpus_per_machine=machine_gpus, gpus_per_replica=per_replica)
        pools[pool] = max(pools.get(pool, 0.0), shared)
        if (id(replica), pool) not in counted:  # a tied matrix has two owners in one replica
            counted.add((id(replica), pool))
            in_pool[pool] = in_pool.get(pool, 0) + replica.count * per_replica
    names = sorted(pools)
    only = names[0]
    if len(names) == 1 and in_pool[only] <= network.machine_types[only[1]].num_gpus:
        return Ring(link=network.inside(only[1]))
    worst: tuple[float, Link, float] | None = None
    far = 0.0
    for i, here in enumerate(names):
        for there in names[i:]:
            if here == there and len(names) > 1 and in_pool[here] <= _gpus(network, here):
                continue  # one machine of its pool: its ring edges leave for other pools
            link = network.between(here[0], here[1], there[0], there[1])
            shared = max(pools[here], pools[there])
            far = max(far, link.seconds_per_message)
            rate = link.bytes_per_second / shared
            if worst is None or rate < worst[0]:
                worst = (rate, link, shared)
    assert worst is not None
    num_zones = len({zone for zone, _ in names})
    return Ring(link=worst[1], num_sharing=worst[2], num_zones=num_zones, far_seconds=far)


def _gpus(network: Network, pool: tuple[str, str]) -> int:
    return network.machine_types[pool[1]].num_gpus


def _ring_dollars(
    whole_bytes: float, owners: Sequence[tuple[ReducingReplica, int]], *, num_owners: int,
    network: Network,
) -> float:  # fmt: skip
    """A ring that visits zone after zone leaves each of them once."""
    zones = sorted({replica.stages[stage].seat.zone for replica, stage in owners})
    if len(zones) < 2:
        return 0.0
    moved = 2 * (num_owners - 1) / num_owners * whole_bytes
    around = zip(zones, zones[1:] + zones[:1], strict=True)
    return sum(egress_dollars(moved, network=network, zone=a, other=b) for a, b in around)
