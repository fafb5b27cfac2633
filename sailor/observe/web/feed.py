"""The page's one document, kept fresh by a thread that reads the run's log while somebody looks.

It reads the file and nothing else: the run that writes it does not know of it, waits for nothing
and hands over nothing. While no page is open it does nothing. Who waits for the next document gets
the newest one: nothing is queued, so that a slow reader sees fewer and holds up nobody.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from sailor.observe.events import unix
from sailor.observe.tail import Tail
from sailor.observe.web.facts import Story, facts

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.25
_DRAW_EVERY_S = 1.0
_IDLE_SHARE = 20.0  # of the time it takes to draw, left to others after it
_BREATH_S, _BREATH_EVERY = 0.002, 500  # events of a long log between two breaths


class Feed:
    """``wait`` gives documents. ``is_alive`` says whether any process has the run open."""

    def __init__(
        self,
        log_file: Path,
        *,
        is_alive: Callable[[], bool] = lambda: True,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._tail = Tail(log_file)
        self._log_file = log_file
        self._is_alive = is_alive
        self._wall = wall
        self._story = Story()
        self._behind_s = 0.0  # of the log's clock: wall time of its newest event less its t
        self._news = threading.Condition()
        self._document = b""
        self._version = 0
        self._watchers = 0
        self._closing = False
        self._ended = False  # the last document has been made
        self._thread = threading.Thread(target=self._run, name="sailor-web-feed", daemon=True)
        self._thread.start()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While in it, the document is kept fresh."""
        with self._news:
            self._watchers += 1
            self._news.notify_all()
        try:
            yield
        finally:
            with self._news:
                self._watchers -= 1

    def wait(self, seen: int, *, seconds: float) -> tuple[int, bytes]:
        """(version, document) newer than ``seen``, or what there is after so many seconds."""
        with self._news:
            self._news.wait_for(lambda: self._version > seen or self._ended, seconds)
            return self._version, self._document

    @property
    def version(self) -> int:
        """Number of the newest document; 0 before the first."""
        return self._version

    @property
    def ended(self) -> bool:
        """Whether the last document has been made."""
        return self._ended

    def close(self) -> None:
        """Draw once more where somebody looks, so that a page ends with the run's last word."""
        with self._news:
            self._closing = True
            self._news.notify_all()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        try:
            self._keep_fresh()
        finally:
            with self._news:
                self._ended = True
                self._news.notify_all()

    def _keep_fresh(self) -> None:
        drawn_at, took_s, stale = -1e9, 0.0, True
        while True:
            with self._news:
                self._news.wait_for(lambda: self._watchers > 0 or self._closing)
                if self._closing and not self._watchers:
                    return
                closing = self._closing
            try:
                stale |= self._read()
                due = drawn_at + max(_DRAW_EVERY_S if not stale else 0.4, _IDLE_SHARE * took_s)
                if closing or time.monotonic() >= due:
                    began = time.perf_counter()
                    self._draw()
                    took_s, drawn_at = time.perf_counter() - began, time.monotonic()
                    stale = False
            except Exception:  # looking at a run must not end it
                log.exception("the page of %s could not be drawn", self._log_file)
                drawn_at = time.monotonic()
            with self._news:
                if self._closing and closing:
                    return
                self._news.wait_for(lambda: self._closing, _LOOK_EVERY_S)

    def _read(self) -> bool:
        """Take what is new in the log, and let others have their turn meanwhile; whether there
        was anything."""
        events = self._tail.read()
        for number, event in enumerate(events, start=1):
            self._story.apply(event)
            if number % _BREATH_EVERY == 0:
                time.sleep(_BREATH_S)
        if events:
            self._behind_s = unix(events[-1]) - events[-1].t
        return bool(events)

    def _draw(self) -> None:
        history = self._story.history
        alive = self._is_alive()
        now = history.now
        if alive and history.status == "running":
            now = max(now, self._wall() - self._behind_s)
        document = msgspec.json.encode(facts(self._story, now=now, alive=alive))
        with self._news:
            if document != self._document:
                self._document = document
                self._version += 1
                self._news.notify_all()
