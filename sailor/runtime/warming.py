"""Workers without a seat: they rehearse the roles they may take, and memory is laid out for one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from sailor.checkpoint.arena import OutOfSnapshotMemory
from sailor.checkpoint.segment import shapes_of
from sailor.parallel.layout import Layout, WorkerId
from sailor.plan import Plan
from sailor.runtime import messages as m
from sailor.runtime.nursery import Child
from sailor.runtime.part import STANDING_BY, Household
from sailor.runtime.worker_link import Rehearse, Rehearsed


class Warming:
    """One node's standing by."""

    def __init__(self, home: Household) -> None:
        self._home = home
        self._rehearsing: dict[str, set[WorkerId]] = {}  # role -> workers that are at it
        self._laid_out: Plan | None = None  # whose likeliest seat has snapshot memory here

    def lost(self, worker: WorkerId) -> None:
        """A worker is gone, and with it what was laid out for it."""
        self._home.keeper.close_seat(worker, STANDING_BY)
        self._laid_out = None

    async def warm(self, warm: m.Warm) -> None:
        """Every worker without a seat rehearses every role, one after the other."""
        home = self._home
        idle = [w for w, child in home.nursery.children.items() if not child.generation]
        await self._lay_out(warm, idle)
        for role in warm.roles:
            self._rehearsing[role.role] = set(idle)
            for worker in idle:
                rehearse = Rehearse(
                    generation=warm.generation, settings=home.run, plan=warm.plan,
                    workers=warm.workers, role=role,
                )  # fmt: skip
                await home.send(worker, rehearse)

    async def _lay_out(self, warm: m.Warm, idle: Sequence[WorkerId]) -> None:
        """Snapshot memory for the likeliest seat, faulted in: else others would wait for it."""
        home = self._home
        if self._laid_out == warm.plan or not warm.roles:
            return
        self._laid_out = warm.plan
        layout = Layout(
            plan=warm.plan,
            spec=home.run.spec,
            pieces=home.run.pieces,
            workers=warm.workers,
        )
        shapes = shapes_of(layout.kept[warm.roles[0].rank])
        for worker in idle:
            home.keeper.close_seat(worker, STANDING_BY)
            with suppress(OutOfSnapshotMemory):  # it may be had when it is needed
                await home.keeper.allocate(worker, STANDING_BY, shapes)
            coming = (part for g, part in home.parts.items() if g > home.generation)
            if any(worker in part.workers for part in coming):  # promoted meanwhile
                home.keeper.close_seat(worker, STANDING_BY)

    async def on_rehearsed(self, child: Child, done: Rehearsed) -> None:
        """Say so for the node, with its last worker, or with the first that cannot."""
        home = self._home
        waiting = self._rehearsing.get(done.role)
        if waiting is None:
            return
        waiting.discard(child.worker)
        if waiting and not done.error:
            return
        del self._rehearsing[done.role]
        await home.tell(
            m.Warmed(
                generation=done.generation,
                node=home.facts.node,
                role=done.role,
                seconds=done.seconds,
                error=done.error,
            )  # fmt: skip
        )
