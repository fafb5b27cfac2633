"""Snapshots between nodes: fetched by whoever needs boxes, pushed to peers that keep copies.

Agents speak it among themselves on the bulk port, over the mutual TLS of the run. A transfer names
its boxes and their digests first, then sends their bytes back to back in chunks. What arrives is
hashed again in the receiver's memory; other bytes than were promised are thrown away. One
connection a transfer: a broken one disturbs nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from sailor.checkpoint.segment import CorruptSnapshot, Segment
from sailor.errors import SailorError
from sailor.parallel.layout import WorkerId
from sailor.runtime.identity import Identity
from sailor.runtime.messages import Message, SnapshotId, decoder
from sailor.runtime.transport import Link, LinkClosed, connect

log = logging.getLogger(__name__)

CHUNK_BYTES = 128 << 10  # larger ones are faulted in anew each time, and leave the cache
CONNECT_S = 5.0
SLOW_CHUNK_S = 0.02  # a chunk that took longer went over a slow line: 6 MB/s
SLOW_SHARE = 0.5  # of which copies take no more
PING_BYTES = 256 << 10
PINGS = 5
MOST_PINGS = 100  # over one connection
SILENCE_S = 20.0  # longest wait for the other side's next message
EXPECTED_S = 600.0  # and for the first one: lines are opened before they are needed


class BoxHead(msgspec.Struct, frozen=True, kw_only=True):
    """One box of a transfer. ``digest``: xxh3 of its bytes, as its writer's agent sealed it."""

    name: str
    shape: tuple[int, ...]
    digest: int


class Get(Message, frozen=True, kw_only=True):
    """Send me these boxes of a snapshot you hold. Answered by Head and chunks, or by Lacking."""

    snapshot: SnapshotId
    boxes: tuple[str, ...]


class Put(Message, frozen=True, kw_only=True):
    """Keep a copy of this. Answered by Accepted (then come chunks, then Stored) or Declined."""

    snapshot: SnapshotId
    boxes: tuple[BoxHead, ...]


class Head(Message, frozen=True, kw_only=True):
    """What the chunks that follow hold."""

    boxes: tuple[BoxHead, ...]


class Lacking(Message, frozen=True, kw_only=True):
    """The snapshot, or one of the boxes, is not here (any more)."""

    reason: str


class Accepted(Message, frozen=True, kw_only=True):
    """Go ahead."""


class Declined(Message, frozen=True, kw_only=True):
    """No room, or what came was not what was promised."""

    reason: str


class Stored(Message, frozen=True, kw_only=True):
    """The copy is complete and verified."""


class Chunk(Message, frozen=True, kw_only=True):
    """The next bytes of the boxes, back to back, at most CHUNK_BYTES."""

    data: bytes


class Ping(Message, frozen=True, kw_only=True):
    """Send it back: how long that takes says what the line between two machines is like."""

    data: bytes


BulkMessage = Get | Put | Head | Lacking | Accepted | Declined | Stored | Chunk | Ping
BULK_DECODER = decoder(BulkMessage)


class TransferFailed(Exception):
    """The other side lacks it, declined it, or is gone."""


class Shelf(Protocol):
    """A node's snapshots, as the bulk port sees them."""

    def pinned(self, snapshot: SnapshotId) -> AbstractContextManager[Segment]:
        """A verified snapshot, kept from being overwritten meanwhile. Raises KeyError."""

    async def room(
        self, *, writer: WorkerId, boxes: Sequence[tuple[str, tuple[int, ...]]]
    ) -> Segment:
        """A free segment for somebody else's boxes. Raises OutOfSnapshotMemory."""

    def keep(self, segment: Segment) -> None:
        """The segment is verified: count it among the copies held here."""

    def discard(self, segment: Segment) -> None:
        """The segment came to nothing."""


# Serving


async def serve_bulk(link: Link, shelf: Shelf) -> None:
    """Answer one transfer on an accepted connection. Raises LinkClosed."""
    request = await _next(link, seconds=EXPECTED_S)
    match request:
        case Get():
            await _send_boxes(link, shelf, request)
        case Put():
            await _store_copy(link, shelf, request)
        case Ping():
            for _ in range(MOST_PINGS):
                if not isinstance(request, Ping):
                    return
                await link.send(request)
                request = await _next(link)
        case _:
            log.warning("%s began with %s, closing", link.peer, type(request).__name__)


async def _send_boxes(link: Link, shelf: Shelf, request: Get) -> None:
    try:
        with shelf.pinned(request.snapshot) as segment:
            heads = tuple(heads_of(segment, request.boxes))
            await link.send(Head(boxes=heads))
            for data in chunks(segment, request.boxes):
                await link.send(Chunk(data=data))
    except KeyError as error:
        await link.send(Lacking(reason=f"{error} is not held here"))


