"""What is believed of the places machines are rented in: the prior, moved by what the cloud says of
each (the price, its own history), and sharpened by what one's own runs have lived through there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from sailor.cluster.pool import Offer
from sailor.planner.evidence import NOTHING, Evidence, Place
from sailor.planner.hazard import NEVER, PRIOR, Hazard, from_history, from_price


def beliefs(
    offers: Iterable[Offer], *, preempted: Mapping[Place, float], evidence: Mapping[Place, Evidence]
) -> dict[Place, Hazard]:
    """Of every place where one of the offers is spot. ``preempted``: provision.facts.Facts."""
    offers = list(offers)
    sure = {_place(offer): offer.price_per_hour for offer in offers if not offer.spot}
    return {
        _place(offer): _prior(offer, sure=sure.get(_place(offer), 0.0), preempted=preempted).seen(
            evidence.get(_place(offer), NOTHING)
        )
        for offer in offers
        if offer.spot
    }


def hazard_of(offer: Offer, believed: Mapping[Place, Hazard]) -> Hazard:
    """Of one offer: what is believed of its place, or that it stays."""
    return believed.get(_place(offer), PRIOR) if offer.spot else NEVER


def _prior(offer: Offer, *, sure: float, preempted: Mapping[Place, float]) -> Hazard:
    """Before anything is seen. ``sure``: the price on demand, 0 where it is not known."""
    prior, place = PRIOR, _place(offer)
    if offer.price_per_hour > 0 and sure > 0:
        prior = from_price(prior, spot=offer.price_per_hour, on_demand=sure)
    alike = [share for (_, kind), share in preempted.items() if kind == place[1]]
    if place in preempted and len(alike) > 1:
        prior = from_history(prior, preempted=preempted[place], usual=median(alike))
    return prior


def _place(offer: Offer) -> Place:
    return offer.zone.name, offer.machine_type.name
