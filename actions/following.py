"""The events of a run as they come, and whether it lives: of this computer's runs and of others.

A run that lives elsewhere (``actions/away.py``) is visited: what is new in its log comes home first
and is then read here. Its machine may be out of reach for a while, as when this computer slept.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from actions.away import Away, away
from actions.run_folder import owner_pid
from sailor.observe.events import Event
from sailor.observe.tail import Tail
from sailor.runtime.door import Seen
from sailor.runtime.visit import NobodyHome, Visit

AGAIN_S = 2.0  # between attempts to reach a run
UNREACHED_S = 60.0  # after which nobody waits for one any more
_LOOK_S = 1.0  # how often it is asked how it is


class Follower(Protocol):
    """A run as somebody sees it who looks all the time."""

    def read(self) -> list[Event]:
        """The events since the last call."""

    def lives(self) -> bool:
        """Whether it goes on."""

    def close(self) -> None:
        """Look no more."""


def follower(path: Path) -> Follower:
    """For the run of a folder, wherever it lives."""
    there = away(path)
    return FollowHere(path) if there is None or there.is_home else FollowAway(there)


def goes_on(path: Path) -> bool:
    """Whether the run of a folder goes on, as far as it can be reached."""
    there = away(path)
    if there is None or there.is_home:
        return owner_pid(path) is not None
    seen = there.look()
    return seen is not None and seen.exit_code is None


class FollowHere:
    """A run of this computer, or one that is over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tail = Tail(path / "events.jsonl")

    def read(self) -> list[Event]:
        """The events since the last call."""
        return self._tail.read()

    def lives(self) -> bool:
        """Whether a process has the folder open."""
        return owner_pid(self._path) is not None

    def close(self) -> None:
        """Nothing to let go."""


class FollowAway:
    """A run that is visited. ``seen`` is how it was at the last look; ``trouble`` why it cannot be
    reached, "" while it can."""

    def __init__(self, there: Away) -> None:
        self.there = there
        self._tail = Tail(there.path / "events.jsonl")
        self._stay = ExitStack()
        self._visit: Visit | None = None
        self._again_at = self._look_at = 0.0
        self._reached_at = time.monotonic()
        self.seen: Seen | None = None
        self.trouble = ""

    def read(self) -> list[Event]:
        """The events since the last call, as far as they could be brought home."""
        now = time.monotonic()
        if now >= self._again_at:
            try:
                if self._visit is None:
                    self._visit = self._stay.enter_context(self.there.visit())
                self._visit.follow(self.there.path)
                if now >= self._look_at:
                    self.seen = self._visit.look()
                    self.there.learn(self.seen)
                    self._look_at = now + _LOOK_S
                    self._visit.follow(self.there.path)  # what it wrote before it ended
                self._reached_at, self.trouble = now, ""
            except NobodyHome as error:
                self.trouble = str(error)
                self.close()
                self._again_at = now + AGAIN_S
        return self._tail.read()

    def lives(self) -> bool:
        """Whether it goes on, or nobody can say yet."""
        if self.trouble:
            return self.there.may_live() and time.monotonic() - self._reached_at < UNREACHED_S
        return self.seen is None or self.seen.exit_code is None

    def close(self) -> None:
        """End the visit; the next ``read`` begins another."""
        self._visit = None
        self._stay.close()
