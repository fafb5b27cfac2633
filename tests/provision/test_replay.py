"""Machines that come and go as a trace says, in front of another provisioner."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from provision.local import LocalProvisioner
from provision.replay import TraceProvisioner
from provision.trace import SpotEvent, Trace
from sailor.cluster.provisioner import News, NodeRequest, Notice, Refused, Released
from sailor.errors import CloudError


class Inner:
    """Writes down what it is asked for, in the place of real machines."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.refuse: set[str] = set()

    async def request(self, *requests: NodeRequest) -> None:
        for request in requests:
            if request.node in self.refuse:
                raise CloudError(f"no {request.node}", code="E405")
            self.asked.append(("request", request.node))

    async def release(self, node: str) -> Released:
        self.asked.append(("release", node))
        return Released(node=node, released=True, proof="seen")

    async def notices(self) -> AsyncIterator[News]:
        yield Notice(node="node-1", seconds=1.0, source="inner")

    async def close(self) -> tuple[Released, ...]:
        self.asked.append(("close",))
        return ()

    def kill(self, node: str) -> None:
        self.asked.append(("kill", node))

    def preempt(self, node: str, *, seconds: float) -> None:
        self.asked.append(("preempt", node, seconds))

    def memory_folder(self, node: str) -> Path | None:
        return Path(node)

    def take(self) -> list[tuple[Any, ...]]:
        """What was asked since the last call."""
        asked, self.asked = self.asked, []
        return asked


