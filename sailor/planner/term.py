"""A number with a name, a source and an error bar: what every estimate is made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sailor.profile.profile import Mark

# From best to worst known; a sum is known as well as its worst part.
_ORDER = (Mark.measured, Mark.calibrated, Mark.modelled)


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """One part of a sum. The unit is the sum's; ``relative_error`` is a half width (0.3: +-30 %).

    ``note`` says where the number comes from when the mark is not enough.
    """

    name: str
    value: float
    mark: Mark = Mark.modelled
    relative_error: float = 0.0
    note: str = ""


def total(terms: Iterable[Term]) -> float:
    """The sum of the values."""
    return sum(term.value for term in terms)


def worst_mark(terms: Iterable[Term]) -> Mark:
    """The mark of the least known term that contributes anything."""
    found = [term.mark for term in terms if term.value]
    return max(found, key=_ORDER.index, default=Mark.modelled)


def half_width(terms: Iterable[Term]) -> float:
    """The error bar of the sum in its own unit.

    Errors of terms are taken as fully dependent, because one wrong efficiency moves all of them.
    """
    return sum(abs(term.value) * term.relative_error for term in terms)
