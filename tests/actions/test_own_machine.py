"""The machine of a run's own controller costs money like any other: planned, counted, capped."""

from __future__ import annotations

from datetime import datetime

import pytest

from actions.limits import Afterwards, reached, refuse_when_spent, stay_s
from actions.own_machine import beside_per_hour, own_machine
from actions.planning import question
from actions.prospects import answered
from provision.hosts import controller_host
from sailor.config import BudgetConfig
from sailor.errors import LimitReached, NoFeasiblePlan
from sailor.observe.history import replay
from sailor.observe.ledger import CONTROLLER
from sailor.observe.metrics import measure
from sailor.observe.report import paragraph, warnings
from sailor.observe.summary import summarise
from tests.helpers.compose import a_config
from tests.observe.run_story import Story

ON_GCP = ("model=gpt_1b", "cloud=gcp", "cloud.live=false")
PRICE = controller_host("gcp").price_per_hour


def asked_for(story: Story, *, price_per_hour: float = 36.0) -> Story:
    """A cent a second."""
    return story.say(
        "node_requested", node="controller", zone="us-central1-a", machine_type="n2-highmem-2",
        spot=False, price_per_hour=price_per_hour, role=CONTROLLER,
    )  # fmt: skip


def a_run(*, rental_s: float = 100.0) -> Story:
    """Its machine is asked for, comes, rents one that trains, 20 steps, the end: 125 s in all."""
    story = asked_for(Story())
    story.t += rental_s
    story.start().nodes("node-1", boot=5.0).generation(1, "node-1").steps(1, 20, generation=1)
    story.say("node_released", node="node-1", released=True, proof="its pid is gone")
    return story.say("run_ended", end="done", why="", exit_code=0)


def gone(story: Story, *, after: float) -> Story:
    return story.say(
        "node_released", after=after, node="controller", released=True, proof="listed no more"
    )  # fmt: skip


def test_the_plan_leaves_room_for_it_in_both_budgets_and_says_what_it_costs():
    words = (*ON_GCP, "budget.per_hour_usd=60", "budget.total_usd=900")
    here, away = a_config(*words), a_config(*words, "cloud.controller=cluster")
    assert (beside_per_hour(here), beside_per_hour(away)) == (0.0, PRICE)
    limits = question(away).limits
    assert limits.dollars_per_hour == pytest.approx(60 - PRICE)
    assert limits.dollars_to_train(100.0) == pytest.approx(900 - 100 * PRICE)
    assert question(here).limits.dollars_to_train(100.0) == 900
    both = a_config(*words, "cloud.controller=cluster", "checkpoint.anchor=true")
    assert beside_per_hour(both) > 2 * PRICE - 1e-9
    asked = question(away)
    best = answered(asked)[0].best
    own = own_machine(away, best)
    assert own is not None
    assert own.document()["price_per_hour"] == PRICE
    assert own.zone == max(best.rentals, key=lambda r: r.num_machines).offer.zone.name
    assert own_machine(here, best) is None


def test_a_budget_that_pays_for_those_that_train_alone_is_not_enough():
    asked = question(a_config(*ON_GCP, "cloud.controller=cluster"))
    best = answered(asked)[0].best
    assert best.dollars is not None
    assert best.hours is not None
    exact = f"budget.total_usd={best.dollars + best.hours * PRICE / 2:.4f}"
    assert answered(question(a_config(*ON_GCP, exact)))[0].best.plan == best.plan
    with pytest.raises(NoFeasiblePlan) as refusal:
        answered(question(a_config(*ON_GCP, exact, "cloud.controller=cluster")))
    assert refusal.value.code == "E302"
    assert "and $0.131 an hour for machines that do not train" in refusal.value.why
    enough = refusal.value.fix.split()[0]
    assert answered(question(a_config(*ON_GCP, enough, "cloud.controller=cluster")))[0].best


def test_on_this_computer_it_is_free():
    config = a_config("cloud.controller=cluster")
    own = own_machine(config, answered(question(config))[0].best)
    assert own is not None
    assert own.words().endswith("free")
    assert beside_per_hour(config) == 0.0