async def _store_copy(link: Link, shelf: Shelf, request: Put) -> None:
    try:
        segment = await shelf.room(
            writer=request.snapshot.worker, boxes=[(b.name, b.shape) for b in request.boxes]
        )
    except SailorError as error:
        await link.send(Declined(reason=str(error)))
        return
    kept = False
    try:
        await link.send(Accepted())
        await _receive_into(link, segment, request.boxes, snapshot=request.snapshot)
        shelf.keep(segment)
        kept = True
        await link.send(Stored())
    except (CorruptSnapshot, TransferFailed) as error:
        log.warning("copy of %s from %s refused: %s", request.snapshot, link.peer, error)
        await link.send(Declined(reason=str(error)))
    finally:
        if not kept:
            shelf.discard(segment)


# Asking


async def fetch(
    address: tuple[str, int],
    snapshot: SnapshotId,
    boxes: Sequence[str],
    *,
    identity: Identity,
    shelf: Shelf,
    line: Link | None = None,
) -> Segment:
    """Boxes of a snapshot another node holds, verified, in a segment of this one.

    ``line`` is one to there that was opened before, and is used up. The caller discards the segment
    after use. Raises TransferFailed, CorruptSnapshot, OutOfSnapshotMemory.
    """
    get = Get(snapshot=snapshot, boxes=tuple(boxes))
    head: Any = None
    if line is not None:
        try:
            head = await _ask(line, get)
        except LinkClosed as error:
            log.info("a line opened ahead of time is of no use any more: %s", error)
        finally:
            if head is None:  # cancelled, too
                line.abort()
    link = line if line is not None and head is not None else await dial(address, identity)
    try:
        head = head or await _ask(link, get)
        if not isinstance(head, Head):
            raise TransferFailed(getattr(head, "reason", type(head).__name__))
        segment = await shelf.room(
            writer=snapshot.worker, boxes=[(b.name, b.shape) for b in head.boxes]
        )
        try:
            await _receive_into(link, segment, head.boxes, snapshot=snapshot)
        except BaseException:
            shelf.discard(segment)
            raise
        return segment
    except LinkClosed as error:
        raise TransferFailed(str(error)) from error
    finally:
        link.abort()


async def push(
    address: tuple[str, int],
    segment: Segment,
    boxes: Sequence[str],
    *,
    identity: Identity,
    share: float = 1.0,
) -> int:
    """Copy boxes of a pinned, verified segment to a peer's memory. Returns the bytes sent.

    With a ``share`` below 1 the line is used for at most that part of the time: after each chunk
    the sender rests, so that whoever trains has the rest of it. A slow line is in any case. Raises
    TransferFailed.
    """
    link = await dial(address, identity)
    try:
        heads = tuple(heads_of(segment, boxes))
        await link.send(Put(snapshot=segment.snapshot, boxes=heads))
        answer = await _next(link)
        sent = 0
        if isinstance(answer, Accepted):
            for data in chunks(segment, boxes):
                began = time.monotonic()
                await link.send(Chunk(data=data))
                sent += len(data)
                took_s = time.monotonic() - began
                used = min(share, SLOW_SHARE) if took_s > SLOW_CHUNK_S else share
                if used < 1.0:
                    await asyncio.sleep(took_s * (1.0 / used - 1.0))
            answer = await _next(link)
        if not isinstance(answer, Stored):
            raise TransferFailed(getattr(answer, "reason", type(answer).__name__))
        return sent
    except LinkClosed as error:
        raise TransferFailed(str(error)) from error
    finally:
        link.abort()


async def ping_seconds(address: tuple[str, int], *, identity: Identity) -> float:
    """How long some bytes take to another agent and back, the best of a few times: what slows all
    of them is the line, not a busy moment. Raises TransferFailed."""
    async with opened(address, identity) as link:
        return min([await echo_seconds(link, PING_BYTES) for _ in range(PINGS)])


async def echo_seconds(link: Link, num_bytes: int) -> float:
    """How long that many bytes take to the other side and back, at most SILENCE_S. Raises
    TransferFailed."""
    try:
        began = time.monotonic()
        await link.send(Ping(data=bytes(num_bytes)))
        if not isinstance(await _next(link), Ping):
            raise TransferFailed("a ping was not answered by one")
        return time.monotonic() - began
    except LinkClosed as error:
        raise TransferFailed(str(error)) from error


@asynccontextmanager
async def opened(address: tuple[str, int], identity: Identity) -> AsyncIterator[Link]:
    """A connection to another agent's bulk port. Raises TransferFailed."""
    link = await dial(address, identity)
    try:
        yield link
    finally:
        link.abort()


