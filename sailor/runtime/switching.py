"""From one generation to the next, on one node: its workers get the state they need, and go."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import ExitStack

from sailor.checkpoint.arena import OutOfSnapshotMemory
from sailor.checkpoint.replicate import TransferFailed
from sailor.parallel.layout import WorkerId
from sailor.runtime import messages as m
from sailor.runtime.nursery import Child
from sailor.runtime.part import Household, Part
from sailor.runtime.sourcing import CannotTake, localise
from sailor.runtime.worker_link import CouldNot, Take, Took

log = logging.getLogger(__name__)


class Switching:
    """One node's."""

    def __init__(self, home: Household) -> None:
        self._home = home

    async def switch(self, switch: m.Switch, *, stood: tuple[int, float] | None) -> None:
        """All workers take what they need. ``stood``: the step after which they stood still for
        this, and what of its processor time this process had used then."""
        home = self._home
        part = home.parts.get(switch.generation)
        if part is None:
            await home.fail(switch.generation, "was not prepared here")
            return
        began, began_cpu_s = time.monotonic(), time.process_time()
        if stood is not None and stood[0] == switch.step:  # they stood still for this
            began_cpu_s = stood[1]
        took = await asyncio.gather(
            *(self._one(part, worker, switch) for worker in part.workers),
            return_exceptions=True,
        )
        part.lines.close()
        for outcome in took:
            match outcome:
                case Took():
                    pass
                case CannotTake() | TransferFailed() | OutOfSnapshotMemory():
                    spoiled = tuple(s for o in took if isinstance(o, CannotTake) for s in o.spoiled)
                    why = f"{type(outcome).__name__}: {outcome}"
                    await home.fail(switch.generation, why, spoiled=spoiled)
                    return
                case BaseException():
                    raise outcome
        all_took = [outcome for outcome in took if isinstance(outcome, Took)]
        busiest_s = max((t.cpu_s for t in all_took), default=0.0)
        await home.tell(
            m.Switched(
                generation=switch.generation,
                node=home.facts.node,
                copy_s=time.monotonic() - began,
                bytes_moved=sum(t.bytes_moved for t in all_took),
                cpu_s=busiest_s + time.process_time() - began_cpu_s,
            )
        )

    async def _one(self, part: Part, worker: WorkerId, switch: m.Switch) -> Took:
        """Bring what a worker needs into this node's memory, tell it, and wait until it has it.

        Raises CannotTake, TransferFailed, OutOfSnapshotMemory.
        """
        home = self._home
        with ExitStack() as held:  # what the worker reads stays as it is until it has read it
            sources = switch.sources.get(str(worker), ())
            local = await localise(
                sources,
                node=home.facts.node,
                peers=part.prepare.peers,
                keeper=home.keeper,
                identity=home.facts.identity,
                ahead=part.ahead,
                held=held,
                lines=part.lines,
            )
            taking: asyncio.Future[Took] = asyncio.get_running_loop().create_future()
            part.taking[worker] = taking
            await home.send(
                worker, Take(generation=switch.generation, step=switch.step, sources=local)
            )
            if worker not in home.nursery.children:
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

    async def go(self, go: m.Go) -> None:
        """It trains from now on; all before it is over."""
        home = self._home
        part = home.parts.get(go.generation)
        if part is None:
            log.warning("told to go in generation %d, which is not prepared", go.generation)
            return
        home.generation = go.generation
        home.keeper.abandon(generation=go.generation, step=go.step)
        home.custody.serve(part.layout, part.prepare)
        part.close()
        for generation in [g for g in home.parts if g < go.generation]:
            home.parts.pop(generation).close()
        for worker, child in home.nursery.children.items():
            if worker in part.workers:
                await home.send(worker, go)
            elif child.generation:  # it has no role any more: its memory is wanted
                await home.send(worker, m.Drop(generation=child.generation))
                home.keeper.close_seat(worker, child.generation)
                child.generation = 0

    async def on_took(self, part: Part, child: Child, took: Took) -> None:
        """A worker has its state, and with it its seat."""
        home = self._home
        before, child.generation = child.generation, took.generation
        if child.worker in part.kept:
            home.keeper.inherit(child.worker, before, took.generation)
        home.keeper.open_seat(child.worker, took.generation)
        taking = part.taking.get(child.worker)
        if taking is not None and not taking.done():
            taking.set_result(took)

    async def on_could_not(self, part: Part | None, child: Child, could_not: CouldNot) -> None:
        """A worker could not build, or not take."""
        taking = part.taking.get(child.worker) if part is not None else None
        if taking is None:
            await self._home.fail(could_not.generation, f"{child.worker}: {could_not.reason}")
        elif not taking.done():
            failure = CannotTake(f"{child.worker}: {could_not.reason}", path=could_not.path)
            taking.set_exception(failure)
