"""The machine that ``checkpoint.anchor`` asks for: which, where, at what price, does it fit."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from actions.domain import HERE, model_spec
from provision.hosts import LOCAL_HOST, Host, does_not_fit, host
from sailor.checkpoint.arena import SHARED_MEMORY
from sailor.cluster.provisioner import NodeRequest, anchor_name
from sailor.config import Config
from sailor.models.spec import ModelSpec
from sailor.parallel.boxes import all_boxes, total_bytes
from sailor.planner.question import Candidate
from sailor.runtime.keeper import ANCHORED_SEGMENTS
from sailor.units import gib

VERSIONS = 2  # of all state: one complete while the next arrives
_ROOM = 1.1  # for headers, and pages that are not full


@dataclass(frozen=True, kw_only=True, slots=True)
class Anchor:
    """A machine to ask for. ``needed_bytes`` is what it is to hold."""

    host: Host
    zone: str
    needed_bytes: int

    def request(self) -> NodeRequest:
        """The order."""
        return NodeRequest(
            node=anchor_name(1), zone=self.zone, machine_type=self.host.name, spot=False,
            price_per_hour=self.host.price_per_hour,
        )  # fmt: skip

    def words(self) -> str:
        """A line for people."""
        price = f"${self.host.price_per_hour:,.3f} an hour" if self.host.price_per_hour else "free"
        return (
            f"{self.host.name} in {self.zone}, on demand, {price}: {gib(self.needed_bytes)} for "
            f"{VERSIONS} copies of all state, there when every preemptible machine is gone"
        )

    def document(self) -> Mapping[str, object]:
        """The same in JSON types."""
        return {
            "machine_type": self.host.name,
            "zone": self.zone,
            "price_per_hour": self.host.price_per_hour,
            "needed_bytes": self.needed_bytes,
        }


def needed_bytes(spec: ModelSpec) -> int:
    """What an anchor holds at most: weights and moments, twice."""
    return int(VERSIONS * total_bytes(all_boxes(spec, pieces=1)) * _ROOM)


def anchor_host(config: Config) -> Host | None:
    """The machine type, None where no anchor is wished for. Raises CloudError E404 and
    NoFeasiblePlan E305."""
    if not config.checkpoint.anchor:
        return None
    if config.cloud.name in HERE:
        return Host(name=LOCAL_HOST, memory_gib=0, price_per_hour=0.0)
    return host(config.cloud.name, needed_bytes=needed_bytes(model_spec(config)))


def anchor(config: Config, chosen: Candidate) -> Anchor | None:
    """The machine to ask for beside a plan's, in the zone of most of them: it is not preempted
    with them, and copies that stay inside a zone cost nothing.

    Raises CloudError E404; NoFeasiblePlan E305 where it, or on this computer all copies together,
    would not fit.
    """
    found = anchor_host(config)
    if found is None:
        return None
    spec = model_spec(config)
    if config.cloud.name in HERE:
        _check_here(spec, replicas=len(chosen.plan.replicas))
    rental = max(chosen.rentals, key=lambda rental: rental.num_machines)
    return Anchor(host=found, zone=rental.offer.zone.name, needed_bytes=needed_bytes(spec))


def _check_here(spec: ModelSpec, *, replicas: int) -> None:
    """All machines share one /dev/shm: replicas' snapshots, copies at peers, and the anchor's.

    Raises NoFeasiblePlan E305.
    """
    state = total_bytes(all_boxes(spec, pieces=1))
    trained = int(state * (replicas * ANCHORED_SEGMENTS + 2) * _ROOM)
    free = shutil.disk_usage(SHARED_MEMORY).free
    if trained + needed_bytes(spec) > free:
        raise does_not_fit(
            needed_bytes(spec),
            there=f"{SHARED_MEMORY} has {gib(free)} free, and the machines that train need "
            f"{gib(trained)} of it for their own snapshots",
        )
