"""How fast two machines exchange bytes, and what a cloud charges for it. Facts and tiers only.

A link is a start-up time and a bandwidth (Hockney's alpha-beta model). Which link joins two
machines depends on how far apart they stand: one machine, one zone, one region, another region.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from sailor.cluster.pool import MachineType, Zone


class Tier(Enum):
    """Distance between two machines, near to far."""

    machine = "machine"
    zone = "zone"
    region = "region"
    cloud = "cloud"
    outside = "outside"


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """One direction: ``seconds_per_message`` to start, then ``bytes_per_second``."""

    tier: Tier
    seconds_per_message: float
    bytes_per_second: float
    source: str

    def seconds(self, num_bytes: float) -> float:
        """Time for one message; nothing to send costs nothing."""
        if num_bytes <= 0:
            return 0.0
        return self.seconds_per_message + num_bytes / self.bytes_per_second


@dataclass(frozen=True, kw_only=True, slots=True)
class Tariff:
    """Dollars per GB (1e9 bytes) that leave a zone, by how far they go."""

    between_zones: float = 0.0
    between_regions: float = 0.0
    source: str = "no charge"

    def dollars_per_gb(self, tier: Tier) -> float:
        """What the cloud bills for one GB over a link of that tier."""
        match tier:
            case Tier.machine | Tier.zone:
                return 0.0
            case Tier.region:
                return self.between_zones
            case _:
                return self.between_regions


# Small-message latencies: NVLink and host ~10 us; data-centre TCP 0.1-0.3 ms round trip inside a
# zone, 0.5-1.5 ms between zones, ~35 ms between US regions (measured round trips, halved).
LATENCY_SECONDS = {
    Tier.machine: 10e-6,
    Tier.zone: 60e-6,
    Tier.region: 0.5e-3,
    Tier.cloud: 18e-3,
    Tier.outside: 50e-3,
}
# Sustained share of a card's nominal rate inside a region; a long haul is bound by the path, not
# by the card: 1.1 GB/s was measured between us-central1 and us-west1 with 4 flows, 0.62 with one.
SUSTAINED_SHARE = 0.7
BETWEEN_REGIONS_BYTES_PER_SECOND = 1.0e9


@dataclass(frozen=True, kw_only=True)
class Network:
    """Links between machines of a pool. Zones of different ``Zone.network`` never connect."""

    zones: dict[str, Zone]
    machine_types: dict[str, MachineType]
    tariffs: dict[str, Tariff] = field(default_factory=dict)  # by cloud
    measured: dict[Tier, Link] = field(default_factory=dict)  # instead of what sheets say
    # Between machines of two zones, or of one, by name in order: instead of all else.
    paths: dict[tuple[str, str], Link] = field(default_factory=dict)
    _links: dict[tuple[str, str, str, str], Link] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def tier(self, zone: str, other: str) -> Tier:
        """How far two machines stand apart (two machines: never Tier.machine)."""
        if zone == other:
            return Tier.zone
        a, b = self.zones[zone], self.zones[other]
        if a.cloud != b.cloud:
            return Tier.outside
        return Tier.region if a.region == b.region else Tier.cloud

    def connected(self, zone: str, other: str) -> bool:
        """Whether machines in the two zones can reach each other at all."""
        return zone == other or self.zones[zone].network == self.zones[other].network

    def inside(self, machine_type: str) -> Link:
        """Between two GPUs of one machine."""
        key = ("", machine_type, "", machine_type)
        if Tier.machine in self.measured:
            return self.measured[Tier.machine]
        if key not in self._links:
            gpu = self.machine_types[machine_type].gpu
            self._links[key] = Link(
                tier=Tier.machine,
                seconds_per_message=LATENCY_SECONDS[Tier.machine],
                bytes_per_second=gpu.link_bytes_per_second,
                source=gpu.source,
            )
        return self._links[key]

    def between(self, zone: str, machine_type: str, other_zone: str, other_type: str) -> Link:
        """Between two machines, whole card; the slower card decides."""
        key = (zone, machine_type, other_zone, other_type)
        if key not in self._links:
            self._links[key] = self._between(*key)
        return self._links[key]

    def _between(self, zone: str, machine_type: str, other_zone: str, other_type: str) -> Link:
        first, second = sorted((zone, other_zone))
        if (first, second) in self.paths:
            return self.paths[first, second]
        tier = self.tier(zone, other_zone)
        if tier in self.measured:
            return self.measured[tier]
        rate = SUSTAINED_SHARE * min(
            self.machine_types[machine_type].network_bytes_per_second,
            self.machine_types[other_type].network_bytes_per_second,
        )
        if tier in (Tier.cloud, Tier.outside):
            rate = min(rate, BETWEEN_REGIONS_BYTES_PER_SECOND)
        return Link(
            tier=tier,
            seconds_per_message=LATENCY_SECONDS[tier],
            bytes_per_second=rate,
            source=self.machine_types[machine_type].source,
        )

    def dollars_per_gb(self, zone: str, other: str) -> float:
        """What leaving ``zone`` for ``other`` costs per GB."""
        tariff = self.tariffs.get(self.zones[zone].cloud, Tariff())
        return tariff.dollars_per_gb(self.tier(zone, other))
