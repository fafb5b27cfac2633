"""What becomes of a node's verified snapshots: copies in other memories, files that last.

Both run beside training and from pinned segments; both may fail without harm to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import msgspec

from sailor.checkpoint.files import place
from sailor.checkpoint.placement import needing_copies
from sailor.checkpoint.replicate import Push, Replicator, TransferFailed, push
from sailor.checkpoint.segment import CorruptSnapshot
from sailor.checkpoint.store import CheckpointFailed, write_part
from sailor.parallel.boxes import Box
from sailor.parallel.layout import Layout, WorkerId
from sailor.runtime import messages as m
from sailor.runtime.identity import Identity
from sailor.runtime.keeper import Keeper

log = logging.getLogger(__name__)

ANCHOR_SHARE = 0.25  # of the time that a copy for an anchor may use the line


class Custody:
    """Copies and durable files of one node. ``directory`` is where the run's checkpoints lie: a
    path, or a store's address."""

    def __init__(
        self,
        *,
        node: str,
        identity: Identity,
        keeper: Keeper,
        tell: Callable[[m.Message], Awaitable[None]],
        beside: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self.directory = ""
        self._node = node
        self._identity = identity
        self._keeper = keeper
        self._tell = tell
        self._beside = beside
        self._replicators: dict[str, tuple[Replicator, asyncio.Task[None]]] = {}
        self._copied: Mapping[int, tuple[Box, ...]] = {}  # rank -> boxes that need copies
        self._missing: dict[m.SnapshotId, set[str]] = {}  # -> peers that do not have it yet
        self._writing = asyncio.Lock()  # one checkpoint at a time
        self._written: dict[tuple[int, int], m.Persisted] = {}

    @property
    def written(self) -> tuple[m.Persisted, ...]:
        """What was reported last, for a controller that was not there to hear it."""
        return tuple(report for report in self._written.values() if not report.error)

    # Copies

    def serve(self, layout: Layout, prepare: m.Prepare) -> None:
        """From now on copy what this layout needs copied, to the peers that keep it."""
        for _, task in self._replicators.values():
            task.cancel()
        self._replicators = {}
        for snapshot in self._missing:
            self._keeper.mark_safe(snapshot)  # of an earlier generation: nobody waits for it
        self._missing = {}
        self._copied = needing_copies(layout)
        for peer in prepare.copies.get(self._node, ()):
            address = prepare.peers.get(peer)
            if address is None:
                log.warning("no address of %s, which was to keep copies", peer)
                continue
            replicator = Replicator(
                peer,
                address,
                identity=self._identity,
                shelf=self._keeper,
                on_done=self._on_pushed,
            )
            self._replicators[peer] = (replicator, asyncio.ensure_future(replicator.run()))

    def stop(self) -> None:
        """Copy nothing any more."""
        for _, task in self._replicators.values():
            task.cancel()

    def copy(self, snapshot: m.SnapshotId, layout: Layout) -> None:
        """A snapshot was verified: its boxes that no other node has go to the peers.

        When all peers have them, or cannot have them, it is marked safe.
        """
        rank = layout.rank_of(snapshot.worker)
        boxes = self._copied.get(rank, ()) if rank is not None else ()
        if not boxes or not self._replicators:
            self._keeper.mark_safe(snapshot)
            return
        wanted = Push(snapshot=snapshot, boxes=tuple(box.name for box in boxes))
        self._missing[snapshot] = set(self._replicators)
        for replicator, _ in self._replicators.values():
            replicator.offer(wanted)

    def postpone(self, snapshot: m.SnapshotId) -> None:
        """It is about to be handed on: copies would only be in the way of those who fetch it.

        Until the next generation trains, ``serve``, it counts as not safe.
        """
        self._missing[snapshot] = set(self._replicators)

    def _on_pushed(self, peer: str, pushed: Push, sent: int | None) -> None:
        snapshot = pushed.snapshot
        missing = self._missing.get(snapshot, set())
        missing.discard(peer)
        if not missing:
            self._missing.pop(snapshot, None)
            self._keeper.mark_safe(snapshot)
        if sent is not None:
            copied = m.Snapshotted(
                generation=snapshot.generation,
                node=self._node,
                snapshot=snapshot,
                boxes=len(pushed.boxes),
                bytes=sent,
                peer=peer,
            )
            self._beside(self._said(copied))

    async def copy_out(
        self,
        layout: Layout,
        asked: m.CopyOut,
        step: int,
        snapshots: Mapping[WorkerId, m.SnapshotId],
    ) -> None:
        """This node's share of a step, to the anchor's memory, as slowly as training can bear.

        The share is what it would write into a durable checkpoint: over all nodes, every box once.
        """
        sent, error = 0, ""
        try:
            for worker, boxes in boxes_to_write(layout, node=self._node).items():
                with self._keeper.pinned(snapshots[worker]) as segment:
                    sent += await push(
                        asked.address, segment, boxes, identity=self._identity, share=ANCHOR_SHARE
                    )
        except (KeyError, TransferFailed) as failure:
            error = str(failure)
            log.warning("%s has no copy of step %d: %s", asked.anchor, step, failure)
        await self._tell(
            m.CopiedOut(
                generation=asked.generation, node=self._node, step=step, bytes=sent, error=error
            )
        )

    async def _said(self, message: m.Message) -> None:
        await self._tell(message)

    # Durable files

    async def persist(
        self,
        layout: Layout,
        generation: int,
        step: int,
        snapshots: Mapping[WorkerId, m.SnapshotId],
        *,
        must: bool,
        last: bool = False,
    ) -> None:
        """Write this node's part of the checkpoint of a step, once, and report it, every time.

        Where that takes longer than from one durable step to the next, the next is left out.
        ``last``: the workers stand after this step, and it is to be saved before the run ends.
        """
        if self._writing.locked() and not must:
            error = "the one before is still being written"
            await self._tell(_failed(self._node, generation, step, error))
            return
        async with self._writing:
            report = self._written.get((generation, step))
            if report is None or report.error:
                report = await self._write(layout, generation, step, snapshots)
            report = msgspec.structs.replace(report, last=report.last or last)
            self._written = {(generation, step): report}
        await self._tell(report)

    async def save_held(self, asked: m.SaveHeld) -> None:
        """Write boxes of whatever is held here, of several workers perhaps, into one file."""
        files: dict[str, str] = {}
        written: tuple[str, ...] = ()
        error = ""
        async with self._writing:
            try:
                with ExitStack() as held:
                    sources = [
                        (held.enter_context(self._keeper.pinned(source.snapshot)), source.boxes)
                        for source in asked.sources
                        if source.snapshot is not None
                    ]
                    if sources:
                        directory = await asyncio.to_thread(place, self.directory)
                        name = f"g{asked.generation}-{self._node}-held"
                        write = partial(
                            write_part, directory, step=asked.step, name=name, sources=sources
                        )
                        files[f"{name}.safetensors"] = await asyncio.to_thread(write)
                written = tuple(box for _, boxes in sources for box in boxes)
            except KeyError as failure:
                error = f"{failure} is not held any more"
            except (CheckpointFailed, CorruptSnapshot) as failure:
                error = failure.render()
            except OSError as failure:
                error = str(failure)
        if error:
            log.error("checkpoint of step %d: %s", asked.step, error)
        await self._tell(
            m.Persisted(
                generation=asked.generation, node=self._node, step=asked.step, files=files,
                boxes=written, error=error, last=True,
            )
        )  # fmt: skip

    async def _write(
        self,
        layout: Layout,
        generation: int,
        step: int,
        snapshots: Mapping[WorkerId, m.SnapshotId],
    ) -> m.Persisted:
        files: dict[str, str] = {}
        written: list[str] = []
        error = ""
        try:
            directory = await asyncio.to_thread(place, self.directory)
            for worker, boxes in boxes_to_write(layout, node=self._node).items():
                with ExitStack() as held:
                    segment = held.enter_context(self._keeper.pinned(snapshots[worker]))
                    # Named by generation: a step that is done again in another layout has other
                    # boxes in other files, and must not change those of a complete checkpoint.
                    name = f"g{generation}-{worker.node}-{worker.slot}"
                    write = partial(
                        write_part,
                        directory,
                        step=step,
                        name=name,
                        sources=[(segment, boxes)],
                    )
                    files[f"{name}.safetensors"] = await asyncio.to_thread(write)
                written += boxes
        except KeyError as failure:
            error = f"no verified snapshot of step {step} by {failure}"
        except (CheckpointFailed, CorruptSnapshot) as failure:
            error = failure.render()
        except OSError as failure:
            error = str(failure)
        if error:
            log.error("checkpoint of step %d: %s", step, error)
        return m.Persisted(
            generation=generation,
            node=self._node,
            step=step,
            files=files,
            boxes=tuple(written),
            error=error,
        )


def _failed(node: str, generation: int, step: int, error: str) -> m.Persisted:
    return m.Persisted(generation=generation, node=node, step=step, files={}, boxes=(), error=error)


def boxes_to_write(layout: Layout, *, node: str) -> dict[WorkerId, tuple[str, ...]]:
    """Which boxes each worker of a node writes: those of which it is the lowest keeper.

    So every box of the model is in exactly one file.
    """
    chosen: dict[WorkerId, list[str]] = {}
    for box, keepers in layout.keepers.items():
        worker = layout.workers[keepers[0]]
        if worker.node == node:
            chosen.setdefault(worker, []).append(box.name)
    return {worker: tuple(names) for worker, names in chosen.items()}
