"""Uneven cuts: exact against brute force, and never beyond what memory allows."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sailor.planner.partition import best_cut, cut_evenly


def seconds(counts, per_block, extra, num_microbatches):
    busy = [c * p + e for c, p, e in zip(counts, per_block, extra, strict=True)]
    return sum(busy) + (num_microbatches - 1) * max(busy)


def by_brute_force(num_blocks, per_block, extra, most, num_microbatches):
    cuts = product(*(range(1, m + 1) for m in most))
    times = [
        seconds(cut, per_block, extra, num_microbatches) for cut in cuts if sum(cut) == num_blocks
    ]
    return min(times, default=None)


def test_an_even_cut_gives_the_larger_shares_to_later_stages():
    assert cut_evenly(10, 4) == (2, 2, 3, 3)


def test_more_stages_than_blocks_is_refused():
    with pytest.raises(ValueError, match="3 blocks cannot fill 4 stages"):
        cut_evenly(3, 4)


def test_a_heavy_head_gets_fewer_blocks():
    counts = best_cut(8, per_block=[1.0, 1.0], extra=[0.0, 2.0], most=[8, 8], num_microbatches=100)
    assert counts == (5, 3)


def test_a_slow_stage_gets_fewer_blocks():
    counts = best_cut(9, per_block=[2.0, 1.0], extra=[0.0, 0.0], most=[9, 9], num_microbatches=100)
    assert counts == (3, 6)


def test_memory_decides_where_speed_would_not():
    counts = best_cut(8, per_block=[1.0, 1.0], extra=[0.0, 0.0], most=[3, 8], num_microbatches=100)
    assert counts == (3, 5)


def test_there_is_no_cut_when_memory_holds_too_few_blocks():
    assert (
        best_cut(8, per_block=[1.0, 1.0], extra=[0.0, 0.0], most=[3, 4], num_microbatches=4) is None
    )


@given(
    num_blocks=st.integers(2, 9),
    stages=st.lists(
        st.tuples(
            st.sampled_from([0.5, 1.0, 1.3, 2.0]),
            st.sampled_from([0.0, 0.2, 1.0, 3.0]),
            st.integers(1, 9),
        ),
        min_size=1,
        max_size=4,
    ),
    num_microbatches=st.sampled_from([1, 2, 7, 64]),
)
def test_the_cut_is_as_good_as_brute_force(num_blocks, stages, num_microbatches):
    per_block, extra, most = (list(column) for column in zip(*stages, strict=True))
    expected = by_brute_force(num_blocks, per_block, extra, most, num_microbatches)
    counts = best_cut(
        num_blocks, per_block=per_block, extra=extra, most=most, num_microbatches=num_microbatches
    )
    if expected is None:
        assert counts is None
    else:
        assert counts is not None
        assert sum(counts) == num_blocks
        assert all(count <= limit for count, limit in zip(counts, most, strict=True))
        found = seconds(counts, per_block, extra, num_microbatches)
        assert found == pytest.approx(expected, rel=1e-9)  # sums in another order
