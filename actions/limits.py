"""Budget and deadline while a run goes on: reached, it saves and stops; spent, it does not start.

Both count from the log, over all starts of the run: dollars of every machine until its release is
proven, and the time since the first start, standing still included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from sailor.config import BudgetConfig
from sailor.errors import LimitReached
from sailor.observe.events import Event, EventLog
from sailor.observe.ledger import Ledger
from sailor.units import duration, parse_seconds

_LOOK_EVERY_S = 1.0


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
    steps = 0
    for event in past:
        ledger.apply(event)
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
            fix="a higher budget.total_usd or budget.deadline, or null; the run goes on from there",
        )


async def watch(
    budget: BudgetConfig, *, events: EventLog, past: Iterable[Event], stop: Callable[[str], None]
) -> None:
    """Until a limit is reached: then call ``stop`` with the reason, once, and return."""
    ledger = Ledger()
    for event in past:
        ledger.apply(event)
    unsubscribe = events.subscribe(ledger.apply)
    try:
        while (why := reached(budget, ledger, now=events.t)) is None:
            await asyncio.sleep(_LOOK_EVERY_S)
    finally:
        unsubscribe()
    stop(why)
