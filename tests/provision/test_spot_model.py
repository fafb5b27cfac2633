"""Drawn availability has the rates it was asked for, and its losses come in bulk."""

from statistics import fmean

import pytest

from provision.spot_model import RATES, ZoneModel, draw
from provision.trace import statistics

DAY = 86_400.0


def model(zone: str = "a", **changes: object) -> ZoneModel:
    fields = {"machine_type": "m", "machines": 8, "node_hours_per_loss": 4.0, **changes}
    return ZoneModel(zone=zone, **fields)


def test_the_same_seed_draws_the_same_future() -> None:
    zones = [model("a"), model("b")]
    assert draw(zones, seconds=DAY, seed=1) == draw(zones, seconds=DAY, seed=1)
    assert draw(zones, seconds=DAY, seed=1) != draw(zones, seconds=DAY, seed=2)


def test_another_zone_leaves_the_first_as_it_was() -> None:
    alone = draw([model("a")], seconds=DAY, seed=1)
    both = draw([model("a"), model("b")], seconds=DAY, seed=1)
    assert tuple(event for event in both.events if event.zone == "a") == alone.events


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("outage_share", [0.0, 0.1])
def test_machines_are_lost_at_the_rate_asked_for(name: str, outage_share: float) -> None:
    """Within 8 %: so long a time gives some 15,000 losses; outages of all 16 machines make up over
    half of them, so the relative standard error is near 2.5 %. Fixed seed."""
    zone = model(
        node_hours_per_loss=RATES[name].node_hours_per_loss, mean_bulk=RATES[name].mean_bulk,
        outage_share=outage_share, machines=16, spread_seconds=0.0,
    )  # fmt: skip
    rate = RATES[name].node_hours_per_loss
    found = statistics(draw([zone], seconds=50 * DAY * rate, seed=7))
    assert found.node_hours_per_loss == pytest.approx(rate, rel=0.08)


def test_losses_come_in_bulks_of_the_size_asked_for() -> None:
    zone = model(machines=200, mean_bulk=2.5, node_hours_per_loss=400.0, return_minutes=1.0)
    found = statistics(draw([zone], seconds=400 * DAY, seed=3))
    assert found.mean_bulk == pytest.approx(2.5, rel=0.06)


def test_a_zone_never_gives_more_than_it_has_nor_less_than_none() -> None:
    zone = model(node_hours_per_loss=0.5, mean_bulk=3.0, outage_share=0.2, return_minutes=2.0)
    trace = draw([zone], seconds=10 * DAY, seed=5)
    levels = [sum(level.values()) for _, _, level in trace.levels()]
    assert (min(levels), max(levels)) == (0, 8)


def test_an_outage_takes_the_whole_zone_and_shuts_it_for_a_while() -> None:
    zone = model(outage_share=1.0, outage_hours=2.0, return_minutes=1.0, spread_seconds=0.0)
    trace = draw([zone], seconds=200 * DAY, seed=11)
    empty = [end - begin for begin, end, level in trace.levels() if sum(level.values()) == 0]
    # Two hours shut, then the first of eight machines to return after 60/8 s on average.
    assert fmean(empty) == pytest.approx(2 * 3600 + 60 / 8, rel=0.1)
    assert all(event.delta == -1 for event in trace.events[1:] if event.delta < 0)


def test_losses_of_one_event_are_spread_over_minutes_and_announced_if_asked() -> None:
    zone = model(machines=4, outage_share=1.0, notice_seconds=30.0)
    trace = draw([zone], seconds=DAY, seed=2)
    losses = [event for event in trace.events if event.delta < 0][:4]
    assert 0 < losses[-1].t - losses[0].t <= 180
    assert {event.notice_seconds for event in losses} == {30.0}


@pytest.mark.parametrize(
    "changes",
    [{"machines": 0}, {"node_hours_per_loss": 0.0}, {"mean_bulk": 0.5}, {"outage_share": 1.5}],
)
def test_a_model_that_makes_no_sense_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"needs|share"):
        model(**changes)


def test_every_rate_names_its_source() -> None:
    assert all(rates.source for rates in RATES.values())
