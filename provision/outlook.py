"""What to expect of a place: whether it gives machines now, and how long they last. Values only.

A place is a zone, a machine type, and spot or not. It learns from what happened to our own orders
there: a refusal closes it for a while, longer each time in a row; grants, refusals and losses make
an estimate of what an order is worth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

Place = tuple[str, str, bool]  # zone, machine type, spot

# Before anything is known a place is taken for a middling one: an order in two is filled.
_PRIOR_ORDERS = 2.0
_PRIOR_GRANTED = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class BackOff:
    """How long a place is left alone after refusals in a row: doubled each time, up to a limit."""

    first_s: float = 60.0
    longest_s: float = 1800.0

    def wait_s(self, refusals: int) -> float:
        """Seconds after the n-th refusal in a row, n from 1."""
        return min(self.longest_s, self.first_s * 2.0 ** min(refusals - 1, 32))


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """One place. ``closed_until`` is on the clock of whoever asks; inf: until somebody acts.

    ``prior_losses`` in ``prior_hours`` is what is believed of it beforehand: unless somebody knows
    better, that a machine lasts four hours (machine-hours per loss of public traces: 1.6 to 17).
    """

    asked: int = 0
    granted: int = 0
    lost: int = 0
    node_seconds: float = 0.0  # of machines that are gone
    refusals: int = 0  # in a row
    closed_until: float = -math.inf
    why: str = ""
    prior_losses: float = 1.0
    prior_hours: float = 4.0

    def is_open(self, now: float) -> bool:
        """Whether asking makes sense."""
        return now >= self.closed_until

    def ordered(self) -> Outlook:
        """An order was placed."""
        return replace(self, asked=self.asked + 1)

    def came(self) -> Outlook:
        """A machine came."""
        return replace(self, granted=self.granted + 1, refusals=0, closed_until=-math.inf, why="")

    def went(self, *, after_s: float, preempted: bool) -> Outlook:
        """A machine is gone, ``after_s`` after it came: taken from us, or given back."""
        return replace(
            self, lost=self.lost + preempted, node_seconds=self.node_seconds + max(0.0, after_s)
        )

    def refused(
        self, *, now: float, back_off: BackOff, why: str, retry_s: float | None, lasting: bool
    ) -> Outlook:
        """An order came to nothing. Orders refused together count as one refusal in a row."""
        if not self.is_open(now) and not lasting:
            return self
        refusals = self.refusals + 1
        wait_s = math.inf if lasting else max(retry_s or 0.0, back_off.wait_s(refusals))
        return replace(self, refusals=refusals, closed_until=now + wait_s, why=why)

    def opened(self) -> Outlook:
        """Somebody who knows says that there is something to be had."""
        return self if math.isinf(self.closed_until) else replace(self, closed_until=-math.inf)

    def likelihood(self, *, hours: float = 1.0) -> float:
        """Expected share of the next ``hours`` for which an order placed now is a machine.

        P(filled), with a Beta prior, times the mean lifetime within the span of a machine that is
        lost at a constant rate r (Gamma prior): (1 - exp(-r h)) / (r h).
        """
        filled = (self.granted + _PRIOR_GRANTED) / (self.asked + _PRIOR_ORDERS)
        rate = (self.lost + self.prior_losses) / (self.node_seconds / 3600.0 + self.prior_hours)
        return filled * (-math.expm1(-rate * hours) / (rate * hours) if rate else 1.0)


_ADVICE_ORDERS = 4  # a cloud's own estimate weighs as much as so many orders of ours


def foreseen(
    *, losses: float = 1.0, machine_hours: float = 4.0, obtainable: float | None = None
) -> Outlook:
    """A place where so many losses are expected in so many machine-hours, and of which the cloud
    says that an order is filled with probability ``obtainable``."""
    told = 0 if obtainable is None else _ADVICE_ORDERS
    return Outlook(
        asked=told, granted=round(told * (obtainable or 0.0)), prior_losses=losses,
        prior_hours=machine_hours,
    )  # fmt: skip
