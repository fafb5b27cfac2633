"""What a cloud itself says about machines, prices and quotas, laid over the catalogue. Values only.

``provision/aws.py`` and ``provision/gcp.py`` ask. Each answer may be missing: whatever could not be
learnt is a Lack with its reason and a way out, and the catalogue's own number stays, with its age.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from statistics import median

from provision.catalog import Catalogue, network_of
from sailor.cluster.pool import Offer, Pool, Quota

STALE_HOURS = 48.0  # a spot price that has not changed for longer is told with its age
OUTLIER = 4.0  # times the median of its machine type, up or down
NO_PRICE = 700.0  # SkyPilot's catalogue has it where a price is not known


@dataclass(frozen=True, kw_only=True, slots=True)
class LivePrice:
    """A spot price, US dollars per machine and hour, and since when it holds."""

    dollars_per_hour: float
    since: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Lack:
    """Something that could not be learnt: a code of docs/errors.md, and one line that helps."""

    what: str
    code: str
    why: str = ""
    fix: str = ""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Answers of one cloud. ``offered``: machine type -> zones that have it; a type that is not in
    it was not asked about. ``zone_names``: zone as plans name it -> as the account names it.
    ``obtainable``: 0 to 1 for an order placed now. ``preempted``: which share of the spot machines
    that stopped of late were taken."""

    source: str
    asked: datetime
    prices: Mapping[tuple[str, str], LivePrice] = field(default_factory=dict)  # (zone, type)
    offered: Mapping[str, frozenset[str]] = field(default_factory=dict)
    quotas: tuple[Quota, ...] = ()
    zone_names: Mapping[str, str] = field(default_factory=dict)
    obtainable: Mapping[tuple[str, str], float] = field(default_factory=dict)
    preempted: Mapping[tuple[str, str], float] = field(default_factory=dict)
    lacks: tuple[Lack, ...] = ()


def merged(parts: list[Facts]) -> Facts:
    """Facts of several regions as one. Raises ValueError for none."""
    if not parts:
        raise ValueError("no facts to merge")
    offered: dict[str, frozenset[str]] = {}
    for part in parts:
        for name, zones in part.offered.items():
            offered[name] = offered.get(name, frozenset()) | zones
    return Facts(
        source=parts[0].source,
        asked=min(part.asked for part in parts),
        prices={key: price for part in parts for key, price in part.prices.items()},
        offered=offered,
        quotas=tuple(quota for part in parts for quota in part.quotas),
        zone_names={zone: name for part in parts for zone, name in part.zone_names.items()},
        obtainable={key: share for part in parts for key, share in part.obtainable.items()},
        preempted={key: share for part in parts for key, share in part.preempted.items()},
        lacks=tuple(dict.fromkeys(lack for part in parts for lack in part.lacks)),
    )


def laid_over(catalogue: Catalogue, facts: Facts) -> Catalogue:
    """The catalogue with what the cloud says in place of what was remembered, with remarks.

    Offers that the cloud does not have are dropped; spot prices are replaced, unless the new one is
    beyond belief, which is remarked; quotas are added.
    """
    remarks: list[str] = []
    typical = _typical(catalogue)
    offers: list[Offer] = []
    dropped: dict[str, list[str]] = {}
    for offer in catalogue.pool.offers:
        name, zone = offer.machine_type.name, offer.zone.name
        if name in facts.offered and zone not in facts.offered[name]:
            dropped.setdefault(name, []).append(zone)
            continue
        live = facts.prices.get((zone, name)) if offer.spot else None
        if live is not None:
            doubt = _unbelievable(live, usual=typical[name])
            remark = doubt or _old(live, asked=facts.asked)
            if remark:
                remarks.append(f"{name} in {zone}: {remark}")
            if not doubt:
                offer = replace(
                    offer,
                    price_per_hour=live.dollars_per_hour,
                    source=facts.source,
                    as_of=live.since.date().isoformat(),
                )
        offers.append(offer)
    for name, zones in dropped.items():
        remarks.append(f"{name} is not offered in {', '.join(sorted(set(zones)))}")
    for lack in facts.lacks:
        remarks.append(f"not learnt: {lack.what}; the built-in catalogue is used")
    pool = Pool(offers=tuple(offers), quotas=(*catalogue.pool.quotas, *facts.quotas))
    return replace(
        catalogue,
        pool=pool,
        network=network_of(offers, tariffs=catalogue.network.tariffs),
        label=f"{catalogue.label}; {facts.source} asked {facts.asked:%Y-%m-%d %H:%M} UTC",
        remarks=(*catalogue.remarks, *remarks),
        zone_names=facts.zone_names,
        obtainable=facts.obtainable,
        preempted=facts.preempted,
    )


def _typical(catalogue: Catalogue) -> dict[str, float]:
    """The median spot price of each machine type; on demand where there is no spot price."""
    prices: dict[str, list[float]] = {}
    for offer in sorted(catalogue.pool.offers, key=lambda offer: not offer.spot):
        known = prices.setdefault(offer.machine_type.name, [])
        if offer.spot or not known:
            known.append(offer.price_per_hour)
    return {name: median(known) for name, known in prices.items()}


def _unbelievable(live: LivePrice, *, usual: float) -> str:
    """Why a price is not to be believed; the catalogue's is kept then."""
    price = live.dollars_per_hour
    if price <= 0 or price == NO_PRICE:
        return f"${price:g} is no price; the catalogue's is kept"
    if usual and not usual / OUTLIER <= price <= usual * OUTLIER:
        return f"${price:.2f} is far from the usual ${usual:.2f}; the catalogue's is kept"
    return ""


def _old(live: LivePrice, *, asked: datetime) -> str:
    age_h = (asked - live.since).total_seconds() / 3600
    if age_h > STALE_HOURS:
        return f"spot price ${live.dollars_per_hour:.2f} is {age_h / 24:.0f} days old"
    return ""
