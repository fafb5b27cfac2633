"""A run whose controller lives on a machine of its own: where that is, and how it is reached.

The run folder here is a mirror. What the run writes there comes home by visits to its door
(``sailor/runtime/visit.py``), so that every action that reads a run folder reads this one as well.
``.controller/`` in it says where the run lives and keeps the door's key; without that folder a run
lives here, and nothing in this file concerns it. Starting one is ``actions/sending.py``'s.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from provision.local import end_leftovers
from provision.lodging import end_here, lives_here
from provision.sky_lodging import SkyLodging
from provision.tunnel import tunnel
from sailor.cluster.provisioner import Released
from sailor.runtime.door import Seen
from sailor.runtime.identity import load_identity
from sailor.runtime.requests import Request, ask
from sailor.runtime.visit import EVENTS, NobodyHome, Visit, dial

ROOM = ".controller"
HOUSE = "house"  # of cloud=local: what would be the other machine's disk
DOOR_FILE = "door.json"
_PLACE = "place.json"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run lives. ``cloud`` local: a process of this computer, else a cluster of one machine
    whose door is at ``port``. ``home``: its results are here and its machine is gone. ``stem``: how
    the names of clusters begin that it rents, once that is known."""

    cloud: str
    port: int = 0
    home: bool = False
    stem: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Away:
    """A run that lives elsewhere. ``path`` is its folder here."""

    path: Path

    @property
    def room(self) -> Path:
        """What is kept of its machine, besides results."""
        return self.path / ROOM

    @property
    def identity(self) -> Path:
        """The door's key."""
        return self.room / "identity"

    @property
    def house(self) -> Path:
        """The machine's disk, where it is this computer's; else what is sent there."""
        return self.room / HOUSE

    @property
    def place(self) -> Place:
        """Where it lives. Raises OSError, ValueError."""
        return msgspec.json.decode((self.room / _PLACE).read_bytes(), type=Place)

    def note(self, place: Place) -> None:
        """It lives there from now on."""
        partial = self.room / f"{_PLACE}.partial"
        partial.write_bytes(msgspec.json.encode(place))
        partial.replace(self.room / _PLACE)

    @property
    def is_home(self) -> bool:
        """Whether it has ended, its results are here and its machine is gone."""
        return self.place.home

    @contextmanager
    def visit(self) -> Iterator[Visit]:
        """Go there. Raises NobodyHome when nobody opens."""
        try:
            place, identity = self.place, load_identity(self.identity)
        except (OSError, ValueError) as error:
            raise NobodyHome(f"nothing says where {self.path.name} lives: {error}") from error
        if place.home:
            raise NobodyHome(f"{self.path.name} has come home")
        if place.cloud == "local":
            try:
                door = json.loads((self.house / DOOR_FILE).read_text())
                address = str(door["host"]), int(door["port"])
            except (OSError, ValueError, KeyError) as error:
                raise NobodyHome(f"its door is not open: {error}") from error
            with Visit(dial(address), identity=identity) as visit:
                yield visit
            return
        try:
            with (
                tunnel(SkyLodging(room=self.room).route(), port=place.port) as way,
                Visit(way, identity=identity) as visit,
            ):
                yield visit
        except OSError as error:
            raise NobodyHome(f"no way to its machine: {error}") from error

    def look(self) -> Seen | None:
        """How it is, with the newest of its log brought home; None when it cannot be reached."""
        try:
            with self.visit() as visit:
                visit.follow(self.path)
                seen = visit.look()
        except NobodyHome:
            return None
        self.learn(seen)
        return seen

    def learn(self, seen: Seen) -> None:
        """Keep what it said of itself that is needed when it cannot be asked."""
        if (place := self.place).stem != seen.stem:
            self.note(msgspec.structs.replace(place, stem=seen.stem))

    def catch_up(self) -> None:
        """Take the rest of the log from a machine that is gone, where its disk is this computer's:
        from then on the log grows here. Half a line, which it died over, is dropped there."""
        log, mirror = self.house / "runs" / self.path.name / EVENTS, self.path / EVENTS
        if self.place.cloud != "local" or not log.exists():
            return
        data = log.read_bytes()
        whole = data.rfind(b"\n") + 1
        os.truncate(log, whole)
        have = mirror.stat().st_size if mirror.exists() else 0
        with mirror.open("ab") as file:
            file.write(data[have:whole])

    def end_machine(self) -> tuple[Released, ...]:
        """End its machine at once, and prove it; on this computer also whatever it had rented,
        which does not go with it."""
        run = self.path.name
        if self.place.cloud != "local":
            return asyncio.run(SkyLodging(room=self.room).end())
        own = asyncio.run(end_here(self.room, run=run))
        return (*own, *asyncio.run(end_leftovers(self.house / "runs" / run, run=run)))

    def may_live(self) -> bool:
        """Whether its machine may be there: on this computer that is certain, elsewhere it is so
        until its end was proven."""
        place = self.place
        return not place.home and (place.cloud != "local" or lives_here(self.room))


def away(path: Path) -> Away | None:
    """The run of a folder, if it lives elsewhere, or did."""
    return Away(path=path) if (path / ROOM / _PLACE).exists() else None


def ask_run(path: Path, request: Request) -> Callable[[], None]:
    """Ask something of a run, wherever it lives. Raises NobodyHome.

    The answer takes it back, where nobody has read it yet.
    """
    there = away(path)
    if there is None or there.is_home:
        return partial(ask(path, request).unlink, missing_ok=True)
    with there.visit() as visit:
        visit.wish(request)
    return lambda: None  # it is read at once there
