"""A generation that is to stand still, on one node: when all its workers do, and what they wrote is
verified, the node says so, and what it holds."""

from __future__ import annotations

import time

import msgspec

from sailor.parallel.layout import WorkerId
from sailor.runtime import messages as m
from sailor.runtime.nursery import Child
from sailor.runtime.part import Household, Part
from sailor.runtime.worker_link import Stood


class Halting:
    """One node's."""

    def __init__(self, home: Household) -> None:
        self._home = home
        # The step after which the first worker stood still, and this process's processor seconds.
        self.first_stood: tuple[int, float] | None = None

    async def halt(self, halt: m.Halt) -> None:
        """Tell all who sit in it to stand still."""
        home = self._home
        if halt.generation == 0:  # of a controller that does not know us yet: whatever we are at
            halt = msgspec.structs.replace(halt, generation=home.generation)
        part = home.parts.get(halt.generation)
        seated = self._seated(part)
        if part is None or not seated:
            await home.tell(self._halted(halt.generation, ()))
            return
        part.halt, self.first_stood = halt, None
        part.hands_over = halt.boundary and not halt.persist
        part.stood.clear()
        for worker in seated:
            await home.send(worker, halt)

    def _seated(self, part: Part | None) -> list[WorkerId]:
        """Living workers that sit in the part's generation."""
        if part is None:
            return []
        children = self._home.nursery.children
        return [
            w
            for w in part.workers
            if w in children and children[w].generation == part.prepare.generation
        ]

    async def answer(self, part: Part) -> None:
        """If all that live stand, and what they wrote is verified: say so."""
        home = self._home
        halt = part.halt
        if halt is None or part.sealing or not part.stood.keys() >= set(self._seated(part)):
            return
        part.halt = None
        records = max((s.records for s in part.stood.values()), key=len, default=())
        await home.tell(self._halted(halt.generation, records))
        steps = {stood.step for stood in part.stood.values() if stood.step >= 0}
        if halt.persist and steps:  # not of one step only after a loss: reported as an error
            step = max(steps)
            snapshots = part.snapshots.get(step, {})
            home.beside(
                home.custody.persist(
                    part.layout, halt.generation, step, snapshots, must=True, last=True
                )
            )

    def _halted(self, generation: int, records: tuple[m.StepRecord, ...]) -> m.Halted:
        home = self._home
        part = home.parts.get(generation)
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
            for status in home.nursery.statuses()
        )
        return m.Halted(
            generation=generation,
            node=home.facts.node,
            workers=statuses,
            holdings=home.keeper.holdings(),
            records=records,
        )

    async def on_stood(self, part: Part, child: Child, stood: Stood) -> None:
        """A worker stands still."""
        self.first_stood = self.first_stood or (stood.step, time.process_time())
        part.stood[child.worker] = stood
        await self.answer(part)
