"""A built-in snapshot of what clouds rent: machine types, zones, list prices, egress prices.

Enough to plan with no account and no network. Facts restated from the SkyPilot catalogue (v7 and
v8) and the clouds' own pages, on the dates given; prices move, so whatever is printed from here is
labelled with the date and its age. Live prices and quotas come from elsewhere and replace it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from provision.list_prices import MACHINES, PRICES, TARIFFS, Listing, Machine
from sailor.cluster.gpu import GPU_TYPES, GpuType
from sailor.cluster.network import Network, Tariff
from sailor.cluster.pool import MachineType, Offer, Pool, Zone
from sailor.errors import CloudError, ConfigError

CLOUDS = ("gcp", "aws", "azure", "lambda", "runpod")
OWN_CLUSTERS = ("slurm", "kubernetes")
LOCAL_ZONES = ("local-a",)  # machines alternate between them
LOCAL_MACHINE = "local"
LOOPBACK_BYTES_PER_SECOND = 1e9  # assumed: between two processes that pose as machines
CPU = "cpu"


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """What may be rented, how it is connected, and how old the prices are.

    ``remarks`` are for people. ``zone_names``, ``obtainable`` and ``preempted`` are as in
    provision.facts.Facts, where the cloud was asked.
    """

    pool: Pool
    network: Network
    as_of: date | None  # of the oldest price; None when nothing has a price
    label: str
    remarks: tuple[str, ...] = ()
    zone_names: Mapping[str, str] = field(default_factory=dict)
    obtainable: Mapping[tuple[str, str], float] = field(default_factory=dict)
    preempted: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def age_days(self, today: date) -> int | None:
        """Days since the oldest price was looked up."""
        return None if self.as_of is None else (today - self.as_of).days


def cloud_catalogue(
    cloud: str,
    *,
    regions: Sequence[str] = (),
    zones: Sequence[str] = (),
    machine_types: Sequence[str] = (),
    spot: bool | None = None,
    max_nodes: int,
) -> Catalogue:
    """The built-in offers of a cloud, narrowed. The catalogue knows prices, not capacity: every
    offer counts ``max_nodes`` machines.

    Raises ConfigError (E102) for a region, zone or machine type it does not know, and CloudError
    (E404) when nothing known is left.
    """
    listings = [listing for listing in PRICES if listing.cloud == cloud]
    _refuse_unknown(cloud, "region", regions, {listing.region for listing in listings})
    _refuse_unknown(cloud, "zone", zones, {z for listing in listings for z in listing.spot})
    _refuse_unknown(cloud, "machine type", machine_types, {entry.machine for entry in listings})
    kinds = {machine.name: _machine_type(machine) for machine in MACHINES if machine.cloud == cloud}
    offers = tuple(
        offer
        for listing in listings
        if (not regions or listing.region in regions)
        and (not machine_types or listing.machine in machine_types)
        for offer in _offers(listing, kinds[listing.machine], max_nodes)
        if (not zones or offer.zone.name in zones) and (spot is None or offer.spot == spot)
    )
    if not offers:
        raise CloudError(
            f"{cloud} has no such machine in the zones allowed",
            code="E404",
            why=_where_else(listings, machine_types, spot),
            fix="cloud.zones=[]  cloud.regions=[]  cloud.machine_types=[]",
        )
    oldest = min(date.fromisoformat(offer.as_of) for offer in offers)
    return Catalogue(
        pool=Pool(offers=offers),
        network=network_of(offers, tariffs={cloud: TARIFFS[cloud]}),
        as_of=oldest,
        label=f"built-in price snapshot of {oldest.isoformat()}",
    )


def local_catalogue(
    *, gpu: GpuType, nodes: int, gpus_per_node: int, zones: Sequence[str] = LOCAL_ZONES
) -> Catalogue:
    """This computer posing as ``nodes`` machines, spread over ``zones``, free of charge."""
    machine = MachineType(
        name=LOCAL_MACHINE,
        gpu=gpu,
        num_gpus=gpus_per_node,
        network_bytes_per_second=LOOPBACK_BYTES_PER_SECOND,
        source=gpu.source,
    )
    offers = tuple(
        Offer(
            machine_type=machine,
            zone=Zone(name=zone, region="local", cloud="local"),
            spot=True,
            price_per_hour=0.0,
            count=len(range(index, nodes, len(zones))),
            source="this computer",
            as_of=date.today().isoformat(),
        )
        for index, zone in enumerate(zones)
    )
    return Catalogue(
        pool=Pool(offers=offers),
        network=network_of(offers),
        as_of=None,
        label=f"this computer ({gpu.source})",
    )


def network_of(offers: Sequence[Offer], *, tariffs: dict[str, Tariff] | None = None) -> Network:
    """The network of everything on offer."""
    return Network(
        zones={offer.zone.name: offer.zone for offer in offers},
        machine_types=Pool(offers=tuple(offers)).machine_types,
        tariffs=tariffs or {},
    )


def _machine_type(machine: Machine) -> MachineType:
    return MachineType(
        name=machine.name,
        gpu=GPU_TYPES[machine.gpu],
        num_gpus=machine.num_gpus,
        network_bytes_per_second=machine.network_gbps * 1e9 / 8,
        source=machine.source,
    )


def _offers(listing: Listing, machine: MachineType, max_nodes: int) -> Iterator[Offer]:
    """Spot where there is a spot price, on demand where the list price can be believed."""
    for zone, spot_price in listing.spot.items():
        place = Zone(name=zone, region=listing.region, cloud=listing.cloud)
        for spot, price in ((True, spot_price), (False, listing.on_demand)):
            if price is not None:
                yield Offer(
                    machine_type=machine,
                    zone=place,
                    spot=spot,
                    price_per_hour=price,
                    count=max_nodes,
                    source=listing.source,
                    as_of=listing.as_of,
                )


def own_catalogue(
    cloud: str,
    *,
    cluster: str | None,
    zones: Sequence[str],
    machine_types: Sequence[str],
    max_nodes: int,
    cpu: GpuType | None = None,
) -> Catalogue:
    """Machines of the user's own, at no price, written GPUxCOUNT, 2*GPUxCOUNT or GPUxCOUNT@ZONE.

    A number in front says how many there are in each zone, else ``max_nodes``. A zone is what
    SkyPilot calls one: a partition of a Slurm cluster. A machine without a zone is in all of
    ``zones``. ``cpu`` stands for the GPU of machines called cpuxCOUNT. Raises ConfigError E104 when
    no machine is named and E102 for one that cannot be read.
    """
    offers: list[Offer] = []
    for name in machine_types:
        kind, _, at = name.partition("@")
        number, star, kind = kind.rpartition("*")
        count = int(number) if number.isdigit() else 0 if star else max_nodes
        for zone in [at] if at else list(zones) or [cloud]:
            offers.append(
                Offer(
                    machine_type=_named(kind if count else "", written=name, cpu=cpu),
                    zone=Zone(name=zone, region=cluster or cloud, cloud=cloud),
                    spot=False,
                    price_per_hour=0.0,
                    count=min(count, max_nodes),
                    source="your own cluster",
                    as_of=date.today().isoformat(),
                )
            )
    if not offers:
        raise ConfigError(
            f"cloud={cloud} needs to know your machines",
            code="E104",
            where="cloud.machine_types=[]",
            fix="cloud.machine_types=[H100-80x8]",
        )
    return Catalogue(
        pool=Pool(offers=tuple(offers)),
        network=network_of(offers),
        as_of=None,
        label="your own cluster",
    )


def is_cpu(machine_type: str) -> bool:
    """Whether a machine of one's own has no GPU and works on its processor."""
    return machine_type.rpartition("*")[2].startswith(f"{CPU}x")