@dataclass(frozen=True, kw_only=True, slots=True)
class Push:
    """A snapshot that a peer should keep a copy of."""

    snapshot: SnapshotId
    boxes: tuple[str, ...]


class Replicator:
    """Pushes to one peer, one transfer at a time; of each writer only the newest that waits."""

    def __init__(
        self,
        peer: str,
        address: tuple[str, int],
        *,
        identity: Identity,
        shelf: Shelf,
        on_done: Callable[[str, Push, int | None], None],
    ) -> None:
        self._peer = peer
        self._address = address
        self._identity = identity
        self._shelf = shelf
        self._on_done = on_done  # (peer, what, bytes sent; None when the peer has no copy)
        self._waiting: dict[WorkerId, Push] = {}
        self._wake = asyncio.Event()

    def offer(self, item: Push) -> None:
        """Push this when the transfer under way is done; what waited of its writer is stale."""
        self._waiting.pop(item.snapshot.worker, None)
        self._waiting[item.snapshot.worker] = item
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            item = self._waiting.pop(next(iter(self._waiting)))
            sent: int | None = None
            try:
                with self._shelf.pinned(item.snapshot) as segment:
                    sent = await push(self._address, segment, item.boxes, identity=self._identity)
            except (KeyError, TransferFailed) as error:
                log.warning("%s has no copy of %s: %s", self._peer, item.snapshot, error)
            self._on_done(self._peer, item, sent)


# Bytes


def heads_of(segment: Segment, boxes: Iterable[str]) -> Iterator[BoxHead]:
    """What a transfer promises. Raises KeyError naming a box the segment lacks."""
    for name in boxes:
        yield BoxHead(name=name, shape=segment.places[name].shape, digest=segment.digest_of(name))


def chunks(segment: Segment, boxes: Iterable[str]) -> Iterator[bytes]:
    """The bytes of the boxes back to back, in pieces of at most CHUNK_BYTES."""
    gathered = bytearray()
    for name in boxes:
        raw = segment.raw(name)
        while raw:
            part = raw[: CHUNK_BYTES - len(gathered)]
            gathered += part
            raw = raw[len(part) :]
            if len(gathered) == CHUNK_BYTES:
                yield bytes(gathered)
                gathered.clear()
    if gathered:
        yield bytes(gathered)


class Filler:
    """Writes bytes that come in pieces into the boxes of a segment, one after the other."""

    def __init__(self, segment: Segment, boxes: Iterable[str]) -> None:
        self._rooms = [segment.raw(name) for name in boxes]
        self.missing = sum(len(room) for room in self._rooms)

    def add(self, data: bytes) -> None:
        """The next piece. Raises CorruptSnapshot when there is more than was promised."""
        if len(data) > self.missing:
            raise CorruptSnapshot("more bytes than promised", where="bulk transfer")
        self.missing -= len(data)
        rest = memoryview(data)
        while rest:
            room = self._rooms[0]
            part = rest[: len(room)]
            room[: len(part)] = part
            rest = rest[len(part) :]
            self._rooms[0] = room[len(part) :]
            if not self._rooms[0]:
                self._rooms.pop(0)


async def _receive_into(
    link: Link, segment: Segment, heads: Sequence[BoxHead], *, snapshot: SnapshotId
) -> None:
    """Fill and seal a segment. Raises CorruptSnapshot when the digests are not those promised."""
    segment.begin(generation=snapshot.generation, step=snapshot.step)
    filler = Filler(segment, (head.name for head in heads))
    while filler.missing:
        chunk = await _next(link)
        if not isinstance(chunk, Chunk):
            raise TransferFailed(f"{type(chunk).__name__} instead of bytes")
        filler.add(chunk.data)
    segment.finish()
    digests = await asyncio.to_thread(segment.seal)
    for head in heads:
        if digests[head.name] != head.digest:
            raise CorruptSnapshot(f"box {head.name} arrived with other bytes", where=link.peer)


async def _ask(link: Link, get: Get) -> Any:
    await link.send(get)
    return await _next(link)


async def _next(link: Link, *, seconds: float = SILENCE_S) -> Any:
    try:
        async with asyncio.timeout(seconds):
            return await link.receive()
    except TimeoutError as error:
        link.abort()
        raise LinkClosed(f"{link.peer}: silent for {seconds:.0f} s") from error


async def dial(address: tuple[str, int], identity: Identity) -> Link:
    """A connection to another node's bulk port, for one transfer. Raises TransferFailed."""
    try:
        return await connect(
            *address, identity=identity, decoder=BULK_DECODER, deadline_s=CONNECT_S
        )
    except LinkClosed as error:
        raise TransferFailed(str(error)) from error
