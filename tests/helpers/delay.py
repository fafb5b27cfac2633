"""A line with latency, or a narrow one, between two ends that do not know of it.

The kernel's own delays need a module that not every kernel has; this needs none.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


@contextlib.asynccontextmanager
async def a_slow_line(
    port: int, *, seconds: float, bytes_per_second: float = float("inf")
) -> AsyncIterator[int]:
    """A port of this computer that leads to another one, ``seconds`` away in each direction, with
    room for so much in each."""
    ends: set[asyncio.StreamWriter] = set()
    tasks: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        free_at = loop.time()  # when the line has room for the next byte
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                free_at = max(free_at, loop.time()) + len(data) / bytes_per_second
                loop.call_at(free_at + seconds, writer.write, data)
                if free_at > loop.time() + 0.01:
                    await asyncio.sleep(free_at - loop.time())  # and the sender feels it
        loop.call_at(free_at + seconds, writer.close)

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        ends.update((writer, far_writer))
        for way in (carry(reader, far_writer), carry(far_reader, writer)):
            task = asyncio.ensure_future(way)
            tasks.add(task)

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in ends:
            writer.transport.abort()
        await asyncio.sleep(2 * seconds)  # what is still on its way finds nobody
