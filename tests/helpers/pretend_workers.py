"""Workers that only pretend to train, inside the agent's own process, without torch.

They speak the words of ``runtime.worker_link`` as a real worker does: build through the store,
take boxes from where they are told, snapshot into granted segments, vote, stand, leave a step whose
peers are gone. What they compute is in ``pretend_exchange``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sailor.checkpoint.files import place
from sailor.checkpoint.segment import CorruptSnapshot, Segment
from sailor.checkpoint.store import Reader
from sailor.parallel.layout import Layout, WorkerId
from sailor.parallel.stand_in import same_seat
from sailor.runtime import messages as m
from sailor.runtime.transport import LinkClosed
from sailor.runtime.worker_link import (
    Applied,
    Build,
    Built,
    CouldNot,
    Done,
    Grant,
    LocalSource,
    Stood,
    Take,
    Took,
    WantSegment,
    Written,
)
from tests.helpers.pretend_exchange import Exchange, Left, advance, first_state

GRANT_WAIT_S = 1.0
STEP_S = 0.004  # a little longer than a step's messages take


@dataclass(kw_only=True, eq=False)
class _Seat:
    """One rank of one generation."""

    generation: int
    settings: m.RunSettings
    layout: Layout
    rank: int
    timeout_s: float
    state: dict[str, np.ndarray]
    kept: bool
    segments: dict[str, Segment] = field(default_factory=dict)
    grants: deque[str] = field(default_factory=deque)
    granted: asyncio.Event = field(default_factory=asyncio.Event)
    abort: asyncio.Event = field(default_factory=asyncio.Event)
    stop: bool = False
    step: int = -1
    snapshot_step: int = -1
    records: deque[m.StepRecord] = field(default_factory=lambda: deque(maxlen=64))


class Worker:
    """One worker; its messages to the agent go through ``say``, in order."""

    def __init__(
        self, me: WorkerId, *, exchange: Exchange, chance: random.Random,
        say: Callable[[Any], None],
    ) -> None:  # fmt: skip
        self.me = me
        self._exchange = exchange
        self._chance = chance
        self._say = say
        self._orders: asyncio.Queue[Any] = asyncio.Queue()
        self._seat: _Seat | None = None
        self._prepared: _Seat | None = None
        self._building: dict[int, asyncio.Task[None]] = {}
        self._answers: dict[int, asyncio.Future[tuple[bytes, ...]]] = {}
        self._asked = 0
        self.fails_next: str = ""  # what it cannot do the next time: "build" or "take"

    @property
    def doing(self) -> tuple[str, int, int]:
        """What it does, its step and its generation."""
        seat = self._seat
        if seat is None:
            return "idle", -1, 0
        total = seat.settings.train.total_steps
        return "finished" if seat.step >= total else "training", seat.step, seat.generation

    def hear(self, message: Any) -> None:
        """A word of the agent: what cannot wait is done now, the rest in order."""
        match message:
            case m.StoreValues():
                waiting = self._answers.pop(message.request, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message.values)
                return
            case Grant():
                for seat in (self._seat, self._prepared):
                    if seat is not None and seat.generation == message.generation:
                        seat.grants.append(message.segment)
                        seat.granted.set()
                return
            case Build():
                for task in self._building.values():
                    task.cancel()
                self._building = {message.generation: asyncio.ensure_future(self._build(message))}
                return
            case m.Drop():
                task = self._building.pop(message.generation, None)
                if task is not None:
                    task.cancel()
                if self._prepared is not None and self._prepared.generation == message.generation:
                    self._prepared = None
            case m.Halt() if self._seat is not None and self._seat.generation == message.generation:
                if message.boundary:
                    self._seat.stop = True
                else:
                    self._seat.abort.set()
            case Take() if self._seat is not None:
                if self._seat.step >= 0 and message.generation > self._seat.generation:
                    self._seat.abort.set()
        self._orders.put_nowait(message)

    async def run(self) -> None:
        """Until cancelled, as by SIGKILL."""
        try:
            while True:
                match await self._orders.get():
                    case Take() as order:
                        self._take(order)
                    case m.Go() as order:
                        await self._go(order)
                    case m.Halt() as order:
                        await self._stand(order)
                    case m.Drop(generation=generation):
                        if self._seat is not None and self._seat.generation == generation:
                            self._seat = None
        finally:
            for task in self._building.values():
                task.cancel()

    async def _build(self, order: Build) -> None:
        settings = order.settings
        layout = Layout(
            plan=order.plan, spec=settings.spec, pieces=settings.pieces, workers=order.workers
        )
        rank = layout.rank_of(self.me)
        assert rank is not None
        if self.fails_next == "build":
            self.fails_next = ""
            self._say(CouldNot(generation=order.generation, reason="out of memory, or so"))
            return
        old = self._seat
        if order.kept:
            assert old is not None
            assert same_seat(old.layout, old.rank, layout, rank)
        await asyncio.sleep(self._chance.uniform(0, 0.01))
        generation = order.generation
        self._say(m.StoreSet(generation=generation, key=f"rank{rank}", value=str(self.me).encode()))
        self._asked += 1
        request = self._asked
        answer = asyncio.get_running_loop().create_future()
        self._answers[request] = answer
        keys = tuple(f"rank{other}" for other in range(layout.world_size))
        self._say(m.StoreGet(generation=generation, request=request, keys=keys, seconds=20.0))
        if not await answer:
            self._say(CouldNot(generation=generation, reason="the groups were not built"))
            return
        fresh = {box.name: np.empty(box.num_bytes // 4, np.uint32) for box in layout.kept[rank]}
        self._prepared = _Seat(
            generation=generation, settings=settings, layout=layout, rank=rank,
            timeout_s=order.timeout_s, state=old.state if order.kept and old is not None else fresh,
            kept=order.kept,
        )  # fmt: skip
        self._building.pop(generation, None)
        self._say(Built(generation=generation))

    def _take(self, order: Take) -> None:
        new, old = self._prepared, self._seat
        if new is None or new.generation != order.generation:
            self._say(CouldNot(generation=order.generation, reason="was not prepared"))
            return
        if self.fails_next == "take":
            self.fails_next = ""
            self._say(CouldNot(generation=order.generation, reason="does not want to"))
            return
        moved = 0
        left = set(new.state)
        if "live" in (source.tier for source in order.sources):
            named = {name for source in order.sources for name in source.boxes}
            if old is None or old.step != order.step or not left - named <= old.state.keys():
                self._say(CouldNot(generation=order.generation, reason="does not hold all of it"))
                return
            for name in () if new.kept else left - named:
                new.state[name][:] = old.state[name]
            left = named
        for source in order.sources:
            if source.tier == "live":
                continue
            if new.kept and old is not None:
                old.step = -1
            try:
                moved += self._from(source, new, step=order.step)
            except (CorruptSnapshot, ValueError, OSError) as error:
                path = source.path if isinstance(error, CorruptSnapshot) else ""
                self._say(CouldNot(generation=order.generation, reason=str(error), path=path))
                return
        taken = {name for source in order.sources for name in source.boxes}
        if taken != left:
            self._say(CouldNot(generation=order.generation, reason="boxes without a source"))
            return
        if new.kept and old is not None:
            new.segments = old.segments
        new.step = order.step
        self._seat, self._prepared = new, None
        self._say(Took(generation=new.generation, copy_s=0.0, bytes_moved=moved))

    def _from(self, source: LocalSource, new: _Seat, *, step: int) -> int:
        boxes = {box.name: box for box in new.layout.kept[new.rank]}
        moved = 0
        if source.tier == "init":
            for name in source.boxes:
                new.state[name][:] = first_state(boxes[name])
            return 0
        if source.tier == "disk":
            reader = Reader(place(source.path))
            if reader.manifest.step != step:
                raise CorruptSnapshot(f"not of step {step}", where=source.path)
            for name in source.boxes:
                kinds = [np.ascontiguousarray(a).reshape(-1) for a in reader.read(name)]
                new.state[name][:] = np.concatenate(kinds).view(np.uint32)
                moved += new.state[name].nbytes
            return moved
        segment = Segment.attach(Path(source.path))
        segment.check_seal()
        if segment.snapshot.step != step:
            raise CorruptSnapshot(f"not of step {step}", where=str(segment))
        for name in source.boxes:
            segment.check(name)
            new.state[name][:] = np.frombuffer(segment.raw(name), np.uint32)
            moved += new.state[name].nbytes
        return moved

    async def _go(self, order: m.Go) -> None:
        seat = self._seat
        if seat is None or seat.generation != order.generation or seat.step != order.step:
            return
        total = seat.settings.train.total_steps
        try:
            if seat.step == 0 and seat.rank == 0:
                self._report(seat, loss=0.0, step=0)
            stopped = False
            while seat.step < total and not stopped and not seat.abort.is_set():
                stopped = await self._step(seat)
        except Left as error:
            if not seat.abort.is_set():
                reason = f"left step {seat.step + 1}: {error}"
                self._say(CouldNot(generation=seat.generation, reason=reason))
            return
        if seat.step >= total:
            if seat.snapshot_step != seat.step:
                await self._snapshot(seat, must=True)
            self._say(Done(generation=seat.generation, step=seat.step))

    async def _step(self, seat: _Seat) -> bool:
        await asyncio.sleep(self._chance.uniform(0.5, 1.5) * STEP_S)
        step = seat.step + 1
        firsts = {}
        for name, words in seat.state.items():
            word = words[:1].copy()
            advance(word, step=step)
            firsts[name] = int(word[0])
        stop, room, loss = await self._exchange.meet(
            seat.layout, seat.generation, step, seat.rank, stop=seat.stop, room=bool(seat.grants),
            firsts=firsts, abort=seat.abort, timeout_s=seat.timeout_s,
        )  # fmt: skip
        # Past the point of no return: whoever dies here has not applied what the others have.
        if self._chance.random() < 0.3:
            await asyncio.sleep(self._chance.uniform(0, 2 * STEP_S))
        for words in seat.state.values():
            advance(words, step=step)
        seat.step = step
        train = seat.settings.train
        durable = step == train.total_steps or (
            train.persist_every > 0 and step % train.persist_every == 0
        )
        if durable or (room and step % train.snapshot_every == 0):
            await self._snapshot(seat, must=durable)
        record = self._record(seat, loss=loss, step=step)
        seat.records.append(record)
        if seat.rank == 0:
            self._say(Applied(generation=seat.generation, record=record))
        return stop

    async def _snapshot(self, seat: _Seat, *, must: bool) -> None:
        if must and not seat.grants:
            self._say(WantSegment(generation=seat.generation))
            seat.granted.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GRANT_WAIT_S):
                    await seat.granted.wait()
        if not seat.grants:
            return
        path = seat.grants.popleft()
        segment = seat.segments.setdefault(path, Segment.attach(Path(path)))
        segment.begin(generation=seat.generation, step=seat.step)
        for name, words in seat.state.items():
            segment.raw(name)[:] = words.tobytes()
            if self._chance.random() < 0.02:
                await asyncio.sleep(0)  # torn, if it dies here
        segment.finish()
        seat.snapshot_step = seat.step
        self._say(
            Written(
                generation=seat.generation,
                step=seat.step,
                segment=path,
                stall_s=0.0,
                copy_s=0.0,
                skipped=0,
            )
        )

    async def _stand(self, order: m.Halt) -> None:
        seat = self._seat
        if seat is None or seat.generation != order.generation:
            self._say(Stood(generation=order.generation, step=-1, records=()))
            return
        if seat.snapshot_step != seat.step >= 0:
            await self._snapshot(seat, must=True)
        self._say(Stood(generation=order.generation, step=seat.step, records=tuple(seat.records)))

    def _report(self, seat: _Seat, *, loss: float, step: int) -> None:
        record = self._record(seat, loss=loss, step=step)
        seat.records.append(record)
        self._say(Applied(generation=seat.generation, record=record))

    def _record(self, seat: _Seat, *, loss: float, step: int) -> m.StepRecord:
        batch = seat.settings.train.global_batch_size if step else 0
        return m.StepRecord(
            step=step, generation=seat.generation, loss=loss, tokens=batch, grad_norm=1.0,
            learning_rate=1.0, seconds=STEP_S, phases={}, first_sample=max(0, step - 1) * batch,
            num_samples=batch,
        )  # fmt: skip


@dataclass(kw_only=True, eq=False)
class _Ear:
    """The agent's end of the way to a worker."""

    hear: Callable[[Any], None]
    closed: bool = False

    async def send(self, message: Any) -> None:
        if self.closed:
            raise LinkClosed("the worker is gone")
        self.hear(message)


