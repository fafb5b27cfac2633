"""One worker process: a training thread, a control thread, a builder thread.

The control thread listens to the agent and ticks, whatever the others do. The builder prepares the
next generation while the present one trains. The main thread trains, halts, switches. A worker
decides nothing about membership: when a peer is gone it leaves the step and waits to be told. It
ends with its zygote, hence with its agent.
"""

from __future__ import annotations

import faulthandler
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
from sailor.errors import DataError
from sailor.faults import Poison
from sailor.log import Stamp, configure_log
from sailor.parallel.comm import Aborted, waits
from sailor.parallel.layout import WorkerId
from sailor.parallel.roles import role_of
from sailor.parallel.sandbox import Recorder
from sailor.runtime.builder import Builder
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
from sailor.runtime.seat import Seat, SpoiledSource, start_snapshot, take_boxes
from sailor.runtime.seats import Seats
from sailor.runtime.standby import numerics_of
from sailor.runtime.watchdog import TELL, TICK_S, Doing, ProgressPage, Ticker
from sailor.runtime.worker_link import (
    Applied,
    Build,
    Channel,
    ChannelClosed,
    CouldNot,
    Done,
    Grant,
    Ready,
    Rehearse,
    Stood,
    Take,
    Took,
    WantSegment,
)
from sailor.training.trainer import Costs, StepOutcome, StepRefused

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
    faulthandler.register(TELL, all_threads=True)
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
    """The main thread and the control thread, and what they share with the builder."""

    def __init__(self, me: WorkerId, channel: Channel, ticker: Ticker, *, stamp: Stamp) -> None:
        self._me = me
        self._stamp = stamp
        self._channel = channel
        self._ticker = ticker
        self._orders: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._seats = Seats()
        self._builder = Builder(me, self._seats, channel, ticker)
        self._stood_cpu_s = 0.0  # processor seconds of this process as it last stood still

    # Main thread

    def run(self) -> None:
        """Until the agent says Shutdown or is gone."""
        threading.Thread(target=self._control, name="control", daemon=True).start()
        threading.Thread(target=self._builder.run, name="builder", daemon=True).start()
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
        began, began_cpu_s = time.monotonic(), time.process_time()
        new, old = self._seats.prepared, self._seats.seated
        if old is not None and old.step == order.step:  # it stood still for this
            began_cpu_s = self._stood_cpu_s
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
        new.sit_down(moved=moved)
        new.step = order.step
        self._seats.sit_down(new)
        self._stamp.generation = new.generation
        if old is not None:
            old.leave(keep=new.groups)
        self._move(Doing.halted, step=new.step)
        copy_s, cpu_s = time.monotonic() - began, time.process_time() - began_cpu_s
        self._channel.send(
            Took(generation=new.generation, copy_s=copy_s, bytes_moved=moved, cpu_s=cpu_s)
        )

    def _go(self, order: Go) -> None:
        """Train until the last step, a stop vote, an abort or a lost peer."""
        seat = self._seats.seated
        if seat is None or seat.generation != order.generation or seat.step != order.step:
            log.warning("told to go on in generation %d without its state", order.generation)
            self._seats.use(now=False)
            return
        total = seat.settings.train.total_steps
        seat.trainer.recall(order.losses)
        seat.losses_per_s = order.losses_per_s
        self._move(Doing.training, step=seat.step)
        self._seats.use(now=True)
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
            self._seats.use(now=False)
        if seat.step >= total:
            self._move(Doing.finished, step=seat.step)
            if seat.snapshot_step != seat.step:
                self._snapshot(seat, must=True)
            seat.settle()
            self._channel.send(Done(generation=seat.generation, step=seat.step))

    def _step(self, seat: Seat, *, then: Callable[[], object] | None = None) -> bool:
        """One step, ``then``, and what is due after it. Whether all ranks voted to stop here."""
        train = seat.settings.train
        waited_s, poison = waits.seconds, self._ticker.poison()
        if poison is not Poison.none:
            seat.settle()  # what is struck must not be what is being copied
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
        if outcome.stop:
            seat.last_step = seat.step
        if poison is Poison.state:
            strike(seat.trainer.state)
        busy_s = max(0.0, outcome.seconds - (waits.seconds - waited_s))
        self._move(Doing.training, step=seat.step, busy_s=busy_s)
        seat.took(outcome.seconds)
        seat.since += 1
        if (held_s := outcome.phases.get("snapshot")) is not None:
            seat.snapshot_s = seat.start_s + held_s
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
        """Have the state after the present step copied. One that must be waits for a segment, a
        little."""
        seat.settle()
        if must and seat.grants.empty():
            self._channel.send(WantSegment(generation=seat.generation))
        wait_s = GRANT_WAIT_S if must else 0.0
        if not start_snapshot(seat, wait_s=wait_s, told=self._channel.send) and must:
            log.warning("no segment was free for the snapshot of step %d", seat.step)

    def _stand(self, order: Halt) -> None:
        """Stand between two steps, with a snapshot of the one applied."""
        self._stood_cpu_s = time.process_time()
        seat = self._seats.seated
        if seat is None or seat.generation != order.generation:
            self._channel.send(Stood(generation=order.generation, step=-1, records=()))
            return
        if not order.boundary:
            seat.leave()
        if seat.snapshot_step != seat.step >= 0:
            self._snapshot(seat, must=True)
        seat.settle()
        finished = seat.step >= seat.settings.train.total_steps
        self._move(Doing.finished if finished else Doing.halted, step=seat.step)
        records = tuple(r for r in seat.records if (r.generation, r.step) > order.logged)
        self._channel.send(Stood(generation=order.generation, step=seat.step, records=records))

    def _give_up(self, generation: int) -> None:
        """No role any more: let the memory go."""
        seat = self._seats.seated
        if seat is not None and seat.generation == generation:
            seat.leave()
            self._seats.stand_up()
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
                self._builder.deliver(message)
                return
            case Grant():
                self._seats.grant(message)
                return
            case Rehearse() | Build():
                self._builder.ask(message)
                return
            case Drop():
                self._seats.drop(message.generation)
            case Halt():
                self._seats.halt(message)
            case Take():
                self._seats.overtaken()
            case Go():
                self._seats.about_to_train(message)
        self._orders.put(message)


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
