"""A node's part in generations whose words cross: what it believes of its workers stays true."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sailor.parallel.layout import Layout, WorkerId
from sailor.runtime import messages as m
from sailor.runtime.identity import Identity, create_identity
from sailor.runtime.keeper import Keeper
from sailor.runtime.nursery import Child
from sailor.runtime.tenure import Tenure
from sailor.runtime.worker_link import Build, Built, Take, Took
from tests.helpers.builders import a_layout, a_plan
from tests.helpers.settings import some_settings
from tests.helpers.snapshots import an_arena

PATIENCE_S = 20.0


@dataclass(kw_only=True)
class Facts:
    """Satisfies NodeFacts."""

    node: str
    host: str
    identity: Identity


class Ear:
    """The way to a worker: what it was told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    async def send(self, message: Any) -> None:
        self.told.append(message)


@dataclass(kw_only=True)
class Workers:
    """Where a nursery is wanted."""

    children: dict[WorkerId, Child] = field(default_factory=dict)

    def statuses(self) -> tuple[m.WorkerStatus, ...]:
        return ()


class Node:
    """One node of one worker, and what its tenure told the controller."""

    def __init__(self, tmp_path: Path, worker: WorkerId) -> None:
        self.ear = Ear()
        ear: Any = self.ear
        self.child = Child(worker=worker, pid=1, link=ear, started_at=0.0)
        workers: Any = Workers(children={worker: self.child})
        self.keeper = Keeper(
            an_arena(tmp_path, node=worker.node), node=worker.node, grant=lambda *_: None
        )
        identity = create_identity(tmp_path / "identity", run="test")
        self.said: list[m.Message] = []
        self._beside: set[asyncio.Future[None]] = set()
        self.tenure = Tenure(
            settings=Facts(node=worker.node, host="127.0.0.1", identity=identity),
            keeper=self.keeper, nursery=workers, tell=self._tell, beside=self._run,
        )  # fmt: skip
        self.tenure.settled(some_settings())

    async def _tell(self, message: m.Message) -> None:
        self.said.append(message)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        self._beside.add(asyncio.ensure_future(work))

    async def until_told(self, kind: type, *, generation: int) -> Any:
        """The order of that kind to the worker."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for order in self.ear.told:
                    if isinstance(order, kind) and order.generation == generation:
                        return order
                await asyncio.sleep(0.001)

    async def prepare(self, layout: Layout, generation: int) -> Build:
        await self.tenure.obey(
            m.Prepare(
                generation=generation, plan=layout.plan, workers=layout.workers, members=(),
                peers={}, copies={},
            )
        )  # fmt: skip
        order: Build = await self.until_told(Build, generation=generation)
        await self.tenure.heard(self.child, Built(generation=generation))
        return order

    async def switch(self, layout: Layout, generation: int) -> None:
        names = tuple(box.name for box in layout.kept[0])
        sources = {str(self.child.worker): (m.Source(tier="init", boxes=names),)}
        await self.tenure.obey(m.Switch(generation=generation, step=0, sources=sources))
        await self.until_told(Take, generation=generation)

    async def took(self, generation: int) -> None:
        took = Took(generation=generation, copy_s=0.0, bytes_moved=0)
        await self.tenure.heard(self.child, took)


def test_a_worker_that_took_a_seat_as_it_was_dropped_is_not_asked_to_go_on_from_one(
    tmp_path: Path,
) -> None:
    """It had let go of both; every change that came after failed for want of them."""
    layout = a_layout(a_plan([]))

    async def story() -> None:
        node = Node(tmp_path, layout.workers[0])
        assert not (await node.prepare(layout, 1)).kept
        await node.switch(layout, 1)
        await node.took(1)
        await node.tenure.obey(m.Go(generation=1, step=0))
        assert (await node.prepare(layout, 2)).kept
        await node.switch(layout, 2)
        await node.tenure.obey(m.Drop(generation=2))  # another node could not
        await node.took(2)
        assert not (await node.prepare(layout, 3)).kept
        await node.switch(layout, 3)
        await node.took(3)
        assert node.child.generation == 3

    asyncio.run(story())
