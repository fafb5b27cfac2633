"""A node's part in one generation, and what the rooms of a tenure share. ``tenure`` names them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from sailor.checkpoint.lines import Lines
from sailor.parallel.layout import Layout, WorkerId
from sailor.runtime import messages as m
from sailor.runtime.ahead import Ahead
from sailor.runtime.custody import Custody
from sailor.runtime.identity import Identity
from sailor.runtime.keeper import Keeper
from sailor.runtime.nursery import Nursery
from sailor.runtime.transport import LinkClosed
from sailor.runtime.worker_link import Stood, Took

log = logging.getLogger(__name__)

STANDING_BY = 0  # in place of a generation: memory of whoever has no seat yet


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
    lines: Lines  # to those it will fetch from
    kept: frozenset[WorkerId] = frozenset()  # who does the same work as before
    built: set[WorkerId] = field(default_factory=set)
    roomy: bool = False  # its workers' snapshots have their memory
    taking: dict[WorkerId, asyncio.Future[Took]] = field(default_factory=dict)
    done: set[WorkerId] = field(default_factory=set)
    stood: dict[WorkerId, Stood] = field(default_factory=dict)
    halt: m.Halt | None = None  # not answered yet
    hands_over: bool = False  # its last step is to be taken by the next generation at once
    save: int | None = None  # the first snapshot from that step on is to be durable
    sealing: int = 0  # snapshots written but not verified yet
    snapshots: dict[int, dict[WorkerId, m.SnapshotId]] = field(default_factory=dict)  # by step
    copy_out: m.CopyOut | None = None  # asked for, and no snapshot there yet that will do
    ahead: Ahead

    def rank_of(self, worker: WorkerId) -> int:
        """The rank of one of ``workers``."""
        return self.layout.workers.index(worker)

    def close(self) -> None:
        """Nothing is fetched for it any more."""
        self.lines.close()
        self.ahead.drop()


@dataclass(kw_only=True, eq=False)
class Household:
    """What a node has, and the generations it is in or preparing. Everything runs in one thread;
    ``beside`` starts what takes long."""

    facts: NodeFacts
    keeper: Keeper
    nursery: Nursery
    custody: Custody
    tell: Callable[[m.Message], Awaitable[None]]  # to the controller
    beside: Callable[[Coroutine[Any, Any, None]], None]
    parts: dict[int, Part] = field(default_factory=dict)
    settled: m.RunSettings | None = None
    generation: int = 0  # the one that trains or trained last here

    @property
    def run(self) -> m.RunSettings:
        """What the controller has said of the run; it says so before anything else."""
        assert self.settled is not None
        return self.settled

    async def send(self, worker: WorkerId, message: m.Message) -> None:
        """A word to one of this node's workers, if it lives."""
        child = self.nursery.children.get(worker)
        if child is not None:
            with suppress(LinkClosed):
                await child.link.send(message)

    async def fail(
        self, generation: int, reason: str, *, spoiled: tuple[m.Source, ...] = ()
    ) -> None:
        """This node cannot do its part of a change."""
        log.warning("generation %d: %s", generation, reason)
        failed = m.TransitionFailed(
            generation=generation, node=self.facts.node, reason=reason, spoiled=spoiled
        )
        await self.tell(failed)
