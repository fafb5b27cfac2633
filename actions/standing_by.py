"""How many machines stand by: as many as are asked for, or as pay best where that is left open."""

from __future__ import annotations

from dataclasses import replace

from actions.hazards import hazard_of
from actions.planning import Question
from sailor.config import Config
from sailor.planner.question import Candidate
from sailor.planner.standbys import Advice, advise
from sailor.units import parse_seconds


def standby_advice(config: Config, chosen: Candidate, asked: Question) -> Advice:
    """What standbys cost and save, by what is believed of the plan's most common machines. A
    replacement is taken to need half of what is waited for it.

    The number is that of cloud.standbys; null leaves it to the balance of cost and use, within
    cloud.max_nodes.
    """
    rental = max(chosen.rentals, key=lambda rental: rental.num_machines)
    number = sum(r.num_machines for r in chosen.rentals)
    wish = config.cloud.standbys
    advice = advise(
        hazard_of(rental.offer, asked.believed), machines=number, standbys=wish or 0,
        price_per_hour=rental.offer.price_per_hour,
        replacement_hours=parse_seconds(config.cloud.join) / 2 / 3600,
    )  # fmt: skip
    room = max(0, config.cloud.max_nodes - number)
    best = min(advice.wanted, room)
    if wish is not None or not best:
        return advice
    return advise(
        hazard_of(rental.offer, asked.believed), machines=number, standbys=best,
        price_per_hour=rental.offer.price_per_hour,
        replacement_hours=parse_seconds(config.cloud.join) / 2 / 3600,
    )  # fmt: skip


def with_standbys(config: Config, chosen: Candidate, asked: Question) -> Config:
    """The configuration with a number of standbys, where it had none."""
    if config.cloud.standbys is not None:
        return config
    advice = standby_advice(config, chosen, asked)
    return replace(config, cloud=replace(config.cloud, standbys=advice.standbys))
