"""Every sequence once an epoch, whoever trains and however the batch is dealt."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sailor.data.blend import whole
from sailor.data.sampler import Order, permute, sequences_of_step


def batch(step, *, seed, num_sequences, size, shares=None):
    """A whole global batch, read in the shares of some replicas."""
    parts = []
    offset = 0
    for count in shares or [size]:
        parts.append(
            sequences_of_step(
                step, seed=seed, num_sequences=num_sequences, global_batch_size=size,
                offset=offset, count=count,
            )
        )  # fmt: skip
        offset += count
    return np.concatenate(parts)


@st.composite
def memberships(draw, size):
    """Shares of a global batch of ``size``: how many samples each of some replicas takes."""
    cuts = sorted(draw(st.sets(st.integers(1, size - 1), max_size=4))) if size > 1 else []
    bounds = [0, *cuts, size]
    return [b - a for a, b in zip(bounds[:-1], bounds[1:], strict=True)]


@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
@settings(max_examples=60, deadline=None)
def test_a_permutation_reaches_every_number_once(size, key):
    assert sorted(permute(np.arange(size), size=size, key=key)) == list(range(size))


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_each_sequence_is_read_once_an_epoch_under_any_membership(data):
    num_sequences = data.draw(st.integers(1, 200))
    size = data.draw(st.integers(1, 24))
    seed = data.draw(st.integers(0, 2**32))
    epochs = data.draw(st.integers(1, 3))
    steps = -(-num_sequences * epochs // size)
    read = np.concatenate(
        [
            batch(step, seed=seed, num_sequences=num_sequences, size=size,
                  shares=data.draw(memberships(size)))
            for step in range(1, steps + 1)
        ]
    )  # fmt: skip
    for epoch in range(epochs):
        one = read[epoch * num_sequences : (epoch + 1) * num_sequences]
        assert sorted(one) == list(range(num_sequences))


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_who_trains_does_not_change_what_a_step_reads(data):
    size = data.draw(st.integers(1, 24))
    step = data.draw(st.integers(1, 1000))
    shares = data.draw(memberships(size))
    alone = batch(step, seed=3, num_sequences=97, size=size)
    assert np.array_equal(batch(step, seed=3, num_sequences=97, size=size, shares=shares), alone)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_how_many_steps_are_drawn_at_once_does_not_change_what_they_read(data):
    """Forwards, back to a committed step, and on from there."""
    size, num_sequences = data.draw(st.integers(1, 24)), data.draw(st.integers(1, 200))
    offset = data.draw(st.integers(0, size - 1))
    order = Order(
        seed=5, blend=whole(num_sequences), global_batch_size=size, offset=offset,
        count=size - offset, steps_at_once=data.draw(st.integers(1, 9)),
    )  # fmt: skip
    for step in data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=30)):
        alone = sequences_of_step(
            step, seed=5, num_sequences=num_sequences, global_batch_size=size, offset=offset,
            count=size - offset,
        )  # fmt: skip
        assert np.array_equal(order.of_step(step), alone)


def test_epochs_and_seeds_have_orders_of_their_own():
    def epoch(number, seed):
        return batch(number + 1, seed=seed, num_sequences=500, size=500)

    orders = [epoch(0, 1), epoch(1, 1), epoch(0, 2)]
    for order in orders:
        assert not np.array_equal(order, np.arange(500))
    # Two random orders of 500 agree in about one place.
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert (orders[a] == orders[b]).sum() < 15


def test_neighbours_of_a_batch_are_as_far_apart_in_the_text_as_chance_has_it():
    means = [
        np.abs(np.diff(batch(1, seed=seed, num_sequences=100_000, size=1000))).mean()
        for seed in range(30)
    ]
    # A third of the range; one mean of 1000 strays by 2.5 percent, that of 30 means by 0.5.
    assert np.mean(means) == pytest.approx(100_000 / 3, rel=0.02)


def test_the_order_of_a_seed_is_the_same_in_every_version():
    """Runs that go on must find the order they began with."""
    assert batch(3, seed=7, num_sequences=1000, size=6).tolist() == [960, 149, 56, 768, 523, 770]


def test_a_step_before_the_first_or_a_share_beyond_the_batch_is_refused():
    with pytest.raises(ValueError, match="step 0"):
        batch(0, seed=0, num_sequences=10, size=4)
    with pytest.raises(ValueError, match="batch of 4"):
        batch(1, seed=0, num_sequences=10, size=4, shares=[5])