@dataclass(kw_only=True, eq=False)
class Child:
    """A living worker, as runtime.nursery.Child has one."""

    worker: WorkerId
    pid: int
    link: _Ear
    body: Worker
    said: asyncio.Queue[Any]
    life: asyncio.Task[None] | None = None
    ear: asyncio.Task[None] | None = None
    generation: int = 0


class PretendNursery:
    """Stands where runtime.nursery.Nursery does: starts workers, hears them, replaces the dead."""

    def __init__(
        self, *, node: str, slots: int, page: Any, exchange: Exchange, chance: random.Random,
        on_message: Callable[[Any, Any], Awaitable[None]],
        on_up: Callable[[Any], Awaitable[None]],
        on_lost: Callable[[Any, str, float], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._node = node
        self._slots = slots
        self._exchange = exchange
        self._chance = chance
        self._on_message, self._on_up, self._on_lost = on_message, on_up, on_lost
        self._incarnations = [0] * slots
        self._ending = False
        self._dying: set[asyncio.Task[None]] = set()
        self.children: dict[WorkerId, Child] = {}
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        for slot in range(self._slots):
            self._fork(slot)

    async def end(self) -> None:
        self._ending = True
        for task in self._dying:
            task.cancel()
        for child in list(self.children.values()):
            self._kill(child)
        self.children.clear()

    def statuses(self) -> tuple[m.WorkerStatus, ...]:
        found = []
        for worker, child in sorted(self.children.items()):
            doing, step, _ = child.body.doing
            found.append(
                m.WorkerStatus(
                    worker=worker, pid=child.pid, step=step, doing=doing,
                    generation=child.generation,
                )
            )  # fmt: skip
        return tuple(found)

    def kill(self, worker: WorkerId) -> None:
        """SIGKILL: from this instant it does nothing any more. Its agent sees it a little later."""
        child = self.children.get(worker)
        if child is not None and not child.link.closed:
            self._kill(child)
            task = asyncio.ensure_future(self._replace(child, began=time.monotonic()))
            self._dying.add(task)
            task.add_done_callback(self._dying.discard)

    async def _replace(self, child: Child, *, began: float) -> None:
        await asyncio.sleep(self._chance.uniform(0.0, 0.03))
        self.children.pop(child.worker, None)
        await self._on_lost(child, "killed by SIGKILL", time.monotonic() - began)
        await asyncio.sleep(self._chance.uniform(0.0, 0.05))
        await self._on_up(self._fork(child.worker.slot))

    def _fork(self, slot: int) -> Child:
        self._incarnations[slot] += 1
        me = WorkerId(node=self._node, slot=slot, incarnation=self._incarnations[slot])
        said: asyncio.Queue[Any] = asyncio.Queue()
        body = Worker(me, exchange=self._exchange, chance=self._chance, say=said.put_nowait)
        child = Child(
            worker=me, pid=1000 + self._incarnations[slot], link=_Ear(hear=body.hear), body=body,
            said=said,
        )  # fmt: skip
        child.life = asyncio.ensure_future(self._see_through(body))
        child.ear = asyncio.ensure_future(self._hand_on(child, said))
        self.children[me] = child
        return child

    async def _hand_on(self, child: Child, said: asyncio.Queue[Any]) -> None:
        """Never stopped inside the agent's own work: a worker's death does not unwind it."""
        while (message := await said.get()) is not None:
            await self._on_message(child, message)

    async def _see_through(self, body: Worker) -> None:
        try:
            await body.run()
        except Exception as error:  # a mistake in here must not look like a worker that hangs
            self._exchange.problems.append(f"a pretended worker broke: {error!r}")
            raise

    def _kill(self, child: Child) -> None:
        child.link.closed = True
        assert child.life is not None
        child.life.cancel()
        while not child.said.empty():  # words on their way are lost with it
            child.said.get_nowait()
        child.said.put_nowait(None)
        self._exchange.died(child.worker)
