"""A very small HTTP client for a cloud's metadata service: one request, one answer, a deadline.

Plain HTTP/1.1 over asyncio streams, so that a long wait for a change can be cancelled at once; the
services are on the machine's own link and speak no TLS. No redirects, no keep-alive, bodies in
bounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

_MOST_BYTES = 1 << 20


class NoAnswer(Exception):
    """The service could not be reached, or said something that is not HTTP."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Status, headers (names in lower case) and body."""

    status: int
    headers: Mapping[str, str]
    body: str


async def ask(
    url: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    deadline_s: float,
) -> Answer:
    """One request. Raises NoAnswer when there is no whole answer within the deadline."""
    parts = urlsplit(url)
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    lines = [f"{method} {path} HTTP/1.1", f"Host: {parts.netloc}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if method in ("PUT", "POST"):
        lines.append("Content-Length: 0")
    request = "\r\n".join([*lines, "", ""]).encode()
    try:
        async with asyncio.timeout(deadline_s):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
            try:
                writer.write(request)
                await writer.drain()
                return await _read(reader)
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
        raise NoAnswer(f"{url}: {error or type(error).__name__}") from error


async def _read(reader: asyncio.StreamReader) -> Answer:
    head = await reader.readuntil(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").rstrip().split("\r\n")
    status = int(status_line.split()[1])
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    length = headers.get("content-length")
    if length is not None:
        if int(length) > _MOST_BYTES:
            raise ValueError(f"an answer of {length} bytes")
        body = await reader.readexactly(int(length))
    else:
        body = await reader.read(_MOST_BYTES)
    return Answer(status=status, headers=headers, body=body.decode(errors="replace"))
