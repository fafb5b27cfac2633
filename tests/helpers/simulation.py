"""Small fleets, speeds and costs for simulated runs, so that a test's page shows what matters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sailor.simulate.costs import FREE, Costs, Pauses
from sailor.simulate.fleet import Change, Fleet, Lease, NodeEvent
from sailor.simulate.job import Job, Outcome
from sailor.simulate.pace import TableSpeeds
from sailor.simulate.world import simulate

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "traces"
needs_traces = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the recorded traces (../shared/data/traces) are not here"
)
PLACE = ("a", "m")


@dataclass(frozen=True)
class Change_:
    """A capacity change, as any trace has it."""

    t: float
    zone: str
    delta: int
    machine_type: str = "m"
    notice_seconds: float | None = None


def a_fleet(*happened: tuple, seconds: float = 1000.0) -> Fleet:
    """``("came", t, node)``, ``("gone", t, node)``, ``("told", t, node, seconds)``; a node may be
    written "zone/name"."""
    events, leases = [], {}
    for what, t, node, *rest in happened:
        zone = node.partition("/")[0] if "/" in node else "a"
        place = (zone, "m")
        events.append(
            NodeEvent(t=t, change=Change[what], node=node, place=place, seconds=(rest or [0.0])[0])
        )
        if what == "came":
            leases[node] = Lease(node=node, place=place, begin=t, ready=t, end=seconds)
        if what == "gone":
            leases[node].end = t
    events.sort(key=lambda event: (event.t, event.change))
    return Fleet(
        events=tuple(events), leases=tuple(leases.values()), seconds=seconds, source="made here"
    )


def machines(*names: str, t: float = 0.0) -> list[tuple]:
    """They come together."""
    return [("came", t, name) for name in names]


def linear(*, least: int = 1, most: int = 8, depth: int = 1, samples: float = 100.0) -> TableSpeeds:
    """n machines train 10 n samples a second; a step is ``samples`` of them."""
    table = {n: 10.0 * n for n in range(least, most + 1)}
    return TableSpeeds(table, samples_per_step=samples, depth=depth)


def costs(**changes) -> Costs:
    """Nothing costs anything but what is named; ``loss`` and ``join`` are pauses."""
    loss, join = changes.pop("loss", 0.0), changes.pop("join", 0.0)
    hidden = changes.pop("hidden", 0.0)
    return replace(
        FREE,
        unplanned=Pauses(prepare_s=loss),
        planned=Pauses(switch_s=join, hidden_s=hidden),
        **changes,
    )


def a_job(**changes) -> Job:
    fields = {"samples_per_step": 100.0, "state_bytes": 0.0, "persist_every": 0}
    return Job(**{**fields, **changes})


def lived(fleet: Fleet, *, sink=None, depth: int = 1, **changes) -> Outcome:
    """A simulated run of the default job."""
    job = changes.pop("job", a_job())
    speeds = changes.pop("speeds", linear(depth=depth))
    return simulate(fleet, speeds=speeds, costs=costs(**changes), job=job, sink=sink)
