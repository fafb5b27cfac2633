"""Small pools, jobs and questions for the planner's tests."""

from __future__ import annotations

from sailor.cluster.gpu import GPU_TYPES, GpuType
from sailor.cluster.network import Network, Tariff
from sailor.cluster.pool import MachineType, Offer, Pool, Quota, Zone
from sailor.models.spec import ModelSpec
from sailor.planner.question import Job
from sailor.profile.profile import Numerics
from sailor.units import MIB
from tests.helpers.builders import a_spec


def a_gpu(*, memory_mib: float = 8.0, **changes) -> GpuType:
    """A CPU posing as a GPU: no context, so that memory is exactly what tensors take."""
    fields = {
        "name": "cpu",
        "memory_bytes": int(memory_mib * MIB),
        "peak_flops": 1e11,
        "peak_flops_fp32": 1e11,
        "memory_bytes_per_second": 1e10,
        "link_bytes_per_second": 1e9,
        "has_bf16": False,
        "source": "test",
        "has_context": False,
    }
    return GpuType(**{**fields, **changes})


def a_machine(name: str = "local", *, gpu: GpuType | str = "A100-40", gpus: int = 1, **changes):
    kind = GPU_TYPES[gpu] if isinstance(gpu, str) else gpu
    fields = {"network_bytes_per_second": 1e9, "source": "test"}
    return MachineType(name=name, gpu=kind, num_gpus=gpus, **{**fields, **changes})


def an_offer(
    machine: MachineType | None = None, *, zone: str = "a", region: str = "r", price: float = 1.0,
    count: int = 4, spot: bool = True, network: str = "default", cloud: str = "test",
) -> Offer:  # fmt: skip
    return Offer(
        machine_type=machine or a_machine(),
        zone=Zone(name=zone, region=region, cloud=cloud, network=network),
        spot=spot, price_per_hour=price, count=count, source="test", as_of="2026-01-01",
    )  # fmt: skip


def a_pool(*offers: Offer, quotas: tuple[Quota, ...] = ()) -> Pool:
    return Pool(offers=offers or (an_offer(),), quotas=quotas)


def a_network(pool: Pool, *, tariff: Tariff | None = None) -> Network:
    return Network(
        zones={offer.zone.name: offer.zone for offer in pool.offers},
        machine_types=pool.machine_types,
        tariffs={"test": tariff} if tariff else {},
    )


def a_job(*, batch: int = 8, tokens: int = 16, deterministic: bool = False, width: int = 4, **rest):
    return Job(
        sequence_length=tokens,
        global_batch_size=batch,
        numerics=Numerics(compute_bytes=width, deterministic=deterministic),
        **rest,
    )


def tiny_spec(**changes) -> ModelSpec:
    """The builders' four blocks, as the planner sees them."""
    return a_spec(**changes)
