"""Which source of a mixture a sample is of: a pure function of the sample's number. Pure, no numpy.

Samples are counted over the whole run, so that who trains, and how a batch is dealt, changes
nothing. The first source takes its share of the samples as evenly as whole numbers allow (of N
samples floor(N x share)), the next one its share of those that are left, and so on: any stretch of
samples, a batch too, has its share of every source to within two or three samples, and what a
source has given by a step needs no counting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

PARTS = 1 << 20
"""Shares are counted in these, so that all is said in whole numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Blend:
    """Sources side by side: ``counts`` says how many sequences each has, ``shares`` how many of
    ``sum(shares)`` samples are of it, ``keys`` gives each an order of its own.

    The sequences of all are numbered one source after the other.
    """

    counts: tuple[int, ...]
    shares: tuple[int, ...]
    keys: tuple[int | None, ...]
    """None: the order of a text that is not mixed."""

    def __post_init__(self) -> None:
        if not len(self.counts) == len(self.shares) == len(self.keys) > 0:
            raise ValueError(f"{self} does not say the same number of sources three times")
        if any(share < 1 or count < 1 for share, count in zip(self.shares, self.counts,
                                                              strict=True)):  # fmt: skip
            raise ValueError(f"{self} has a source of which nothing is read")

    @property
    def starts(self) -> tuple[int, ...]:
        """Number of the first sequence of each source."""
        return tuple(accumulate((0, *self.counts[:-1])))


def whole(num_sequences: int) -> Blend:
    """One text, not mixed with any other."""
    return Blend(counts=(num_sequences,), shares=(1,), keys=(None,))


def given(num_samples: int, shares: Sequence[int]) -> tuple[int, ...]:
    """How many of the first ``num_samples`` samples are of each source."""
    left, rest, counts = num_samples, sum(shares), []
    for share in shares:
        mine = left * share // rest
        counts.append(mine)
        left, rest = left - mine, rest - share
    return tuple(counts)


def shares_of(weights: Sequence[float]) -> tuple[int, ...]:
    """Weights of any sum as whole numbers of sum PARTS, each at least 1 (largest remainder).

    Raises ValueError for a weight that is not above zero, or no number.
    """
    if not weights or not all(0 < weight < float("inf") for weight in weights):
        raise ValueError(f"weights {list(weights)} are not all numbers above zero")
    exact = [Fraction(weight) for weight in weights]
    ideal = [weight * PARTS / sum(exact) for weight in exact]
    shares = [max(1, int(share)) for share in ideal]
    order = sorted(range(len(shares)), key=lambda i: (shares[i] - ideal[i], i))
    for i in order[: max(0, PARTS - sum(shares))]:
        shares[i] += 1
    while sum(shares) > PARTS:  # of those that were raised to 1
        shares[max(range(len(shares)), key=lambda i: (shares[i], -i))] -= 1
    return tuple(shares)
