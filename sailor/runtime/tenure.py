"""A node's part in the generations of a run: words to the node become words to its workers.

For every generation it is told to prepare it knows which of its workers sit where, and who has
answered what. When all have, the node answers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from sailor.checkpoint.arena import OutOfSnapshotMemory
from sailor.checkpoint.replicate import TransferFailed, ping_seconds
from sailor.checkpoint.segment import CorruptSnapshot, shapes_of
from sailor.parallel.boxes import Box, total_bytes
from sailor.parallel.layout import Layout, WorkerId
from sailor.parallel.stand_in import same_seat
from sailor.runtime import messages as m
from sailor.runtime.custody import Custody
from sailor.runtime.identity import Identity
from sailor.runtime.keeper import ANCHORED_SEGMENTS, Keeper
from sailor.runtime.nursery import Child, Nursery
from sailor.runtime.sourcing import CannotTake, localise
from sailor.runtime.transport import LinkClosed
from sailor.runtime.worker_link import (
    Applied,
    Build,
    Built,
    CouldNot,
    Done,
    Rehearse,
    Rehearsed,
    Stood,
    Take,
    Took,
    WantSegment,
    Written,
)

log = logging.getLogger(__name__)

_REMEMBERED_STEPS = 4
_REMEMBERED_RECORDS = 4096  # for a controller that was away; some 400 bytes each


class NodeFacts(Protocol):
    """What a tenure needs of the agent's settings."""

    @property
    def node(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def identity(self) -> Identity: ...


@dataclass(kw_only=True, eq=False)
class Part:
    """This node's part of one generation. Sets hold the workers that have answered."""

    prepare: m.Prepare
    layout: Layout
    workers: tuple[WorkerId, ...]  # of this node, in rank order
    kept: frozenset[WorkerId] = frozenset()  # who does the same work as before
    built: set[WorkerId] = field(default_factory=set)
    roomy: bool = False  # its workers' snapshots have their memory
    taking: dict[WorkerId, asyncio.Future[Took]] = field(default_factory=dict)
    done: set[WorkerId] = field(default_factory=set)
    stood: dict[WorkerId, Stood] = field(default_factory=dict)
    halt: m.Halt | None = None  # not answered yet
    save: int | None = None  # the first snapshot from that step on is to be durable
    sealing: int = 0  # snapshots written but not verified yet
    snapshots: dict[int, dict[WorkerId, m.SnapshotId]] = field(default_factory=dict)  # by step
    copy_out: m.CopyOut | None = None  # asked for, and no snapshot there yet that will do

    def rank_of(self, worker: WorkerId) -> int:
        """The rank of one of ``workers``."""
        return self.layout.workers.index(worker)


class Tenure:
    """All generations this node is in or preparing."""

    def __init__(
        self,
        *,
        settings: NodeFacts,
        keeper: Keeper,
        nursery: Nursery,
        tell: Callable[[m.Message], Awaitable[None]],
        beside: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._facts = settings
        self._keeper = keeper
        self._nursery = nursery
        self._tell = tell
        self._beside = beside
        self._parts: dict[int, Part] = {}
        self._run: m.RunSettings | None = None
        self._rehearsing: dict[str, set[WorkerId]] = {}  # role -> workers that are at it
        self._custody = Custody(
            node=settings.node, identity=settings.identity, keeper=keeper, tell=tell, beside=beside
        )
        self.generation = 0  # the one that trains or trained last here
        self.heard_of = 0  # the highest that any controller spoke of
        self._stepped: deque[m.Stepped] = deque(maxlen=_REMEMBERED_RECORDS)

    def settled(self, run: m.RunSettings) -> None:
        """The controller has said what run this is."""
        self._run = run
        self._custody.directory = run.checkpoint_directory
        if run.anchored:
            self._keeper.segments = ANCHORED_SEGMENTS

    @property
    def persisted(self) -> tuple[m.Persisted, ...]:
        """The newest part of a durable checkpoint that is written here."""
        return self._custody.written

    def stepped_after(self, logged: tuple[int, int]) -> tuple[m.Stepped, ...]:
        """Steps told of here that are newer than (generation, step), in order."""
        return tuple(
            stepped
            for stepped in self._stepped
            if (stepped.record.generation, stepped.record.step) > logged
        )

    def close(self) -> None:
        """The agent leaves: nothing is copied any more."""
        self._custody.stop()

    async def obey(self, message: Any) -> None:
        """A word of the controller to this node about a generation."""
        self.heard_of = max(self.heard_of, message.generation)
        match message:
            case m.Prepare():
                self._beside(self._prepare(message, self._open_part(message)))
            case m.Warm():
                self._beside(self._warm(message))
            case m.Probe():
                self._beside(self._probe(message))
            case m.Halt():
                await self._halt(message)
            case m.Save():
                self._save(message)
            case m.Switch():
                self._beside(self._switch(message))
            case m.Go():
                await self._go(message)
            case m.Drop():
                await self._drop(message)
            case m.CopyOut():
                self._copy_out(message)
            case m.Retain():
                self._keeper.retain(generation=message.generation, step=message.step)
            case _:
                log.warning("%s is not for an agent", type(message).__name__)

    async def heard(self, child: Child, message: Any) -> None:
        """A word of one of this node's workers."""
        generation = message.generation
        part = self._parts.get(generation)
        match message:
            case m.Diverged() | m.Recorded():
                await self._tell(message)
            case Rehearsed():
                await self._on_rehearsed(child, message)
            case CouldNot():
                await self._on_could_not(part, child, message)
            case WantSegment():
                self._beside(self._keeper.want(child.worker, generation))
            case _ if part is None:
                log.debug("%s of %s: generation is over", type(message).__name__, child.worker)
            case Built():
                part.built.add(child.worker)
                await self._tell_prepared(part)
            case Took():
                await self._on_took(part, child, message)
            case Applied():
                stepped = m.Stepped(
                    generation=generation, node=self._facts.node, record=message.record
                )
                self._stepped.append(stepped)
                await self._tell(stepped)
            case Written():
                part.sealing += 1
                self._beside(self._seal(part, child, message))
            case Stood():
                part.stood[child.worker] = message
                await self._answer_halt(part)
            case Done():
                part.done.add(child.worker)
                if part.done >= set(part.workers):
                    finished = m.Finished(
                        generation=generation, node=self._facts.node, step=message.step
                    )
                    await self._tell(finished)

    async def lost(self, child: Child) -> None:
        """A worker is gone; what waited for it must not."""
        for generation, part in list(self._parts.items()):
            if child.worker in part.workers:
                self._keeper.close_seat(child.worker, generation)
                taking = part.taking.get(child.worker)
                if taking is not None and not taking.done():
                    taking.set_exception(CannotTake(f"worker {child.worker} died"))
                await self._answer_halt(part)

    async def _probe(self, probe: m.Probe) -> None:
        """One line after the other: two at once would slow each other."""
        seconds = {}
        for peer, address in probe.peers.items():
            with suppress(TransferFailed):
                seconds[peer] = await ping_seconds(address, identity=self._facts.identity)
        await self._tell(
            m.Probed(generation=probe.generation, node=self._facts.node, seconds=seconds)
        )

    # Standing by

    async def _warm(self, warm: m.Warm) -> None:
        """Every worker without a seat rehearses every role, one after the other."""
        assert self._run is not None
        idle = [w for w, child in self._nursery.children.items() if not child.generation]
        for role in warm.roles:
            self._rehearsing[role.role] = set(idle)
            for worker in idle:
                rehearse = Rehearse(
                    generation=warm.generation, settings=self._run, plan=warm.plan,
                    workers=warm.workers, role=role,
                )  # fmt: skip
                await self._send(worker, rehearse)

    async def _on_rehearsed(self, child: Child, done: Rehearsed) -> None:
        """Say so for the node, with its last worker, or with the first that cannot."""
        waiting = self._rehearsing.get(done.role)
        if waiting is None:
            return
        waiting.discard(child.worker)
        if waiting and not done.error:
            return
        del self._rehearsing[done.role]
        await self._tell(
            m.Warmed(
                generation=done.generation,
                node=self._facts.node,
                role=done.role,
                seconds=done.seconds,
                error=done.error,
            )  # fmt: skip
        )

    # Prepare and drop

    def _open_part(self, prepare: m.Prepare) -> Part:
        """At once, so that a Drop right behind the Prepare finds it."""
        run = self._run
        assert run is not None
        layout = Layout(
            plan=prepare.plan, spec=run.spec, pieces=run.pieces, workers=prepare.workers
        )
        mine = tuple(w for w in layout.workers if w.node == self._facts.node)
        part = self._parts[prepare.generation] = Part(prepare=prepare, layout=layout, workers=mine)
        return part

    async def _prepare(self, prepare: m.Prepare, part: Part) -> None:
        run, layout, mine = self._run, part.layout, part.workers
        assert run is not None
        missing = [w for w in mine if w not in self._nursery.children]
        if missing:
            await self._fail(prepare.generation, f"worker {missing[0]} does not live")
            return
        part.kept = frozenset(w for w in mine if self._keeps_its_seat(w, layout))
        for worker in mine:
            build = Build(
                generation=prepare.generation,
                settings=run,
                plan=prepare.plan,
                workers=prepare.workers,
                host=self._facts.host,
                timeout_s=prepare.timeout_s,
                kept=worker in part.kept,
                warm_up=prepare.warm_up,
                rehearse=prepare.rehearse,
            )
            await self._send(worker, build)
        # Faulting memory in takes as long as building does: both at once, in two processes.
        try:
            for worker in mine:
                if worker not in part.kept:
                    shapes = shapes_of(layout.kept[part.rank_of(worker)])
                    await self._keeper.allocate(worker, prepare.generation, shapes)
                if prepare.generation not in self._parts:  # dropped meanwhile
                    self._keeper.close_seat(worker, prepare.generation)
                    return
        except OutOfSnapshotMemory as error:
            log.error("%s", error.render())
            await self._fail(prepare.generation, str(error))
            return
        part.roomy = True
        await self._tell_prepared(part)

    async def _tell_prepared(self, part: Part) -> None:
        """If all have built and their snapshots have room: say so."""
        if part.roomy and part.built >= set(part.workers):
            generation = part.prepare.generation
            await self._tell(m.Prepared(generation=generation, node=self._facts.node))

    def _keeps_its_seat(self, worker: WorkerId, layout: Layout) -> bool:
        """Whether a worker goes on with the trainer, state and snapshot memory that it has."""
        present = self._parts.get(self._nursery.children[worker].generation)
        if present is None or (before := present.layout.rank_of(worker)) is None:
            return False
        after = layout.rank_of(worker)
        return after is not None and same_seat(present.layout, before, layout, after)

    async def _drop(self, drop: m.Drop) -> None:
        part = self._parts.pop(drop.generation, None)
        if part is None:
            return
        for worker in part.workers:
            await self._send(worker, drop)
            child = self._nursery.children.get(worker)
            if child is None or child.generation != drop.generation:
                self._keeper.close_seat(worker, drop.generation)

    async def _fail(
        self, generation: int, reason: str, *, spoiled: tuple[m.Source, ...] = ()
    ) -> None:
        log.warning("generation %d: %s", generation, reason)
        failed = m.TransitionFailed(
            generation=generation, node=self._facts.node, reason=reason, spoiled=spoiled
        )
        await self._tell(failed)

    # Halt

    async def _halt(self, halt: m.Halt) -> None:
        if halt.generation == 0:  # of a controller that does not know us yet: whatever we are at
            halt = msgspec.structs.replace(halt, generation=self.generation)
        part = self._parts.get(halt.generation)
        seated = self._seated(part)
        if part is None or not seated:
            await self._tell(self._halted(halt.generation, ()))
            return
        part.halt = halt
        part.stood.clear()
        for worker in seated:
            await self._send(worker, halt)

    def _save(self, save: m.Save) -> None:
        part = self._parts.get(save.generation)
        if part is not None and part.save is None:
            part.save = save.first

    def _seated(self, part: Part | None) -> list[WorkerId]:
        """Living workers that sit in the part's generation."""
        if part is None:
            return []
        children = self._nursery.children
        return [
            w
            for w in part.workers
            if w in children and children[w].generation == part.prepare.generation
        ]

    async def _answer_halt(self, part: Part) -> None:
        """If all that live stand, and what they wrote is verified: say so."""
        halt = part.halt
        if halt is None or part.sealing or not part.stood.keys() >= set(self._seated(part)):
            return
        part.halt = None
        records = max((s.records for s in part.stood.values()), key=len, default=())
        await self._tell(self._halted(halt.generation, records))
        steps = {stood.step for stood in part.stood.values() if stood.step >= 0}
        if halt.persist and steps:  # not of one step only after a loss: reported as an error
            step = max(steps)
            snapshots = part.snapshots.get(step, {})
            self._beside(
                self._custody.persist(part.layout, halt.generation, step, snapshots, must=True)
            )

    def _halted(self, generation: int, records: tuple[m.StepRecord, ...]) -> m.Halted:
        part = self._parts.get(generation)
        steps = {w: s.step for w, s in part.stood.items()} if part is not None else {}
        statuses = tuple(
            m.WorkerStatus(
                worker=status.worker,
                pid=status.pid,
                step=steps.get(status.worker, -1),
                doing=status.doing,
                peak_bytes=status.peak_bytes,
                base_bytes=status.base_bytes,
                generation=status.generation,
            )
            for status in self._nursery.statuses()
        )
        return m.Halted(
            generation=generation,
            node=self._facts.node,
            workers=statuses,
            holdings=self._keeper.holdings(),
            records=records,
        )

    # Switch and go

    async def _switch(self, switch: m.Switch) -> None:
        part = self._parts.get(switch.generation)
        if part is None:
            await self._fail(switch.generation, "was not prepared here")
            return
        began = time.monotonic()
        took = await asyncio.gather(
            *(self._switch_worker(part, worker, switch) for worker in part.workers),
            return_exceptions=True,
        )
        for outcome in took:
            match outcome:
                case Took():
                    pass
                case CannotTake() | TransferFailed() | OutOfSnapshotMemory():
                    spoiled = tuple(s for o in took if isinstance(o, CannotTake) for s in o.spoiled)
                    why = f"{type(outcome).__name__}: {outcome}"
                    await self._fail(switch.generation, why, spoiled=spoiled)
                    return
                case BaseException():
                    raise outcome
        await self._tell(
            m.Switched(
                generation=switch.generation,
                node=self._facts.node,
                copy_s=time.monotonic() - began,
                bytes_moved=sum(t.bytes_moved for t in took if isinstance(t, Took)),
            )
        )

    async def _switch_worker(self, part: Part, worker: WorkerId, switch: m.Switch) -> Took:
        """Bring what a worker needs into this node's memory, tell it, and wait until it has it.

        Raises CannotTake, TransferFailed, OutOfSnapshotMemory.
        """
        with ExitStack() as held:  # what the worker reads stays as it is until it has read it
            sources = switch.sources.get(str(worker), ())
            local = await localise(
                sources,
                node=self._facts.node,
                peers=part.prepare.peers,
                keeper=self._keeper,
                identity=self._facts.identity,
                held=held,
            )
            taking: asyncio.Future[Took] = asyncio.get_running_loop().create_future()
            part.taking[worker] = taking
            await self._send(
                worker, Take(generation=switch.generation, step=switch.step, sources=local)
            )
            if worker not in self._nursery.children:
                raise CannotTake(f"worker {worker} is gone")
            try:
                return await taking
            except CannotTake as failure:
                failure.spoiled = tuple(
                    source
                    for source, here in zip(sources, local, strict=True)
                    if failure.path and here.path == failure.path
                )
                raise
            finally:
                del part.taking[worker]

    async def _go(self, go: m.Go) -> None:
        part = self._parts.get(go.generation)
        if part is None:
            log.warning("told to go in generation %d, which is not prepared", go.generation)
            return
        self.generation = go.generation
        self._keeper.abandon(generation=go.generation, step=go.step)
        self._custody.serve(part.layout, part.prepare)
        for generation in [g for g in self._parts if g < go.generation]:
            del self._parts[generation]
        for worker, child in self._nursery.children.items():
            if worker in part.workers:
                await self._send(worker, go)
            elif child.generation:  # it has no role any more: its memory is wanted
                await self._send(worker, m.Drop(generation=child.generation))
                self._keeper.close_seat(worker, child.generation)
                child.generation = 0

    # Copies for an anchor

    def _copy_out(self, asked: m.CopyOut) -> None:
        part = self._parts.get(asked.generation)
        if part is None or part.prepare.generation != self.generation:
            return  # it is over; whoever asked knows by now
        part.copy_out = asked
        self._start_copying_out(part)

    def _start_copying_out(self, part: Part) -> None:
        """With the first snapshot that all workers of this node have verified, if it is there.

        All ranks snapshot the same steps, so every node takes the same one.
        """
        asked = part.copy_out
        if asked is None:
            return
        for step, snapshots in sorted(part.snapshots.items()):
            if step >= asked.step and snapshots.keys() >= set(part.workers):
                part.copy_out = None
                self._beside(self._custody.copy_out(part.layout, asked, step, dict(snapshots)))
                return

    # What workers report

    async def _on_took(self, part: Part, child: Child, took: Took) -> None:
        before, child.generation = child.generation, took.generation
        if child.worker in part.kept:
            self._keeper.inherit(child.worker, before, took.generation)
        self._keeper.open_seat(child.worker, took.generation)
        taking = part.taking.get(child.worker)
        if taking is not None and not taking.done():
            taking.set_result(took)

    async def _on_could_not(self, part: Part | None, child: Child, could_not: CouldNot) -> None:
        taking = part.taking.get(child.worker) if part is not None else None
        if taking is None:
            await self._fail(could_not.generation, f"{child.worker}: {could_not.reason}")
        elif not taking.done():
            failure = CannotTake(f"{child.worker}: {could_not.reason}", path=could_not.path)
            taking.set_exception(failure)

    async def _seal(self, part: Part, child: Child, written: Written) -> None:
        """Verify what a worker wrote; then everything that waited for it."""
        generation, worker = written.generation, child.worker
        try:
            snapshot = await self._keeper.seal(worker, generation, written.segment, written.step)
            at_step = part.snapshots.setdefault(snapshot.step, {})
            at_step[worker] = snapshot
        except CorruptSnapshot as error:
            log.error("snapshot refused: %s", error)
            return
        finally:
            part.sealing -= 1
            if part.halt is not None:
                self._beside(self._answer_halt(part))
        boxes = part.layout.kept[part.rank_of(worker)]
        await self._tell(
            m.Snapshotted(
                generation=generation,
                node=self._facts.node,
                snapshot=snapshot,
                boxes=len(boxes),
                bytes=total_bytes(boxes),
                stall_s=written.stall_s,
                digests=self._digests(snapshot, boxes),
            )
        )
        if written.skipped:
            log.debug("%s has skipped %d snapshots", worker, written.skipped)
        self._custody.copy(snapshot, part.layout)
        self._keeper.tidy(self.generation, current=part.workers)
        for step in sorted(part.snapshots)[:-_REMEMBERED_STEPS]:
            del part.snapshots[step]
        self._start_copying_out(part)
        asked = part.save is not None and snapshot.step >= part.save
        if (asked or self._durable(snapshot.step)) and at_step.keys() >= set(part.workers):
            assert self._run is not None
            part.save = None if asked else part.save
            must = asked or snapshot.step == self._run.train.total_steps
            await self._custody.persist(part.layout, generation, snapshot.step, at_step, must=must)

    def _digests(self, snapshot: m.SnapshotId, boxes: Sequence[Box]) -> tuple[int, ...]:
        """What the boxes were sealed with, at steps where owners are compared."""
        assert self._run is not None
        every, entry = self._run.compare_every, self._keeper.held(snapshot)
        if every == 0 or snapshot.step % every or entry is None:
            return ()
        return tuple(entry.segment.digest_of(box.name) for box in boxes)

    def _durable(self, step: int) -> bool:
        assert self._run is not None
        train = self._run.train
        due = train.persist_every > 0 and step % train.persist_every == 0
        return due or step == train.total_steps

    async def _send(self, worker: WorkerId, message: m.Message) -> None:
        child = self._nursery.children.get(worker)
        if child is not None:
            with suppress(LinkClosed):
                await child.link.send(message)
