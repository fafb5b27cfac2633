"""Our price list as SkyPilot's catalogue files, and its own optimiser asked what it would rent.

    HOME=FOLDER python -m tests.helpers.sky_catalogue CLOUD < placements.json

A process of its own, because SkyPilot keeps its state under HOME. No server, no network: the files
are there, so that none is fetched.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from provision.list_prices import MACHINES, PRICES
from provision.placement import gpu_name
from sailor.cluster.gpu import GPU_TYPES
from sailor.units import GIB

GCP = (
    "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,"
    "AvailabilityZone,Price,SpotPrice"
)
AWS = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,"
    "Region,AvailabilityZone,Arch"
)
MEGA = "H100-MEGA"  # what SkyPilot calls them
HOSTS = {"n1+T4x1": "n1-standard-8", "n1+T4x4": "n1-standard-32", "n1+V100x1": "n1-standard-8",
         "n1+V100x4": "n1-standard-32", "n1+V100x8": "n1-standard-64"}  # fmt: skip


def write(home: Path) -> None:
    """Catalogue files of version 8 under ``home``; without a .meta beside them they stay."""
    folder = home / ".sky" / "catalogs" / "v8"
    names = sorted({MEGA, *(gpu_name(machine.gpu) for machine in MACHINES)})
    rows = ([name, "['AWS', 'GCP']"] for name in names)
    _write(folder / "common" / "accelerators.csv", "AcceleratorName,Clouds", rows)
    memory = [[gpu_name(g.name), g.memory_bytes // GIB, "NVIDIA"] for g in GPU_TYPES.values()]
    _write(folder / "common" / "metadata.csv", "GPU,MemoryGB,Manufacturer", memory)
    _write(folder / "gcp" / "vms.csv", GCP, _gcp_rows())
    _write(folder / "aws" / "vms.csv", AWS, _aws_rows())
    images = "Tag,Region,OS,OSVersion,ImageId,CreationDate,BaseImageId"
    for cloud in ("gcp", "aws"):
        _write(folder / cloud / "images.csv", images, [["any", "any", "any", "1", "any", "", ""]])
    (home / ".sky" / "config.yaml").write_text("allowed_clouds: [aws, gcp]\n")


def _gcp_rows() -> Iterable[list[Any]]:
    """A machine is its host and its GPUs, each a row: together they cost what our list says."""
    kinds = {machine.name: machine for machine in MACHINES if machine.cloud == "gcp"}
    for listing in PRICES:
        if listing.cloud != "gcp":
            continue
        machine = kinds[listing.machine]
        gpu = MEGA if machine.name == "a3-megagpu-8g" else gpu_name(machine.gpu)
        for zone, spot in listing.spot.items():
            price = listing.on_demand or 2 * (spot or 0.0)
            host = HOSTS.get(machine.name, machine.name)
            where = [listing.region, zone]
            # Several machines share a host, which has one price: a cent, and the GPUs the rest.
            yield [host, 8, 64, "", "", "", *where, 0.01, 0.01]
            yield ["", "", "", gpu, machine.num_gpus, gpu, *where, price - 0.01,
                   (spot or price) - 0.01]  # fmt: skip


def _aws_rows() -> Iterable[list[Any]]:
    kinds = {machine.name: machine for machine in MACHINES if machine.cloud == "aws"}
    for listing in PRICES:
        if listing.cloud == "aws":
            machine = kinds[listing.machine]
            gpu = gpu_name(machine.gpu)
            for zone, spot in listing.spot.items():
                price = listing.on_demand or 2 * (spot or 0.0)
                yield [listing.machine, gpu, machine.num_gpus, 8, 64, gpu, price, spot or price,
                       listing.region, zone, "x86_64"]  # fmt: skip


def _write(path: Path, header: str, rows: Iterable[list[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header.split(","))
        seen = set()
        for row in rows:
            if str(row) not in seen:
                seen.add(str(row))
                writer.writerow(row)


def optimise(placements: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What SkyPilot would rent for each: cloud, region, zone, type, GPUs, spot, dollars an hour."""
    import sky
    from sky import check, global_user_state, optimizer
    from sky.clouds.cloud import CloudCapability

    clouds = ["aws", "gcp"]
    for capability in (CloudCapability.COMPUTE, CloudCapability.STORAGE):
        global_user_state.set_enabled_clouds(clouds, capability, "default")
    global_user_state.set_allowed_clouds(check._get_workspace_allowed_clouds("default"), "default")
    found = []
    for wanted in placements:
        with sky.Dag() as dag:
            task = sky.Task(num_nodes=wanted.pop("num_nodes"), run="true")
            memory = wanted.pop("memory_gib")
            task.set_resources(sky.Resources(memory=memory, **wanted))
        optimizer.Optimizer.optimize(dag, quiet=True)
        best = task.best_resources
        found.append(
            {
                "cloud": str(best.cloud).lower(), "region": best.region, "zone": best.zone,
                "instance_type": best.instance_type, "accelerators": best.accelerators,
                "use_spot": best.use_spot, "dollars_per_hour": best.get_cost(3600.0),
                "num_nodes": task.num_nodes,
            }
        )  # fmt: skip
    return found


if __name__ == "__main__":
    write(Path(os.environ["HOME"]))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # SkyPilot prints
    json.dump(optimise(json.load(sys.stdin)), answers)
    answers.close()
