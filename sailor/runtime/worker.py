"""One worker process: a training thread, a control thread, a builder thread.

The control thread listens to the agent and ticks, whatever the others do. The builder prepares the
next generation while the present one trains. The main thread trains, halts, switches. A worker
decides nothing about membership: when a peer is gone it leaves the step and waits to be told. It
ends with its zygote, hence with its agent.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

from sailor.checkpoint.interval import steps_between
from sailor.checkpoint.segment import CorruptSnapshot, Segment
from sailor.errors import DataError
from sailor.faults import Poison
from sailor.log import Stamp, configure_log
from sailor.parallel.comm import Aborted, build_groups, waits
from sailor.parallel.layout import Layout, WorkerId
from sailor.parallel.roles import role_of
from sailor.parallel.sandbox import Recorder, Recording, StaleRecording
from sailor.parallel.stand_in import same_seat
from sailor.runtime.messages import (
    Diverged,
    Drop,
    Go,
    Halt,
    Message,
    Recorded,
    Shutdown,
    StepRecord,
    StoreValues,
)
from sailor.runtime.poison import stricken, strike
from sailor.runtime.process import die_with_parent, name_process, see_one_gpu
from sailor.runtime.rehearsal import CannotRehearse, rehearse
from sailor.runtime.seat import (
    Seat,
    SpoiledSource,
    complete_snapshot,
    take_boxes,
    write_snapshot,
)
from sailor.runtime.side_copy import SideCopy
from sailor.runtime.standby import numerics_of
from sailor.runtime.store_client import RemoteStore, StoreRequests
from sailor.runtime.watchdog import TICK_S, Doing, ProgressPage, Ticker
from sailor.runtime.worker_link import (
    Applied,
    Build,
    Built,
    Channel,
    ChannelClosed,
    CouldNot,
    Done,
    Grant,
    Ready,
    Rehearse,
    Rehearsed,
    Stood,
    Take,
    Took,
    WantSegment,
    Written,
)
from sailor.training.trainer import Costs, StepOutcome, StepRefused, Trainer

log = logging.getLogger(__name__)

NICENESS = 5  # the agent stays responsive when every core computes
GRANT_WAIT_S = 5.0  # for a snapshot that must be: at a halt, or of a step to be durable


def run_worker(me: WorkerId, end: socket.socket, *, progress: str, parent: int) -> None:
    """Serve the agent at the other end of ``end`` until told to shut down. In a fresh fork."""
    die_with_parent(parent)
    name_process(f"worker {me.slot}.{me.incarnation}")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    see_one_gpu(me.slot)
    torch.set_num_threads(1)
    threading.excepthook = _end_process
    configure_log(stamp := Stamp(who=str(me)))
    ticker = Ticker(ProgressPage.attach(Path(progress)), me.slot)
    Worker(me, Channel(end), ticker, stamp=stamp).run()


def _end_process(failure: threading.ExceptHookArgs) -> None:
    """A worker without one of its threads is no worker."""
    log.critical(
        "thread %s failed", failure.thread and failure.thread.name, exc_info=failure.exc_value
    )
    logging.shutdown()
    os._exit(1)


class Worker:
    """The three threads and what they share. Only the main thread touches ``_seat``'s trainer."""

    def __init__(self, me: WorkerId, channel: Channel, ticker: Ticker, *, stamp: Stamp) -> None:
        self._me = me
        self._stamp = stamp
        self._channel = channel
        self._ticker = ticker
        self._orders: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._builds: queue.SimpleQueue[Build | Rehearse] = queue.SimpleQueue()
        self._rehearsing = threading.Event()  # set: whatever is rehearsed is called off
        self._recordings: dict[str, Recording] = {}  # by role; only the builder uses them
        self._store = StoreRequests(self._channel.send)
        self._lock = threading.Lock()  # guards the two seats and the aborts of builds
        self._seat: Seat | None = None
        self._prepared: Seat | None = None
        self._building: dict[int, threading.Event] = {}
        self._training = False  # the seat's groups are in use and none was left
        self._warm = False  # this process has computed a step

    # Main thread

    def run(self) -> None:
        """Until the agent says Shutdown or is gone."""
        threading.Thread(target=self._control, name="control", daemon=True).start()
        threading.Thread(target=self._build_loop, name="builder", daemon=True).start()
        self._channel.send(Ready(pid=os.getpid()))
        while True:
            order = self._orders.get()
            match order:
                case Take():
                    self._take(order)
                case Go():
                    self._go(order)
                case Halt():
                    self._stand(order)
                case Drop():
                    self._give_up(order.generation)
                case Shutdown():
                    return

    def _take(self, order: Take) -> None:
        """Fill the prepared seat and sit on it; the old one, if any, is given up."""
        began = time.monotonic()
        with self._lock:
            new, old = self._prepared, self._seat
        if new is None or new.generation != order.generation:
            self._could_not(order.generation, "was not prepared")
            return
        if new.lender is not None and (new.lender is not old or old.abort.is_set()):
            self._could_not(order.generation, "the groups it was to take over were left")
            return
        if new.heir_of is not None and new.heir_of is not old:
            self._could_not(order.generation, "the seat it was to go on from was left")
            return
        self._move(Doing.preparing, step=-1)
        try:
            moved = take_boxes(new, order.sources, step=order.step, old=old)
        except (DataError, SpoiledSource, ValueError) as error:
            self._could_not(order.generation, str(error), path=getattr(error, "path", ""))
            return
        new.sit_down()
        new.step = order.step
        with self._lock:
            self._seat, self._prepared = new, None
        self._stamp.generation = new.generation
        if old is not None:
            old.leave(keep=new.groups)
        self._move(Doing.halted, step=new.step)
        copy_s = time.monotonic() - began
        self._channel.send(Took(generation=new.generation, copy_s=copy_s, bytes_moved=moved))

    def _go(self, order: Go) -> None:
        """Train until the last step, a stop vote, an abort or a lost peer."""
        seat = self._seat
        if seat is None or seat.generation != order.generation or seat.step != order.step:
            log.warning("told to go on in generation %d without its state", order.generation)
            with self._lock:
                self._training = False
            return
        total = seat.settings.train.total_steps
        seat.trainer.recall(order.losses)
        seat.losses_per_s = order.losses_per_s
        self._move(Doing.training, step=seat.step)
        with self._lock:
            self._training = True
        try:
            if seat.step == 0:
                self._evaluate_start(seat)
            stopped = False
            # Alone in its world a worker waits for nobody, and so would never see the abort.
            while seat.step < total and not stopped and not seat.abort.is_set():
                if seat.rank in order.record and seat.step == order.step + 1:
                    stopped = self._recorded_step(seat)
                else:
                    stopped = self._step(seat)
        except Aborted as error:
            why = str(error).partition(". ")[0]
            log.info("left generation %d after step %d: %s", seat.generation, seat.step, why)
            self._move(Doing.halted, step=seat.step)
            if not seat.abort.is_set():  # nobody told us to: that may be all there is to be known
                self._could_not(seat.generation, f"left step {seat.step + 1}: {why}")
            return
        except StepRefused as error:
            log.warning("generation %d: %s", seat.generation, error)
            self._channel.send(
                Diverged(
                    generation=seat.generation, node=self._me.node, step=error.step,
                    loss=error.loss, why=error.why,
                )
            )  # fmt: skip
            return
        finally:
            with self._lock:
                self._training = False
        if seat.step >= total:
            self._move(Doing.finished, step=seat.step)
            if seat.snapshot_step != seat.step:
                self._snapshot(seat, must=True)
            self._channel.send(Done(generation=seat.generation, step=seat.step))

    def _step(self, seat: Seat, *, then: Callable[[], object] | None = None) -> bool:
        """One step, ``then``, and what is due after it. Whether all ranks voted to stop here."""
        train = seat.settings.train
        waited_s, poison = waits.seconds, self._ticker.poison()
        if poison is Poison.hang:
            threading.Event().wait()  # whoever watches must find out
        trainer = seat.trainer
        with stricken(trainer.state, poison is Poison.step, changed=trainer.republish):
            outcome = seat.trainer.step(
                seat.step + 1, stop=seat.stop.is_set(), room=lambda: not seat.grants.empty(),
                costs=Costs(snapshot_s=seat.snapshot_s, step_s=seat.step_s),
            )  # fmt: skip
        if then is not None:
            then()
        seat.step += 1
        if poison is Poison.state:
            strike(seat.trainer.state)
        busy_s = max(0.0, outcome.seconds - (waits.seconds - waited_s))
        self._move(Doing.training, step=seat.step, busy_s=busy_s)
        self._complete(seat)
        seat.step_s, seat.since = outcome.seconds, seat.since + 1
        seat.every = train.snapshot_every or steps_between(  # the same numbers on every rank
            stall_s=outcome.costs.snapshot_s, step_s=outcome.costs.step_s,
            losses_per_s=seat.losses_per_s,
        )  # fmt: skip
        record = _record(seat, outcome)
        seat.records.append(record)
        last = seat.step == train.total_steps
        durable = last or (train.persist_every > 0 and seat.step % train.persist_every == 0)
        if durable:
            seat.since = 0
            self._snapshot(seat, must=True)
        elif self._is_due(seat):
            if outcome.room:  # everywhere: all ranks snapshot this step, or none does
                seat.since = 0
                self._snapshot(seat, must=False)
            else:
                seat.skipped += 1
        if last or (train.eval_every > 0 and seat.step % train.eval_every == 0):
            self._move(Doing.evaluating, step=seat.step)
            record = msgspec.structs.replace(record, eval_loss=seat.trainer.evaluate())
            self._move(Doing.training, step=seat.step)
            seat.records[-1] = record
        self._report(seat, record)
        return outcome.stop

    def _is_due(self, seat: Seat) -> bool:
        """Whether all ranks are to take a snapshot after this step."""
        if seat.settings.train.snapshot_every:
            return seat.step % seat.every == 0
        return seat.since >= seat.every

    def _recorded_step(self, seat: Seat) -> bool:
        """A step whose collectives' answers are noted, for whoever is to take a seat like this."""
        role = role_of(seat.layout, seat.rank, numerics=numerics_of(seat.settings.train))
        recorder = Recorder(seat.layout, seat.rank, role=role)
        seat.trainer.connect(recorder.wrap(seat.groups))
        # What follows the step, evaluation above all, is no part of it.
        stopped = self._step(seat, then=lambda: seat.trainer.connect(seat.groups))
        data = recorder.recording().to_bytes()
        self._channel.send(Recorded(generation=seat.generation, role=role, data=data))
        return stopped

    def _evaluate_start(self, seat: Seat) -> None:
        """The held-out loss before any step, as a record of step 0."""
        began = time.monotonic()
        self._move(Doing.evaluating, step=seat.step)
        loss = seat.trainer.evaluate()
        self._move(Doing.training, step=seat.step)
        seconds = time.monotonic() - began
        record = StepRecord(
            step=0, generation=seat.generation, loss=loss, tokens=0, grad_norm=0.0,
            learning_rate=0.0, seconds=seconds, phases={"evaluate": seconds}, first_sample=0,
            num_samples=0, eval_loss=loss,
        )  # fmt: skip
        seat.records.append(record)
        self._report(seat, record)

    def _report(self, seat: Seat, record: StepRecord) -> None:
        if seat.rank == 0:
            self._channel.send(Applied(generation=seat.generation, record=record))

    def _snapshot(self, seat: Seat, *, must: bool) -> None:
        """Copy the state after the present step. One that must be waits for a segment, a little."""
        self._complete(seat)
        if must and seat.grants.empty():
            self._channel.send(WantSegment(generation=seat.generation))
        made = write_snapshot(seat, wait_s=GRANT_WAIT_S if must else 0.0)
        if made is None:
            if must:
                log.warning("no segment was free for the snapshot of step %d", seat.step)
            return
        seat.copying = made
        if must or made.event is None:
            self._complete(seat)

    def _complete(self, seat: Seat) -> None:
        """Tell of the newest copy, when it is whole, if that has not been done."""
        made, seat.copying = seat.copying, None
        if made is None:
            return
        complete_snapshot(seat, made)
        seat.snapshot_s = made.stall_s
        self._channel.send(
            Written(
                generation=seat.generation,
                step=made.step,
                segment=made.segment,
                stall_s=made.stall_s,
                skipped=seat.skipped,
            )
        )

    def _stand(self, order: Halt) -> None:
        """Stand between two steps, with a snapshot of the one applied."""
        seat = self._seat
        if seat is None or seat.generation != order.generation:
            self._channel.send(Stood(generation=order.generation, step=-1, records=()))
            return
        if not order.boundary:
            seat.leave()
        self._complete(seat)
        if seat.snapshot_step != seat.step >= 0:
            self._snapshot(seat, must=True)
        finished = seat.step >= seat.settings.train.total_steps
        self._move(Doing.finished if finished else Doing.halted, step=seat.step)
        records = tuple(seat.records)
        self._channel.send(Stood(generation=order.generation, step=seat.step, records=records))

    def _give_up(self, generation: int) -> None:
        """No role any more: let the memory go."""
        seat = self._seat
        if seat is not None and seat.generation == generation:
            seat.leave()
            with self._lock:
                self._seat = None
            self._move(Doing.idle, step=-1)

    def _could_not(self, generation: int, reason: str, *, path: str = "") -> None:
        log.warning("generation %d: %s", generation, reason)
        self._channel.send(CouldNot(generation=generation, reason=reason, path=path))

    def _move(self, doing: Doing, *, step: int, busy_s: float = 0.0) -> None:
        device = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        self._ticker.move(step=step, doing=doing, device_bytes=device, busy_s=busy_s)

    # Control thread

    def _control(self) -> None:
        """Hear the agent within a tick, whatever the main thread does."""
        try:
            while True:
                self._ticker.tick()
                message = self._channel.receive(timeout_s=TICK_S)
                if message is not None:
                    self._hear(message)
        except (ChannelClosed, msgspec.MsgspecError) as error:
            log.error("the agent is gone: %s", error)
            logging.shutdown()
            os._exit(1)

    def _hear(self, message: Any) -> None:
        match message:
            case StoreValues():
                self._store.deliver(message)
                return
            case Grant():
                self._granted(message)
                return
            case Rehearse():
                self._builds.put(message)
                return
            case Build():
                self._rehearsing.set()
                with self._lock:
                    for superseded in self._building.values():
                        superseded.set()
                    self._building[message.generation] = threading.Event()
                self._builds.put(message)
                return
            case Drop():
                self._drop(message.generation)
            case Halt():
                self._interrupt(message)
            case Take():
                self._overtaken()
            case Go():
                self._about_to_train(message)
        self._orders.put(message)

    def _about_to_train(self, go: Go) -> None:
        """From now on the seat's groups are in use, though its thread may be late to begin: a Build
        right behind must find the same on all workers of a group, or some wait for the others."""
        with self._lock:
            seat = self._seat
            if seat is not None and seat.generation == go.generation and not seat.abort.is_set():
                self._training = True

    def _granted(self, grant: Grant) -> None:
        with self._lock:
            for seat in (self._seat, self._prepared):
                if seat is not None and seat.generation == grant.generation:
                    if grant.segment not in seat.segments:
                        spare = Segment.attach(Path(grant.segment))
                        spare.touch()  # the agent has faulted it in; this maps it here
                        seat.side_copy.lock((spare,))
                        seat.segments = {**seat.segments, grant.segment: spare}
                    seat.grants.put(grant.segment)

    def _interrupt(self, halt: Halt) -> None:
        """What cannot wait for the main thread: the stop vote, or the abort."""
        with self._lock:
            seat = self._seat
        if seat is None or seat.generation != halt.generation:
            return
        if halt.boundary:
            seat.stop.set()
        else:
            seat.interrupt()

    def _overtaken(self) -> None:
        """Told to switch while training: the controller we trained for is history."""
        with self._lock:
            if self._training and self._seat is not None:
                log.warning("generation %d ends without a halt", self._seat.generation)
                self._seat.interrupt()

    def _drop(self, generation: int) -> None:
        """Forget a generation that is being built or was."""
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

    def _build_loop(self) -> None:
        while True:
            order = self._builds.get()
            if isinstance(order, Rehearse):
                self._serve_rehearsal(order)
            else:
                self._serve_build(order)

    def _serve_rehearsal(self, order: Rehearse) -> None:
        """Run a step of a role that this worker may be given, and let all of it go again."""
        role = order.role
        self._rehearsing.clear()
        with self._lock:
            if self._building:
                self._rehearsing.set()  # a Build came before this was cleared
        seconds, error = 0.0, ""
        try:
            recording = Recording.from_bytes(role.recording)
            self._recordings[role.role] = recording
            layout = Layout(
                plan=order.plan, spec=order.settings.spec, pieces=order.settings.pieces,
                workers=order.workers,
            )  # fmt: skip
            trainer = Trainer(layout=layout, rank=role.rank, settings=order.settings.train)
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
        with self._lock:
            seat = self._seat
        real = [] if seat is None else [t for b in seat.trainer.state.values() for t in (b.weight,)]
        recording = self._recordings[role]
        seconds = rehearse(trainer, recording, role=role, abort=abort, real=real)
        self._warm = True
        return seconds

    def _serve_build(self, order: Build) -> None:
        with self._lock:
            abort = self._building.get(order.generation)
        if abort is None or abort.is_set():
            return
        try:
            seat = self._build(order, abort)
        except (Aborted, CorruptSnapshot, ValueError, MemoryError) as error:
            if not abort.is_set():
                self._could_not(order.generation, f"{type(error).__name__}: {error}")
            return
        with self._lock:
            dropped = self._building.pop(order.generation, None) is None
            replaced, self._prepared = self._prepared, None if dropped else seat
        for unwanted in (replaced, seat if dropped else None):
            if unwanted is not None:
                unwanted.leave()
        if not dropped:
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
        with self._lock:
            seated = self._seat
        if order.kept:
            if seated is None or not same_seat(seated.layout, seated.rank, layout, rank):
                raise ValueError(f"{self._me} holds no seat it could go on from")
            heir_of, trainer, side_copy = seated, seated.trainer, seated.side_copy
        else:
            heir_of = None
            trainer = Trainer(layout=layout, rank=rank, settings=settings.train)
            side_copy = SideCopy(trainer.device)
            trainer.touch()
        with self._lock:
            # Whoever trains still has clean groups. In a group whose key stays the same, all do.
            present = self._seat if self._training else None
        reuse = present.groups if present is not None else {}
        groups = build_groups(
            layout,
            rank,
            generation=order.generation,
            store=RemoteStore(self._store, generation=order.generation, abort=abort),
            abort=abort,
            timeout_s=order.timeout_s,
            host=order.host,
            device=settings.train.device,
            reuse=reuse,
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
            lender=present,
            heir_of=heir_of,
        )


def _record(seat: Seat, done: StepOutcome) -> StepRecord:
    return StepRecord(
        step=done.step,
        generation=seat.generation,
        loss=done.loss,
        tokens=done.tokens,
        grad_norm=done.grad_norm,
        learning_rate=done.learning_rate,
        seconds=done.seconds,
        phases=dict(done.phases),
        first_sample=done.first_sample,
        num_samples=done.num_samples,
        skipped=done.skipped,
        snapshot_every=seat.every,
    )
