"""A controller's journal and the file it is kept in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from sailor.runtime.journal import Journal, read_journal, write_journal

log = logging.getLogger(__name__)


class Notebook:
    """``journal`` is what is true now; the file follows, one write at a time, newest last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = asyncio.Lock()
        self.journal = read_journal(path)

    def note(self, journal: Journal) -> Coroutine[Any, Any, None]:
        """From now on this is the journal; awaited, it is on disk."""
        self.journal = journal
        return self._write()

    def joined(self, node: str, start: str) -> Coroutine[Any, Any, None]:
        """Note one more member."""
        return self.note(self.journal.joined(node, start))

    def left(self, node: str) -> Coroutine[Any, Any, None]:
        """Note that a member is gone, its start never to be let in again."""
        return self.note(self.journal.left(node))

    async def _write(self) -> None:
        async with self._writing:
            try:
                await asyncio.to_thread(write_journal, self._path, self.journal)
            except OSError as error:  # no reason to end a run that trains
                log.error("a controller after this one may not find its run: %s", error)
