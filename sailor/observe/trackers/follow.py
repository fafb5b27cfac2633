"""Trackers beside a run, on a thread of their own: none of them can slow training down or end it.

They hear the log from its first event on, also when a run is resumed, so that all of them show what
the log says and nothing else.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterable

from sailor.observe.events import Event, EventLog
from sailor.observe.trackers.points import Point, Points
from sailor.observe.trackers.tracker import Place, Tracker, opener

log = logging.getLogger(__name__)

CLOSE_S = 20.0
"""Longest wait for trackers when a run ends."""


class Fanout:
    """Hands each event to all trackers; one that raises is named once and left out from then on."""

    def __init__(self, names: Iterable[str], place: Place) -> None:
        self._points = Points()
        self._trackers: dict[str, Tracker] = {}
        for name in names:
            try:
                self._trackers[name] = opener(name)(place)
            except Exception as error:
                log.warning("tracker %s does not open: %s: %s", name, type(error).__name__, error)

    def see(self, event: Event) -> None:
        """Take the next event of the log."""
        for told in self._points.take(event):
            for name, tracker in list(self._trackers.items()):
                try:
                    if isinstance(told, Point):
                        tracker.point(told)
                    else:
                        tracker.rewind(told.step, wall=told.wall)
                except Exception as error:
                    self._leave_out(name, error)

    def close(self) -> None:
        """Close all trackers, each whatever the others do."""
        for name, tracker in list(self._trackers.items()):
            try:
                tracker.close(status=self._points.history.status)
            except Exception as error:
                self._leave_out(name, error)
        self._trackers.clear()

    def _leave_out(self, name: str, error: Exception) -> None:
        del self._trackers[name]
        log.warning(
            "tracker %s failed and is left out (%s: %s); action=report draws it again from the log",
            name, type(error).__name__, error,
        )  # fmt: skip


def draw_again(names: Iterable[str], place: Place, events: Iterable[Event]) -> None:
    """Show a log in trackers from its first event to its last."""
    fanout = Fanout(names, place)
    for event in events:
        fanout.see(event)
    fanout.close()


class Following:
    """Trackers that follow a run. ``close`` waits at most CLOSE_S for them."""

    def __init__(
        self, names: tuple[str, ...], place: Place, *, events: EventLog, past: Iterable[Event]
    ) -> None:
        self._waiting: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        for event in past:
            self._waiting.put(event)
        self._stop = events.subscribe(self._waiting.put)
        self._thread = threading.Thread(
            target=self._work, args=(names, place), name="trackers", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Tell the trackers what is left and let go of them."""
        self._stop()
        self._waiting.put(None)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            log.warning("trackers were not done after %.0f s and are left behind", CLOSE_S)

    def _work(self, names: tuple[str, ...], place: Place) -> None:
        fanout = Fanout(names, place)
        while (event := self._waiting.get()) is not None:
            fanout.see(event)
        fanout.close()
