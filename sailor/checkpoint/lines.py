"""Connections to other nodes' bulk ports, opened before anything is to be fetched over them.

A handshake costs two journeys over the line and some milliseconds of both sides' processors: of a
transfer that is expected they are spent while training goes on. A line that was closed meanwhile,
or was never opened, is no harm: whoever fetches dials again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from sailor.checkpoint.replicate import TransferFailed, dial
from sailor.runtime.identity import Identity
from sailor.runtime.transport import Link

log = logging.getLogger(__name__)

Address = tuple[str, int]


class Lines:
    """Those one node holds open for one change of layout. Each serves one transfer."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._open: dict[Address, list[Link]] = {}
        self._closed = False

    async def open(self, addresses: Iterable[Address]) -> None:
        """Dial all of them at once, one line each time an address is named."""
        await asyncio.gather(*(self._dial(address) for address in addresses))

    async def _dial(self, address: Address) -> None:
        try:
            link = await dial(address, self._identity)
        except TransferFailed as failure:
            log.info("no line to %s:%d ahead of time: %s", *address, failure)
            return
        if self._closed:
            link.abort()
        else:
            self._open.setdefault(address, []).append(link)

    def take(self, address: Address) -> Link | None:
        """One of the lines to there, for good; None when there is none."""
        links = self._open.get(address)
        return links.pop() if links else None

    def close(self) -> None:
        """No transfer is expected any more."""
        self._closed = True
        for links in self._open.values():
            for link in links:
                link.abort()
        self._open.clear()
