"""Moves the numbers of priors.py to what measured runs say: least squares on logarithms.

Gauss-Newton with Levenberg's damping, a robust loss, priors as extra rows, and every source
weighted alike however many runs it has. A factor for each (source, GPU) is fitted along, with a
prior of one give or take 15 %.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from sailor.profile.stacks.peak import peak_gigabytes
from sailor.profile.stacks.priors import PEAK, STEP, Prior
from sailor.profile.stacks.runs import Column, Runs
from sailor.profile.stacks.step import step_seconds

STEP_NOISE = 0.10  # of one measured step, as a standard deviation of its logarithm
PEAK_NOISE = 0.06
STACK_SPREAD = 0.15
_STEP_SIZE = 1e-4
_MOST_ROUNDS = 25


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Fitted numbers (logarithms, in the order of the priors) and stack factors (logarithms)."""

    numbers: Column
    stacks: Mapping[tuple[str, str], float]


def start(priors: Mapping[str, Prior]) -> Column:
    """The priors themselves."""
    return np.log([entry.prior for entry in priors.values()])


def shipped(priors: Mapping[str, Prior]) -> Column:
    """The fitted values that come with the project."""
    return np.log([entry.fitted for entry in priors.values()])


def fit_steps(runs: Runs) -> Fit:
    """Fit step seconds."""
    stacks = sorted(set(zip(runs.sources.tolist(), runs.gpus.tolist(), strict=True)))
    index = {stack: i for i, stack in enumerate(stacks)}
    which = np.array(
        [index[key] for key in zip(runs.sources.tolist(), runs.gpus.tolist(), strict=True)]
    )
    first = start(STEP)
    spread = np.array([entry.spread for entry in STEP.values()])
    weight = _weights(runs)
    target = np.log(runs["seconds"])
    size = len(first)

    def misses(x: Column) -> Column:
        said = np.log(step_seconds(runs, x[:size])) + x[size:][which]
        return np.concatenate(
            [
                weight * _robust((said - target) / STEP_NOISE),
                (x[:size] - first) / spread,
                x[size:] / STACK_SPREAD,
            ]
        )

    found = _least_squares(misses, np.concatenate([first, np.zeros(len(stacks))]))
    return Fit(
        numbers=found[:size],
        stacks={stack: float(found[size + i]) for stack, i in index.items()},
    )


def fit_peaks(runs: Runs) -> Fit:
    """Fit peak memory; stacks have no factor there."""
    first = start(PEAK)
    spread = np.array([entry.spread for entry in PEAK.values()])
    weight = _weights(runs)
    target = np.log(runs["memory_gb"])

    def misses(x: Column) -> Column:
        said = np.log(peak_gigabytes(runs, x))
        return np.concatenate(
            [weight * _robust((said - target) / PEAK_NOISE), (x - first) / spread]
        )

    return Fit(numbers=_least_squares(misses, first), stacks={})


def _weights(runs: Runs) -> Column:
    """Every source counts alike."""
    count = Counter(runs.sources.tolist())
    weight = np.array([count[source] ** -0.5 for source in runs.sources.tolist()])
    scaled: Column = weight / weight.mean()
    return scaled


def _robust(miss: Column) -> Column:
    """Square root of twice the pseudo-Huber loss, with its sign: a wrong row pulls, not tears."""
    bent: Column = np.sign(miss) * np.sqrt(2 * (np.sqrt(1 + miss * miss) - 1))
    return bent


def _least_squares(misses: Callable[[Column], Column], x: Column) -> Column:
    damping = 1.0
    miss = misses(x)
    cost = float(miss @ miss)
    for _ in range(_MOST_ROUNDS):
        slopes = np.empty((len(miss), len(x)))
        for j in range(len(x)):
            moved = x.copy()
            moved[j] += _STEP_SIZE
            slopes[:, j] = (misses(moved) - miss) / _STEP_SIZE
        normal, gradient = slopes.T @ slopes, slopes.T @ miss
        gained = 0.0
        for _ in range(8):
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), -gradient)
            other = misses(x + step)
            if (new := float(other @ other)) < cost:
                x, miss, gained, cost = x + step, other, cost - new, new
                damping = max(damping / 4, 1e-6)
                break
            damping *= 4
        if gained < 1e-3:
            break
    return x