def test_it_is_paid_from_its_request_to_its_proven_end_though_the_run_is_over_before():
    story = a_run()
    history = replay(story.events)
    assert summarise(history)["cost_usd"] == pytest.approx(1.25)
    assert summarise(history)["released"] is False
    assert "controller" in " ".join(warnings(history, measure(history)))
    gone(story, after=75.0)
    history = replay(story.events)
    summary = summarise(history)
    assert summary["wall_s"] == 125.0, "the run's time is not that of its machine"
    assert summary["good_s"] + sum(summary["badput"].values()) == pytest.approx(125.0)
    assert summary["badput"]["capacity"] >= 100.0
    assert summary["cost_usd"] == pytest.approx(2.0)
    assert summary["controllers"] == {"hours": round(200 / 3600, 6), "cost_usd": 2.0}
    assert summary["released"] is True
    by_node = {machine["node"]: machine for machine in summary["machines"]}
    assert by_node["controller"]["cost_usd"] == pytest.approx(2.0)
    assert by_node["controller"]["proof"] == "listed no more"
    assert by_node["controller"]["taken"] is False
    assert "on 1 machine in 1 zone" in paragraph(history, measure(history))
    assert "All machines are proven gone" in paragraph(history, measure(history))


def test_it_is_no_machine_that_a_run_waits_for():
    history = replay(asked_for(Story()).start().nodes("node-1").events)
    (life,) = [x for x in history.ledger.lives if x.role == CONTROLLER]
    assert life.state() == "up"
    assert [life.node for life in history.ledger.members()] == ["node-1"]
    assert [life.node for life in history.ledger.present()] == ["node-1"]


def test_a_machine_that_was_not_had_costs_nothing():
    story = asked_for(Story()).say(
        "node_refused", after=600.0, node="controller", role=CONTROLLER, code="E404",
        why="no capacity", retry_s=None, lasting=False,
    )  # fmt: skip
    history = replay(story.events)
    assert history.ledger.cost(now=1e6) == 0.0
    assert history.ledger.unproven() == []
    summary = summarise(history)
    assert (summary["status"], summary["cost_usd"], summary["released"]) == ("not started", 0, True)


def test_what_it_has_cost_counts_against_the_cap_before_another_one_is_rented():
    story = gone(a_run(), after=75.0)
    refuse_when_spent(BudgetConfig(total_usd=2.01), past=story.events, now=1e6)
    with pytest.raises(LimitReached) as refusal:
        refuse_when_spent(BudgetConfig(total_usd=2.0), past=story.events, now=1e6)
    assert "$2.00 of budget.total_usd=2 spent" in refusal.value.why
    ledger = replay(a_run().events).ledger
    assert reached(BudgetConfig(total_usd=1.25), ledger, now=125.0) is not None


def test_its_door_stays_open_as_long_as_wished_or_as_the_budget_pays_for(tmp_path):
    """$36 an hour; the run has cost $1.25; what idles until the cloud ends it is paid for too."""
    events = a_run().events
    log = tmp_path / "events.jsonl"
    log.write_bytes(b"".join(event.to_json() + b"\n" for event in events))
    then = datetime.fromisoformat(events[-1].time).timestamp()

    def stay(*words: str, wish_s: float = 3600.0) -> float:
        config = a_config(*ON_GCP, "cloud.idle=100s", *words)
        return stay_s(config, log=log, wish_s=wish_s, wall=lambda: then + 10.0)

    assert stay() == 3600.0
    assert stay("budget.total_usd=100") == 3600.0
    assert stay("budget.total_usd=5.25") == pytest.approx(290.0)
    assert stay("budget.total_usd=1") == 60.0
    assert stay_s(a_config(*ON_GCP, "budget.total_usd=1"), log=tmp_path / "no", wish_s=9.0) == 9.0


def test_the_wait_is_that_of_a_machine_that_lives():
    config = a_config(*ON_GCP, "cloud.controller_keeps=2h", "cloud.idle=15min")
    afterwards = Afterwards.of(config.cloud)
    assert (afterwards.wish_s, afterwards.idle_s) == (7200.0, 900.0)
    assert afterwards.wait(replay(a_run().events).ledger).price_per_hour == 36.0
    assert afterwards.wait(replay(gone(a_run(), after=1.0).events).ledger).price_per_hour == 0.0
