"""A node's part in the generations of a run: words to the node become words to its workers.

For every generation it is told to prepare it knows which of its workers sit where, and who has
answered what. When all have, the node answers. The rooms: ``warming`` (who has no seat yet),
``preparing``, ``halting``, ``switching`` and ``sealing`` (what workers wrote); ``part`` is what
they share.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from sailor.checkpoint.replicate import TransferFailed, ping_seconds
from sailor.runtime import messages as m
from sailor.runtime.custody import Custody
from sailor.runtime.halting import Halting
from sailor.runtime.keeper import ANCHORED_SEGMENTS, Keeper
from sailor.runtime.line_rates import measure
from sailor.runtime.nursery import Child, Nursery
from sailor.runtime.part import Household, NodeFacts
from sailor.runtime.preparing import Preparing
from sailor.runtime.sealing import Sealing
from sailor.runtime.sourcing import CannotTake
from sailor.runtime.switching import Switching
from sailor.runtime.warming import Warming
from sailor.runtime.worker_link import (
    Applied,
    Built,
    CouldNot,
    Done,
    Rehearsed,
    Stood,
    Took,
    WantSegment,
    Written,
)

log = logging.getLogger(__name__)

_REMEMBERED_RECORDS = 4096  # for a controller that was away; some 400 bytes each


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
        custody = Custody(
            node=settings.node, identity=settings.identity, keeper=keeper, tell=tell, beside=beside
        )
        self._home = home = Household(
            facts=settings, keeper=keeper, nursery=nursery, custody=custody, tell=tell,
            beside=beside,
        )  # fmt: skip
        self._warming = Warming(home)
        self._preparing = Preparing(home)
        self._halting = Halting(home)
        self._switching = Switching(home)
        self._sealing = Sealing(home, halting=self._halting)
        self.heard_of = 0  # the highest generation that any controller spoke of
        self._stepped: deque[m.Stepped] = deque(maxlen=_REMEMBERED_RECORDS)

    @property
    def generation(self) -> int:
        """The one that trains or trained last here."""
        return self._home.generation

    def settled(self, run: m.RunSettings) -> None:
        """The controller has said what run this is."""
        home = self._home
        home.settled = run
        home.custody.directory = run.checkpoint_directory
        if run.anchored:
            home.keeper.segments = ANCHORED_SEGMENTS

    @property
    def persisted(self) -> tuple[m.Persisted, ...]:
        """The newest part of a durable checkpoint that is written here."""
        return self._home.custody.written

    def stepped_after(self, logged: tuple[int, int]) -> tuple[m.Stepped, ...]:
        """Steps told of here that are newer than (generation, step), in order."""
        return tuple(
            stepped
            for stepped in self._stepped
            if (stepped.record.generation, stepped.record.step) > logged
        )

    def close(self) -> None:
        """The agent leaves: nothing is copied any more."""
        home = self._home
        home.custody.stop()
        for part in home.parts.values():
            part.close()

    async def obey(self, message: Any) -> None:
        """A word of the controller to this node about a generation."""
        home = self._home
        self.heard_of = max(self.heard_of, message.generation)
        match message:
            case m.Prepare():
                part = self._preparing.open_part(message)
                home.beside(self._preparing.prepare(message, part))
            case m.Warm():
                home.beside(self._warming.warm(message))
            case m.Probe():
                home.beside(self._probe(message))
            case m.Measure():
                home.beside(self._measure(message))
            case m.Halt():
                await self._halting.halt(message)
            case m.Save():
                self._sealing.save(message)
            case m.Switch():
                stood = self._halting.first_stood
                home.beside(self._switching.switch(message, stood=stood))
            case m.Go():
                await self._switching.go(message)
            case m.Drop():
                await self._preparing.drop(message)
            case m.CopyOut():
                self._sealing.copy_out(message)
            case m.SaveHeld():
                home.beside(home.custody.save_held(message))
            case m.Retain():
                home.keeper.retain(generation=message.generation, step=message.step)
            case _:
                log.warning("%s is not for an agent", type(message).__name__)

    async def heard(self, child: Child, message: Any) -> None:
        """A word of one of this node's workers."""
        home = self._home
        generation = message.generation
        part = home.parts.get(generation)
        match message:
            case m.Diverged() | m.Recorded():
                await home.tell(message)
            case Rehearsed():
                await self._warming.on_rehearsed(child, message)
            case CouldNot():
                await self._switching.on_could_not(part, child, message)
            case WantSegment():
                home.beside(home.keeper.want(child.worker, generation))
            case Took() if part is None:
                # The Drop crossed this word: it lets go of the seat it took, and the one before it
                # has given up. To have it go on from there would fail again and again.
                home.keeper.close_seat(child.worker, child.generation)
                child.generation = 0
            case _ if part is None:
                log.debug("%s of %s: generation is over", type(message).__name__, child.worker)
            case Built():
                await self._preparing.on_built(part, child)
            case Took():
                await self._switching.on_took(part, child, message)
            case Applied():
                stepped = m.Stepped(
                    generation=generation, node=home.facts.node, record=message.record
                )
                self._stepped.append(stepped)
                await home.tell(stepped)
            case Written():
                self._sealing.on_written(part, child, message)
            case Stood():
                await self._halting.on_stood(part, child, message)
            case Done():
                part.done.add(child.worker)
                if part.done >= set(part.workers):
                    finished = m.Finished(
                        generation=generation, node=home.facts.node, step=message.step
                    )
                    await home.tell(finished)

    async def lost(self, child: Child) -> None:
        """A worker is gone; what waited for it must not."""
        home = self._home
        self._warming.lost(child.worker)
        for generation, part in list(home.parts.items()):
            if child.worker in part.workers:
                home.keeper.close_seat(child.worker, generation)
                taking = part.taking.get(child.worker)
                if taking is not None and not taking.done():
                    taking.set_exception(CannotTake(f"worker {child.worker} died"))
                await self._halting.answer(part)

    async def _probe(self, probe: m.Probe) -> None:
        """One line after the other: two at once would slow each other."""
        home = self._home
        seconds = {}
        for peer, address in probe.peers.items():
            with suppress(TransferFailed):
                seconds[peer] = await ping_seconds(address, identity=home.facts.identity)
        await home.tell(
            m.Probed(generation=probe.generation, node=home.facts.node, seconds=seconds)
        )

    async def _measure(self, wanted: m.Measure) -> None:
        home = self._home
        with suppress(TransferFailed):  # not even our own port answers: there is nothing to say
            own, lines = await measure(wanted.peers, own=wanted.own, identity=home.facts.identity)
            await home.tell(m.Measured(node=home.facts.node, own=own, lines=lines))
