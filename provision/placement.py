"""A machine type in a zone, as SkyPilot wants it said. Values and tables only; no SkyPilot here.

What differs between clouds is in ``INFRAS``, once, and said again for people in conf/cloud/*.yaml:
which have spot machines, which can be pinned to a zone, which end an idle cluster by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from provision.hosts import Host
from sailor.cluster.pool import MachineType, Zone
from sailor.errors import CloudError


@dataclass(frozen=True, kw_only=True, slots=True)
class Infra:
    """What SkyPilot can do on one cloud.

    ``names_machines``: machines are asked for by the cloud's name for them, else by GPU and number.
    ``pins_zone``: the zone can be asked for, not only the region. ``ends_idle``: a cluster nobody
    uses can end itself. ``has_labels``: what is rented can carry the run's name. ``gives_notice``:
    a machine's metadata service says when it will be taken. ``most_nodes``: machines one cluster
    may have.
    """

    spot: bool
    names_machines: bool = True
    pins_zone: bool = False
    ends_idle: bool = True
    has_labels: bool = False
    gives_notice: bool = False
    most_nodes: int = 16


INFRAS: Mapping[str, Infra] = {
    "gcp": Infra(spot=True, pins_zone=True, has_labels=True, gives_notice=True),
    "aws": Infra(spot=True, pins_zone=True, has_labels=True, gives_notice=True),
    "azure": Infra(spot=True, gives_notice=True),
    "lambda": Infra(spot=False),
    # SkyPilot rents RunPod machines one at a time, and its spot prices there are the list prices.
    "runpod": Infra(spot=False, most_nodes=1),
    "kubernetes": Infra(spot=False, names_machines=False, has_labels=True),
    # An idle Slurm cluster ends itself only with containers; its jobs have a time limit instead.
    "slurm": Infra(spot=False, names_machines=False, pins_zone=True, ends_idle=False),
}

# Ours -> SkyPilot's, where they differ by more than the memory behind the hyphen.
_GPU_NAMES = {
    "V100-32": "V100-32GB",
    "A100-80": "A100-80GB",
    "A100-80-PCIe": "A100-80GB",
    "A6000-48": "RTXA6000",
    "RTX-3090": "RTX3090",
    "RTX-4090": "RTX4090",
}
# GCP machines that take their GPUs as an attachment: ours -> the host's name.
GCP_HOSTS = {
    "n1+T4x1": "n1-standard-8",
    "n1+T4x4": "n1-standard-32",
    "n1+V100x1": "n1-standard-8",
    "n1+V100x4": "n1-standard-32",
    "n1+V100x8": "n1-standard-64",
}
# GCP machines whose GPUs SkyPilot calls otherwise than the same GPUs elsewhere.
_GCP_GPUS = {"a3-megagpu-8g": "H100-MEGA"}
CPU = "cpu"  # the GPU of machines that have none


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """One machine, pinned. ``cpus`` and ``memory_gib`` are least amounts where a machine has no
    name; None leaves it to the cloud."""

    infra: str
    use_spot: bool
    instance_type: str | None = None
    accelerators: str | None = None
    cpus: str | None = None
    memory_gib: str | None = None


def placement(
    machine: MachineType,
    *,
    zone: Zone,
    spot: bool,
    zone_names: Mapping[str, str] | None = None,
) -> Placement:
    """How to ask SkyPilot for a machine.

    ``zone_names`` gives the account's own name of an AWS zone for the id by which plans call it
    (use1-az4 -> us-east-1b). Raises CloudError E404 for spot machines where there are none, and
    for an AWS zone id that the account has no name for.
    """
    infra = INFRAS[zone.cloud]
    if spot and not infra.spot:
        raise CloudError(
            f"{zone.cloud} has no spot machines through SkyPilot",
            code="E404",
            where="cloud.spot=true",
            fix="cloud.spot=false",
        )
    accelerators = None
    if machine.gpu.name != CPU:
        gpu = _GCP_GPUS.get(machine.name) or gpu_name(machine.gpu.name)
        accelerators = f"{gpu}:{machine.num_gpus}"
    if not infra.names_machines:
        return Placement(
            infra=_where(zone, infra, zone.name),
            use_spot=spot,
            accelerators=accelerators,
            # A worker computes on one thread; the agent and SkyPilot need a little beside it.
            cpus=f"{machine.num_gpus}+" if accelerators is None else None,
        )
    name = machine.name
    if zone.cloud == "gcp":
        name = GCP_HOSTS.get(name, name)
    if zone.cloud == "azure":
        name = f"Standard_{name}"
    return Placement(
        infra=_where(zone, infra, _zone_name(zone, zone_names)),
        use_spot=spot,
        instance_type=name,
        # Elsewhere the machine's name says which GPUs it has.
        accelerators=accelerators if zone.cloud == "gcp" else None,
    )


def host_placement(
    host: Host, *, zone: Zone, zone_names: Mapping[str, str] | None = None
) -> Placement:
    """How to ask SkyPilot for a machine without GPUs, on demand. Raises CloudError E404."""
    infra = INFRAS[zone.cloud]
    where = _where(zone, infra, _zone_name(zone, zone_names) if infra.names_machines else zone.name)
    if not host.named:
        return Placement(infra=where, use_spot=False, cpus="2+", memory_gib=f"{host.memory_gib}+")
    name = f"Standard_{host.name}" if zone.cloud == "azure" else host.name
    return Placement(infra=where, use_spot=False, instance_type=name)


def gpu_name(ours: str) -> str:
    """SkyPilot's name of a GPU: 'A100-40' is its 'A100', 'A100-80' its 'A100-80GB'."""
    return _GPU_NAMES.get(ours, ours.partition("-")[0])


def _where(zone: Zone, infra: Infra, zone_name: str) -> str:
    if zone.region in (zone.cloud, "*"):  # one that has no regions, or none that we know of
        return zone.cloud
    place = f"{zone.cloud}/{zone.region}"
    return f"{place}/{zone_name}" if infra.pins_zone and zone_name != zone.region else place


def _zone_name(zone: Zone, zone_names: Mapping[str, str] | None) -> str:
    if zone.cloud != "aws" or zone_names is None:
        return zone.name
    if zone.name not in zone_names:
        raise CloudError(
            f"this AWS account has no zone {zone.name}",
            code="E404",
            why=f"its zones are {', '.join(sorted(zone_names)) or 'unknown'}",
            fix="cloud.zones=[]",
        )
    return zone_names[zone.name]
