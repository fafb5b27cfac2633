"""Links: length-framed typed messages over mutual TLS, for asyncio.

A frame is a 4-byte big-endian length and that many bytes of msgpack. Whatever cannot be a message
of this run (wrong key, too long, malformed, another protocol version) closes that one link and is
logged; it disturbs nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Self

import msgspec

from sailor.addresses import joined
from sailor.runtime.identity import Identity
from sailor.runtime.messages import MAX_FRAME_BYTES, PROTOCOL_VERSION, Message, encode

log = logging.getLogger(__name__)

_LENGTH = struct.Struct(">I")
HANDSHAKE_S = 10.0
SEND_S = 20.0
BUFFER_BYTES = 1 << 20


class LinkClosed(Exception):
    """The other side is gone, or what it sent was not acceptable."""


class Link:
    """One authenticated connection. ``receive`` has one reader; ``send`` may have many callers.

    ``peer``: host:port of the other side, for logs.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        decoder: msgspec.msgpack.Decoder[Any],
    ) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = decoder
        self._lock = asyncio.Lock()
        address = writer.get_extra_info("peername")  # a closed link cannot be asked any more
        self.peer = joined(*address[:2]) if address else "closed"

    async def send(self, message: Message) -> None:
        """Write one message. Raises LinkClosed when the other side is gone or does not drain."""
        frame = encode(message)
        if len(frame) > MAX_FRAME_BYTES:
            raise ValueError(f"{type(message).__name__} of {len(frame)} bytes exceeds a frame")
        async with self._lock:
            if self.writer.is_closing():  # one closed twice fails in writing with no error of ours
                raise LinkClosed(f"{self.peer}: closed here")
            try:
                self.writer.write(_LENGTH.pack(len(frame)) + frame)
                # Not wait_for: it swallows a cancellation that comes when the wait is just over.
                async with asyncio.timeout(SEND_S):
                    await self.writer.drain()
            except (ConnectionError, TimeoutError, ssl.SSLError, RuntimeError) as error:
                self.abort()
                raise LinkClosed(f"{self.peer}: {error!r}") from error

    async def receive(self) -> Any:
        """The next message. Raises LinkClosed at the end or on anything that is not a message."""
        try:
            (length,) = _LENGTH.unpack(await self.reader.readexactly(_LENGTH.size))
            if length > MAX_FRAME_BYTES:
                raise LinkClosed(f"{self.peer}: frame of {length} bytes refused")
            message = self._decoder.decode(await self.reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError) as error:
            self.abort()
            raise LinkClosed(f"{self.peer}: closed") from error
        except msgspec.MsgspecError as error:
            log.warning("%s sent a malformed message, closing: %s", self.peer, error)
            self.abort()
            raise LinkClosed(f"{self.peer}: malformed message: {error}") from error
        except LinkClosed as error:
            log.warning("closing: %s", error)
            self.abort()
            raise
        if message.version != PROTOCOL_VERSION:
            self.abort()
            raise LinkClosed(f"{self.peer}: speaks protocol {message.version}, not ours")
        return message

    def abort(self) -> None:
        """Drop the connection now."""
        transport = self.writer.transport
        if transport is not None:
            transport.abort()

    async def close(self) -> None:
        """Flush and close, waiting a little for the other side."""
        with contextlib.suppress(OSError, ssl.SSLError, TimeoutError):
            self.writer.close()
            async with asyncio.timeout(2.0):
                await self.writer.wait_closed()


async def connect(
    host: str,
    port: int,
    *,
    identity: Identity,
    decoder: msgspec.msgpack.Decoder[Any],
    deadline_s: float,
) -> Link:
    """Connect to a listener of the same run. Raises LinkClosed when it cannot in time."""
    try:
        async with asyncio.timeout(deadline_s):
            reader, writer = await asyncio.open_connection(
                host,
                port,
                ssl=identity.client_context(),
                ssl_handshake_timeout=HANDSHAKE_S,
                limit=BUFFER_BYTES,
            )
    except (OSError, ssl.SSLError, TimeoutError) as error:
        raise LinkClosed(f"{joined(host, port)}: {error!r}") from error
    return Link(reader, writer, decoder)


class Listener:
    """A port where links are accepted, each served by a task of its own, until it is closed."""

    def __init__(
        self, on_link: Callable[[Link], Awaitable[None]], decoder: msgspec.msgpack.Decoder[Any]
    ) -> None:
        self._on_link = on_link
        self._decoder = decoder
        self._serving: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._server: asyncio.Server

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self, host: str, port: int, identity: Identity) -> None:
        """Begin to accept; port 0 picks a free one."""
        self._server = await asyncio.start_server(
            self._accepted,
            host,
            port,
            ssl=identity.server_context(),
            ssl_handshake_timeout=HANDSHAKE_S,
            limit=BUFFER_BYTES,
            start_serving=False,  # it would, and wait: cancelled then, nobody could close it
        )
        try:
            await self._server.start_serving()
        except BaseException:
            self._server.close()
            raise

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) it listens on."""
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    async def close(self) -> None:
        """Accept no more, and drop whoever is served.

        What was accepted a moment ago becomes a link first: of a connection whose server is closed
        before it comes to that, asyncio (3.11) forgets the socket, open.
        """
        loop = asyncio.get_running_loop()
        for socket in self._server.sockets:
            loop.remove_reader(socket.fileno())
        try:
            await asyncio.sleep(0)
        finally:
            self._closed = True
            self._server.close()
            for task in self._serving:
                task.cancel()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(reader, writer, self._decoder)
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            if not self._closed:
                await self._on_link(link)
                await link.close()  # what was sent last may still be in our buffer
        except LinkClosed as error:
            log.debug("link ended: %s", error)
        except asyncio.CancelledError:
            log.debug("%s: dropped, for we end", link.peer)  # raised, 3.11 would log it as an error
        finally:
            self._serving.discard(task)
            link.abort()


async def listen(
    host: str,
    port: int,
    *,
    identity: Identity,
    decoder: msgspec.msgpack.Decoder[Any],
    on_link: Callable[[Link], Awaitable[None]],
) -> Listener:
    """Accept links on ``host``; port 0 picks a free one.

    ``on_link`` runs as a task per connection; the link is flushed and closed when it returns, and
    dropped when it raises.
    """
    listener = Listener(on_link, decoder)
    await listener.open(host, port, identity)
    return listener
