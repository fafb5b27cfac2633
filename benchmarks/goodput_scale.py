"""How long simulating takes: a thousand machines for a week, with everything that is asked of it.

CPU seconds of this process, from the first capacity change to the last account: machines ordered
and lost, the life cycle, the planner asked for every set of counts, seats given.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from actions.scenes import Setting, with_zones
from benchmarks.goodput_policies import JOB, world_of
from provision.spot_model import RATES, ZoneModel, draw
from provision.trace import SpotEvent, Trace
from sailor.simulate.costs import stated
from sailor.simulate.fleet import rent
from sailor.simulate.goodput import bound_samples
from sailor.simulate.world import simulate

ZONES = 10
RATES_NAME = "aws_v100_calm"


def report(*, machines: int, days: float, seed: int) -> dict[str, Any]:
    """CPU seconds, and what came out."""
    # The plan is of a small world, the fleet and what the planner is asked of a large one.
    here = world_of(None, job=JOB, machines=64, rates=RATES_NAME, seed=seed, length_h=1.0)
    zones = [f"zone-{letter}" for letter in "abcdefghij"[:ZONES]]
    rates = RATES[RATES_NAME]
    models = [
        ZoneModel(
            zone=zone, machine_type=here.kind, machines=machines // ZONES,
            node_hours_per_loss=rates.node_hours_per_loss, mean_bulk=rates.mean_bulk,
            outage_share=0.02,
        )
        for zone in zones
    ]  # fmt: skip
    trace = draw(models, seconds=days * 86_400.0, seed=seed)
    large = _enlarged(here, zones=zones, machines=machines)
    began = time.process_time()
    fleet = rent(
        trace.events, seconds=trace.seconds, target=machines, boot_seconds=large.costs.boot_s,
        seed=seed,
    )  # fmt: skip
    outcome = simulate(
        fleet, speeds=large.speeds, costs=large.costs, job=large.job(snapshot_every=20)
    )
    seconds = time.process_time() - began
    bound = bound_samples(fleet, large.speeds, samples_per_step=large.job(snapshot_every=20)
                          .samples_per_step)  # fmt: skip
    return {
        "cpu_s": seconds, "machines": machines, "days": days, "zones": ZONES, "rates": RATES_NAME,
        "machines_lost": fleet.num_lost, "generations": outcome.generations,
        "plans_asked": large.speeds.num_asked, "goodput": outcome.goodput,
        "share_of_bound": outcome.samples / bound if bound else None,
        "parts_minus_wall_s": sum(outcome.seconds.values()) - outcome.wall_s,
    }  # fmt: skip


def _enlarged(here: Setting, *, zones: list[str], machines: int) -> Setting:
    """The same job wished on many more machines, in zones that are all of one region."""
    events = tuple(
        SpotEvent(t=0.0, zone=zone, machine_type=here.kind, delta=machines // len(zones))
        for zone in zones
    )
    trace = Trace(events=events, seconds=1.0, source="zones")
    near = next(o for (_, kind, spot), o in here.offers.items() if spot and kind == here.kind)
    asked, offers, _ = with_zones(here.asked, trace, kind=here.kind, near=near, target=machines)
    link = here.costs.link_bytes_per_second
    return replace(
        here, asked=asked, offers=offers, trace=trace, target=machines,
        costs=stated(num_nodes=machines, link_bytes_per_second=link),
    )  # fmt: skip
