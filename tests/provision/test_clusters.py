"""Machines rented as clusters: grouped, few at a time, written down first, and never forgotten."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from provision.clusters import ClusterProvisioner, LaunchRefused, end_leftovers
from provision.orders import ClusterOrder, OrderBook, cluster_stem
from sailor.cluster.provisioner import NodeRequest, Refused, Released, Started
from sailor.errors import CloudError
from tests.helpers.compose import ROOT
from tests.helpers.folder_cloud import FolderCloud

RUN = "run"


def order(node: str, **changes: Any) -> NodeRequest:
    fields = {"zone": "a", "machine_type": "m", "spot": False, **changes}
    return NodeRequest(node=node, **fields)


async def no_sleep(seconds: float) -> None:
    await asyncio.sleep(0)


def clusters(tmp_path: Path, cloud: FolderCloud | None = None, **how: Any) -> ClusterProvisioner:
    cloud = cloud or a_cloud(tmp_path)
    return ClusterProvisioner(folder=tmp_path / RUN, launcher=cloud, sleep=no_sleep, **how)


def a_cloud(tmp_path: Path, **how: Any) -> FolderCloud:
    return FolderCloud(folder=tmp_path / "cloud", capacity={"a": 9, "b": 9}, **how)


async def news_of(provisioner: ClusterProvisioner, number: int) -> list[Any]:
    stream = provisioner.notices()
    async with asyncio.timeout(10.0):
        return [await anext(stream) for _ in range(number)]


def test_machines_that_are_alike_are_rented_as_one(tmp_path: Path) -> None:
    async def check() -> None:
        cloud = a_cloud(tmp_path)
        rented = clusters(tmp_path, cloud, nodes_per_cluster=3)
        await rented.request(
            *(order(f"a{i}") for i in range(4)),
            order("b0", zone="b"), order("s0", spot=True), order("t0", machine_type="big"),
        )  # fmt: skip
        await news_of(rented, 7)
        groups = [(o.nodes, o.zone, o.machine_type, o.spot) for o in cloud.asked]
        assert groups == [
            (("a0", "a1", "a2"), "a", "m", False), (("a3",), "a", "m", False),
            (("b0",), "b", "m", False), (("s0",), "a", "m", True), (("t0",), "a", "big", False),
        ]  # fmt: skip
        await rented.close()
        assert cloud.machines() == set()

    asyncio.run(check())


def test_only_a_few_launches_are_under_way_at_once(tmp_path: Path) -> None:
    async def check() -> None:
        cloud = a_cloud(tmp_path, launch_s=0.01)
        rented = clusters(tmp_path, cloud, nodes_per_cluster=1, launches_in_flight=2)
        await rented.request(*(order(f"n{i}") for i in range(6)))
        assert {type(news) for news in await news_of(rented, 6)} == {Started}
        assert cloud.most_in_flight == 2
        await rented.close()

    asyncio.run(check())


def test_a_machine_of_a_cluster_stays_rented_until_its_siblings_go(tmp_path: Path) -> None:
    async def check() -> None:
        cloud = a_cloud(tmp_path)
        rented = clusters(tmp_path, cloud)
        await rented.request(order("n1"), order("n2"))
        await news_of(rented, 2)
        first = await rented.release("n1")
        assert not first.released
        assert "n2" in first.proof
        assert cloud.machines() == {"n1", "n2"}
        second = await rented.release("n2")
        assert second.released
        assert cloud.machines() == set()
        assert await news_of(rented, 1) == [
            Released(node="n1", released=True, proof=second.proof)
        ]  # fmt: skip
        assert (await rented.release("n1")).released

    asyncio.run(check())


def test_a_refusal_carries_what_the_cloud_said_and_leaves_nothing(tmp_path: Path) -> None:
    async def check() -> None:
        quota = LaunchRefused(CloudError("no quota", code="E403"), retry_s=3600.0, lasting=True)
        cloud = a_cloud(tmp_path, refuse={"a": [quota]})
        rented = clusters(tmp_path, cloud)
        await rented.request(order("n1"), order("n2"))
        told = await news_of(rented, 2)
        assert told == [
            Refused(node=node, error=quota.error, retry_s=3600.0, lasting=True)
            for node in ("n1", "n2")
        ]
        assert OrderBook(tmp_path / RUN).remaining() == ()
        await rented.request(order("n1"))
        assert await news_of(rented, 1) == [Started(node="n1")]
        await rented.close()

    asyncio.run(check())


def test_what_a_clouds_library_throws_ends_an_order_and_not_the_run(tmp_path: Path) -> None:
    class Broken(FolderCloud):
        async def launch(self, order: ClusterOrder) -> None:
            await super().launch(order)
            raise RuntimeError("IP address 127.0.0.1 not found in cluster IPs")

    async def check() -> None:
        cloud = Broken(folder=tmp_path / "cloud", capacity={"a": 9})
        rented = clusters(tmp_path, cloud)
        await rented.request(order("n1"))
        (told,) = await news_of(rented, 1)
        assert "not found in cluster IPs" in told.error.why
        assert cloud.machines() == set()

    asyncio.run(check())


def test_a_launch_that_never_ends_is_given_up(tmp_path: Path) -> None:
    async def check() -> None:
        cloud = a_cloud(tmp_path, launch_s=3600.0)
        rented = clusters(tmp_path, cloud, launch_s=0.05)
        await rented.request(order("n1"))
        (told,) = await news_of(rented, 1)
        assert "did not come up" in told.error.what
        assert cloud.machines() == set()

    asyncio.run(check())


def test_an_end_that_is_not_answered_is_tried_again(tmp_path: Path) -> None:
    async def check() -> None:
        cloud = a_cloud(tmp_path, fail_down=2)
        rented = clusters(tmp_path, cloud)
        await rented.request(order("n1"))
        await news_of(rented, 1)
        assert (await rented.release("n1")).released
        assert cloud.machines() == set()

    asyncio.run(check())


def test_what_cannot_be_proven_gone_is_said_and_stays_on_the_list(tmp_path: Path) -> None:
    async def check() -> None:
        cloud = a_cloud(tmp_path, fail_down=4)
        rented = clusters(tmp_path, cloud)
        await rented.request(order("n1"))
        await news_of(rented, 1)
        (proof,) = await rented.close()
        assert not proof.released
        assert "may still be rented: " in proof.proof
        (left,) = OrderBook(tmp_path / RUN).remaining()
        assert left.nodes == ("n1",)
        (proof,) = await end_leftovers(tmp_path / RUN, launcher=cloud)
        assert proof.released
        assert cloud.machines() == set()

    asyncio.run(check())


def test_a_run_that_never_rented_does_not_ask_the_cloud(tmp_path: Path) -> None:
    cloud = a_cloud(tmp_path)
    assert asyncio.run(end_leftovers(tmp_path / RUN, launcher=cloud)) == ()
    assert cloud.moments == 0


def test_a_cluster_of_the_runs_name_is_ended_even_when_no_list_has_it(tmp_path: Path) -> None:
    async def check() -> None:
        cloud = a_cloud(tmp_path)
        (tmp_path / RUN).mkdir()
        (tmp_path / RUN / "orders.jsonl").write_text('{"act": "wi')
        ours, other = cluster_stem(tmp_path / RUN), cluster_stem(tmp_path / "other")
        for name in (f"{ours}-7", f"{other}-1"):
            await cloud.launch(
                ClusterOrder(cluster=name, nodes=(name,), zone="a", machine_type="m", spot=False)
            )
        (proof,) = await clusters(tmp_path, cloud).close()
        assert (proof.node, proof.released) == (f"{ours}-7", True)
        assert cloud.machines() == {f"{other}-1"}

    asyncio.run(check())


def test_a_cluster_name_is_never_used_twice(tmp_path: Path) -> None:
    async def check() -> None:
        for _ in range(2):
            rented = clusters(tmp_path)
            await rented.request(order("n1"))
            await news_of(rented, 1)
            await rented.close()
        wishes = (tmp_path / RUN / "orders.jsonl").read_text().count('"wish"')
        assert wishes == 2
        assert OrderBook(tmp_path / RUN).next_name().endswith("-3")

    asyncio.run(check())


@pytest.mark.parametrize(
    ("name", "stem"),
    [("swift-otter", "sailor-swift-otter-"), ("GPT_1b.gcp!", "sailor-gpt-1b-gcp-"),
     ("a-very-long-name-for-a-run", "sailor-a-very-long-"), ("---", "sailor-run-")],
)  # fmt: skip
def test_cluster_names_are_what_clouds_accept(name: str, stem: str) -> None:
    found = cluster_stem(Path("/runs") / name)
    assert found.startswith(stem)
    assert len(found) <= 27
    assert found != cluster_stem(Path("/elsewhere") / name)


RENTING = """
import asyncio, sys
from pathlib import Path
from tests.provision.test_clusters import a_cloud, clusters, news_of, order

