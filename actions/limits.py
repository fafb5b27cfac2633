"""Budget and deadline while a run goes on: it saves and stops in time; spent, it does not start.

Both count from the log, over all starts of the run: dollars of every machine until its release is
proven, and the time since the first start, standing still included. In time means early enough for
the last step, the save and the releases (provision/budget.py), and for a controller's own machine
to wait until its results were fetched.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Self

from provision.budget import Budget, Standing, Wait, reason_to_stop
from sailor.config import BudgetConfig, CloudConfig, Config
from sailor.errors import LimitReached
from sailor.observe.events import Event, EventLog, read_events
from sailor.observe.ledger import CONTROLLER, Ledger
from sailor.units import duration, parse_seconds

RELEASE_S = 30.0  # for which a machine is still paid once nobody needs it
_LOOK_EVERY_S = 1.0
_SPARE = 1.1  # of what the rest of a run is taken to need


@dataclass(frozen=True, kw_only=True, slots=True)
class Afterwards:
    """How long a controller's own machine may stay once its run has ended."""

    wish_s: float = 0.0
    idle_s: float = 0.0

    @classmethod
    def of(cls, cloud: CloudConfig) -> Self:
        """As configured: ``cloud.controller_keeps``, and ``cloud.idle`` until the cloud ends it."""
        return cls(
            wish_s=parse_seconds(cloud.controller_keeps), idle_s=parse_seconds(cloud.idle)
        )  # fmt: skip

    def wait(self, ledger: Ledger) -> Wait:
        """With the price of the machine that lives, 0 where there is none."""
        price = sum(
            life.price_per_hour
            for life in ledger.lives
            if life.role == CONTROLLER and life.unpaid_at is None
        )
        return Wait(price_per_hour=price, wish_s=self.wish_s, idle_s=self.idle_s)


def stay_s(
    config: Config, *, log: Path, wish_s: float, wall: Callable[[], float] = time.time
) -> float:  # fmt: skip
    """How long a controller's own machine waits from now on for whoever fetches results: as wished,
    as far as the budget pays for it."""
    if config.budget.total_usd is None or not log.exists():
        return wish_s
    ledger, last = Ledger(), None
    for last in read_events(log):
        ledger.apply(last)
    if last is None:
        return wish_s
    now = last.t + max(0.0, wall() - datetime.fromisoformat(last.time).timestamp())
    wait = Afterwards(wish_s=wish_s, idle_s=parse_seconds(config.cloud.idle)).wait(ledger)
    return wait.seconds_paid(config.budget.total_usd - ledger.cost(now=now))


def reached(budget: BudgetConfig, ledger: Ledger, *, now: float) -> str | None:
    """Which limit is reached ``now`` (the log's seconds), in words; None while there is room."""
    spent = ledger.cost(now=now)
    if budget.total_usd is not None and spent >= budget.total_usd and spent > 0:
        return f"${spent:,.2f} of budget.total_usd={budget.total_usd:g} spent"
    if budget.deadline is not None and now >= parse_seconds(budget.deadline):
        return f"budget.deadline={budget.deadline} is over"
    return None


def refuse_when_spent(budget: BudgetConfig, *, past: Iterable[Event], now: float) -> None:
    """Raise LimitReached (E702, exit 7) when the run has nothing left: no machine is rented."""
    ledger = Ledger()
    steps = total = 0
    for event in past:
        ledger.apply(event)
        if event.kind == "run_started":
            total = event.get("total_steps", 0)
        if event.kind == "step":
            steps = event["step"]
    why = reached(budget, ledger, now=now)
    if why is not None:
        raise LimitReached(
            "this run has reached its limit and was not started",
            code="E702",
            why=f"{why}; step {steps} is done, ${ledger.cost(now=now):,.2f} and {duration(now)} "
            "since the first start",
            where="budget",
            fix=_more(budget, spent=ledger.cost(now=now), now=now, done=steps, total=total),
        )


def _more(
    budget: BudgetConfig, *, spent: float, now: float, done: int, total: int
) -> str:  # fmt: skip
    """What would do at the pace so far, as a setting for each limit; the run goes on from there."""
    share = max(total / done, 1.0) if done else 2.0
    fixes = []
    if budget.total_usd is not None:
        enough = max(math.ceil(spent * share * _SPARE), math.ceil(budget.total_usd) + 1)
        fixes.append(f"budget.total_usd={enough}   pays for the rest at the pace so far")
    if budget.deadline is not None:
        hours = math.ceil(now * share * _SPARE / 360) / 10
        fixes.append(f"budget.deadline={hours:g}h   is time for the rest at the pace so far")
    return "\n".join(fixes)


async def watch(
    budget: BudgetConfig, *, events: EventLog, past: Iterable[Event], stop: Callable[[str], None],
    afterwards: Afterwards = Afterwards(),
) -> None:  # fmt: skip
    """Until it is time to stop: then call ``stop`` with the reason, once, and return."""
    ledger = Ledger()
    standing = Standing()

    def see(event: Event) -> None:
        nonlocal standing
        ledger.apply(event)
        standing = standing.after(event)

    for event in past:
        see(event)
    limits = Budget(
        total_dollars=budget.total_usd,
        deadline_s=None if budget.deadline is None else parse_seconds(budget.deadline),
    )

    def why() -> str:
        return reason_to_stop(
            limits,
            standing,
            spent=ledger.cost(now=events.t),
            dollars_per_hour=sum(
                life.price_per_hour for life in ledger.lives if life.unpaid_at is None
            ),
            now=events.t,
            release_s=RELEASE_S,
            kept=afterwards.wait(ledger).dollars_kept(budget.total_usd or 0.0),
        )

    unsubscribe = events.subscribe(see)
    try:
        while not (reason := why()):
            await asyncio.sleep(_LOOK_EVERY_S)
    finally:
        unsubscribe()
    stop(reason)