class LastingInner(Inner):
    """Its news ends when it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = asyncio.Event()

    async def notices(self) -> AsyncIterator[News]:
        yield Notice(node="node-1", seconds=1.0, source="inner")
        await self.closed.wait()

    async def close(self) -> tuple[Released, ...]:
        self.closed.set()
        return await super().close()


class HandSleep:
    """Sleeps that end when the test lets time pass."""

    def __init__(self) -> None:
        self.now = 0.0
        self._waiting: list[tuple[float, asyncio.Event]] = []

    async def __call__(self, seconds: float) -> None:
        event = asyncio.Event()
        self._waiting.append((self.now + seconds, event))
        await event.wait()

    async def until(self, t: float) -> None:
        """Let time pass to ``t``, waking sleepers in order."""
        while True:
            for _ in range(20):  # let everybody who can run do so
                await asyncio.sleep(0)
            due = sorted((e for e in self._waiting if e[0] <= t), key=lambda e: e[0])
            if not due:
                break
            self.now = due[0][0]
            self._waiting.remove(due[0])
            due[0][1].set()
        self.now = t


def order(node: str, zone: str = "a") -> NodeRequest:
    return NodeRequest(node=node, zone=zone, machine_type="m", spot=True)


def trace(*changes: tuple[float, str, int, float | None]) -> Trace:
    return Trace(
        events=tuple(
            SpotEvent(t=t, zone=zone, machine_type="m", delta=delta, notice_seconds=notice)
            for t, zone, delta, notice in changes
        ),
        seconds=1000.0,
        source="made here",
    )


def test_orders_wait_until_the_trace_has_a_machine() -> None:
    async def check() -> None:
        inner, sleep = Inner(), HandSleep()
        spot = TraceProvisioner(inner, trace((0, "a", 1, None), (50, "a", 2, None)), sleep=sleep)
        playing = asyncio.create_task(spot.play())
        for node in ("node-1", "node-2", "node-3", "node-1"):
            await spot.request(order(node))
        assert inner.take() == [("request", "node-1")]
        await sleep.until(49)
        assert inner.take() == []
        await sleep.until(50)
        assert inner.take() == [("request", "node-2"), ("request", "node-3")]
        await playing

    asyncio.run(check())


def test_a_machine_on_demand_is_none_of_the_traces() -> None:
    """An anchor: there at once, in whatever zone, and nobody takes it."""

    async def check() -> None:
        inner = Inner()
        provisioner = TraceProvisioner(inner, trace((900, "a", 1, None)))
        anchor = NodeRequest(node="anchor-1", zone="a", machine_type="memory", spot=False)
        await provisioner.request(anchor)
        await provisioner.request(anchor)
        assert inner.take() == [("request", "anchor-1")]
        await provisioner.release("anchor-1")
        assert inner.take() == [("release", "anchor-1")]

    asyncio.run(check())


def test_what_is_not_there_is_refused_when_the_trace_answers() -> None:
    async def check() -> None:
        inner, sleep = LastingInner(), HandSleep()
        spot = TraceProvisioner(
            inner, trace((0, "a", 1, None), (12, "a", 1, None)), sleep=sleep, answer_s=10.0
        )
        playing = asyncio.create_task(spot.play())
        await spot.request(order("node-1"), order("node-2"))
        news = spot.notices()
        assert await anext(news) == Notice(node="node-1", seconds=1.0, source="inner")
        await sleep.until(5)
        await spot.request(order("node-3"))
        await sleep.until(10)
        refused = await anext(news)
        assert isinstance(refused, Refused)
        assert (refused.node, refused.error.code, refused.lasting) == ("node-2", "E405", False)
        await sleep.until(15)  # node-3 got the machine that came at 12
        assert inner.take() == [("request", "node-1"), ("request", "node-3")]
        await spot.request(order("node-2"))  # a name that was refused may be asked for again
        await sleep.until(40)
        assert isinstance(await anext(news), Refused)
        await spot.close()
        assert [n async for n in news] == []
        assert inner.take() == [("close",)]
        await playing

    asyncio.run(check())


@pytest.mark.parametrize(
    ("notice", "done"), [(None, ("kill",)), (30.0, ("preempt", 30.0)), (0.0, ("preempt", 0.0))]
)
def test_what_the_trace_takes_is_taken_from_those_that_run(
    notice: float | None, done: tuple[Any, ...]
) -> None:
    async def check() -> None:
        inner, sleep = Inner(), HandSleep()
        spot = TraceProvisioner(
            inner, trace((0, "a", 4, None), (0, "b", 1, None), (10, "a", -2, notice)), sleep=sleep
        )
        playing = asyncio.create_task(spot.play())
        for node in ("node-1", "node-2", "node-3"):
            await spot.request(order(node))
        await spot.request(order("other", "b"))
        inner.take()
        await sleep.until(10)
        (taken,) = inner.take()  # of three that run, two may stay
        assert taken[0] == done[0]
        assert taken[2:] == done[1:]
        assert taken[1] != "other"
        await playing

    asyncio.run(check())


def test_who_is_taken_follows_the_seed() -> None:
    async def taken(seed: int) -> list[tuple[Any, ...]]:
        inner, sleep = Inner(), HandSleep()
        spot = TraceProvisioner(
            inner, trace((0, "a", 8, None), (10, "a", -3, None)), sleep=sleep, seed=seed
        )
        for i in range(8):
            await spot.request(order(f"node-{i}"))
        inner.take()
        playing = asyncio.create_task(spot.play())
        await sleep.until(10)
        await playing
        return inner.take()

    results = [asyncio.run(taken(seed)) for seed in (1, 1, 2, 3)]
    assert results[0] == results[1]
    assert len({str(result) for result in results}) > 1
    assert all(len(result) == 3 for result in results)


def test_a_place_that_becomes_free_serves_the_next_order() -> None:
    async def check() -> None:
        inner = Inner()
        spot = TraceProvisioner(inner, trace((0, "a", 1, None)))
        await spot.request(order("node-1"))
        await spot.request(order("node-2"))
        await spot.request(order("node-3"))
        withdrawn = await spot.release("node-2")
        assert withdrawn.proof == "its order was withdrawn"
        await spot.release("node-1")
        assert inner.take() == [
            ("request", "node-1"), ("release", "node-1"), ("request", "node-3"),
        ]  # fmt: skip

    asyncio.run(check())


def test_free_capacity_is_told() -> None:
    async def check() -> None:
        told: list[tuple[str, str, int]] = []
        sleep = HandSleep()
        spot = TraceProvisioner(
            Inner(), trace((0, "a", 1, None), (5, "a", 3, None), (9, "a", -3, None)), sleep=sleep,
            on_capacity=lambda *free: told.append(free),
        )  # fmt: skip
        await spot.request(order("node-1"))
        await spot.request(order("node-2"))
        playing = asyncio.create_task(spot.play())
        await sleep.until(20)
        await playing
        assert told == [("a", "m", 2)]
        assert spot.free(("a", "m")) == 0

    asyncio.run(check())


def test_an_order_the_inner_provisioner_refuses_is_refused() -> None:
    async def check() -> None:
        inner = Inner()
        inner.refuse = {"node-1"}
        spot = TraceProvisioner(inner, trace((0, "a", 1, None)))
        with pytest.raises(CloudError, match="no node-1"):
            await spot.request(order("node-1"))
        await spot.request(order("node-2"))
        assert inner.take() == [("request", "node-2")]
        with pytest.raises(CloudError, match="no m in z") as caught:
            await spot.request(order("node-3", "z"))
        assert "m in a" in caught.value.why

    asyncio.run(check())


def test_the_rest_is_passed_on() -> None:
    async def check() -> None:
        inner = Inner()
        spot = TraceProvisioner(inner, trace((0, "a", 2, None)))
        await spot.request(order("node-1"))
        await spot.request(order("node-2"))
        spot.kill("node-1")
        spot.preempt("node-2", seconds=4.0)
        assert spot.memory_folder("node-1") == Path("node-1")
        assert [notice.source async for notice in spot.notices()] == ["inner"]
        await spot.close()
        assert inner.take()[2:] == [("kill", "node-1"), ("preempt", "node-2", 4.0), ("close",)]
        assert spot.zones == ("a",)

    asyncio.run(check())


def test_it_fits_in_front_of_local_machines(tmp_path: Path) -> None:
    async def check() -> None:
        local = LocalProvisioner(
            run="otter", folder=tmp_path, controller=("127.0.0.1", 1), identity=tmp_path,
            slots={"m": 1}, zones=("a",), command=("sleep",), boot_s=60.0, memory_root=tmp_path,
        )  # fmt: skip
        spot = TraceProvisioner(local, trace((0, "a", 1, None)))
        await spot.request(order("node-1"))
        (released,) = await spot.close()
        assert released == Released(node="node-1", released=True, proof="its boot was cancelled")

    asyncio.run(check())
