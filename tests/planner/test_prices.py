"""The least prices at which nothing is worth more than it costs."""

from __future__ import annotations

import random

import numpy as np
import pytest

from sailor.planner.prices import fair_prices


def test_prices_are_fair_and_what_they_come_to_can_be_reached():
    """Where every price is fair and some columns in some amounts reach what all stores cost, both
    are the best there is: that is the duality of linear programs."""
    for seed in range(50):
        r = random.Random(seed)
        stores = np.array([r.choice([0.0, 1.0, 5.0, 1024.0]) for _ in range(r.choice([1, 4, 8]))])
        uses = np.array([[r.choice([0, 0, 1, 2, 8]) for _ in stores] for _ in range(20)], float)
        uses[:, 0] += 0.5
        worths = np.array([r.choice([0.0, 1.0, r.uniform(0, 50)]) for _ in uses])
        found = fair_prices(uses, worths, stores)
        assert found is not None
        assert (uses @ found.prices >= worths * (1 - 1e-7) - 1e-7).all(), seed
        # Of amounts that use what there is, none is worth more; weights that grow by a hundredth
        # come within some hundredths of the best.
        assert found.worth == pytest.approx(reached(uses, worths, stores), rel=0.05, abs=1e-6)


def reached(uses, worths, stores) -> float:
    """What multiplicative weights reach, a method that has nothing in common with the tableau."""
    best = 0.0
    weights, amounts = np.ones(len(stores)), np.zeros(len(worths))
    some = stores > 0
    usable = ~(uses[:, ~some] > 0).any(axis=1) & (worths > 0)
    if not usable.any():
        return 0.0
    share = uses[:, some] / stores[some]
    for _ in range(2000):
        cost = share @ weights[some]
        column = int(np.argmax(np.where(usable, worths / np.maximum(cost, 1e-300), -1.0)))
        step = 1 / share[column].max()
        amounts[column] += step
        weights[some] *= 1 + 0.01 * share[column] * step
        weights /= weights.sum()
        best = max(best, float(amounts @ worths / (amounts @ share).max()))
    return best


def test_no_columns_need_no_price():
    found = fair_prices(np.zeros((0, 3)), np.zeros(0), np.ones(3))
    assert found is not None
    assert found.worth == 0.0


def test_a_column_that_uses_nothing_has_no_fair_price():
    assert fair_prices(np.zeros((1, 2)), np.ones(1), np.ones(2)) is None
