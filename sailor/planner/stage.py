"""What one pipeline stage costs per microbatch: compute, tensor-parallel exchange, sending."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sailor.cluster.gpu import GpuType
from sailor.cluster.network import Link, Network
from sailor.planner.memory import Cut
from sailor.profile.profile import Part, PartSeconds, Profile


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSeconds:
    """One microbatch on one stage, in seconds."""

    compute: float
    recompute: float
    exchange: float

    @property
    def total(self) -> float:
        """Everything but sending."""
        return self.compute + self.recompute + self.exchange


def stage_seconds(
    profile: Profile,
    cut: Cut,
    *,
    gpu: GpuType,
    tensor_parallel: int,
    microbatch_size: int,
    recompute: bool,
) -> StageSeconds:
    """Forward and backward of a stage. Recompute runs the blocks' forward once more."""

    def of(part: Part) -> PartSeconds:
        return profile.part_seconds(
            part, gpu=gpu, tensor_parallel=tensor_parallel, microbatch_size=microbatch_size
        )

    block = of(Part.block)
    compute = cut.num_blocks * (block.forward + block.backward)
    exchange = cut.num_blocks * block.communication
    again = cut.num_blocks * block.forward if recompute else 0.0
    if recompute:
        # The forward's half of the exchange is repeated too.
        exchange += cut.num_blocks * block.communication / 2
    for part, present in ((Part.embedding, cut.first), (Part.head, cut.last)):
        if present:
            seconds = of(part)
            compute += seconds.forward + seconds.backward
            exchange += seconds.communication
    return StageSeconds(compute=compute, recompute=again, exchange=exchange)


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """Where a stage of a replica stands: a pool, and how many GPUs it takes there."""

    zone: str
    machine_type: str
    tensor_parallel: int


def boundary_links(seats: Sequence[Seat], network: Network) -> tuple[Link, ...]:
    """The link behind each stage but the last, when replicas fill machines one after another.

    Two neighbours share a machine if the GPUs that the replica took there before leave room. From
    pool to pool all replicas of a machine send at once and share its card; inside a pool no more
    than one of them sends from machine to machine.
    """
    taken: dict[tuple[str, str], int] = {}
    places = []
    for seat in seats:
        pool = (seat.zone, seat.machine_type)
        machine_gpus = network.machine_types[seat.machine_type].num_gpus
        offset = taken.get(pool, 0)
        if offset % machine_gpus + seat.tensor_parallel > machine_gpus:
            offset += machine_gpus - offset % machine_gpus
        taken[pool] = offset + seat.tensor_parallel
        places.append((pool, offset // machine_gpus))
    links = []
    for (here, machine), (there, other) in zip(places, places[1:], strict=False):
        if here == there and machine == other:
            links.append(network.inside(here[1]))
            continue
        link = network.between(here[0], here[1], there[0], there[1])
        if here != there:
            at_once = max(
                network.machine_types[kind].num_gpus // taken[zone, kind]
                for zone, kind in (here, there)
            )
            link = replace(link, bytes_per_second=link.bytes_per_second / max(1, at_once))
        links.append(link)
    return tuple(links)


def send_seconds(links: Sequence[Link], *, boundary_bytes: float) -> tuple[float, ...]:
    """What each stage spends on sending: activations forward and their gradients backward."""
    num_stages = len(links) + 1
    one_way = [link.seconds(boundary_bytes) for link in links]
    return tuple(
        (one_way[stage] if stage < num_stages - 1 else 0.0)
        + (one_way[stage - 1] if stage > 0 else 0.0)
        for stage in range(num_stages)
    )
