"""Spot availability that was never recorded: drawn from rates, with losses that come in bulk.

Machines of one type and zone do not die independently: a loss takes several within minutes, and
sometimes the whole zone, which then stays shut for a while. A model of single deaths would make
every policy look good.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from provision.trace import SpotEvent, Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class ZoneModel:
    """How spot machines of one type come and go in one zone.

    Loss events come at a rate such that one machine is lost per ``node_hours_per_loss`` hours of
    machine time. An event takes ``mean_bulk`` machines on average (geometric, at most what is
    there) spread over ``spread_seconds``; a share ``outage_share`` of events takes all of them and
    shuts the zone for ``outage_hours`` on average. A lost machine is to be had again after
    ``return_minutes`` on average.
    """

    zone: str
    machine_type: str
    machines: int
    node_hours_per_loss: float
    mean_bulk: float = 1.5
    outage_share: float = 0.0
    outage_hours: float = 1.0
    return_minutes: float = 20.0
    spread_seconds: float = 180.0
    notice_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.machines < 1 or self.node_hours_per_loss <= 0 or self.mean_bulk < 1:
            raise ValueError("needs machines, a positive rate and at least one machine per event")
        if not 0 <= self.outage_share <= 1:
            raise ValueError("outage_share is a share")

    def mean_lost(self, up: int) -> float:
        """Machines that an event takes on average when ``up`` are there.

        The mean of a geometric variable cut off at ``up``: (1 - q^up) / (1 - q), q = 1 - 1/bulk.
        """
        q = 1.0 - 1.0 / self.mean_bulk
        bulk = (1.0 - q**up) / (1.0 - q)
        return (1.0 - self.outage_share) * bulk + self.outage_share * up


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Measured behaviour of one kind of spot machine, to fill a ZoneModel with."""

    node_hours_per_loss: float
    mean_bulk: float
    source: str


RATES: Mapping[str, Rates] = {
    # Counted from the public traces named; one loss event is one sampling tick of the trace.
    "aws_p3": Rates(
        node_hours_per_loss=1.64, mean_bulk=2.11, source="Bamboo (NSDI'23) p3 trace, 32 machines"
    ),
    "aws_g4dn": Rates(
        node_hours_per_loss=1.83, mean_bulk=1.54, source="Bamboo (NSDI'23) g4dn trace, 24 machines"
    ),
    "aws_v100_calm": Rates(
        node_hours_per_loss=16.7, mean_bulk=1.25,
        source="Can't Be Late (NSDI'24), 4 x V100 held in us-east-2a",
    ),
    "aws_v100_churny": Rates(
        node_hours_per_loss=4.2, mean_bulk=1.82,
        source="Can't Be Late (NSDI'24), 4 x V100 held in us-west-2c",
    ),
}  # fmt: skip


def draw(zones: Sequence[ZoneModel], *, seconds: float, seed: int) -> Trace:
    """One possible future of some zones, full at the start. The same seed draws the same one.

    Zones are drawn independently, each from its own stream: adding one leaves the others as they
    were.
    """
    events: list[SpotEvent] = []
    for model in zones:
        chance = random.Random(f"{seed}:{model.zone}:{model.machine_type}")
        events += _draw_zone(model, seconds=seconds, chance=chance)
    events.sort(key=lambda event: (event.t, event.delta))
    return Trace(events=tuple(events), seconds=seconds, source=f"drawn with seed {seed}")


def _draw_zone(model: ZoneModel, *, seconds: float, chance: random.Random) -> list[SpotEvent]:
    """Gillespie's way: the rate follows the number of machines that are up."""
    up, t, shut_until = model.machines, 0.0, 0.0
    returns: list[float] = []  # heap of moments at which a lost machine is to be had again
    changes = [(0.0, up)]
    while True:
        rate = up / (model.node_hours_per_loss * 3600 * model.mean_lost(up)) if up else 0.0
        loss_at = t + chance.expovariate(rate) if rate else float("inf")
        back_at = returns[0] if returns else float("inf")
        t = min(loss_at, back_at)
        if t >= seconds:
            break
        if back_at <= loss_at:  # the wait for the next loss is drawn anew: it has no memory
            heapq.heappop(returns)
            if t < shut_until:
                again = shut_until + chance.expovariate(1 / (model.return_minutes * 60))
                heapq.heappush(returns, again)
                continue
            up += 1
            changes.append((t, 1))
            continue
        outage = chance.random() < model.outage_share
        lost = up if outage else min(up, _geometric(model.mean_bulk, chance))
        if outage:
            shut_until = max(shut_until, t + chance.expovariate(1 / (model.outage_hours * 3600)))
        up -= lost
        for i in range(lost):
            gone = t if i == 0 else t + chance.uniform(0.0, model.spread_seconds)
            changes.append((gone, -1))
            wait = chance.expovariate(1 / (model.return_minutes * 60))
            heapq.heappush(returns, max(gone, shut_until) + wait)
    return [
        SpotEvent(
            t=moment,
            zone=model.zone,
            machine_type=model.machine_type,
            delta=delta,
            notice_seconds=model.notice_seconds if delta < 0 else None,
        )
        for moment, delta in sorted(changes)
        if moment < seconds
    ]


def _geometric(mean: float, chance: random.Random) -> int:
    """1, 2, 3, ... with the given mean."""
    number = 1
    while chance.random() < 1.0 - 1.0 / mean:
        number += 1
    return number
