"""Word that a machine will be taken, as three clouds give it: seen once, in time, never made up.

Against servers with the clouds' own paths and manners (tests/helpers/metadata_server.py).
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sailor.runtime import messages as m
from sailor.runtime.metadata import NoAnswer, ask
from sailor.runtime.notices import CLOUDS, Seen, watch
from tests.helpers.cluster import a_cluster
from tests.helpers.metadata_server import MetadataServer, serving

NOW = datetime(2026, 1, 1, 8, 20, tzinfo=UTC)


def environment(server: MetadataServer) -> dict[str, str]:
    return {
        "GCE_METADATA_HOST": server.address,
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{server.address}",
        "AZURE_METADATA_ENDPOINT": f"http://{server.address}",
    }


class Naps:
    """Sleeps that take no time, counted; ``until`` a number of them has been slept."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0.005)  # let the server's threads have a turn


def watching(
    cloud: str, check: Callable[[MetadataServer, AsyncIterator[Seen], Naps], Awaitable[None]]
) -> None:
    async def run(server: MetadataServer) -> None:
        naps = Naps()
        stream = watch(cloud, environment=environment(server), sleep=naps, now=lambda: NOW)
        try:
            async with asyncio.timeout(20.0):
                await check(server, stream, naps)
        finally:
            await stream.aclose()

    with serving() as server:
        asyncio.run(run(server))


async def nothing_for(stream: AsyncIterator[Seen], *, looks: int, naps: Naps) -> None:
    """Nothing is seen while the watcher looks so many times more."""
    waiting = asyncio.ensure_future(anext(stream))
    begin = len(naps.slept)
    while len(naps.slept) < begin + looks:
        assert not waiting.done(), waiting.result()
        await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


def test_googles_flag_is_seen_the_moment_it_flips_and_once():
    async def check(server: MetadataServer, stream: AsyncIterator[Seen], naps: Naps) -> None:
        waiting = asyncio.ensure_future(anext(stream))
        while len(server.asked) < 4:  # both values asked for, and both asked again: held now
            await asyncio.sleep(0.01)
        assert not waiting.done()
        began = time.monotonic()
        server.change(preempted="TRUE")
        assert await waiting == Seen(source="gcp preempted", seconds=30.0)
        assert time.monotonic() - began < 2.0  # no poll: the question was being held
        server.change(preempted="TRUE", maintenance="TERMINATE_ON_HOST_MAINTENANCE")
        assert await anext(stream) == Seen(source="gcp maintenance", seconds=3600.0)

    watching("gcp", check)


def test_amazons_action_is_seen_with_the_time_that_is_left():
    async def check(server: MetadataServer, stream: AsyncIterator[Seen], naps: Naps) -> None:
        server.change(rebalance={"noticeTime": "2026-01-01T08:19:00Z"})
        assert await anext(stream) == Seen(source="aws rebalance recommendation", seconds=None)
        server.change(action={"action": "terminate", "time": "2026-01-01T08:22:00Z"})
        assert await anext(stream) == Seen(source="aws terminate", seconds=120.0)
        assert set(naps.slept) == {5.0}

    watching("aws", check)


def test_a_worn_out_token_is_replaced():
    async def check(server: MetadataServer, stream: AsyncIterator[Seen], naps: Naps) -> None:
        waiting = asyncio.ensure_future(anext(stream))
        while not naps.slept:
            await asyncio.sleep(0.01)
        server.change(tokens=set(), next_token="t2")
        server.change(action={"action": "stop", "time": "2026-01-01T08:19:00Z"})
        seen = await waiting
        assert seen == Seen(source="aws stop", seconds=0.0)  # it is over already
        assert server.asked.count("PUT /latest/api/token") == 2

    watching("aws", check)


def azure_event(name: str, *, kind: str = "Preempt", number: str = "e1") -> dict[str, Any]:
    before = (NOW + timedelta(seconds=35)).strftime("%a, %d %b %Y %H:%M:%S GMT")
    return {
        "EventId": number, "EventStatus": "Scheduled", "EventType": kind, "Resources": [name],
        "ResourceType": "VirtualMachine", "NotBefore": before, "EventSource": "Platform",
    }  # fmt: skip