def _named(name: str, *, written: str, cpu: GpuType | None) -> MachineType:
    """'H100-80x8': eight H100 of 80 GB; 'cpux2': two workers on the processor."""
    gpu, _, number = name.rpartition("x")
    known = GPU_TYPES if cpu is None else {**GPU_TYPES, CPU: cpu}
    if gpu not in known or not number.isdigit() or not 1 <= int(number) <= 64:
        raise ConfigError(
            f"{written!r} is no machine type",
            code="E102",
            why="machines of your own are written GPUxCOUNT, 2*GPUxCOUNT or GPUxCOUNT@ZONE; GPU "
            "types: " + ", ".join([*GPU_TYPES, CPU]),
            where=f"cloud.machine_types=[{written}]",
            fix="cloud.machine_types=[H100-80x8]",
        )
    return MachineType(
        name=name,
        gpu=known[gpu],
        num_gpus=int(number),
        network_bytes_per_second=OWN_CLUSTER_GBPS * 1e9 / 8,
        source=f"assumed: {OWN_CLUSTER_GBPS} Gb/s a machine",
    )


# Usual for GPU machines bought in recent years; half or four times as much changes plans little
# as long as tensor parallelism stays inside a machine.
OWN_CLUSTER_GBPS = 200


def _refuse_unknown(cloud: str, what: str, wanted: Sequence[str], known: set[str]) -> None:
    for name in wanted:
        if name not in known:
            raise ConfigError(
                f"{cloud} has no {what} {name!r} in the built-in catalogue",
                code="E102",
                why=f"known: {', '.join(sorted(known))}",
                where=f"cloud.{what.replace(' ', '_')}s=[{name}]",
                fix=f"cloud.{what.replace(' ', '_')}s=[]",
            )


def _where_else(
    listings: Sequence[Listing], machine_types: Sequence[str], spot: bool | None
) -> str:
    """Zones that have the machines asked for."""
    zones = sorted(
        zone
        for listing in listings
        if not machine_types or listing.machine in machine_types
        for zone, price in listing.spot.items()
        if (price is not None if spot else spot is None or listing.on_demand is not None)
    )
    return f"zones that have it: {', '.join(dict.fromkeys(zones)) or 'none'}"
