"""Boxes fetched from other nodes while a generation is still being built.

After a loss everybody stands still by the time the next generation is prepared: what will have to
be copied is known, and copying and building need not wait for each other. It is a guess all the
same. Only Switch says what is taken, and from where; what it does not name is thrown away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import ExitStack

from sailor.checkpoint.arena import OutOfSnapshotMemory
from sailor.checkpoint.replicate import TransferFailed, fetch
from sailor.checkpoint.segment import CorruptSnapshot, Segment
from sailor.runtime.identity import Identity
from sailor.runtime.keeper import Keeper
from sailor.runtime.messages import Source

log = logging.getLogger(__name__)


class Ahead:
    """What one node fetches for one generation before it is told to take it."""

    def __init__(self, *, node: str, identity: Identity, keeper: Keeper) -> None:
        self._node = node
        self._identity = identity
        self._keeper = keeper
        self._coming: dict[Source, asyncio.Task[Segment]] = {}

    def begin(self, sources: Iterable[Source], *, peers: Mapping[str, tuple[str, int]]) -> None:
        """Fetch all that is in other nodes' memory. Does not wait."""
        for source in sources:
            address = peers.get(source.node)
            if source.snapshot is None or source.node == self._node or address is None:
                continue
            if source in self._coming:  # for two workers: the second fetches its own, when told
                continue
            coming = fetch(
                address, source.snapshot, source.boxes, identity=self._identity, shelf=self._keeper
            )
            self._coming[source] = asyncio.ensure_future(coming)

    async def take(self, source: Source, *, held: ExitStack) -> Segment | None:
        """What was fetched from exactly there, in memory until ``held`` is closed.

        None when nothing was, or it failed: a line that broke a moment ago may work now. Raises
        CorruptSnapshot.
        """
        coming = self._coming.pop(source, None)
        if coming is None:
            return None
        try:
            segment = await coming
        except (TransferFailed, OutOfSnapshotMemory) as error:
            log.info("was not fetched ahead: %s", error)
            return None
        held.callback(self._keeper.discard, segment)
        return segment

    def drop(self) -> None:
        """Let go of all that was not taken, as soon as it is there."""
        for coming in self._coming.values():
            coming.add_done_callback(self._discard)
        self._coming = {}

    def _discard(self, coming: asyncio.Task[Segment]) -> None:
        if coming.cancelled():
            return
        error = coming.exception()
        if error is None:
            self._keeper.discard(coming.result())
        elif not isinstance(error, TransferFailed | OutOfSnapshotMemory | CorruptSnapshot):
            log.error("fetching ahead broke", exc_info=error)
