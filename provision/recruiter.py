"""Keeps a run in machines: follows the event log, asks the decisions, carries them out.

Everything it knows it reads from the log as it is written, so the log tells why each machine was
asked for. What to do is decided in ``provision/recruit.py``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from provision.budget import Standing
from provision.outlook import Place
from provision.recruit import (
    Act,
    Crew,
    GiveBack,
    Order,
    Seat,
    consider_move,
    decide,
    finish_move,
    gone,
    joined,
    noticed,
    opened,
    ordered,
    refused,
)
from sailor.cluster.provisioner import NodeRequest, is_anchor
from sailor.errors import CloudError
from sailor.observe.events import Event, EventLog
from sailor.observe.ledger import CONTROLLER

log = logging.getLogger(__name__)

_LOOK_S = 0.5  # between two looks at the clock; what happens is acted on at once,
_GATHER_S = 0.2  # or nearly so: machines lost together are asked for together, as one cluster
_FIRST_PAUSE_S = 10.0  # what a change costs before one was seen

GainOf = Callable[[Sequence[tuple[str, str]]], Callable[[Place], float]]
"""From the (zone, machine type) of all members to what one more machine would add, by place."""


class Run(Protocol):
    """What is asked of whoever runs the job; sailor.runtime.controller.Controller in real life."""

    async def add_nodes(self, *requests: NodeRequest) -> None: ...
    def give_back(self, node: str, reason: str) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """Why no machine can be had at all. ``lasting``: waiting does not help."""

    error: CloudError
    lasting: bool


class Recruiter:
    """Runs beside the job from ``start`` to ``stop``.

    ``give_up`` is called once, when no machine can be had: at once when every place has barred us,
    after ``patience_s`` without a single machine otherwise. ``gain`` answers what machines are
    worth; it may take a second, and is asked in a thread.
    """

    def __init__(
        self,
        crew: Crew,
        *,
        events: EventLog,
        run: Run,
        gain: GainOf,
        give_up: Callable[[Refusal], None],
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.crew = crew
        self._events = events
        self._run = run
        self._gain = gain
        self._give_up = give_up
        self._patience_s = patience_s
        self._clock = clock
        self._standing = Standing()
        self._last_error: CloudError | None = None
        self._alone_since = clock()
        self._stopped = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        """Listen and act from now on."""
        self._unsubscribe = self._events.subscribe(self._see)
        self._task = asyncio.create_task(self._watch())

    def take_over(self, past: Iterable[Event], nodes: Collection[str]) -> None:
        """Before ``start``: these nodes of an earlier process are there still, booked as its log
        has them."""
        booked = ("node_requested", "node_joined", "notice")
        for event in past:
            if event.kind in booked and event.get("node") in nodes:
                self._see(event)

    async def stop(self) -> None:
        """Let go: nothing is asked for any more."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def tell_capacity(self, place: Place) -> None:
        """Somebody knows that a place has machines to give."""
        self.crew = opened(self.crew, place)
        self._wake.set()

    def _see(self, event: Event) -> None:
        """Book one event of the log."""
        self._standing = self._standing.after(event)
        now, node = self._clock(), str(event.get("node"))
        if is_anchor(node) or event.get("role") == CONTROLLER:
            return  # it has no place in the crew; others see to it
        match event.kind:
            case "node_requested":
                request = NodeRequest(
                    node=node, zone=event["zone"], machine_type=event["machine_type"],
                    spot=event["spot"], price_per_hour=event["price_per_hour"],
                )  # fmt: skip
                self.crew = ordered(self.crew, request, now=now)
            case "node_joined":
                self.crew = joined(self.crew, node, now=now)
            case "notice":
                self.crew = noticed(self.crew, node, now=now)
            case "node_lost" | "fenced":
                self.crew = gone(self.crew, node, now=now, lost=event.get("cause") != "released")
            case "node_released":
                self.crew = gone(self.crew, node, now=now, lost=False)
            case "node_refused":
                self._last_error = _error_of(event)
                self.crew = refused(
                    self.crew, node, now=now, why=str(event["why"]), retry_s=event["retry_s"],
                    lasting=bool(event["lasting"]),
                )  # fmt: skip
            case "stop_asked" | "run_ended":
                self._stopped = True
            case _:
                return
        self._wake.set()

    async def _watch(self) -> None:
        while not self._stopped:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._wake.wait()
            if self._wake.is_set():
                await asyncio.sleep(_GATHER_S)
            self._wake.clear()
            if self._stopped:
                return
            await self._recruit()
            self._mind_patience()

    def _mind_patience(self) -> None:
        """Give up when nothing is there and nothing can be had."""
        now = self._clock()
        if self.crew.count(Seat.member, Seat.leaving):
            self._alone_since = now
            return
        if self.crew.count(Seat.ordered):
            return  # it may yet come; an order that does not is given back in time
        waited_s = now - self._alone_since
        barred = self.crew.closed_for_good
        if not barred and waited_s <= self._patience_s:
            return
        self._stopped = True
        error = self._last_error or CloudError("no machine could be asked for", code="E405")
        self._give_up(Refusal(error=error, lasting=barred))

    async def _recruit(self) -> None:
        """Decide, write down why, act."""
        due = self.crew.missing or self.crew.overdue(self._clock())
        if not due and not self._may_move():
            self.crew, acts = finish_move(self.crew, now=self._clock())
            await self._carry_out(acts)
            return
        members = [
            (post.place[0], post.place[1])
            for post in self.crew.posts.values()
            if post.seat is Seat.member
        ]
        gain = await asyncio.to_thread(self._gain, members)
        now = self._clock()
        self.crew, acts = decide(self.crew, now=now, gain=gain)
        if not acts and self._may_move():
            remaining_s = self._standing.remaining_s()
            if remaining_s is not None:
                self.crew, acts = consider_move(
                    self.crew, now=now, gain=gain, remaining_s=remaining_s,
                    pause_s=self._standing.pause_s or _FIRST_PAUSE_S,
                )  # fmt: skip
        await self._carry_out(acts)

    def _may_move(self) -> bool:
        """Whether a look at cheaper places is due: prices do not change by the second."""
        return (
            self._standing.remaining_s() is not None
            and len({offer.price_per_hour for offer in self.crew.offers.values()}) > 1
            and self._clock() - self.crew.moved_at >= self.crew.rules.settle_s
        )

    async def _carry_out(self, acts: Sequence[Act]) -> None:
        orders: dict[Place, list[NodeRequest]] = {}
        for act in acts:
            match act:
                case GiveBack():
                    self._events.write(
                        "recruiting", decision="give_back", node=act.node, why=act.why
                    )
                    self._run.give_back(act.node, act.why)
                case Order(request=request):
                    self._events.write(
                        "recruiting", decision="order", node=request.node, why=act.why,
                        zone=request.zone, machine_type=request.machine_type,
                    )  # fmt: skip
                    place = (request.zone, request.machine_type, request.spot)
                    orders.setdefault(place, []).append(request)
        for alike in orders.values():
            await self._place(alike)

    async def _place(self, alike: Sequence[NodeRequest]) -> None:
        """Order machines of one place: they may be rented as one."""
        try:
            await self._run.add_nodes(*alike)
        except CloudError as error:  # told at once that it can never be had
            for request in alike:
                self._events.write(
                    "node_refused", node=request.node, code=error.code, why=error.what,
                    detail=error.why, fix=error.fix, retry_s=None, lasting=True,
                )  # fmt: skip


def _error_of(event: Event) -> CloudError:
    """The refusal in an event, as an error again."""
    return CloudError(
        str(event["why"]), code=str(event["code"]), why=str(event.get("detail") or ""),
        fix=str(event.get("fix") or ""),
    )  # fmt: skip
