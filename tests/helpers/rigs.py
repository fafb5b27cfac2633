"""Every kind of provisioner, ready to be asked for machines, and a look at what is really there.

``async with a_rig("clusters", folder) as rig``. ``python -m tests.helpers.rigs KIND FOLDER`` is a
process that orders machines and is killed in the middle of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from provision.clusters import ClusterProvisioner
from provision.local import RECORD, LocalProvisioner
from provision.machines import MachineRecord
from provision.processes import living_members
from provision.replay import TraceProvisioner
from provision.trace import SpotEvent, Trace
from sailor.cluster.provisioner import NodeRequest, Provisioner
from tests.helpers.folder_cloud import FolderCloud

AGENT = Path(__file__).parents[1] / "provision" / "pose_as_agent.py"
KINDS = ("local", "trace", "clusters")
WAIT_S = 20.0  # a new interpreter on a busy computer; nothing waits this long when all is well


@dataclass(kw_only=True)
class Rig:
    """A provisioner, and ``machines``: the nodes that are there as seen from outside it."""

    provisioner: Provisioner
    machines: Callable[[], set[str]]
    zone: str = "a"
    machine_type: str = "m"
    patience_s: float = WAIT_S
    spot: bool = False

    def order(self, node: str, **changes: str) -> NodeRequest:
        fields = {"zone": self.zone, "machine_type": self.machine_type, **changes}
        return NodeRequest(node=node, spot=self.spot, **fields)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(self.patience_s):
            while not condition():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def a_rig(
    kind: str, folder: Path, *, broken: bool = False, slow: bool = False
) -> AsyncIterator[Rig]:
    """``broken``: no order is ever filled, and said so a little later. ``slow``: not for long."""
    rig = make(kind, folder, broken=broken, slow=slow)
    try:
        yield rig
    finally:
        await asyncio.wait_for(rig.provisioner.close(), WAIT_S)


def make(kind: str, folder: Path, *, broken: bool, slow: bool) -> Rig:
    if kind == "clusters":
        cloud = FolderCloud(
            folder=folder / "cloud", capacity={"a": 0 if broken else 9}, launch_s=60.0 * slow
        )
        clusters = ClusterProvisioner(folder=folder / "run", launcher=cloud, nodes_per_cluster=1)
        return Rig(provisioner=clusters, machines=cloud.machines)
    memory = folder / "shm"
    memory.mkdir(exist_ok=True)
    missing = broken and kind == "local"
    local = LocalProvisioner(
        run="otter",
        folder=folder,
        controller=("127.0.0.1", 4242),
        identity=folder / "identity",
        slots={"m": 1},
        zones=("a",),
        command=("no-such-program",) if missing else (sys.executable, str(AGENT)),
        memory_root=memory,
        grace_s=1.0,
        boot_s=60.0 if slow else 0.01 if missing else 0.0,
    )

    def machines() -> set[str]:
        remaining = MachineRecord(folder / RECORD).remaining()
        return {x.node for x in remaining if living_members(mark=x.mark, leader=x.leader)}

    if kind == "local":
        return Rig(provisioner=local, machines=machines)
    level = SpotEvent(t=0.0, zone="a", machine_type="m", delta=9)
    gone = SpotEvent(t=0.0, zone="a", machine_type="m", delta=-9)
    trace = Trace(events=(level, gone) if broken else (level,), seconds=1.0, source="made here")
    spot = TraceProvisioner(local, trace, answer_s=0.01)
    return Rig(provisioner=spot, machines=machines, spot=True)


async def order_and_die(kind: str, folder: Path, *, after_s: float | None) -> None:
    """Order three machines; be killed when they are there, or ``after_s`` after the order."""
    rig = make(kind, folder, broken=False, slow=False)
    ordering = asyncio.create_task(
        rig.provisioner.request(*(rig.order(f"node-{i}") for i in (1, 2, 3)))
    )
    if after_s is None:
        await rig.until(lambda: len(rig.machines()) == 3)
        await ordering
    else:
        await asyncio.sleep(after_s)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    name, where, after = sys.argv[1:]
    asyncio.run(order_and_die(name, Path(where), after_s=float(after) if after else None))
