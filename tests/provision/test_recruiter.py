"""The recruiter at its rim: what it reads from the log, what it does, what it writes down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from provision.outlook import BackOff, Place
from provision.recruit import Crew, Rules
from provision.recruiter import Recruiter, Refusal
from sailor.cluster.provisioner import NodeRequest
from sailor.errors import CloudError
from sailor.observe.events import Event, EventLog
from tests.provision.test_recruit import A, B, an_offer


class FakeRun:
    """Stands where the controller would: writes what the controller writes."""

    def __init__(self, events: EventLog) -> None:
        self.events = events
        self.orders: list[list[str]] = []
        self.given_back: list[str] = []
        self.refuse: CloudError | None = None

    async def add_nodes(self, *requests: NodeRequest) -> None:
        for request in requests:
            self.events.write(
                "node_requested", node=request.node, zone=request.zone,
                machine_type=request.machine_type, spot=request.spot,
                price_per_hour=request.price_per_hour,
            )  # fmt: skip
        self.orders.append([f"{request.node} in {request.zone}" for request in requests])
        if self.refuse is not None:
            raise self.refuse

    def give_back(self, node: str, reason: str) -> None:
        self.given_back.append(node)


class Bench:
    """A recruiter over an event log, on a clock that the test moves."""

    def __init__(self, folder: Path, *, target: int, patience_s: float, **rules: Any) -> None:
        self.now = 0.0
        self.events = EventLog(folder / "events.jsonl", run="r")
        self.told: list[Event] = []
        self.events.subscribe(self.told.append)
        self.run = FakeRun(self.events)
        self.ends: list[Refusal] = []
        offers = {A: an_offer(A, price=1.0), B: an_offer(B, price=2.0)}
        self.recruiter = Recruiter(
            Crew(target=target, offers=offers, rules=Rules(**rules)),
            events=self.events, run=self.run, gain=lambda members: self._gain,
            give_up=self.ends.append, patience_s=patience_s, clock=lambda: self.now,
        )  # fmt: skip

    def _gain(self, place: Place) -> float:
        return 100.0

    def joined(self, node: str, zone: str = "a") -> None:
        self.events.write("node_joined", node=node, zone=zone, machine_type="m", pid=1, workers=[])

    def lost(self, *nodes: str) -> None:
        for node in nodes:
            self.events.write("node_lost", node=node, cause="connection closed", silent_s=0.0)

    def refused(self, node: str, *, lasting: bool = False) -> None:
        self.events.write(
            "node_refused", node=node, code="E403" if lasting else "E405", why="none there",
            retry_s=None, lasting=lasting,
        )  # fmt: skip

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20.0):
            while not condition():
                await asyncio.sleep(0.01)


def on(
    folder: Path, check: Callable[[Bench], Awaitable[None]], *, target: int = 2,
    patience_s: float = 600.0, **rules: Any,
) -> None:  # fmt: skip
    async def run() -> None:
        bench = Bench(folder, target=target, patience_s=patience_s, **rules)
        await bench.run.add_nodes(
            *(NodeRequest(node=f"node-{i}", zone="a", machine_type="m", spot=True,
                          price_per_hour=1.0) for i in range(1, target + 1))
        )  # fmt: skip
        bench.run.orders.clear()
        bench.recruiter = _heard(bench)
        bench.recruiter.start()
        try:
            await check(bench)
        finally:
            await bench.recruiter.stop()
            bench.events.close()

    asyncio.run(run())


def _heard(bench: Bench) -> Recruiter:
    """The recruiter, with the first orders read from the log, as it does once it listens."""
    for event in bench.told:
        bench.recruiter._see(event)
    return bench.recruiter


def test_machines_lost_together_are_asked_for_together_and_the_log_says_why(tmp_path):
    async def check(bench: Bench) -> None:
        bench.joined("node-1")
        bench.joined("node-2")
        bench.lost("node-1", "node-2")
        await bench.until(lambda: bench.run.orders != [])
        assert bench.run.orders == [["node-3 in a", "node-4 in a"]]
        reasons = [e["why"] for e in bench.told if e.kind == "recruiting"]
        assert reasons == ["replaces one lost in the same place"] * 2

    on(tmp_path, check)


def test_a_refusal_sends_the_order_elsewhere(tmp_path):
    async def check(bench: Bench) -> None:
        bench.joined("node-1")
        bench.refused("node-2")
        await bench.until(lambda: bench.run.orders != [])
        assert bench.run.orders == [["node-3 in b"]]
        (told,) = [e for e in bench.told if e.kind == "recruiting"]
        assert "a being closed" in told["why"]

    on(tmp_path, check)


def test_capacity_that_somebody_knows_of_is_asked_for_before_the_back_off_ends(tmp_path):
    async def check(bench: Bench) -> None:
        for node in ("node-1", "node-2"):
            bench.refused(node)
        await bench.until(lambda: len(bench.run.orders) == 1)
        assert bench.run.orders == [["node-3 in b", "node-4 in b"]]
        for node in ("node-3", "node-4"):
            bench.refused(node)
        bench.recruiter.tell_capacity(A)
        await bench.until(lambda: len(bench.run.orders) == 2)
        assert bench.run.orders[1][0].endswith("in a")

    on(tmp_path, check)


def test_an_order_that_never_reports_is_given_back(tmp_path):
    async def check(bench: Bench) -> None:
        bench.joined("node-1")
        bench.now = 901.0
        await bench.until(lambda: bench.run.given_back == ["node-2"])
        await bench.until(lambda: bench.run.orders == [["node-3 in b"]])

    on(tmp_path, check, join_s=900.0)


def test_a_place_that_is_refused_at_once_is_closed_for_good(tmp_path):
    async def check(bench: Bench) -> None:
        bench.joined("node-1")
        bench.run.refuse = CloudError("no such zone", code="E404")
        bench.lost("node-1")
        await bench.until(lambda: len(bench.run.orders) == 2)  # in a, and then in b
        codes = [event["code"] for event in bench.told if event.kind == "node_refused"]
        assert codes == ["E404", "E404"]
        assert bench.recruiter.crew.closed_for_good

    on(tmp_path, check)


def test_with_nothing_there_and_nothing_to_be_had_patience_ends(tmp_path):
    async def check(bench: Bench) -> None:
        bench.refused("node-1")
        await bench.until(lambda: bench.run.orders == [["node-2 in b"]])
        bench.refused("node-2")
        bench.now = 599.0
        await asyncio.sleep(0.1)
        bench.now = 601.0
        # The places open again meanwhile: what is asked for then may yet come.
        await bench.until(lambda: len(bench.run.orders) == 2)
        assert bench.ends == []
        bench.refused("node-3")
        await bench.until(lambda: len(bench.run.orders) == 3)
        bench.refused("node-4")
        await bench.until(lambda: bench.ends != [])
        assert bench.ends[0].error.code == "E405"
        assert not bench.ends[0].lasting

    on(tmp_path, check, target=1, back_off=BackOff(first_s=600.0, longest_s=6000.0))


def test_a_run_that_is_barred_everywhere_ends_at_once(tmp_path):
    async def check(bench: Bench) -> None:
        bench.refused("node-1", lasting=True)
        await bench.until(lambda: bench.run.orders == [["node-2 in b"]])
        bench.refused("node-2", lasting=True)
        await bench.until(lambda: bench.ends != [])
        assert (bench.ends[0].lasting, bench.ends[0].error.code) == (True, "E403")

    on(tmp_path, check, target=1)


def test_nothing_is_asked_for_once_the_run_stops(tmp_path):
    async def check(bench: Bench) -> None:
        bench.joined("node-1")
        bench.events.write("stop_asked", end="done", why="step 9 reached")
        bench.lost("node-1")
        await asyncio.sleep(0.5)
        assert bench.run.orders == []

    on(tmp_path, check, target=1)


@pytest.mark.parametrize("kind", ["node_refused", "recruiting"])
def test_its_events_are_in_the_contract(kind):
    from sailor.observe.events import KINDS

    assert kind in KINDS
