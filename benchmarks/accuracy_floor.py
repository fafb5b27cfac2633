"""How far off any model must be: runs that a source reports alike and measured differently."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

from sailor.profile.stacks.runs import Column, Runs

MEASURED = ("seconds", "memory_gb")


def floors(runs: Runs, name: str) -> Column:
    """For each run the error that remains when all runs with the same columns are given the one
    figure that suits them best; ``name`` is that of what was measured."""
    columns = [column for key, column in runs.columns.items() if key not in MEASURED]
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, row in enumerate(runs.rows):
        # "... rank 0 (steady 12.7 GB)": what the parenthesis says is measured too.
        kind = re.sub(r"\(.*?\)", "", row.get("memory_kind", ""))
        key = (row["source"], row["gpu"], row["framework"], kind)
        alike[(*key, *(float(column[i]) for column in columns))].append(i)
    found = np.zeros(len(runs))
    for members in alike.values():
        measured = runs[name][members]
        # The sum of relative errors is least at one of the values: it is a weighted median.
        errors = [np.abs(value / measured - 1) for value in measured]
        found[members] = min(errors, key=lambda error: float(error.sum()))
    return found
