"""A machine of its own for a run's controller, rented through SkyPilot.

A small machine without GPUs, on demand, as a cluster of its own. It is given the whole project and
SkyPilot, for it rents the machines that train; SkyPilot hands it this computer's credentials for
that, as it does by default to every machine it rents (``remote_identity``). On Slurm it hands over
none: there the machine's own user must have a way to the login node.

``room`` keeps the record of the cluster (``provision/orders.py``), and how it is reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from provision.clusters import LaunchRefused, end_leftovers
from provision.lodging import NODE
from provision.orders import ClusterOrder, OrderBook
from provision.payload import Payload
from provision.placement import INFRAS, Placement
from provision.refusals import judge
from provision.sky_launcher import PLACE_THERE, SkyFailed, SkyLauncher, SkyProcess, label
from provision.tunnel import Route
from sailor.cluster.provisioner import Released
from sailor.errors import CloudError

ROUTE = "route.json"
HOUSE_THERE = f"{PLACE_THERE}/house"


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """What is asked for. ``house`` is sent; its door will be at ``port``. ``keeps_s``: how long the
    machine waits for somebody to fetch results. ``mounts``: more files, remote -> here. A launch
    that takes longer than ``launch_s`` is given up."""

    cloud: str
    run: str
    zone: str
    machine_type: str
    placement: Placement
    payload: Payload
    house: Path
    identity: Path
    port: int
    keeps_s: float
    idle_minutes: int
    launch_s: float = 1200.0
    python: str = ""
    mounts: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class SkyLodging:
    """The machine of one run. Every call may take minutes."""

    room: Path

    async def rent(self, lease: Lease) -> None:
        """Rent it and start the controller there. Raises CloudError E401 to E405 when it cannot be
        had, with nothing left."""
        book = OrderBook(self.room)
        order = ClusterOrder(
            cluster=book.next_name(), nodes=(NODE,), zone=lease.zone,
            machine_type=lease.machine_type, spot=False, infra=lease.placement.infra,
        )  # fmt: skip
        book.wish(order)
        async with self._sky() as sky:
            try:
                async with asyncio.timeout(lease.launch_s):
                    await sky.ask("launch", **arguments(order, lease))
                    address = str(await sky.ask("address", cluster=order.cluster))
            except (SkyFailed, TimeoutError) as error:
                if isinstance(error, SkyFailed):
                    refusal = _judged(error, lease)
                else:
                    refusal = _too_slow(lease)
                await end_leftovers(self.room, launcher=_launcher(sky))
                raise refusal from error
        book.up(order.cluster)
        route = Route(ssh=_way_in(lease.cloud, order), address=address)
        (self.room / ROUTE).write_bytes(msgspec.json.encode(route))

    async def end(self) -> tuple[Released, ...]:
        """End it and prove it."""
        async with self._sky() as sky:
            return await end_leftovers(self.room, launcher=_launcher(sky))

    def route(self) -> Route:
        """How it is reached. Raises OSError."""
        try:
            return msgspec.json.decode((self.room / ROUTE).read_bytes(), type=Route)
        except msgspec.MsgspecError as error:
            raise OSError(f"{self.room / ROUTE}: {error}") from error

    @asynccontextmanager
    async def _sky(self) -> AsyncIterator[SkyProcess]:
        sky = SkyProcess(log_path=self.room / "skypilot.log")
        try:
            yield sky
        finally:
            await sky.close()


def arguments(order: ClusterOrder, lease: Lease) -> dict[str, Any]:
    """Everything SkyPilot is told about it. Nothing in it is secret."""
    infra = INFRAS[lease.cloud]
    script = f"bash {PLACE_THERE}/payload/bootstrap.sh"
    return {
        "cluster": order.cluster,
        "num_nodes": 1,
        "placement": asdict(lease.placement),
        "setup": f"{script} install",
        "run": f"{script} controller",
        "envs": {
            "SAILOR_DIGEST": lease.payload.digest,
            "SAILOR_RUN": lease.run,
            "SAILOR_DOOR": str(lease.port),
            "SAILOR_KEEPS_S": f"{lease.keeps_s:.0f}",
            "SAILOR_PYTHON": lease.python,
        },
        "mounts": {
            f"{PLACE_THERE}/payload": str(lease.payload.folder),
            f"{PLACE_THERE}/identity": str(lease.identity.absolute()),
            HOUSE_THERE: str(lease.house.absolute()),
            **{remote: str(local) for remote, local in lease.mounts.items()},
        },
        "labels": {"sailor-run": label(lease.run)} if infra.has_labels else None,
        "idle_minutes": lease.idle_minutes if infra.ends_idle else None,
    }


def _way_in(cloud: str, order: ClusterOrder) -> tuple[str, ...]:
    """SkyPilot writes an entry for each cluster into the user's ssh configuration; Slurm's nodes
    are reached through the login node, which has its own."""
    if cloud != "slurm":
        return (order.cluster,)
    host = order.infra.split("/")[1]
    return ("-F", str(Path("~/.slurm/config").expanduser()), host)


def _judged(error: SkyFailed, lease: Lease) -> CloudError:
    refusal: LaunchRefused = judge(
        error.facts, cloud=lease.cloud, machine=lease.machine_type, zone=lease.zone
    )
    return refusal.error


def _too_slow(lease: Lease) -> CloudError:
    return CloudError(
        f"{lease.machine_type} in {lease.zone} did not come up in {lease.launch_s / 60:.0f} min",
        code="E405", why="the launch was given up and what it had rented given back",
        where="cloud.join", fix="cloud.join=40min   waits longer",
    )  # fmt: skip


def _launcher(sky: SkyProcess) -> SkyLauncher:
    return SkyLauncher(cloud="", run="", sky=sky)
