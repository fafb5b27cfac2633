"""Boxes that are fetched while a generation is built: taken once, refetched, or let go of."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from sailor.checkpoint.lines import Lines
from sailor.checkpoint.segment import CorruptSnapshot, Segment
from sailor.runtime.ahead import Ahead
from sailor.runtime.messages import SnapshotId, Source
from sailor.runtime.sourcing import localise
from sailor.runtime.worker_link import LocalSource
from tests.helpers.mini_cluster import MiniCluster
from tests.helpers.shelves import Node, two_nodes
from tests.helpers.snapshots import BOXES, a_worker, values_of

NAMES = tuple(name for name, _ in BOXES)


def a_source(held: Segment, *, boxes: tuple[str, ...] = NAMES) -> Source:
    return Source(tier="memory", boxes=boxes, node="a", snapshot=held.snapshot)


def an_ahead(node: Node) -> Ahead:
    return Ahead(node="b", identity=node.identity, keeper=node.keeper)


async def localised(b: Node, source: Source, ahead: Ahead, held: ExitStack) -> LocalSource:
    """As Switch has it done; nobody answers at the address it is given."""
    (local,) = await localise(
        (source,), node="b", peers={"a": ("127.0.0.1", 1)}, keeper=b.keeper, identity=b.identity,
        ahead=ahead, held=held, lines=Lines(b.identity),
    )  # fmt: skip
    return local


def test_what_was_fetched_ahead_is_taken_without_asking_anybody(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path) as (a, b):
            source = a_source(await a.hold(seed=3))
            ahead = an_ahead(b)
            ahead.begin([source, source], peers={"a": a.address})
            with ExitStack() as held:
                local = await localised(b, source, ahead, held)
                segment = Segment.attach(Path(local.path))
                segment.check_seal()
                for i, (name, shape) in enumerate(BOXES):
                    assert np.array_equal(np.stack(segment.arrays(name)), values_of(3 + i, shape))
            assert b.arena.used_bytes == 0  # once it is read it is gone

    asyncio.run(story())


def test_what_was_not_fetched_ahead_is_fetched_when_it_is_told(tmp_path: Path) -> None:
    """Other boxes, another step, or a line that broke meanwhile: the guess does no harm."""

    async def story() -> None:
        async with two_nodes(tmp_path) as (a, b):
            source = a_source(await a.hold())
            ahead = an_ahead(b)
            ahead.begin([source], peers={"a": ("127.0.0.1", 1)})  # nobody there
            other = a_source(await a.hold(step=6), boxes=NAMES[:1])
            for wanted in (source, other):
                with ExitStack() as held:
                    (local,) = await localise(
                        (wanted,), node="b", peers={"a": a.address}, keeper=b.keeper,
                        identity=b.identity, ahead=ahead, held=held, lines=Lines(b.identity),
                    )  # fmt: skip
                    assert Segment.attach(Path(local.path)).snapshot == wanted.snapshot

    asyncio.run(story())


def test_what_nobody_takes_is_let_go_of(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path) as (a, b):
            source = a_source(await a.hold())
            gone = SnapshotId(generation=1, step=99, worker=a_worker("a"))
            early = an_ahead(b)
            early.begin(
                [source, Source(tier="memory", boxes=NAMES, node="a", snapshot=gone)],
                peers={"a": a.address},
            )
            tasks = list(early._coming.values())
            early.drop()
            assert len(tasks) == 2
            await asyncio.wait(tasks)
            await asyncio.sleep(0)  # their callbacks
            assert b.arena.used_bytes == 0
            assert await early.take(source, held=ExitStack()) is None

    asyncio.run(story())


def test_spoiled_bytes_are_refused_however_early_they_came(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path) as (a, b):
            held = await a.hold()
            held.raw(NAMES[0])[0] ^= 1
            source = a_source(held)
            ahead = an_ahead(b)
            ahead.begin([source], peers={"a": a.address})
            with pytest.raises(CorruptSnapshot), ExitStack() as stack:
                await ahead.take(source, held=stack)
            assert b.arena.used_bytes == 0

    asyncio.run(story())


def test_after_a_loss_nodes_are_told_what_they_will_take_before_they_build(tmp_path: Path) -> None:
    cluster = MiniCluster(
        tmp_path, seed=5, nodes=5, total_steps=1_000_000, anchored=False, persist_every=0
    )
    told, taken = asyncio.run(_lose_one(cluster))
    assert taken
    assert told == taken


async def _lose_one(cluster: MiniCluster) -> tuple[list[str], list[str]]:
    """Boxes of other nodes that nodes were told to expect, and those they then had to take."""
    async with cluster.running() as run, asyncio.timeout(60.0):

        async def until(kind: str, number: int) -> None:
            while sum(1 for event in cluster.events if event.kind == kind) < number:
                assert not run.done(), run
                await asyncio.sleep(0.005)

        await until("step", 5)
        cluster.machines.kill("node-1")
        await until("pause", 2)  # the first is the start's
        restored = [event for event in cluster.events if event.kind == "restored"][-1]
        told: list[str] = []
        for node in cluster.machines.living:
            part = cluster.machines.agent(node).tenure._home.parts.get(restored.generation)
            ahead = part.prepare.ahead if part is not None else ()
            told += [b for s in ahead if s.snapshot and s.node != node for b in s.boxes]
        taken = [b for s in restored["sources"] if s["tier"] == "peer" for b in s["boxes"]]
        return sorted(told), sorted(taken)
