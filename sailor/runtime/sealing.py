"""What a node's workers wrote: verified, told, copied to others, made durable where that is due."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sailor.checkpoint.segment import CorruptSnapshot
from sailor.parallel.boxes import Box, total_bytes
from sailor.runtime import messages as m
from sailor.runtime.halting import Halting
from sailor.runtime.nursery import Child
from sailor.runtime.part import Household, Part
from sailor.runtime.worker_link import Written

log = logging.getLogger(__name__)

_REMEMBERED_STEPS = 4


class Sealing:
    """One node's."""

    def __init__(self, home: Household, *, halting: Halting) -> None:
        self._home = home
        self._halting = halting

    def on_written(self, part: Part, child: Child, written: Written) -> None:
        """A worker has written a snapshot."""
        part.sealing += 1
        self._home.beside(self._seal(part, child, written))

    async def _seal(self, part: Part, child: Child, written: Written) -> None:
        """Verify what a worker wrote; then everything that waited for it."""
        home = self._home
        generation, worker = written.generation, child.worker
        try:
            snapshot = await home.keeper.seal(worker, generation, written.segment, written.step)
            at_step = part.snapshots.setdefault(snapshot.step, {})
            at_step[worker] = snapshot
        except CorruptSnapshot as error:
            log.error("snapshot refused: %s", error)
            return
        finally:
            part.sealing -= 1
            if part.halt is not None:
                home.beside(self._halting.answer(part))
        boxes = part.layout.kept[part.rank_of(worker)]
        await home.tell(
            m.Snapshotted(
                generation=generation,
                node=home.facts.node,
                snapshot=snapshot,
                boxes=len(boxes),
                bytes=total_bytes(boxes),
                stall_s=written.stall_s,
                copy_s=written.copy_s,
                digests=self._digests(snapshot, boxes),
            )
        )
        if written.skipped:
            log.debug("%s has skipped %d snapshots", worker, written.skipped)
        if written.standing and part.hands_over:
            home.custody.postpone(snapshot)
        else:
            home.custody.copy(snapshot, part.layout)
        home.keeper.tidy(home.generation, current=part.workers)
        for step in sorted(part.snapshots)[:-_REMEMBERED_STEPS]:
            del part.snapshots[step]
        self._start_copying_out(part)
        asked = part.save is not None and snapshot.step >= part.save
        if (asked or self._durable(snapshot.step)) and at_step.keys() >= set(part.workers):
            part.save = None if asked else part.save
            must = asked or snapshot.step == home.run.train.total_steps
            await home.custody.persist(part.layout, generation, snapshot.step, at_step, must=must)

    def _digests(self, snapshot: m.SnapshotId, boxes: Sequence[Box]) -> tuple[int, ...]:
        """What the boxes were sealed with, at steps where owners are compared."""
        home = self._home
        every, entry = home.run.compare_every, home.keeper.held(snapshot)
        if every == 0 or snapshot.step % every or entry is None:
            return ()
        return tuple(entry.segment.digest_of(box.name) for box in boxes)

    def _durable(self, step: int) -> bool:
        train = self._home.run.train
        due = train.persist_every > 0 and step % train.persist_every == 0
        return due or step == train.total_steps

    def save(self, asked: m.Save) -> None:
        """The next snapshot from a step on is to be made durable."""
        part = self._home.parts.get(asked.generation)
        if part is not None and part.save is None:
            part.save = asked.first

    def copy_out(self, asked: m.CopyOut) -> None:
        """The next snapshot is wanted by an anchor."""
        home = self._home
        part = home.parts.get(asked.generation)
        if part is None or part.prepare.generation != home.generation:
            return  # it is over; whoever asked knows by now
        part.copy_out = asked
        self._start_copying_out(part)

    def _start_copying_out(self, part: Part) -> None:
        """With the first snapshot that all workers of this node have verified, if it is there.

        All ranks snapshot the same steps, so every node takes the same one.
        """
        home = self._home
        asked = part.copy_out
        if asked is None:
            return
        for step, snapshots in sorted(part.snapshots.items()):
            if step >= asked.step and snapshots.keys() >= set(part.workers):
                part.copy_out = None
                home.beside(home.custody.copy_out(part.layout, asked, step, dict(snapshots)))
                return
