"""What every provisioner owes, of the one that rents through the real SkyPilot, in one go.

The sentences are those of tests/provision/test_contract.py. Machines are looked for where Slurm
keeps them, not where SkyPilot says they are.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from provision.catalog import own_catalogue
from provision.clusters import ClusterProvisioner
from provision.orders import OrderBook
from provision.payload import make_payload
from provision.placement import placement
from provision.sky_launcher import AgentOrder, SkyLauncher, SkyProcess
from sailor.runtime.identity import create_identity
from tests.helpers.one_machine_slurm import CLUSTER, Slurm
from tests.helpers.planning import a_gpu
from tests.helpers.rigs import Rig
from tests.provision.test_contract import (
    a_release_is_proven_and_true,
    asking_twice_rents_once,
    closing_releases_all_and_ends_the_news,
)

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]


def a_rig_on(slurm: Slurm, folder: Path) -> tuple[Rig, SkyProcess]:
    """Machines of one processor in one partition, whose agent is a program that ends at once."""
    (offer,) = own_catalogue(
        "slurm", cluster=CLUSTER, zones=(), machine_types=["cpux1@zonea"], max_nodes=2, cpu=a_gpu()
    ).pool.offers
    create_identity(folder / "keys", run="contract")
    sky = SkyProcess(log_path=folder / "skypilot.log")
    launcher = SkyLauncher(
        cloud="slurm", run="contract", sky=sky,
        place=lambda request: placement(offer.machine_type, zone=offer.zone, spot=request.spot),
        agent=AgentOrder(
            controller=("127.0.0.1", 9), identity=folder / "keys", slots={"cpux1": 1},
            python="/bin/true",
        ),
        payload=make_payload(folder / "payload"),
    )  # fmt: skip
    run = folder / "run"
    book = OrderBook(run)

    def machines() -> set[str]:
        jobs = slurm.jobs().values()
        return {
            node
            for order in book.remaining()
            if any(job.startswith(order.cluster) for job in jobs)
            for node in order.nodes
        }

    rig = Rig(
        provisioner=ClusterProvisioner(folder=run, launcher=launcher, nodes_per_cluster=1),
        machines=machines, zone="zonea", machine_type="cpux1", patience_s=900.0,
    )  # fmt: skip
    return rig, sky


def test_what_every_provisioner_owes_the_one_over_skypilot_does(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    folder = slurm.root / "contract"
    folder.mkdir()
    os.chmod(folder, 0o755)

    async def check() -> None:
        rig, sky = a_rig_on(slurm, folder)
        try:
            await asking_twice_rents_once(rig)
            await a_release_is_proven_and_true(rig)
            await closing_releases_all_and_ends_the_news(rig)
        finally:
            await rig.provisioner.close()
            await sky.close()
        assert slurm.jobs() == {}

    asyncio.run(check())
