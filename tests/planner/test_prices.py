"""The least prices at which nothing is worth more than it costs."""

from __future__ import annotations

import random
from itertools import combinations
from math import inf

import numpy as np
import pytest

from sailor.planner.prices import fair_prices


def test_fair_prices_come_to_the_least_of_all_corners():
    """A linear program is solved in a corner: here all of them are looked at."""
    for seed in range(20):
        r = random.Random(seed)
        stores = np.array([r.choice([0.5, 1.0, 5.0, 1024.0]) for _ in range(r.choice([1, 2, 3]))])
        uses = np.array([[r.choice([0, 0, 1, 2, 8]) for _ in stores] for _ in range(7)], float)
        uses[:, 0] += 0.5
        worths = np.array([r.choice([0.0, 1.0, r.uniform(0, 50)]) for _ in uses])
        found = fair_prices(uses, worths, stores)
        assert found is not None
        assert (uses @ found.prices >= worths - 1e-7).all(), seed
        walls = np.concatenate([uses, np.eye(len(stores))])
        heights = np.concatenate([worths, np.zeros(len(stores))])
        best = inf
        for rows in combinations(range(len(walls)), len(stores)):
            chosen = list(rows)
            if abs(np.linalg.det(walls[chosen])) < 1e-9:
                continue
            corner = np.linalg.solve(walls[chosen], heights[chosen])
            if (walls @ corner >= heights - 1e-9).all():
                best = min(best, float(corner @ stores))
        assert found.worth == pytest.approx(best, rel=1e-6, abs=1e-6), seed


def test_no_columns_need_no_price():
    found = fair_prices(np.zeros((0, 3)), np.zeros(0), np.ones(3))
    assert found is not None
    assert found.worth == 0.0


def test_a_column_that_uses_nothing_has_no_fair_price():
    assert fair_prices(np.zeros((1, 2)), np.ones(1), np.ones(2)) is None
