"""Whether what is claimed comes true as often as it is claimed.

A job on spot machines of two zones whose behaviour is believed, not known. The choice's futures
(``sailor/planner/futures.py``) say within how many hours and dollars it ends with a chance of 50,
80 and 90 %. Then worlds are drawn that the choice has not seen: each zone's rate from the belief,
its losses event by event, the run's own life cycle on top. The share of them that keeps the claim
is what is found.
"""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf, sqrt
from typing import Any

from actions.prospects import guard_with
from provision.spot_model import ZoneModel, draw
from sailor.planner.evidence import Place
from sailor.planner.futures import Futures, Stand, imagine
from sailor.planner.hazard import PRIOR, Hazard
from sailor.planner.risk import expect, setup_of
from sailor.simulate.costs import Costs, stated
from sailor.simulate.fleet import rent
from sailor.simulate.pace import TableSpeeds
from sailor.simulate.world import Job, simulate

KIND = "machine"
ZONES = ("a", "b")
MACHINES, DEPTH, BATCH, STEP_S = 16, 2, 64.0, 8.0
STATE_BYTES = 16e9
HOURS = 8.0  # of work for all machines
PRICE = 2.0
CLAIMS = (0.5, 0.8, 0.9)
# Two days' worth of watching: what is doubtful is the future more than the rate.
BELIEF: Hazard = replace(PRIOR, shape=6.0, rate=60.0, source="6 events in 60 machine-hours")


def rate(machines: int) -> float:
    """Samples per second."""
    return BATCH / STEP_S * machines / MACHINES


def speed(counts: Any) -> tuple[float, float] | None:
    """As the choice asks for it."""
    number = min(MACHINES, sum(counts.values()))
    return (rate(number), BATCH / rate(number)) if number >= DEPTH else None


def claimed(costs: Costs, *, futures: int, seed: int) -> tuple[Futures, int]:
    """The futures of the job, and the steps between its snapshots."""
    guard = guard_with(
        costs, samples=rate(MACHINES) * HOURS * 3600, machines=MACHINES, depth=DEPTH,
        state_bytes=STATE_BYTES, persist_every=100,
    )  # fmt: skip
    stands = [
        Stand(place=(zone, KIND), machines=MACHINES // 2, price_per_hour=PRICE, hazard=BELIEF)
        for zone in ZONES
    ]
    choice = expect(stands, guard, speed, standbys=0, copies=0)
    found = imagine(
        setup_of(choice, guard, speed), horizon_hours=4 * HOURS, number=futures, seed=seed
    )
    return found, choice.snapshot_every


def world(costs: Costs, *, snapshot_every: int, chance: random.Random) -> tuple[float, float]:
    """(hours, dollars) of one drawn world; infinite where it does not end in time."""
    zones = []
    for zone in ZONES:
        events = chance.gammavariate(BELIEF.shape, 1.0 / BELIEF.rate)  # per machine-hour
        model = ZoneModel(
            zone=zone, machine_type=KIND, machines=MACHINES // 2, node_hours_per_loss=1.0,
            mean_bulk=BELIEF.mean_bulk, outage_share=BELIEF.outage_share,
            outage_hours=BELIEF.outage_hours, return_minutes=BELIEF.return_hours * 60,
        )  # fmt: skip
        lost = model.mean_lost(MACHINES // 2)
        zones.append(replace(model, node_hours_per_loss=1.0 / (events * lost)))
    seconds = 4 * HOURS * 3600
    trace = draw(zones, seconds=seconds, seed=chance.getrandbits(32))
    fleet = rent(
        trace.events, seconds=seconds, target=MACHINES, boot_seconds=costs.boot_s,
        seed=chance.getrandbits(32),
    )  # fmt: skip
    table = {n: rate(n) for n in range(DEPTH, MACHINES + 1)}
    steps = round(rate(MACHINES) * HOURS * 3600 / BATCH)
    outcome = simulate(
        fleet, speeds=TableSpeeds(table, samples_per_step=BATCH, depth=DEPTH), costs=costs,
        job=Job(samples_per_step=BATCH, state_bytes=STATE_BYTES, total_steps=steps,
                snapshot_every=snapshot_every, persist_every=100),
    )  # fmt: skip
    if outcome.steps < steps:
        return inf, inf
    paid: dict[Place, float] = {(zone, KIND): PRICE for zone in ZONES}
    end = outcome.wall_s
    dollars = sum(
        max(0.0, min(lease.end, end) - lease.begin) / 3600 * paid[lease.place]
        for lease in fleet.leases
    )
    return end / 3600, dollars


def report(*, worlds: int, seed: int, futures: int = 4000) -> dict[str, Any]:
    """Claim -> share of worlds that kept it, of hours and of dollars, with its sampling error."""
    costs = stated(num_nodes=MACHINES, link_bytes_per_second=2.1e9)
    said, snapshot_every = claimed(costs, futures=futures, seed=seed)
    chance = random.Random(f"calibration:{seed}")
    lived = [world(costs, snapshot_every=snapshot_every, chance=chance) for _ in range(worlds)]
    return {
        "worlds": worlds,
        "found": {
            f"{claim:.0%}": {
                "hours": sum(h <= said.hours_at(claim) for h, _ in lived) / worlds,
                "dollars": sum(d <= said.dollars_at(claim) for _, d in lived) / worlds,
                "sampling_error": sqrt(claim * (1.0 - claim) / worlds),
            }
            for claim in CLAIMS
        },
        "claimed": {
            f"{claim:.0%}": {"hours": said.hours_at(claim), "dollars": said.dollars_at(claim)}
            for claim in CLAIMS
        },
    }  # fmt: skip
