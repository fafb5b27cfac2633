"""Transfers between two shelves over real links: what arrives, what is refused, what it costs."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sailor.checkpoint.lines import Lines
from sailor.checkpoint.replicate import (
    BULK_DECODER,
    CHUNK_BYTES,
    Accepted,
    Chunk,
    Filler,
    Push,
    Put,
    Replicator,
    TransferFailed,
    chunks,
    fetch,
    heads_of,
    push,
)
from sailor.checkpoint.segment import CorruptSnapshot
from sailor.runtime.identity import Identity, create_identity
from sailor.runtime.messages import SnapshotId
from sailor.runtime.transport import Link, LinkClosed, connect
from tests.helpers.shelves import Node, two_nodes
from tests.helpers.snapshots import BOXES, a_verified_segment, a_worker, an_arena, values_of

NAMES = [name for name, _ in BOXES]


def test_boxes_are_fetched_from_another_node_and_verified(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path) as (a, b):
            held = await a.hold(seed=3)
            got = await fetch(
                a.address, held.snapshot, NAMES[1:], identity=b.identity, shelf=b.keeper
            )
            assert list(got.places) == NAMES[1:]
            got.check_seal()
            for i, (name, shape) in list(enumerate(BOXES))[1:]:
                np.testing.assert_array_equal(np.stack(got.arrays(name)), values_of(3 + i, shape))
            assert b.keeper.holdings() == ()  # boxes on their way are nobody's copy
            b.keeper.discard(got)
            assert b.arena.used_bytes == 0

    asyncio.run(story())


def test_a_pushed_copy_is_held_by_the_peer_and_can_be_fetched_from_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path) as (a, b):
            held = await a.hold(seed=3)
            sent = await push(b.address, held, NAMES[:2], identity=a.identity)
            assert sent == sum(12 * int(np.prod(shape)) for _, shape in BOXES[:2])
            (holding,) = b.keeper.holdings()
            assert holding.snapshot == held.snapshot
            assert holding.node == "b"
            assert list(holding.boxes) == NAMES[:2]
            back = await fetch(
                b.address, held.snapshot, NAMES[:1], identity=a.identity, shelf=a.keeper
            )
            back.check(NAMES[0])

    asyncio.run(story())


def test_of_one_writer_two_versions_are_kept_and_one_sent_twice_counts_once(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path) as (a, b):
            for step in (3, 4, 5, 5):
                await push(b.address, await a.hold(step=step), NAMES, identity=a.identity)
            assert sorted(h.snapshot.step for h in b.keeper.holdings()) == [4, 5]

    asyncio.run(story())


def test_a_large_box_travels_in_chunks(tmp_path: Path) -> None:
    boxes = (("small", (3,)), ("large", (500_000,)), ("last", (50,)))

    async def story() -> None:
        async with two_nodes(tmp_path) as (a, b):
            held = await a.hold(boxes=boxes, seed=1)
            sizes = [len(data) for data in chunks(held, ["small", "large", "last"])]
            assert set(sizes[:-1]) == {CHUNK_BYTES}
            assert len(sizes) > 2
            assert sum(sizes) == 12 * 500_053
            got = await fetch(
                a.address, held.snapshot, ["small", "large", "last"],
                identity=b.identity, shelf=b.keeper,
            )  # fmt: skip
            for i, (name, shape) in enumerate(boxes):
                np.testing.assert_array_equal(np.stack(got.arrays(name)), values_of(1 + i, shape))

    asyncio.run(story())


def test_what_is_not_held_is_said_to_be_lacking(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path) as (a, b):
            held = await a.hold()
            other = SnapshotId(generation=1, step=6, worker=a_worker("a"))
            for snapshot, boxes in ((other, NAMES), (held.snapshot, ["no.such[0:1]"])):
                with pytest.raises(TransferFailed, match="not held here"):
                    await fetch(a.address, snapshot, boxes, identity=b.identity, shelf=b.keeper)
            assert b.arena.used_bytes == 0

    asyncio.run(story())


def test_a_copy_that_was_corrupted_at_its_source_is_refused_by_both_ways(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path) as (a, b):
            held = await a.hold()
            held.raw(NAMES[1])[3] ^= 1
            with pytest.raises(CorruptSnapshot, match=NAMES[1].split("[")[0]):
                await fetch(a.address, held.snapshot, NAMES, identity=b.identity, shelf=b.keeper)
            with pytest.raises(TransferFailed, match="other bytes"):
                await push(b.address, held, NAMES, identity=a.identity)
            assert b.keeper.holdings() == ()
            assert b.arena.used_bytes == 0

    asyncio.run(story())


def test_a_peer_without_room_declines_and_keeps_what_it_has(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path, budget=30_000) as (a, b):
            await push(b.address, await a.hold(step=1), NAMES, identity=a.identity)
            large = a_verified_segment(
                an_arena(tmp_path, node="c"), boxes=(("large", (4096,)),), writer=a_worker("c")
            )
            with pytest.raises(TransferFailed, match="does not fit"):
                await push(b.address, large, ["large"], identity=a.identity)
            assert [h.snapshot.step for h in b.keeper.holdings()] == [1]

    asyncio.run(story())


def test_a_transfer_broken_off_leaves_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path) as (a, b):
            held = await a.hold()
            link = await _dial(b, a.identity)
            await link.send(Put(snapshot=held.snapshot, boxes=tuple(heads_of(held, NAMES))))
            assert isinstance(await link.receive(), Accepted)
            await link.send(Chunk(data=bytes(10)))
            link.abort()
            await _until(lambda: b.arena.used_bytes == 0)
            assert b.keeper.holdings() == ()

    asyncio.run(story())


def test_more_bytes_than_promised_are_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path) as (a, b):
            held = await a.hold()
            link = await _dial(b, a.identity)
            await link.send(Put(snapshot=held.snapshot, boxes=tuple(heads_of(held, NAMES[:1]))))
            assert isinstance(await link.receive(), Accepted)
            await link.send(Chunk(data=bytes(1000)))
            answer = await link.receive()
            assert "more bytes" in answer.reason
            link.abort()
            await _until(lambda: b.arena.used_bytes == 0)

    asyncio.run(story())


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">I", 1 << 31),  # longer than any frame may be
        struct.pack(">I", 5) + b"\xc1junk",  # no msgpack
        struct.pack(">I", 1) + b"\x80",  # a message of no known type
    ],
)
def test_a_frame_that_is_none_closes_that_connection_only(
    tmp_path: Path, frame: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path) as (a, b):
            held = await a.hold()
            link = await _dial(a, b.identity)
            link.writer.write(frame)
            with pytest.raises(LinkClosed):
                await asyncio.wait_for(link.receive(), 10)
            got = await fetch(a.address, held.snapshot, NAMES, identity=b.identity, shelf=b.keeper)
            got.check_seal()

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    assert "closing" in caplog.text


def test_someone_with_another_runs_key_gets_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path) as (a, _):
            held = await a.hold()
            stranger = create_identity(tmp_path / "other", run="other")
            with pytest.raises(TransferFailed):
                await push(a.address, held, NAMES, identity=stranger)

    asyncio.run(story())


def test_of_what_waits_for_a_peer_only_the_newest_of_each_writer_is_sent(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path) as (a, b):
            done: list[tuple[str, int, bool]] = []
            replicator = Replicator(
                "b", b.address, identity=a.identity, shelf=a.keeper,
                on_done=lambda peer, item, sent: done.append(
                    (peer, item.snapshot.step, sent is not None)
                ),
            )  # fmt: skip
            for step in (1, 2, 3):
                replicator.offer(
                    Push(snapshot=(await a.hold(step=step)).snapshot, boxes=tuple(NAMES))
                )
            gone = SnapshotId(generation=1, step=9, worker=a_worker("z"))
            replicator.offer(Push(snapshot=gone, boxes=tuple(NAMES)))
            task = asyncio.create_task(replicator.run())
            await _until(lambda: len(done) == 2)
            task.cancel()
            assert done == [("b", 3, True), ("b", 9, False)]

    asyncio.run(story())


async def _dial(node: Node, identity: Identity) -> Link:
    return await connect(*node.address, identity=identity, decoder=BULK_DECODER, deadline_s=10)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


@given(st.lists(st.integers(0, 40), max_size=6), st.integers(1, 64))
def test_pieces_of_any_size_land_where_they_belong(tmp_path_factory, sizes, piece) -> None:
    root = tmp_path_factory.mktemp("filler")
    boxes = tuple((f"box{i}", (size,)) for i, size in enumerate(sizes))
    source = a_verified_segment(an_arena(root, node="a"), boxes=boxes, seed=4)
    target = an_arena(root, node="b").segment(writer=a_worker(), boxes=boxes)
    names = [name for name, _ in boxes]
    data = b"".join(chunks(source, names))
    filler = Filler(target, names)
    for start in range(0, len(data), piece):
        filler.add(data[start : start + piece])
    assert filler.missing == 0
    for name in names:
        assert bytes(target.raw(name)) == bytes(source.raw(name))
    with pytest.raises(CorruptSnapshot):
        filler.add(b"x")


def test_boxes_come_over_a_line_that_was_opened_before_and_it_serves_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path) as (a, b):
            held = await a.hold()
            lines = Lines(b.identity)
            await lines.open([a.address, ("127.0.0.1", 1)])  # nobody listens at the second
            line = lines.take(a.address)
            assert line is not None
            assert lines.take(a.address) is None
            assert lines.take(("127.0.0.1", 1)) is None
            got = await fetch(
                a.address, held.snapshot, NAMES, identity=b.identity, shelf=b.keeper, line=line
            )
            got.check_seal()
            with pytest.raises(LinkClosed):
                await line.send(Accepted())  # used up

    asyncio.run(story())


async def a_line(node: Node, *, to: Node) -> Link:
    """One that was opened before it is needed."""
    lines = Lines(node.identity)
    await lines.open([to.address])
    line = lines.take(to.address)
    assert line is not None
    return line


def test_a_line_that_broke_meanwhile_is_no_harm(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path) as (a, b):
            held = await a.hold()
            line = await a_line(b, to=a)
            line.abort()
            got = await fetch(
                a.address, held.snapshot, NAMES, identity=b.identity, shelf=b.keeper, line=line
            )
            got.check_seal()

    asyncio.run(story())


def test_a_line_is_closed_when_who_asks_over_it_is_told_to_stop(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path) as (a, b):
            held = await a.hold()
            line = await a_line(b, to=a)
            asking = asyncio.ensure_future(
                fetch(a.address, held.snapshot, NAMES, identity=b.identity, shelf=b.keeper,
                      line=line)
            )  # fmt: skip
            await asyncio.sleep(0)  # it has asked, and waits
            asking.cancel()
            await asyncio.wait({asking})
            assert asking.cancelled()
            assert line.writer.is_closing()

    asyncio.run(story())


def test_lines_that_were_not_needed_are_closed_even_those_that_come_late(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path) as (a, b):
            lines = Lines(b.identity)
            opening = asyncio.ensure_future(lines.open([a.address]))
            lines.close()
            await opening
            assert lines.take(a.address) is None

    asyncio.run(story())
