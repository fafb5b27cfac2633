"""Capacity becomes machines: ordered, booted, told, taken, and replaced at once."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sailor.errors import DataError
from sailor.simulate.fleet import Change, in_turn, rent, spread
from tests.helpers.simulation import Change_ as Capacity


def story(fleet):
    return [(e.t, e.change.name, e.place[0]) for e in fleet.events]


def test_machines_come_when_they_have_booted():
    fleet = rent([Capacity(0, "a", 2)], seconds=100, target=5, boot_seconds=30)
    assert story(fleet) == [(30, "came", "a"), (30, "came", "a")]
    assert fleet.node_seconds == 2 * 70
    assert fleet.rented_seconds == 2 * 100
    assert fleet.dollars({("a", "m"): 3.6}) == pytest.approx(0.2)


def test_a_lost_machine_is_asked_for_elsewhere_at_once():
    fleet = rent(
        [Capacity(0, "a", 1), Capacity(0, "b", 1), Capacity(50, "a", -1)],
        seconds=100, target=1, boot_seconds=10, order=in_turn([("a", "m"), ("b", "m")]),
    )  # fmt: skip
    assert story(fleet) == [(10, "came", "a"), (50, "gone", "a"), (60, "came", "b")]


def test_a_notice_leaves_the_machine_its_time_and_a_booting_one_none():
    changes = [Capacity(0, "a", 1), Capacity(50, "a", -1, notice_seconds=20.0)]
    told = rent(changes, seconds=100, target=1, boot_seconds=10)
    assert story(told) == [(10, "came", "a"), (50, "told", "a"), (70, "gone", "a")]
    assert rent(changes, seconds=100, target=1, boot_seconds=60).events == ()


def test_orders_are_spread_or_given_in_turn():
    changes = [Capacity(0, "a", 4), Capacity(0, "b", 4)]
    places = [("a", "m"), ("b", "m")]
    for order, expected in ((spread(places), {"a": 2, "b": 2}), (in_turn(places), {"a": 4})):
        fleet = rent(changes, seconds=9, target=4, boot_seconds=0, order=order)
        assert Counter(lease.place[0] for lease in fleet.leases) == expected


@given(
    st.lists(
        st.tuples(st.integers(0, 500), st.sampled_from("ab"), st.integers(-4, 5)), max_size=30
    ),
    st.integers(1, 6),
    st.sampled_from([None, 0.0, 25.0]),
    st.integers(0, 3),
)
def test_no_place_is_held_beyond_what_it_gives_and_nobody_beyond_the_target(
    steps, target, notice, seed
):
    level, changes = {"a": 0, "b": 0}, []
    for t, zone, delta in sorted(steps):
        delta = max(delta, -level[zone])
        if delta:
            level[zone] += delta
            changes.append(Capacity(float(t), zone, delta, notice_seconds=notice))
    fleet = rent(changes, seconds=600, target=target, boot_seconds=15, seed=seed)
    assert fleet == rent(changes, seconds=600, target=target, boot_seconds=15, seed=seed)
    up, told = set(), set()
    for event in fleet.events:
        if event.change is Change.came:
            assert event.node not in up
            up.add(event.node)
        elif event.change is Change.told:
            told.add(event.node)
        else:
            up.remove(event.node)
        assert len(up - told) <= target
    for zone in "ab":
        for moment in (0.0, 100.0, 321.0, 599.0):
            given = sum(c.delta for c in changes if c.zone == zone and c.t <= moment)
            held = [
                lease for lease in fleet.leases
                if lease.place[0] == zone and lease.begin <= moment < lease.end - (notice or 0.0)
            ]  # fmt: skip
            assert len(held) <= given


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ([Capacity(5, "a", 1), Capacity(3, "a", 1)], "at 3 s, after one at 5 s"),
        ([Capacity(0, "a", 1), Capacity(3, "a", -2)], "a gives fewer than no machines at 3 s"),
    ],
)
def test_changes_that_cannot_be_walked_are_refused_by_name(changes, says):
    with pytest.raises(DataError) as caught:
        rent(changes, seconds=10, target=1, boot_seconds=0, source="x.csv")
    assert says in caught.value.why
    assert (caught.value.code, caught.value.where) == ("E508", "x.csv")


@pytest.mark.parametrize("bad", [{"target": 0}, {"boot_seconds": -1.0}, {"seconds": 0.0}])
def test_negative_durations_and_empty_wishes_are_refused(bad):
    with pytest.raises(ValueError, match="needs a target"):
        rent([], **{"seconds": 1.0, "target": 1, "boot_seconds": 0.0, **bad})


def test_levels_are_the_usable_machines_over_time():
    changes = [Capacity(0, "a", 2), Capacity(60, "a", -1)]
    fleet = rent(changes, seconds=100, target=2, boot_seconds=10)
    assert fleet.levels() == [(0.0, 10, 0), (10, 60, 2), (60, 100, 1)]
    assert fleet.num_lost == 1
