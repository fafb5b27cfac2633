"""What is believed of a place, before and after something was seen."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provision.spot_model import ZoneModel, draw
from sailor.planner.evidence import Evidence, Stay, lived, observe
from sailor.planner.hazard import NEVER, PRIOR, believe, from_history, from_price
from tests.helpers.simulation import Change_ as Change

PLACE = ("a", "m")


def seen(*changes: Change, hours: float = 10.0) -> Evidence:
    return observe(changes, seconds=hours * 3600)[PLACE]


def test_the_belief_is_updated_event_by_event_and_hour_by_hour():
    after = PRIOR.seen(Evidence(machine_hours=93.0, events=9, lost=9))
    assert (after.shape, after.rate) == (9.7, 100.0)
    assert after.events_per_machine_hour == pytest.approx(0.097)
    assert "9 events in 93.0 machine-hours" in after.describe()


def test_hours_without_a_loss_calm_and_never_promise():
    beliefs = [PRIOR.seen(Evidence(machine_hours=h)) for h in (0.0, 10.0, 1000.0)]
    rates = [b.events_per_machine_hour for b in beliefs]
    assert rates[0] > rates[1] > rates[2] > 0.0


def test_machines_that_stay_are_believed_to_whatever_is_seen():
    assert NEVER.seen(Evidence(machine_hours=1.0, events=5, lost=5)) == NEVER
    assert NEVER.machine_hours_per_loss == float("inf")
    assert "never taken away" in NEVER.describe()


def test_two_pieces_of_evidence_are_as_good_as_both_at_once():
    one = Evidence(machine_hours=5.0, events=2, lost=3)
    two = Evidence(machine_hours=7.0, events=1, lost=1)
    assert PRIOR.seen(one + two).shape == pytest.approx(PRIOR.seen(one).seen(two).shape)
    assert PRIOR.seen(one + two).rate == pytest.approx(PRIOR.seen(one).seen(two).rate)


def test_losses_close_together_are_one_event_and_returns_are_matched_with_them():
    """Four machines for an hour; two go within a minute, one comes back after half an hour."""
    evidence = seen(
        Change(0.0, "a", 4), Change(3600.0, "a", -1), Change(3660.0, "a", -1),
        Change(5400.0, "a", 1), hours=2.0,
    )  # fmt: skip
    assert (evidence.events, evidence.lost, evidence.outages) == (1, 2, 0)
    assert evidence.machine_hours == pytest.approx(4 + 3 / 60 + 29 / 60 * 2 + 0.5 * 3, rel=1e-3)
    assert (evidence.returns, evidence.return_hours) == (1, pytest.approx(0.5))


def test_an_event_that_takes_all_is_an_outage_that_lasts_until_something_comes_back():
    evidence = seen(
        Change(0.0, "a", 3), Change(3600.0, "a", -3), Change(3600.0 + 1800.0, "a", 3), hours=3.0
    )
    assert (evidence.events, evidence.outages, evidence.outage_lost) == (1, 1, 3)
    assert evidence.outage_hours == pytest.approx(0.5)
    assert evidence.returns == 0
    assert PRIOR.seen(evidence).mean_bulk == PRIOR.mean_bulk  # outages say nothing of usual bulks


def test_what_a_generator_does_is_what_is_believed_after_watching_it():
    """200 hours of ten machines that are lost every four hours, two at a time: some 500 events, of
    which 4 % is twice their spread."""
    model = ZoneModel(
        zone="a", machine_type="m", machines=10, node_hours_per_loss=4.0, mean_bulk=2.0
    )
    trace = draw([model], seconds=200 * 3600.0, seed=1)
    belief = believe({PLACE: PRIOR}, observe(trace.events, seconds=trace.seconds))[PLACE]
    assert belief.machine_hours_per_loss == pytest.approx(4.0, rel=0.12)
    assert belief.mean_bulk == pytest.approx(2.0, rel=0.15)


@given(st.floats(0.05, 1.2))
@settings(max_examples=40, deadline=None)
def test_a_dear_zone_is_believed_to_be_rougher_and_never_by_more_than_two(share):
    usual = PRIOR.events_per_machine_hour
    moved = from_price(PRIOR, spot=share, on_demand=1.0).events_per_machine_hour
    assert usual / 2 <= moved * (1 + 1e-12)
    assert moved <= usual * 2 * (1 + 1e-12)
    dearer = from_price(PRIOR, spot=share * 1.1, on_demand=1.0).events_per_machine_hour
    assert dearer >= moved


@pytest.mark.parametrize(
    "wrong", [{"machine_hours": -1.0}, {"events": 2, "lost": 1}, {"events": 1, "lost": 1,
                                                                    "outages": 2}]
)  # fmt: skip
def test_evidence_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match=r"negative|event"):
        Evidence(**wrong)


@pytest.mark.parametrize(
    "prices", [{"spot": 0.0, "on_demand": 1.0}, {"spot": 1.0, "on_demand": -1}]
)
def test_prices_that_are_none_move_nothing(prices):
    with pytest.raises(ValueError, match="price"):
        from_price(PRIOR, **prices)


def test_machines_of_ones_own_tell_as_a_trace_does_and_what_is_given_back_is_no_loss():
    """Three for two hours: one is taken, one given back, one stays. An hour later one comes."""
    hour = 3600.0
    stays = [
        Stay(place=PLACE, since=0.0, until=2 * hour, taken=True),
        Stay(place=PLACE, since=0.0, until=2 * hour),
        Stay(place=PLACE, since=0.0),
        Stay(place=PLACE, since=3 * hour),
    ]
    evidence = lived(stays, seconds=5 * hour)[PLACE]
    assert (evidence.events, evidence.lost, evidence.outages) == (1, 1, 0)
    assert evidence.machine_hours == pytest.approx(2 + 2 + 5 + 2)
    assert (evidence.returns, evidence.return_hours) == (1, pytest.approx(1.0))


def test_a_clouds_history_moves_the_prior_by_the_odds_of_a_stop_being_a_preemption():
    """60 % of stops where 40 % are usual: odds of 1.5 over 2/3."""
    moved = from_history(PRIOR, preempted=0.6, usual=0.4)
    assert moved.events_per_machine_hour == pytest.approx(2.25 * PRIOR.events_per_machine_hour)
    assert moved.shape == PRIOR.shape  # it stays worth as few observations
    assert "60% of stops" in moved.describe()
    for share, factor in ((1.0, 4.0), (0.0, 0.25), (0.4, 1.0)):
        there = from_history(PRIOR, preempted=share, usual=0.4).events_per_machine_hour
        assert there == pytest.approx(factor * PRIOR.events_per_machine_hour)
    with pytest.raises(ValueError, match="not between 0 and 1"):
        from_history(PRIOR, preempted=1.2, usual=0.4)
