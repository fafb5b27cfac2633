"""A run that reaches its budget or deadline saves and stops; with none left it never starts."""

from __future__ import annotations

import asyncio

import pytest

from actions.limits import reached, refuse_when_spent, watch
from sailor.clock import HandClock
from sailor.config import BudgetConfig
from sailor.errors import LimitReached
from sailor.observe.events import EventLog
from sailor.observe.ledger import Ledger
from tests.observe.run_story import Story, demo


def ledger_of(story: Story) -> Ledger:
    ledger = Ledger()
    for event in story.events:
        ledger.apply(event)
    return ledger


def two_nodes() -> Story:
    """Two machines at $3,600 an hour, that is, $1 a second each, from second 0 on."""
    return Story().start().nodes("node-1", "node-2", price_per_hour=3600.0)


@pytest.mark.parametrize(
    ("budget", "now", "words"),
    [
        (BudgetConfig(), 1e9, None),
        (BudgetConfig(total_usd=20), 9.9, None),
        (BudgetConfig(total_usd=20), 10.0, "$20.00 of budget.total_usd=20"),
        (BudgetConfig(deadline="1min"), 59.9, None),
        (BudgetConfig(deadline="1min"), 60.0, "budget.deadline=1min is over"),
    ],
)
def test_a_limit_is_reached_when_money_or_time_is(budget, now, words):
    why = reached(budget, ledger_of(two_nodes()), now=now)
    assert why is None if words is None else words in why


def test_machines_that_cost_nothing_never_reach_a_budget_of_nothing():
    free = Story().start().nodes("node-1")
    assert reached(BudgetConfig(total_usd=0), ledger_of(free), now=1e6) is None


def test_a_run_with_nothing_left_is_refused_with_what_it_did():
    with pytest.raises(LimitReached) as refusal:
        refuse_when_spent(BudgetConfig(deadline="10s"), past=demo().events, now=40.0)
    assert (refusal.value.code, refusal.value.exit_code) == ("E702", 7)
    assert "step 20 is done" in refusal.value.why
    refuse_when_spent(BudgetConfig(deadline="1h"), past=demo().events, now=40.0)


def test_a_watch_asks_to_stop_once_and_counts_machines_that_come_later(tmp_path):
    clock = HandClock()
    asked: list[str] = []

    async def follow() -> None:
        with EventLog(tmp_path / "events.jsonl", run="it", clock=clock) as events:
            task = asyncio.create_task(
                watch(BudgetConfig(total_usd=100), events=events, past=(), stop=asked.append)
            )
            await asyncio.sleep(0)  # it looks once: nothing spent
            events.write(
                "node_requested", node="node-1", zone="z", machine_type="m", spot=True,
                price_per_hour=3600.0,
            )  # fmt: skip
            assert asked == []
            clock.advance(51.0)  # half of it; the other half is what stopping costs
            await asyncio.wait_for(task, 10)

    asyncio.run(follow())
    assert asked == ["$51.00 of $100.00 are spent, and stopping costs $50.00"]
