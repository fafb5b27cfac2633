"""How many machines should stand by, and what each of them costs and saves. Pure.

A standby is paid for all the time and is of use while a lost machine is being replaced. So many
are needed as are lost within one replacement time, but for one time in a hundred; fewer when the
machines cost more than the pauses they spare. Zero is an answer.

Events of loss come as a Poisson process (``hazard``); each takes ``mean_bulk`` machines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sailor.planner.hazard import Hazard

QUANTILE = 0.99
# Seconds a loss stops everybody for, with a warm machine at hand and without one: measured on this
# computer by benchmarks.migration for the pause, and what clouds take to bring a machine up. A run
# that plans again and shrinks waits less, and trains slower until the machine is there: that costs
# the lost machine's share, which is counted below.
PAUSE_WITH_S = 5.0
PAUSE_WITHOUT_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """What so many standbys do. Dollars an hour; losses an hour of the whole crew.

    ``wanted`` is the number with the best balance, ``enough`` that which suffices 99 times in 100.
    """

    standbys: int
    dollars_per_hour: float
    saved_per_hour: float
    losses_per_hour: float
    wanted: int
    enough: int

    def describe(self) -> str:
        """One line for the plan."""
        held = f"{self.standbys} stand{'s' if self.standbys == 1 else ''} by"
        return (
            f"{held}: ${self.dollars_per_hour:.2f}/h, spares pauses and slower steps worth about "
            f"${self.saved_per_hour:.2f}/h at {self.losses_per_hour:.3g} losses an hour; "
            f"{self.enough} would do 99 times in 100, {self.wanted} pays best"
        )


def advise(
    hazard: Hazard, *, machines: int, standbys: int, price_per_hour: float,
    replacement_hours: float,
) -> Advice:  # fmt: skip
    """Weigh ``standbys`` for a crew of ``machines``, each at this price, which it takes so long to
    replace."""
    events = hazard.events_per_machine_hour * machines
    enough = simultaneous(hazard, machines=machines, hours=replacement_hours)
    balance = {
        number: _saved(hazard, machines, number, price_per_hour, replacement_hours)
        - number * price_per_hour
        for number in range(enough + 1)
    }
    return Advice(
        standbys=standbys,
        dollars_per_hour=standbys * price_per_hour,
        saved_per_hour=_saved(hazard, machines, standbys, price_per_hour, replacement_hours),
        losses_per_hour=events * hazard.mean_bulk,
        wanted=max(balance, key=lambda number: (balance[number], -number)),
        enough=enough,
    )


def simultaneous(hazard: Hazard, *, machines: int, hours: float, quantile: float = QUANTILE) -> int:
    """Machines lost within so many hours, not exceeded with this probability."""
    mean = hazard.events_per_machine_hour * machines * hours
    events, cumulated = 0, math.exp(-mean)
    term = cumulated
    while cumulated < quantile and events < machines:
        events += 1
        term *= mean / events
        cumulated += term
    return min(machines, math.ceil(events * hazard.mean_bulk))


def _saved(
    hazard: Hazard, machines: int, standbys: int, price_per_hour: float, hours: float
) -> float:
    """Dollars an hour: of every loss a standby covers, the longer pause of the whole crew and,
    until the replacement is there, the work of the machine that lacks."""
    losses = hazard.events_per_machine_hour * machines * hazard.mean_bulk
    crew = machines * price_per_hour
    per_loss = (PAUSE_WITHOUT_S - PAUSE_WITH_S) / 3600.0 * crew + hours * price_per_hour
    # A standby is there for a loss if fewer than all of them are at work for earlier ones.
    busy = losses * hours
    return losses * per_loss * _covered(busy, standbys)


def _covered(busy: float, standbys: int) -> float:
    """Share of losses that find a standby, by Erlang's loss formula: ``busy`` are those that would
    be at work on average if there were as many as one likes."""
    if standbys <= 0:
        return 0.0
    blocked = 1.0
    for number in range(1, standbys + 1):
        blocked = busy * blocked / (number + busy * blocked)
    return 1.0 - blocked
