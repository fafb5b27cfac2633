"""What can be rented right now: zones, machine types, offers and quotas. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from sailor.cluster.gpu import GpuType


@dataclass(frozen=True, kw_only=True, slots=True)
class Zone:
    """A failure domain of one cloud region. ``network`` names the set of zones that can connect."""

    name: str
    region: str
    cloud: str
    network: str = "default"


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineType:
    """A machine as rented: equal GPUs, and a network card shared by them."""

    name: str
    gpu: GpuType
    num_gpus: int
    network_bytes_per_second: float  # one direction, whole machine
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """Up to ``count`` machines of one type in one zone at one price.

    ``as_of`` is an ISO date, ``source`` says who claims the price (catalogue, live feed, none).
    """

    machine_type: MachineType
    zone: Zone
    spot: bool
    price_per_hour: float  # US dollars per machine
    count: int
    source: str
    as_of: str

    def __post_init__(self) -> None:
        what = f"{self.machine_type.name} in {self.zone.name}"
        if not 0 <= self.price_per_hour < inf:  # neither negative nor no number at all
            raise ValueError(f"{what}: its price is {self.price_per_hour}")
        if self.count < 0:
            raise ValueError(f"{what}: negative count")


@dataclass(frozen=True, kw_only=True, slots=True)
class Quota:
    """At most ``limit`` GPUs of a type in a region, spot and on-demand counted apart."""

    gpu: str
    region: str
    spot: bool
    limit: int
    metric: str  # the cloud's own name for it


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """Offers x quotas at one moment."""

    offers: tuple[Offer, ...]
    quotas: tuple[Quota, ...] = field(default=())

    @property
    def zones(self) -> tuple[str, ...]:
        """Zone names with at least one offer, each once, in offer order."""
        return tuple(dict.fromkeys(offer.zone.name for offer in self.offers))

    def allowance(self, *, gpu: str, region: str, spot: bool) -> int | None:
        """GPUs the quotas leave for a type in a region; None when no quota speaks of it."""
        limits = [
            quota.limit
            for quota in self.quotas
            if (quota.gpu, quota.region, quota.spot) == (gpu, region, spot)
        ]
        return min(limits) if limits else None

    @property
    def machine_types(self) -> dict[str, MachineType]:
        """Every machine type on offer, by name. Raises ValueError when one name means two."""
        found: dict[str, MachineType] = {}
        for offer in self.offers:
            kind = found.setdefault(offer.machine_type.name, offer.machine_type)
            if kind != offer.machine_type:
                raise ValueError(f"two different machine types are called {kind.name}")
        return found

    @property
    def max_gpus_per_machine(self) -> int:
        """GPUs of the largest machine offered: the bound on tensor parallelism."""
        return max((offer.machine_type.num_gpus for offer in self.offers), default=1)