def test_azures_events_are_sorted_by_machine_and_kind():
    async def check(server: MetadataServer, stream: AsyncIterator[Seen], naps: Naps) -> None:
        others = [azure_event("machine-2"), azure_event("machine-1", kind="Freeze", number="e2")]
        server.change(events=others)
        waiting = asyncio.ensure_future(anext(stream))
        while len(naps.slept) < 3:
            assert not waiting.done()
            await asyncio.sleep(0.01)
        server.change(events=[*others, azure_event("machine-1", number="e3")])
        assert await waiting == Seen(source="azure preempt", seconds=35.0)
        begun = {**azure_event("machine-1", number="e4"), "NotBefore": ""}
        server.change(events=[azure_event("machine-1", number="e3"), begun])
        assert await anext(stream) == Seen(source="azure preempt", seconds=0.0)

    watching("azure", check)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_troubles_of_the_service_are_waited_out_ever_longer_and_make_no_notice(cloud):
    async def check(server: MetadataServer, stream: AsyncIterator[Seen], naps: Naps) -> None:
        waiting = asyncio.ensure_future(anext(stream))
        server.change(faults=[500, 429, 0, 403, 503, 500])
        while len(naps.slept) < 4:
            assert not waiting.done()
            await asyncio.sleep(0.01)
        assert max(naps.slept) >= 2.0
        soon = NOW + timedelta(seconds=90)
        server.change(
            faults=[], preempted="TRUE",
            action={"action": "terminate", "time": soon.isoformat()},
            events=[azure_event("machine-1")],
        )  # fmt: skip
        assert (await waiting).seconds is not None

    watching(cloud, check)


@pytest.mark.parametrize(
    ("cloud", "news"),
    [("aws", {"action": {"action": "terminate"}}), ("aws", {"action": {"time": "soon"}}),
     ("azure", {"events": [{"EventType": "Preempt"}]}), ("azure", {"events": ["nonsense"]}),
     ("gcp", {"preempted": "MAYBE"})],
    ids=["no time", "no date", "no resources", "no event", "no truth value"],
)  # fmt: skip
def test_an_answer_that_makes_no_sense_is_no_notice_and_the_watch_goes_on(cloud, news):
    async def check(server: MetadataServer, stream: AsyncIterator[Seen], naps: Naps) -> None:
        server.change(**news)
        if cloud != "gcp":
            await nothing_for(stream, looks=2, naps=naps)
            return
        waiting = asyncio.ensure_future(anext(stream))
        while len(server.asked) < 4:
            await asyncio.sleep(0.01)
        server.change(preempted="TRUE")
        assert (await waiting).source == "gcp preempted"

    watching(cloud, check)


def test_a_cloud_that_nobody_knows_is_a_mistake():
    with pytest.raises(ValueError, match="mars"):
        watch("mars")


def test_an_answer_has_a_deadline():
    async def check() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(NoAnswer):
                await ask(f"http://127.0.0.1:{port}/", deadline_s=0.05)

    asyncio.run(check())


def notices(cluster: Any, node: str) -> list[m.NoticeSeen]:
    return cluster.all_said(node, m.NoticeSeen)


def test_agents_tell_the_controller_of_every_kind_of_notice(tmp_path: Path) -> None:
    """Notice then kill, two at once, kill without notice, notice and no kill."""

    async def check(servers: list[MetadataServer]) -> None:
        async with a_cluster(tmp_path, nodes=0) as cluster:
            for i, server in enumerate(servers):
                cloud = CLOUDS[i % len(CLOUDS)]
                cluster.boot(f"n{i}", "--notices-of", cloud, environment=environment(server))
            for i in range(len(servers)):
                await cluster.heard(f"n{i}", m.Hello)
            soon = datetime.now(UTC) + timedelta(seconds=100)
            servers[0].change(preempted="TRUE")
            servers[1].change(action={"action": "terminate", "time": soon.isoformat()})
            first = await cluster.heard("n0", m.NoticeSeen)
            second = await cluster.heard("n1", m.NoticeSeen)
            assert (first.source, first.seconds) == ("gcp preempted", 30.0)
            assert second.source == "aws terminate"
            assert 60.0 < second.seconds <= 100.0
            assert notices(cluster, "n2") == []  # the one that is killed without a word
            os.killpg(cluster.agents["n2"].process.pid, signal.SIGKILL)
            cluster.agents["n2"].process.wait()
            os.kill(cluster.agents["n0"].process.pid, signal.SIGTERM)
            await cluster.until(lambda: len(notices(cluster, "n0")) == 2, what="SIGTERM is told")
            assert notices(cluster, "n0")[1].source == "SIGTERM"
            os.kill(cluster.agents["n0"].process.pid, signal.SIGTERM)
            assert cluster.agents["n0"].process.wait(20) == 0
            assert cluster.agents["n1"].process.poll() is None  # announced, and not killed

    with serving() as a, serving() as b, serving() as c:
        asyncio.run(check([a, b, c]))
