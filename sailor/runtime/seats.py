"""The seats of a worker: the one it sits on, the one prepared for it, and those being built.

Its three threads all want them. What each method does, the others see done or not begun.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from sailor.checkpoint.segment import Segment
from sailor.runtime.messages import Go, Halt
from sailor.runtime.seat import Seat
from sailor.runtime.worker_link import Grant

log = logging.getLogger(__name__)


class Seats:
    """Who may use which: the seated one's trainer belongs to the main thread alone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seated: Seat | None = None
        self._prepared: Seat | None = None
        self._building: dict[int, threading.Event] = {}  # generation -> set: give it up
        self._in_use = False  # the seated one's groups are used, and none of them was left

    @property
    def seated(self) -> Seat | None:
        """The one the worker sits on."""
        with self._lock:
            return self._seated

    @property
    def prepared(self) -> Seat | None:
        """The one it can sit down on."""
        with self._lock:
            return self._prepared

    # Main thread

    def sit_down(self, seat: Seat) -> None:
        """On the prepared one."""
        with self._lock:
            self._seated, self._prepared = seat, None

    def stand_up(self) -> None:
        """It has no seat from here on."""
        with self._lock:
            self._seated = None

    def use(self, *, now: bool) -> None:
        """Whether steps are computed over the seated one's groups."""
        with self._lock:
            self._in_use = now

    # Control thread

    def about_to_train(self, go: Go) -> None:
        """From now on the seat's groups are in use, though its thread may be late to begin: a Build
        right behind must find the same on all workers of a group, or some wait for the others."""
        with self._lock:
            seat = self._seated
            if seat is not None and seat.generation == go.generation and not seat.abort.is_set():
                self._in_use = True

    def grant(self, grant: Grant) -> None:
        """A segment may be written into."""
        with self._lock:
            for seat in (self._seated, self._prepared):
                if seat is not None and seat.generation == grant.generation:
                    if grant.segment not in seat.segments:
                        spare = Segment.attach(Path(grant.segment))
                        spare.touch()  # the agent has faulted it in; this maps it here
                        seat.side_copy.lock((spare,))
                        seat.segments = {**seat.segments, grant.segment: spare}
                    seat.grants.put(grant.segment)

    def halt(self, halt: Halt) -> None:
        """What cannot wait for the main thread: the stop vote, or the abort."""
        seat = self.seated
        if seat is None or seat.generation != halt.generation:
            return
        if halt.boundary:
            seat.stop.set()
        else:
            seat.interrupt()

    def overtaken(self) -> None:
        """Told to switch while training: the controller we trained for is history."""
        with self._lock:
            if self._in_use and self._seated is not None:
                log.warning("generation %d ends without a halt", self._seated.generation)
                self._seated.interrupt()

    def announce(self, generation: int) -> None:
        """One is to be built. Those that are being built are not wanted any more."""
        with self._lock:
            for superseded in self._building.values():
                superseded.set()
            self._building[generation] = threading.Event()

    def drop(self, generation: int) -> None:
        """Forget one that is being built or was."""
        with self._lock:
            building = self._building.pop(generation, None)
            prepared = self._prepared
            if prepared is not None and prepared.generation == generation:
                self._prepared = None
            else:
                prepared = None
        if building is not None:
            building.set()
        if prepared is not None:
            prepared.leave()

    # Builder thread

    def wanted(self, generation: int) -> threading.Event | None:
        """The abort of one that is to be built; None where it was dropped."""
        with self._lock:
            abort = self._building.get(generation)
        return None if abort is None or abort.is_set() else abort

    @property
    def any_wanted(self) -> bool:
        """Whether one is to be built."""
        with self._lock:
            return bool(self._building)

    @property
    def lender(self) -> Seat | None:
        """Whose groups the next may take over. Whoever trains still has clean ones, and in a group
        whose key stays the same, all do."""
        with self._lock:
            return self._seated if self._in_use else None

    def built(self, seat: Seat) -> bool:
        """It is prepared, and nothing else is; False where it was dropped meanwhile."""
        with self._lock:
            wanted = self._building.pop(seat.generation, None) is not None
            replaced, self._prepared = self._prepared, seat if wanted else None
        for unwanted in (replaced, None if wanted else seat):
            if unwanted is not None:
                unwanted.leave()
        return wanted
