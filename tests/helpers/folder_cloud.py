"""A cloud in a folder: a cluster is a file, so it outlives whoever rented it, as in real life.

Stands where SkyPilot would, at the seam of ``provision.clusters.Launcher``. Knows capacity, slow
answers, refusals, and dying in the middle: ``die_at`` counts the moments at which a call could be
cut off, and at that one the process is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from provision.clusters import LaunchRefused
from provision.orders import ClusterOrder
from sailor.cluster.provisioner import NodeRequest
from sailor.errors import CloudError


@dataclass(kw_only=True)
class FolderCloud:
    """Implements Launcher. ``capacity``: machines per zone; a zone that is not in it is unknown.

    ``refuse`` maps a zone to what its next launches are told, first come first served.
    """

    folder: Path
    capacity: Mapping[str, int]
    launch_s: float = 0.0
    die_at: int | None = None
    refuse: dict[str, list[LaunchRefused]] = field(default_factory=dict)
    fail_down: int = 0  # so many ends are not answered
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    in_flight: int = 0
    most_in_flight: int = 0
    moments: int = 0
    asked: list[ClusterOrder] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def machines(self) -> set[str]:
        """Names of the nodes that are rented now."""
        return {node for path in self.folder.glob("*.json") for node in self._read(path)["nodes"]}

    def take(self, cluster: str) -> None:
        """The cloud takes a cluster back, without a word."""
        self._path(cluster).unlink()

    def check(self, request: NodeRequest) -> str:
        if request.zone not in self.capacity:
            raise CloudError(f"no zone {request.zone}", code="E404")
        return f"folder/{request.zone}"

    async def launch(self, order: ClusterOrder) -> None:
        self.asked.append(order)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await self._moment()
            if self.refuse.get(order.zone):
                raise self.refuse[order.zone].pop(0)
            rented = Counter(self._read(path)["zone"] for path in self.folder.glob("*.json"))
            if rented[order.zone] + len(order.nodes) > self.capacity[order.zone]:
                error = CloudError(f"no capacity in {order.zone}", code="E405")
                raise LaunchRefused(error, retry_s=30.0)
            document = {"zone": order.zone, "nodes": list(order.nodes), "up": False}
            self._path(order.cluster).write_text(json.dumps(document))
            await self._moment()
            await self.sleep(self.launch_s)
            self._path(order.cluster).write_text(json.dumps({**document, "up": True}))
            await self._moment()
        finally:
            self.in_flight -= 1

    async def down(self, cluster: str) -> str:
        await self._moment()
        if self.fail_down:
            self.fail_down -= 1
            raise CloudError(f"{cluster} does not answer", code="E405")
        self._path(cluster).unlink(missing_ok=True)
        await self._moment()
        return f"no file {cluster}.json"

    async def living(self) -> Sequence[str]:
        await self._moment()
        return sorted(path.stem for path in self.folder.glob("*.json"))

    async def _moment(self) -> None:
        self.moments += 1
        if self.moments == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(0)

    def _path(self, cluster: str) -> Path:
        return self.folder / f"{cluster}.json"

    def _read(self, path: Path) -> dict:
        try:
            return json.loads(path.read_text())
        except (FileNotFoundError, ValueError):  # taken, or being written
            return {"zone": "", "nodes": []}