async def main(folder, moment):
    rented = clusters(folder, a_cloud(folder, die_at=moment), nodes_per_cluster=2)
    await rented.request(*(order(f"n{i}") for i in range(5)))
    await news_of(rented, 5)
    await rented.release("n4")
    await rented.request(order("n5", zone="b"))
    await news_of(rented, 1)
    await rented.close()

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
"""
MOMENTS = 23  # in which that process is cut off, in order; the last is the look for leftovers


@pytest.mark.parametrize("moment", sorted(random.Random(6).sample(range(1, MOMENTS + 1), 20)))
def test_killed_at_any_moment_a_run_leaves_nothing_rented_and_unknown(
    moment: int, tmp_path: Path
) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", RENTING, str(tmp_path), str(moment)], cwd=ROOT, timeout=60
    )
    assert killed.returncode == -signal.SIGKILL, "the process was to be killed in the middle"
    cloud = a_cloud(tmp_path)
    rented = cloud.machines()
    known = {node for order in OrderBook(tmp_path / RUN).remaining() for node in order.nodes}
    assert rented <= known
    proofs = asyncio.run(end_leftovers(tmp_path / RUN, launcher=cloud))
    assert all(proof.released for proof in proofs)
    assert {proof.node for proof in proofs} >= rented
    assert cloud.machines() == set()


def test_a_later_process_takes_over_what_runs_and_ends_the_rest(tmp_path: Path) -> None:
    """The first process was killed: it closed nothing."""

    async def check() -> None:
        cloud = a_cloud(tmp_path)
        first = clusters(tmp_path, cloud, nodes_per_cluster=2)
        await first.request(order("a0"), order("a1"), order("b0", zone="b"))
        await news_of(first, 3)
        second = clusters(tmp_path, cloud)
        assert second.adopt("a0", "a1", "nobody") == ("a0", "a1")
        taken = second.clusters_of(("a0", "a1"))
        ended = await end_leftovers(tmp_path / RUN, launcher=cloud, besides=taken, sleep=no_sleep)
        assert [proof.node for proof in ended] == ["b0"]
        assert set(await cloud.living()) == taken
        await second.request(order("a0"))  # it is there: nothing is rented
        assert set(await cloud.living()) == taken
        assert not (await second.release("a0")).released  # a1 is rented with it
        assert (await second.release("a1")).released
        assert await cloud.living() == []

    asyncio.run(check())
