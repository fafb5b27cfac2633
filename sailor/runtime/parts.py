"""What one controller is made of and knows, for the rooms that share its work.

The rooms: ``controller`` (the loop), ``hiring`` (machines and their ends), ``reception`` (agents'
connections), ``hearing`` (agents' words, turned into events) and ``orders`` (what the life cycle
decides, done). All run in one thread; none waits for another, they put events into one queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from sailor.checkpoint.interval import LossRate
from sailor.clock import Clock
from sailor.runtime import happenings as h
from sailor.runtime import messages as m
from sailor.runtime import state as s
from sailor.runtime.anchoring import Anchoring
from sailor.runtime.arrivals import Arrivals
from sailor.runtime.chronicle import Chronicle
from sailor.runtime.controller_settings import ControllerSettings
from sailor.runtime.copies import Copies
from sailor.runtime.durable import Durable
from sailor.runtime.event_sink import EventSink
from sailor.runtime.key_store import KeyStore
from sailor.runtime.lookout import Lookout
from sailor.runtime.notebook import Notebook
from sailor.runtime.paces import Paces
from sailor.runtime.roster import Roster
from sailor.runtime.standby import Rehearsals

log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class Parts:
    """One controller's. ``run`` is what the life cycle made of all events so far."""

    settings: ControllerSettings
    clock: Clock
    events: EventSink
    notebook: Notebook
    roster: Roster
    run: s.Run
    hazard: LossRate
    chronicle: Chronicle
    durable: Durable
    copies: Copies
    lookout: Lookout
    rehearsals: Rehearsals
    anchoring: Anchoring
    arrivals: Arrivals
    paces: Paces = field(default_factory=Paces)
    store: KeyStore = field(default_factory=KeyStore)
    queue: asyncio.Queue[h.Event] = field(default_factory=asyncio.Queue)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    told_go: dict[str, int] = field(default_factory=dict)  # node -> generation
    winding_down: bool = False  # whoever leaves now was told to

    def now(self) -> float:
        """Seconds on the run's clock."""
        return self.clock.now()

    def put(self, event: h.Event) -> None:
        """Something has happened: the loop will hear of it."""
        self.queue.put_nowait(event)

    def ask_stop(self, end: s.End, why: str) -> None:
        """Finish the step, save, end."""
        self.put(h.StopAsked(at=self.now(), end=end, why=why))

    def median_step_s(self) -> float | None:
        """What a step takes, None before the first."""
        steps = self.chronicle.step_seconds
        return median(steps) if steps else None

    async def tell(self, nodes: Sequence[str], message: m.Message) -> None:
        """One word to several agents at once."""
        await asyncio.gather(*(self.roster.send(node, message) for node in nodes))

    async def hear_durable(self, node: str, part: m.Persisted) -> None:
        """A node has written its part of a durable checkpoint."""
        saved = await self.durable.hear(node, part)
        if self.run.stopping is not None:
            for name in saved:
                self.put(h.NodeSaved(at=self.now(), generation=part.generation, node=name))

    def beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the loop. If it breaks, the run ends as failed, saved if it can."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._beside_done)

    def _beside_done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background work failed", exc_info=error)
            self.ask_stop(s.End.failed, f"internal error: {error!r}")
