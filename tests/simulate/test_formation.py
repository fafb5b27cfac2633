"""Seats by counts: who may stay stays, and only what changes is fetched."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sailor.simulate.formation import covered, farthest_move, missing_share, seat
from sailor.simulate.pace import Pace, pipelines

PLACES = {f"{zone}{i}": (zone, "m") for zone in "ab" for i in range(12)}


def pace(counts, depth):
    return Pace(text="x", step_seconds=1.0, roles=pipelines(counts, depth=depth))


def counted(names):
    counts = {}
    for name in names:
        counts[PLACES[name]] = counts.get(PLACES[name], 0) + 1
    return counts


@given(
    st.lists(st.sets(st.sampled_from(sorted(PLACES)), min_size=1), min_size=1, max_size=5),
    st.integers(1, 4),
)
def test_every_role_is_filled_whatever_comes_and_goes(crowds, depth):
    formation = None
    for crowd in crowds:
        wanted = pace(counted(crowd), min(depth, len(crowd)))
        before = formation
        formation = seat(wanted, crowd, places=PLACES, previous=before)
        assert set(formation.holds) == set(crowd)
        for role in wanted.roles:
            seated = formation.posts[role.place, role.content]
            assert len(seated) == role.number
            assert {PLACES[node] for node in seated} == {role.place}
        assert covered(formation.parts_without(()))
        again = seat(wanted, crowd, places=PLACES, previous=formation)
        assert again.holds == formation.holds
        assert again.moves == frozenset()


def test_a_loss_moves_nobody_whose_part_is_still_wanted():
    names = {f"a{i}" for i in range(8)}
    before = seat(pace(counted(names), 2), names, places=PLACES, previous=None)
    left = names - {"a3"}
    after = seat(pace(counted(left), 2), left, places=PLACES, previous=before)
    assert sum(before.holds[n] != after.holds[n] for n in left) <= 1


def test_a_newcomer_takes_the_place_before_anyone_changes_parts():
    names = {"a0", "a1"}
    before = seat(pace(counted(names), 2), names, places=PLACES, previous=None)
    crowd = {"a1", "a2"}
    after = seat(pace(counted(crowd), 2), crowd, places=PLACES, previous=before)
    assert after.holds["a1"] == before.holds["a1"]
    assert after.holds["a2"] == before.holds["a0"]
    assert farthest_move(after) == 0.5


def test_machines_that_are_too_few_are_refused():
    with pytest.raises(ValueError, match="too few"):
        seat(pace(counted({"a0", "a1"}), 1), {"a0"}, places=PLACES, previous=None)


def test_what_is_fetched_is_what_was_not_there():
    assert missing_share(((0.0, 0.5),), None) == 0.5
    assert missing_share(((0.25, 0.75),), ((0.0, 0.5),)) == 0.25
    assert missing_share(((0.0, 0.25),), ((0.0, 0.5),)) == 0.0


def test_the_model_is_covered_only_by_all_of_its_parts():
    assert covered([((0.0, 0.5),), ((0.5, 1.0),)])
    assert covered([((0.25, 1.0),), ((0.0, 0.5),)])
    assert not covered([((0.0, 0.5),)])
    assert not covered([((0.0, 0.4),), ((0.5, 1.0),)])
