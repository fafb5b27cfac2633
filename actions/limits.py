"""Budget and deadline while a run goes on: it saves and stops in time; spent, it does not start.

Both count from the log, over all starts of the run: dollars of every machine until its release is
proven, and the time since the first start, standing still included. In time means early enough for
the last step, the save and the releases (provision/budget.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from provision.budget import Budget, Standing, reason_to_stop
from sailor.config import BudgetConfig
from sailor.errors import LimitReached
from sailor.observe.events import Event, EventLog
from sailor.observe.ledger import Ledger
from sailor.units import duration, parse_seconds

RELEASE_S = 30.0  # for which a machine is still paid once nobody needs it
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
        )

    unsubscribe = events.subscribe(see)
    try:
        while not (reason := why()):
            await asyncio.sleep(_LOOK_EVERY_S)
    finally:
        unsubscribe()
    stop(reason)
