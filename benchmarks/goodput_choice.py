"""The spot-aware choice against the choice by throughput alone, on futures neither has seen.

Four zones with one machine type, each with a price and a hidden behaviour, drawn from the ranges of
public traces and price lists. For every seed: two days of history are drawn and shown, both choose,
and a day that follows is simulated with the life cycle for every option, so that the best fixed
option in hindsight is known too. What counts is dollars per kept sample over all seeds.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from provision.spot_model import ZoneModel, draw
from provision.trace import Trace
from sailor.planner.evidence import Place, observe
from sailor.planner.futures import Response, Stand
from sailor.planner.hazard import NEVER, PRIOR, Hazard, believe
from sailor.planner.risk import Choice, Guard, Pay, expect, options
from sailor.simulate.costs import Costs, stated
from sailor.simulate.fleet import in_turn, rent
from sailor.simulate.pace import TableSpeeds
from sailor.simulate.world import Job, simulate

KIND = "a2-highgpu-1g"
MACHINES, DEPTH, STEP_SAMPLES = 16, 4, 160.0
STATE_BYTES = 16e9
ON_DEMAND = 3.67  # US dollars per hour, list price; spot in A100 zones: 1.48 to 2.16
HISTORY_S, FUTURE_S = 2 * 86_400.0, 86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Market:
    """Four zones as they really are."""

    zones: tuple[ZoneModel, ...]
    prices: dict[Place, float]

    @staticmethod
    def drawn(seed: int) -> Market:
        """Rates between those of AWS p3 and a calm zone of V100, spread evenly in their logs."""
        chance = random.Random(f"market:{seed}")
        zones, prices = [], {}
        for letter in "abcd":
            zones.append(
                ZoneModel(
                    zone=letter,
                    machine_type=KIND,
                    machines=MACHINES,
                    node_hours_per_loss=1.64 * (16.7 / 1.64) ** chance.random(),
                    mean_bulk=chance.uniform(1.25, 2.11),
                    outage_share=chance.uniform(0.0, 0.08),
                    return_minutes=chance.uniform(10.0, 40.0),
                )
            )
            prices[letter, KIND] = chance.uniform(1.48, 2.16)
        return Market(zones=tuple(zones), prices=prices)


def rate(machines: int) -> float:
    """Samples per second: every machine adds a little less than the one before."""
    return machines / (1.0 + 0.004 * machines)


def speed(counts: Any) -> tuple[float, float] | None:
    """As the choice asks for it: (samples per second, seconds a step)."""
    number = sum(counts.values())
    if number < DEPTH:
        return None
    return rate(number), STEP_SAMPLES / rate(number)


def guard_of(costs: Costs, *, samples: float) -> Guard:
    """What the choice knows of the job."""
    copy_s = STATE_BYTES / DEPTH / costs.link_bytes_per_second
    loss_s = costs.detect_s + costs.unplanned.decide_s + costs.unplanned.prepare_s + copy_s
    return Guard(
        samples=samples, machines=MACHINES, depth=DEPTH, state_bytes=STATE_BYTES,
        response=Response(loss_s=loss_s, join_s=costs.planned.switch_s + copy_s,
                          boot_s=costs.boot_s),
        standby_loss_s=loss_s, start_s=0.0, snapshot_stall_s=costs.snapshot_stall_s,
        persist_every=100, link_bytes_per_second=costs.link_bytes_per_second,
        storage_bytes_per_second=costs.storage_bytes_per_second, most_standbys=0,
    )  # fmt: skip


def report(*, seed: int, traces: int) -> dict[str, Any]:
    """How much cheaper the spot-aware choice is, and its regret against the best fixed option."""
    market = Market.drawn(seed)
    costs = stated(num_nodes=MACHINES, link_bytes_per_second=2.1e9)
    guard = guard_of(costs, samples=rate(MACHINES) * FUTURE_S)
    offers = [
        Pay(place=place, machines=MACHINES, price_per_hour=price, hazard=PRIOR)
        for place, price in market.prices.items()
    ]
    sure = Pay(place=("a", KIND), machines=MACHINES, price_per_hour=ON_DEMAND, hazard=NEVER)
    ways = [tuple(s for s in way) for way in options(offers, machines=MACHINES, depth=DEPTH)]
    totals = {_name(way): [0.0, 0.0] for way in ways}  # dollars, samples
    aware, plain = [0.0, 0.0], [0.0, 0.0]
    picked: dict[str, int] = {}
    for number in range(traces):
        history = draw(market.zones, seconds=HISTORY_S, seed=_seed(seed, number, "history"))
        future = draw(market.zones, seconds=FUTURE_S, seed=_seed(seed, number, "future"))
        hazards = believe(
            dict.fromkeys(market.prices, PRIOR), observe(history.events, seconds=HISTORY_S)
        )
        chosen = _spot_aware([*offers, sure], hazards, guard)
        lived: dict[str, tuple[float, float]] = {}
        for way in ways:
            believed = _with(way, hazards)
            judged = expect(believed, guard, speed, standbys=0, copies=0)
            lived[_name(way)] = _live(future, judged, market, costs, seed=number)
        for name, (dollars, samples) in lived.items():
            totals[name][0] += dollars
            totals[name][1] += samples
        name = _name(chosen.stands)
        if name not in lived:
            lived[name] = _live(future, chosen, market, costs, seed=number)
        picked[name] = picked.get(name, 0) + 1
        _add(aware, lived[name])
        # Who thinks of throughput alone leaves the rest as it comes: a snapshot every step.
        usual = replace(
            expect(_throughput_only(ways), guard, speed, standbys=0, copies=0), snapshot_every=1
        )
        _add(plain, _live(future, usual, market, costs, seed=number))
    per_sample = {name: _price(total) for name, total in totals.items()}
    best = min(per_sample, key=lambda name: per_sample[name])
    return {
        "saving_vs_throughput_only": 1.0 - _price(aware) / _price(plain),
        "regret_vs_best_fixed": _price(aware) / per_sample[best] - 1.0,
        "traces": traces,
        "dollars_per_million_samples": {
            "spot_aware": _price(aware) * 1e6, "throughput_only": _price(plain) * 1e6,
            **{name: price * 1e6 for name, price in sorted(per_sample.items())},
        },
        "best_fixed": best,
        "picked": dict(sorted(picked.items(), key=lambda entry: -entry[1])),
        "zones": [
            {"zone": z.zone, "price": market.prices[z.zone, KIND],
             "machine_hours_per_loss": z.node_hours_per_loss, "mean_bulk": z.mean_bulk,
             "outage_share": z.outage_share}
            for z in market.zones
        ],
    }  # fmt: skip


def _spot_aware(offers: list[Pay], hazards: dict[Place, Hazard], guard: Guard) -> Choice:
    """The cheapest expected sample, by the formulas of sailor/planner/risk.py."""
    believed = [
        Pay(place=o.place, machines=o.machines, price_per_hour=o.price_per_hour,
            hazard=o.hazard if o.on_demand else hazards[o.place])
        for o in offers
    ]  # fmt: skip
    found = [
        expect(stands, guard, speed, standbys=0, copies=copies)
        for stands in options(believed, machines=MACHINES, depth=DEPTH)
        for copies in (0, 1)
    ]
    return min(found, key=lambda c: (c.dollars_per_sample, c.copies, c.describe()))


def _throughput_only(ways: list[tuple[Stand, ...]]) -> tuple[Stand, ...]:
    """Most samples a dollar if nothing were ever lost: all machines in the cheapest zone."""
    return min(ways, key=lambda way: (sum(s.machines * s.price_per_hour for s in way), len(way)))


def _live(
    future: Trace, choice: Choice, market: Market, costs: Costs, *, seed: int
) -> tuple[float, float]:
    """(dollars, kept samples) of a day with that choice."""
    dollars = samples = 0.0
    places = [s.place for s in choice.stands if s.hazard.shape]
    events = [e for e in future.events if (e.zone, e.machine_type) in places]
    if not events:  # on demand: nothing is ever taken
        return MACHINES * ON_DEMAND * FUTURE_S / 3600, rate(MACHINES) * FUTURE_S
    fleet = rent(
        events, seconds=FUTURE_S, target=MACHINES, boot_seconds=costs.boot_s, seed=seed,
        order=None if len(places) > 1 else in_turn(places),
    )  # fmt: skip
    speeds = TableSpeeds(
        {n: rate(n) for n in range(DEPTH, MACHINES + 1)}, samples_per_step=STEP_SAMPLES, depth=DEPTH
    )
    job = Job(
        samples_per_step=STEP_SAMPLES, state_bytes=STATE_BYTES,
        snapshot_every=choice.snapshot_every, copies=choice.copies,
    )  # fmt: skip
    samples = simulate(fleet, speeds=speeds, costs=costs, job=job).samples
    dollars = fleet.dollars(market.prices)
    return dollars, samples


def _with(way: tuple[Stand, ...], hazards: dict[Place, Hazard]) -> tuple[Stand, ...]:
    return tuple(
        Stand(place=s.place, machines=s.machines, price_per_hour=s.price_per_hour,
              hazard=hazards[s.place])
        for s in way
    )  # fmt: skip


def _name(stands: tuple[Stand, ...]) -> str:
    return "+".join(s.place[0] if s.hazard.shape else f"{s.place[0]} on demand" for s in stands)


def _add(total: list[float], more: tuple[float, float]) -> None:
    total[0] += more[0]
    total[1] += more[1]


def _price(total: list[float]) -> float:
    return total[0] / total[1] if total[1] else inf


def _seed(seed: int, number: int, what: str) -> int:
    return random.Random(f"{seed}:{number}:{what}").getrandbits(32)
