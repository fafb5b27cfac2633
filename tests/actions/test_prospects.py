"""What is expected of plans whose machines may vanish, and how it changes which is chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actions.planning import question
from actions.prospects import answered, prospect, spread
from actions.standing_by import standby_advice, with_standbys
from tests.helpers.compose import a_config

GPT = ("action=plan", "model=gpt_1b", "cloud=gcp")


def asked_with_spot_at(share: float, *words: str):
    """The question with every spot price at a share of the on-demand price beside it."""
    asked = question(a_config(*GPT, *words))
    pool = asked.catalogue.pool
    sure = {(o.zone, o.machine_type): o.price_per_hour for o in pool.offers if not o.spot}
    offers = tuple(
        replace(o, price_per_hour=share * sure[o.zone, o.machine_type])
        if o.spot and (o.zone, o.machine_type) in sure
        else o
        for o in pool.offers
    )
    catalogue = replace(asked.catalogue, pool=replace(pool, offers=offers))
    return replace(asked, catalogue=catalogue)


@pytest.mark.parametrize(
    "words", [(), ("model=llama3_8b", "train.tokens=20B"), ("cloud.machine_types=[g2-standard-4]",)]
)
def test_the_formulas_mean_is_that_of_the_futures(words):
    """Two independent ways to the same number. The formulas neglect that a belief is uncertain and
    the futures walk in intervals: 6 % for hours, 4 % for dollars."""
    asked = question(a_config(*GPT, *words))
    found = prospect(asked.answer().best, asked)
    assert found is not None
    lived = found.futures.futures
    assert lived.chance() > 0.99
    done = lived.finish_hours < float("inf")
    assert found.hours == pytest.approx(lived.finish_hours[done].mean(), rel=0.06)
    assert found.dollars == pytest.approx(lived.finish_dollars[done].mean(), rel=0.04)


def test_interruptions_cost_time_and_machines_that_stay_cost_none():
    asked = question(a_config(*GPT))
    result = asked.answer()
    spot = result.best
    sure = next(c for c in result.candidates if not c.rentals[0].offer.spot)
    risky, calm = prospect(spot, asked), prospect(sure, asked)
    assert 0.5 < risky.goodput < 0.99
    assert risky.hours > spot.hours
    assert risky.dollars > spot.dollars
    assert calm.goodput > 0.99
    assert calm.dollars == pytest.approx(sure.dollars, rel=0.01)
    assert calm.words(asked.limits) == ()


def test_in_a_hurry_machines_that_stay_are_chosen():
    """As many of a kind train as fast on spot, until one is taken."""
    asked = question(a_config(*GPT, "planner=fastest", "cloud.machine_types=[a2-highgpu-1g]"))
    assert asked.answer().best.rentals[0].offer.spot
    result, why = answered(asked)
    assert not result.best.rentals[0].offer.spot
    assert "if no machine were ever taken" in why
    assert len(result.candidates) == len(asked.answer().candidates)
    plain, nothing = answered(replace(asked, spot_aware=False))
    assert plain.best.rentals[0].offer.spot
    assert nothing == ""


def test_at_usual_prices_spot_stays_the_choice():
    asked = question(a_config(*GPT))
    result, why = answered(asked)
    assert result.best == asked.answer().best
    assert why == ""


def test_a_budget_that_holds_only_without_interruptions_counts_as_broken():
    """The cheapest would just keep it if nothing happened; the next cheapest keeps it as it is."""
    asked = asked_with_spot_at(0.9)
    result = asked.answer()
    cheapest = result.best
    expected = prospect(cheapest, asked)
    between = (cheapest.dollars + expected.dollars) / 2
    tight = replace(asked, limits=replace(asked.limits, total_dollars=between))
    chosen = answered(tight)[0].best
    assert chosen.dollars <= between
    assert prospect(chosen, tight).chance(tight.limits) >= expected.chance(tight.limits)


def test_the_chance_to_keep_a_budget_grows_with_it():
    asked = question(a_config(*GPT))
    found = prospect(asked.answer().best, asked)
    chances = [
        found.chance(replace(asked.limits, total_dollars=share * found.dollars))
        for share in (0.9, 1.0, 1.02, 1.2)
    ]
    assert chances == sorted(chances)
    assert (chances[0], chances[-1]) == (0.0, 1.0)
    assert found.chance(asked.limits) is None
    lines = found.words(replace(asked.limits, total_dollars=1.2 * found.dollars))
    assert any(line.startswith("chance to finish within $") for line in lines)


def test_places_that_share_no_fate_are_named_where_they_pay():
    """All zones of the region at one price: spread out, an outage takes half."""
    asked = question(
        a_config(*GPT, "cloud.machine_types=[a2-highgpu-1g]", "planner.data_parallel=16")
    )
    found = prospect(asked.answer().best, asked)
    said = spread(found, asked)
    assert said == "" or "would make a useful token" in said


def test_a_run_on_this_computer_has_no_prospects():
    asked = question(a_config("action=plan"))
    assert prospect(asked.answer().best, asked) is None
    assert answered(asked)[1] == ""


def test_as_many_stand_by_as_pay_best_and_there_is_room_for():
    """A crowd of forty, where a pause of everybody costs more than one machine."""
    words = (*GPT, "cloud.machine_types=[a2-highgpu-1g]", "planner.objective=max_throughput")
    config = a_config(*words, "cloud.standbys=null", "cloud.max_nodes=40", "cloud.spot=true")
    asked = question(config)
    config = replace(config, cloud=replace(config.cloud, max_nodes=48))
    chosen = asked.answer().best
    advice = standby_advice(config, chosen, asked)
    assert advice.standbys == advice.wanted > 0
    assert with_standbys(config, chosen, asked).cloud.standbys == advice.wanted
    number = sum(r.num_machines for r in chosen.rentals)
    tight = replace(config, cloud=replace(config.cloud, max_nodes=number))
    assert with_standbys(tight, chosen, asked).cloud.standbys == 0
    told = replace(config, cloud=replace(config.cloud, standbys=3))
    assert with_standbys(told, chosen, asked) is told


def test_of_two_zones_the_one_with_more_preemptions_among_its_stops_is_believed_worse():
    asked = question(a_config(*GPT))
    kind = "a2-highgpu-1g"
    zones = sorted({o.zone.name for o in asked.catalogue.pool.offers
                    if o.spot and o.machine_type.name == kind})[:3]  # fmt: skip
    shares = dict(zip(((zone, kind) for zone in zones), (0.2, 0.4, 0.8), strict=True))
    told = replace(asked, catalogue=replace(asked.catalogue, preempted=shares))
    ratios = [
        told.believed[place].events_per_machine_hour / asked.believed[place].events_per_machine_hour
        for place in shares
    ]
    assert ratios == pytest.approx([(0.25) / (2 / 3), 1.0, 4.0])  # 0.8's odds are 6 times: capped
    assert told.believed.keys() == asked.believed.keys()
