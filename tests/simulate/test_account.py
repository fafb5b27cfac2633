"""Every second has one cause, and undoing steps takes their time with them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sailor.simulate.account import Account

MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("book"), st.floats(0.0, 50.0), st.sampled_from(["capacity", "other"])),
        st.tuples(st.just("steps"), st.integers(0, 20), st.floats(0.01, 5.0)),
        st.tuples(st.just("undo"), st.integers(0, 30), st.just(0.0)),
    ),
    max_size=40,
)


@given(MOVES)
def test_the_parts_always_add_up_to_the_cursor(moves):
    """Within float's rounding of a few hundred sums."""
    account = Account()
    kept = 0
    for what, a, b in moves:
        if what == "book":
            account.book(account.cursor + a, b)
        elif what == "steps":
            account.steps(a, good_seconds=b, samples=3.0, others={"checkpoint": b / 10})
            kept += a
        else:
            account.undo(a)
            kept -= min(a, kept)
    assert sum(account.seconds.values()) == pytest.approx(account.cursor, abs=1e-6)
    assert min(account.seconds.values(), default=0.0) > -1e-6
    assert account.kept_steps == kept
    assert account.samples == pytest.approx(3.0 * kept)


def test_what_is_booked_already_is_not_booked_again():
    account = Account()
    account.book(10.0, "capacity")
    account.book(5.0, "other")
    assert account.seconds == {"capacity": 10.0}


def test_undone_steps_become_redone_time_newest_first():
    account = Account()
    account.steps(3, good_seconds=2.0, samples=1.0)
    account.steps(2, good_seconds=5.0, samples=1.0)
    account.undo(3)
    assert account.parts() == {"redone": 12.0, "good": 4.0}
    assert account.redone_steps == 3


def test_more_than_there_is_cannot_be_undone():
    account = Account()
    account.steps(2, good_seconds=1.0, samples=1.0)
    account.undo(9)
    assert (account.kept_steps, account.redone_steps) == (0, 2)
