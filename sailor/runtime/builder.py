"""What a worker prepares while it trains: its next seat, and roles it may be given, rehearsed.

A thread of its own, which takes one order after the other.
"""

from __future__ import annotations

import logging
import queue
import threading

from sailor.checkpoint.segment import CorruptSnapshot
from sailor.errors import DataError
from sailor.parallel.comm import Aborted
from sailor.parallel.groups import build_groups
from sailor.parallel.layout import Layout, WorkerId
from sailor.parallel.roles import role_of
from sailor.parallel.sandbox import Recording, StaleRecording
from sailor.parallel.stand_in import same_seat
from sailor.runtime.messages import StoreValues
from sailor.runtime.rehearsal import CannotRehearse, rehearse
from sailor.runtime.seat import Seat
from sailor.runtime.seats import Seats
from sailor.runtime.side_copy import SideCopy
from sailor.runtime.standby import numerics_of
from sailor.runtime.store_client import RemoteStore, StoreRequests
from sailor.runtime.understudy import Understudy
from sailor.runtime.watchdog import Ticker
from sailor.runtime.worker_link import Build, Built, Channel, CouldNot, Rehearse, Rehearsed
from sailor.training.trainer import Trainer

log = logging.getLogger(__name__)


class Builder:
    """One worker's. ``ask`` and ``deliver`` are the control thread's, all else is its own."""

    def __init__(self, me: WorkerId, seats: Seats, channel: Channel, ticker: Ticker) -> None:
        self._me = me
        self._seats = seats
        self._channel = channel
        self._ticker = ticker
        self._orders: queue.SimpleQueue[Build | Rehearse] = queue.SimpleQueue()
        self._rehearsing = threading.Event()  # set: whatever is rehearsed is called off
        self._recordings: dict[str, Recording] = {}  # by role
        self._understudy = Understudy()
        self._store = StoreRequests(channel.send)
        self._warm = False  # this process has computed a step

    def ask(self, order: Build | Rehearse) -> None:
        """Have it done. A seat is wanted at once, a rehearsal can be called off for it."""
        if isinstance(order, Build):
            self._rehearsing.set()
            self._seats.announce(order.generation)
        self._orders.put(order)

    def deliver(self, answer: StoreValues) -> None:
        """The store has answered whoever waits in a set-up."""
        self._store.deliver(answer)

    def run(self) -> None:
        """For ever."""
        while True:
            order = self._orders.get()
            if isinstance(order, Rehearse):
                self._serve_rehearsal(order)
                if self._orders.empty():
                    self._understudy.get_ready()
            else:
                self._serve_build(order)

    def _serve_rehearsal(self, order: Rehearse) -> None:
        """Run a step of a role that this worker may be given, and let all of it go again."""
        role = order.role
        self._rehearsing.clear()
        if self._seats.any_wanted:
            self._rehearsing.set()  # a Build came before this was cleared
        seconds, error = 0.0, ""
        try:
            recording = Recording.from_bytes(role.recording)
            self._recordings[role.role] = recording
            layout = Layout(
                plan=order.plan, spec=order.settings.spec, pieces=order.settings.pieces,
                workers=order.workers,
            )  # fmt: skip
            train = order.settings.train
            self._understudy.told(layout, role.rank, settings=train)
            trainer = Trainer(layout=layout, rank=role.rank, settings=train)
            seconds = self._rehearse(trainer, abort=self._rehearsing)
        except (CannotRehearse, StaleRecording, DataError, ValueError, MemoryError) as failure:
            self._recordings.pop(role.role, None)
            error = f"{type(failure).__name__}: {failure}"
        except Aborted as aborted:
            error = str(aborted)
        if error:
            log.warning("role %s was not rehearsed: %s", role.role, error)
        self._channel.send(
            Rehearsed(generation=order.generation, role=role.role, seconds=seconds, error=error)
        )

    def _get_warm(self, trainer: Trainer, order: Build, abort: threading.Event) -> None:
        """The first step of a process takes several times as long as the second: have it behind us.

        With a recording of the role the very trainer that is to be used runs a whole step; without
        one, or without time for it, a process that never ran any runs a short one alone.
        """
        if order.rehearse:
            try:
                seconds = self._rehearse(trainer, abort=abort)
                log.info("generation %d: rehearsed, %.3f s", order.generation, seconds)
                return
            except KeyError:
                log.info("generation %d: no recording of its role", order.generation)
            except CannotRehearse as failure:
                log.warning("generation %d: not rehearsed: %s", order.generation, failure)
        if order.warm_up and not self._warm:
            trainer.warm_up()
            self._warm = True

    def _rehearse(self, trainer: Trainer, *, abort: threading.Event) -> float:
        """Raises CannotRehearse, Aborted, and KeyError when there is no recording of the role."""
        role = role_of(trainer.layout, trainer.rank, numerics=numerics_of(trainer.settings))
        seat = self._seats.seated
        real = [] if seat is None else [t for b in seat.trainer.state.values() for t in (b.weight,)]
        recording = self._recordings[role]
        seconds = rehearse(trainer, recording, role=role, abort=abort, real=real)
        self._warm = True
        return seconds

    def _serve_build(self, order: Build) -> None:
        abort = self._seats.wanted(order.generation)
        if abort is None:
            return
        try:
            seat = self._build(order, abort)
        except (Aborted, CorruptSnapshot, ValueError, MemoryError) as error:
            if not abort.is_set():
                reason = f"{type(error).__name__}: {error}"
                log.warning("generation %d: %s", order.generation, reason)
                self._channel.send(CouldNot(generation=order.generation, reason=reason))
            return
        if self._seats.built(seat):
            self._channel.send(Built(generation=order.generation))

    def _build(self, order: Build, abort: threading.Event) -> Seat:
        """Allocate, fault in and connect one rank. Raises Aborted, ValueError, CorruptSnapshot.

        Nothing of the present seat is touched: whoever sits on it may be training.
        """
        settings = order.settings
        layout = Layout(
            plan=order.plan, spec=settings.spec, pieces=settings.pieces, workers=order.workers
        )
        rank = layout.rank_of(self._me)
        if rank is None:
            raise ValueError(f"{self._me} has no rank in generation {order.generation}")
        seated = self._seats.seated
        if order.kept:
            if seated is None or not same_seat(seated.layout, seated.rank, layout, rank):
                raise ValueError(f"{self._me} holds no seat it could go on from")
            heir_of, trainer, side_copy = seated, seated.trainer, seated.side_copy
        else:
            heir_of = None
            ready = self._understudy.take(layout, rank, settings=settings.train)
            trainer = ready or Trainer(layout=layout, rank=rank, settings=settings.train)
            side_copy = SideCopy(trainer.device)
            if ready is None:
                trainer.touch()
        lender = self._seats.lender
        groups = build_groups(
            layout,
            rank,
            generation=order.generation,
            store=RemoteStore(self._store, generation=order.generation, abort=abort),
            abort=abort,
            timeout_s=order.timeout_s,
            host=order.host,
            device=settings.train.device,
            reuse=lender.groups if lender is not None else None,
            waiting=self._ticker.waits,
        )
        if heir_of is None:
            self._get_warm(trainer, order, abort)
        return Seat(
            generation=order.generation,
            settings=settings,
            layout=layout,
            rank=rank,
            trainer=trainer,
            groups=groups,
            segments={},
            side_copy=side_copy,
            abort=abort,
            lender=lender,
            heir_of=heir_of,
        )
