"""The controller's words with an anchor: orders, copies, what it holds. ``anchors`` decides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

from sailor.checkpoint.restore import Copy
from sailor.clock import Clock
from sailor.cluster.provisioner import NodeRequest, Refused, is_anchor
from sailor.errors import CloudError
from sailor.parallel.boxes import all_boxes
from sailor.runtime import messages as m
from sailor.runtime import state as s
from sailor.runtime.anchors import Anchors
from sailor.runtime.copies import Copies
from sailor.runtime.event_sink import EventSink
from sailor.runtime.roster import AgentRecord, Roster

log = logging.getLogger(__name__)

INVENTORY_S = 1.0  # for an anchor to say what it has


class Anchoring:
    """One run's anchor, as its controller deals with it.

    ``roster`` is asked for each time: an adopted run has another one. ``order`` asks for machines
    and raises CloudError; ``refused`` writes a refusal down; ``lose`` gives a machine up.
    """

    def __init__(
        self, like: NodeRequest | None, *, join_s: float, run: m.RunSettings, events: EventSink,
        clock: Clock, roster: Callable[[], Roster], copies: Copies,
        order: Callable[[NodeRequest], Awaitable[None]], refused: Callable[[Refused], None],
        lose: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self._anchors = Anchors(like=like, join_s=join_s)
        self._run = run
        self._events = events
        self._clock = clock
        self._roster = roster
        self._copies = copies
        self._order = order
        self._refused = refused
        self._lose = lose
        self._told = asyncio.Event()  # it has said what it holds

    def expect(self, living: Collection[str]) -> tuple[str, ...]:
        """Which of the machines that live still are anchors; they will dial in."""
        self._anchors.expect(living, now=self._clock.now())
        return tuple(node for node in living if is_anchor(node))

    def joined(self, hello: m.Hello) -> None:
        """One has dialled in."""
        boxes = {box.name for box in all_boxes(self._run.spec, pieces=self._run.pieces)}
        self._anchors.joined(hello.node, hello.holdings, boxes=boxes)

    def lost(self, node: str) -> None:
        """One is gone."""
        self._anchors.lost(node, now=self._clock.now())

    def refused(self, news: Refused) -> None:
        """An order came to nothing; not one for an anchor is none of ours."""
        self._anchors.refused(
            news.node, now=self._clock.now(), retry_s=news.retry_s, lasting=news.lasting
        )

    def told_holdings(self) -> None:
        """It has answered."""
        self._told.set()

    def interrupted(self) -> None:
        """What was on its way there will not be complete: a generation or a connection is over."""
        self._anchors.stands_still()

    async def mind(self, run: s.Run, *, step_s: float | None) -> None:
        """See that there is one, if there is to be one, and that it gets the next step. ``step_s``:
        what a step takes, None before the first."""
        now = self._clock.now()
        if late := self._anchors.overdue(now=now):
            self._lose(late, "did not come")
        if (request := self._anchors.order(now=now)) is not None:
            try:
                await self._order(request)
            except CloudError as error:  # told at once that it can never be had
                self._refused(Refused(node=request.node, error=error, lasting=True))
        if run.phase is s.Phase.training and run.active is not None and step_s is not None:
            await self._start_copying(run, run.active.nodes, step_s=step_s)

    async def _start_copying(self, run: s.Run, nodes: Sequence[str], *, step_s: float) -> None:
        copying = self._anchors.next_copy(
            now=self._clock.now(), generation=run.active_generation, step=run.step,
            last_step=run.total_steps, step_s=step_s, nodes=nodes,
        )  # fmt: skip
        if copying is None:
            return
        roster = self._roster()
        word = m.CopyOut(
            generation=copying.generation, step=copying.step, anchor=copying.anchor,
            address=roster.agents[copying.anchor].address,
        )  # fmt: skip
        await self._retain(copying.anchor)
        await asyncio.gather(*(roster.send(node, word) for node in nodes))

    async def hear(self, told: m.CopiedOut) -> None:
        """A node has copied its share of a step, or could not."""
        anchor = self._anchors.there
        done = self._anchors.heard(told, now=self._clock.now())
        if done is None:
            return
        self._events.write(
            "anchored",
            generation=done.generation,
            step=done.step,
            node=anchor,
            bytes=done.bytes,
            seconds=done.seconds,
        )
        await self._retain(anchor)

    async def _retain(self, anchor: str) -> None:
        """Only what it has all of is worth its memory."""
        complete = self._anchors.complete
        retain = m.Retain(step=-1)
        if complete is not None:
            retain = m.Retain(generation=complete.generation, step=complete.step)
        await self._roster().send(anchor, retain)

    async def copies(self) -> list[Copy]:
        """What it holds, asked now; nothing if there is none, or it does not say so in time."""
        anchor = self._anchors.there
        self._told.clear()
        if not await self._roster().send(anchor, m.Halt(boundary=False)):
            return []
        try:
            async with asyncio.timeout(INVENTORY_S):
                await self._told.wait()
        except TimeoutError:
            log.warning("%s does not say what it holds", anchor)
            return []
        return self._copies.of_anchor(self._roster().agents, anchor)


def trained(agents: dict[str, AgentRecord]) -> dict[str, AgentRecord]:
    """All agents but anchors'."""
    return {name: agent for name, agent in agents.items() if not is_anchor(name)}
