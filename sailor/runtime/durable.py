"""The controller's side of durable checkpoints: parts collected, completed, and the newest known.

Agents write parts and say so; with the last one the checkpoint is completed. The place they lie in,
a folder or a store, is asked what it has once, at the start, and again only when what it had was
found spoiled: a recovery waits for no disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial

from sailor.checkpoint import store
from sailor.checkpoint.files import place
from sailor.checkpoint.restore import Copy
from sailor.checkpoint.segment import CorruptSnapshot
from sailor.clock import Clock
from sailor.parallel.boxes import all_boxes
from sailor.runtime.event_sink import EventSink
from sailor.runtime.messages import Persisted, RunSettings

log = logging.getLogger(__name__)


class Durable:
    """A run's durable checkpoints. ``keep``, ``keep_every``: which stay, see store.kept;
    ``spoiled``: folders never to use again."""

    def __init__(
        self, run: RunSettings, *, keep: int, keep_every: int = 0, events: EventSink, clock: Clock
    ) -> None:
        self._run = run
        self._keep = keep
        self._keep_every = keep_every
        self._events = events
        self._clock = clock
        self._newest: store.Checkpoint | None = None  # complete, and not found spoiled
        # (step, generation) -> node -> its part: parts of two generations are never one checkpoint
        self._parts: dict[tuple[int, int], dict[str, Persisted]] = {}
        self._complete: dict[int, str] = {}  # step -> folder; completed, or found so, by this start
        self._completing = asyncio.Lock()
        self.spoiled: set[str] = set()

    @property
    def newest_step(self) -> int:
        """Of the newest complete checkpoint that is known; -1 for none."""
        return self._newest.step if self._newest is not None else -1

    async def look(self, *, below: int | None = None) -> None:
        """Ask what there is. ``below``: only earlier steps count; what came later led nowhere.

        Raises CheckpointFailed when the place does not say: that there is none must not be taken
        for that nobody answered.
        """
        address = self._run.checkpoint_directory
        try:
            directory = await asyncio.to_thread(place, address)
            self._newest = await asyncio.to_thread(
                partial(store.newest, directory, but=self.spoiled, below=below)
            )
        except OSError as error:
            raise store.CheckpointFailed(
                "the durable checkpoints cannot be listed", where=address, why=str(error)
            ) from error

    def trust_what_is_there(self) -> None:
        """A run goes on: parts told again of the newest checkpoint complete it no second time. The
        controller that completed it may have ended before it could write that down."""
        if (newest := self._newest) is None:
            return
        self._complete = {newest.step: str(newest.path)}
        self._events.write(
            "persisted", generation=newest.generation, step=newest.step, bytes=newest.num_bytes,
            path=self._run.checkpoint_directory, seconds=0.0, found=True,
        )  # fmt: skip

    async def best(self, *, below: int | None) -> Copy | None:
        """The newest checkpoint that may be resumed from. Raises CheckpointFailed."""
        newest = self._newest
        late = newest is not None and below is not None and newest.step >= below
        if newest is not None and (late or str(newest.path) in self.spoiled):
            await self.look(below=below)
            newest = self._newest
        if newest is None:
            return None
        return Copy(
            step=newest.step,
            boxes=frozenset(newest.boxes),
            generation=newest.generation,
            path=str(newest.path),
        )

    async def hear(self, node: str, part: Persisted) -> tuple[str, ...]:
        """A node has written its part of a step, or could not. Whose last parts are durable now.

        A node counts as saved once the step it stands at is complete, never before: that an earlier
        step is, which it may tell again when it comes back, says nothing of the last one.
        """
        if part.error:
            self._failed(part.generation, part.step, part.error)
            return ()
        async with self._completing:
            parts = self._parts.setdefault((part.step, part.generation), {})
            parts[node] = part
            if not self._is_complete(part.step) and self._covers_model(parts.values()):
                await self._finish(part)
        if not self._is_complete(part.step):
            return ()
        return tuple(name for name, told in parts.items() if told.last)

    def _is_complete(self, step: int) -> bool:
        """Whether a step needs nobody's part any more. One that was found spoiled since does."""
        path = self._complete.get(step)
        return path is not None and path not in self.spoiled

    def _covers_model(self, parts: Iterable[Persisted]) -> bool:
        there = {box for part in parts for box in part.boxes}
        boxes = all_boxes(self._run.spec, pieces=self._run.pieces)
        return there >= {box.name for box in boxes}

    async def _finish(self, last: Persisted) -> None:
        began = self._clock.now()
        try:
            directory = await asyncio.to_thread(place, self._run.checkpoint_directory)
            size = await asyncio.to_thread(
                store.complete,
                directory,
                last.step,
                list(self._parts[last.step, last.generation].values()),
                settings=self._run,
                keep=self._keep,
                keep_every=self._keep_every,
            )
            folder = str(store.step_directory(directory, last.step))
            self.spoiled.discard(folder)  # written anew
            await self.look()
        except (store.CheckpointFailed, CorruptSnapshot, OSError) as error:
            self._failed(last.generation, last.step, str(error))
            return
        self._complete[last.step] = folder
        self._events.write(
            "persisted",
            generation=last.generation,
            step=last.step,
            bytes=size,
            path=self._run.checkpoint_directory,
            seconds=self._clock.now() - began,
        )
        for old in [key for key in self._parts if key[0] < last.step]:
            del self._parts[old]

    def _failed(self, generation: int, step: int, error: str) -> None:
        """Training goes on; older checkpoints are as they were."""
        self._events.write("persist_failed", generation=generation, step=step, error=error)
        log.warning("step %d is not durable: %s", step, error)
