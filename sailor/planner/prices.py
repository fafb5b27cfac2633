"""Prices at which nothing is worth more than it costs: a linear program of few rows. Pure.

Columns are things that may be had any number of times, each with what it uses of every store and
what it is worth. The most that all stores are worth together and the price of each (its dual) come
from one tableau; there are a handful of stores, so nothing cleverer is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sailor.planner.costs import FloatArray

_PIVOTS = 200
_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class Priced:
    """What all stores are worth, and each unit of one."""

    worth: float
    prices: FloatArray


def fair_prices(uses: FloatArray, worths: FloatArray, stores: FloatArray) -> Priced | None:
    """The least prices at which every column (a row of ``uses``) costs what it is worth.

    None where a column uses nothing, or the pivots do not come to an end.
    """
    num_columns, num_stores = uses.shape
    table = np.zeros((num_stores + 1, num_columns + num_stores + 1))
    table[:-1, :num_columns] = uses.T
    table[:-1, num_columns:-1] = np.eye(num_stores)
    table[:-1, -1] = stores
    table[-1, :num_columns] = -worths
    scale = max(1.0, float(np.abs(worths).max(initial=0.0)))
    for pivot in range(_PIVOTS):
        gains = table[-1, :-1]
        if pivot < _PIVOTS // 2:
            column = int(np.argmin(gains))
        else:  # the first that gains, so that it ends (Bland 1977)
            column = int(np.argmax(gains < -_TINY * scale))
        if gains[column] >= -_TINY * scale:
            prices = np.maximum(gains[num_columns:], 0.0)
            return Priced(float(prices @ stores), prices)
        rates = table[:-1, column]
        if not (rates > _TINY).any():
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            steps = np.where(rates > _TINY, table[:-1, -1] / rates, np.inf)
        row = int(np.argmin(steps))
        table[row] /= table[row, column]
        others = table[:, column].copy()
        others[row] = 0.0
        table -= others[:, None] * table[row]
    return None
