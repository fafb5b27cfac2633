"""The door of a run whose controller lives on another machine: look in, carry out, leave a wish.

Whoever holds the door's key sees the run folder as it grows, asks of the run what its owner may ask
(``sailor/runtime/requests.py``), and says when nothing is wanted any more. The key is not that of
the run: machines that train cannot open it. ``sailor/runtime/visit.py`` is the other side; who
lives behind the door is the ``Lodger``'s business. One request, one answer, in order.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sailor.runtime.identity import Identity
from sailor.runtime.messages import Message, decoder
from sailor.runtime.requests import Request, ask
from sailor.runtime.transport import Link, LinkClosed, Listener, listen

log = logging.getLogger(__name__)

PIECE_BYTES = 1 << 20
# A machine's own affairs: what it has rented, what it was asked, how it would find its run again.
_OWN_FILES = ("machines.jsonl", "orders.jsonl", "journal.json", "config.yaml")
_OWN_FOLDERS = ("requests", "recordings")


class Look(Message, frozen=True, kw_only=True):
    """How is the run? Answered by Seen."""


class Seen(Message, frozen=True, kw_only=True):
    """``exit_code`` None: it goes on. ``starts`` counts those of its process. ``told``: the last it
    printed. ``stem``: how the names of clusters begin that it rents."""

    run: str
    exit_code: int | None
    starts: int
    told: str
    stem: str


class List(Message, frozen=True, kw_only=True):
    """Which files are there? Answered by Listed."""


class Listed(Message, frozen=True, kw_only=True):
    """Name in the run folder -> (bytes, modified in ns)."""

    files: dict[str, tuple[int, int]]


class Read(Message, frozen=True, kw_only=True):
    """A piece of a file from there on. Answered by Piece, NotHad."""

    name: str
    offset: int


class Piece(Message, frozen=True, kw_only=True):
    """At most PIECE_BYTES, none at the end. ``size`` of the whole file now."""

    data: bytes
    size: int


class Wish(Message, frozen=True, kw_only=True):
    """Ask this of the run. Answered by Done, NotHad."""

    request: Request


class Stop(Message, frozen=True, kw_only=True):
    """Have the run save and end, wherever it stands. Answered by Done at once."""


class Leave(Message, frozen=True, kw_only=True):
    """Nothing is wanted any more: close the door when the run has ended. Answered by Done."""


class Done(Message, frozen=True, kw_only=True):
    """It was understood."""


class NotHad(Message, frozen=True, kw_only=True):
    """It cannot be had."""

    reason: str


Answer = Seen | Listed | Piece | Done | NotHad
TO_DOOR = decoder(Look | List | Read | Wish | Stop | Leave)
FROM_DOOR = decoder(Answer)


class Lodger(Protocol):
    """Who lives behind the door: the process of a run."""

    def seen(self) -> Seen:
        """How it is."""

    def stop(self) -> None:
        """Ask it to save and end."""

    def leave(self) -> None:
        """Its results are not wanted any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Door:
    """``folder`` is the run's; nothing outside it is ever read."""

    folder: Path
    lodger: Lodger

    async def open(self, host: str, port: int, *, identity: Identity) -> Listener:
        """Listen. Raises OSError when the port is taken."""
        return await listen(host, port, identity=identity, decoder=TO_DOOR, on_link=self._serve)

    async def _serve(self, link: Link) -> None:
        while True:
            try:
                message = await link.receive()
            except LinkClosed:
                return
            await link.send(await asyncio.to_thread(self.answer, message))

    def answer(self, message: Message) -> Answer:
        """What is said to one request."""
        try:
            match message:
                case Look():
                    return self.lodger.seen()
                case List():
                    return Listed(files=listing(self.folder))
                case Read():
                    return self._piece(message)
                case Wish():
                    ask(self.folder, message.request)
                case Stop():
                    self.lodger.stop()
                case Leave():
                    self.lodger.leave()
        except OSError as error:
            return NotHad(reason=str(error))
        return Done()

    def _piece(self, wanted: Read) -> Piece | NotHad:
        if not is_shown(wanted.name):
            return NotHad(reason=f"{wanted.name} is not for visitors")
        path = self.folder / wanted.name
        if not path.resolve().is_relative_to(self.folder.resolve()) or not path.is_file():
            return NotHad(reason=f"there is no {wanted.name}")
        with path.open("rb") as file:
            file.seek(max(0, wanted.offset))
            return Piece(data=file.read(PIECE_BYTES), size=path.stat().st_size)


def is_shown(name: str) -> bool:
    """Whether a file of a run folder may leave its machine: no keys, none of its own affairs."""
    parts = Path(name).parts
    return (
        bool(parts)
        and not name.startswith("/")
        and not any(part.startswith(".") for part in parts)
        and parts[0] not in _OWN_FOLDERS
        and name not in _OWN_FILES
    )


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """The files of a run folder that may leave its machine: name -> (bytes, modified in ns)."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if is_shown(name) and path.is_file() and not path.is_symlink():
            state = path.stat()
            found[name] = (state.st_size, state.st_mtime_ns)
    return found
