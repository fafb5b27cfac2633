"""Mixtures: who trains changes nothing, every source keeps its share and its own order."""

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from sailor.data.blend import PARTS, Blend, given, shares_of, whole
from sailor.data.sampler import blended_sequences_of_step, sequences_of_step

weights = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=5)


@st.composite
def blends(draw):
    shares = shares_of(draw(weights))
    counts = tuple(draw(st.integers(1, 60)) for _ in shares)
    keys = draw(st.lists(st.integers(0, 2**64 - 1), min_size=len(shares), max_size=len(shares),
                         unique=True))  # fmt: skip
    return Blend(counts=counts, shares=shares, keys=tuple(keys))


def read(blend, *, steps, size, seed=0, cuts=()):
    """The sequences of some steps, each batch read in the shares of some replicas."""
    bounds = [0, *cuts, size]
    return np.concatenate([
        blended_sequences_of_step(
            step, seed=seed, blend=blend, global_batch_size=size, offset=a, count=b - a
        )
        for step in steps
        for a, b in zip(bounds[:-1], bounds[1:], strict=True)
    ])  # fmt: skip


def sources(blend, sequences):
    return np.searchsorted(blend.starts, sequences, side="right") - 1


@drawn(st.data())
@settings(max_examples=60, deadline=None)
def test_each_sequence_of_each_source_is_read_once_an_epoch_under_any_membership(data):
    blend = data.draw(blends())
    size = data.draw(st.integers(1, 24))
    seed = data.draw(st.integers(0, 2**32))
    parts = []
    for step in range(1, data.draw(st.integers(2, 40))):
        most = st.integers(1, size - 1) if size > 1 else st.nothing()
        cuts = sorted(data.draw(st.sets(most, max_size=3))) if size > 1 else []
        parts.append(read(blend, steps=[step], size=size, seed=seed, cuts=cuts))
    found = np.concatenate(parts)
    of = sources(blend, found)
    for index, (start, count) in enumerate(zip(blend.starts, blend.counts, strict=True)):
        mine = found[of == index] - start
        for first in range(0, len(mine), count):
            epoch = mine[first : first + count]
            assert len(set(epoch)) == len(epoch)
            assert set(epoch) <= set(range(count))
            assert len(epoch) < count or sorted(epoch) == list(range(count))
    assert tuple(np.bincount(of, minlength=len(blend.counts))) == given(len(found), blend.shares)


@drawn(st.data())
@settings(max_examples=40, deadline=None)
def test_who_trains_does_not_change_what_a_step_of_a_mixture_reads(data):
    blend = data.draw(blends())
    size = data.draw(st.integers(2, 24))
    step = data.draw(st.integers(1, 10**9))
    cuts = sorted(data.draw(st.sets(st.integers(1, size - 1), max_size=4)))
    alone = read(blend, steps=[step], size=size)
    assert np.array_equal(read(blend, steps=[step], size=size, cuts=cuts), alone)


@drawn(weights, st.integers(1, 10**7), st.integers(1, 500))
@settings(max_examples=100, deadline=None)
def test_any_stretch_of_samples_has_its_share_of_every_source(some, first, length):
    shares = shares_of(some)
    here = np.subtract(given(first + length, shares), given(first, shares))
    # Each cut rounds once at both ends: the k-th source is off by less than the number of cuts.
    assert np.abs(here - length * np.array(shares) / PARTS).max() < len(shares) + 1


@drawn(weights)
def test_shares_are_the_weights_to_a_millionth(some):
    shares = shares_of(some)
    assert sum(shares) == PARTS
    exact = np.array(some) / sum(some)
    # Whole parts of 2^20, at least one each: four others may each take one.
    assert np.abs(np.array(shares) / PARTS - exact).max() <= 5 / PARTS
    assert shares == shares_of([weight * 8 for weight in some])


@pytest.mark.parametrize("bad", [[], [0.0, 1.0], [-1.0], [float("nan")], [float("inf"), 1.0]])
def test_weights_that_are_none_are_refused(bad):
    with pytest.raises(ValueError, match="not all numbers above zero"):
        shares_of(bad)


def test_text_that_is_not_mixed_is_read_as_ever():
    for step in (1, 7, 400):
        one = sequences_of_step(
            step, seed=3, num_sequences=97, global_batch_size=8, offset=0, count=8
        )
        assert np.array_equal(read(whole(97), steps=[step], size=8, seed=3), one)


def test_another_source_does_not_change_the_order_of_one():
    two = Blend(counts=(50, 30), shares=(1, 1), keys=(11, 22))
    three = Blend(counts=(20, 50, 30), shares=(2, 1, 1), keys=(33, 11, 22))
    orders = []
    for blend, index in ((two, 0), (three, 1)):
        found = read(blend, steps=range(1, 30), size=10)
        start = blend.starts[index]
        orders.append([int(s) - start for s in found[sources(blend, found) == index]][:50])
    assert orders[0] == orders[1]
