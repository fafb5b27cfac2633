"""The machine of a run's own controller, as something that costs money: which, where, how much.

With ``cloud.controller=cluster`` it is asked for before all others and given back after them. From
the request to its proven end it is in the run's log, as ``node_requested`` with the role of a
controller and ``node_released``: so ledger, budget, summary and report count it as they count any
machine. How it is rented is ``actions/sending.py``'s business, how it is given back
``actions/homecoming.py``'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from actions.anchor import anchor_host
from actions.domain import HERE
from provision.hosts import LOCAL_CONTROLLER, Host, controller_host
from provision.lodging import NODE
from sailor.config import Config, ControllerPlace
from sailor.observe.events import EventLog
from sailor.observe.ledger import CONTROLLER
from sailor.planner.question import Candidate


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnMachine:
    """A machine to ask for."""

    host: Host
    zone: str

    def words(self) -> str:
        """A line for people."""
        price = f"${self.host.price_per_hour:,.3f} an hour" if self.host.price_per_hour else "free"
        return f"{self.host.name} in {self.zone}, on demand, {price}"

    def document(self) -> Mapping[str, object]:
        """The same in JSON types."""
        return {
            "machine_type": self.host.name,
            "zone": self.zone,
            "price_per_hour": self.host.price_per_hour,
        }

    def book(self, events: EventLog) -> None:
        """Write into the run's log that it is asked for: from now on it is counted."""
        events.write(
            "node_requested", node=NODE, role=CONTROLLER, zone=self.zone, spot=False,
            machine_type=self.host.name, price_per_hour=self.host.price_per_hour,
        )  # fmt: skip


def own_host(config: Config) -> Host | None:
    """The machine type, None where the controller lives in the command. Raises CloudError E404."""
    if config.cloud.controller is not ControllerPlace.cluster:
        return None
    if config.cloud.name in HERE:
        return Host(name=LOCAL_CONTROLLER, memory_gib=0, price_per_hour=0.0)
    return controller_host(config.cloud.name)


def own_machine(config: Config, chosen: Candidate) -> OwnMachine | None:
    """The machine to ask for beside a plan's, in the zone of most of them: what they and the
    controller say to each other stays inside it. Raises CloudError E404."""
    host = own_host(config)
    if host is None:
        return None
    rental = max(chosen.rentals, key=lambda rental: rental.num_machines)
    return OwnMachine(host=host, zone=rental.offer.zone.name)


def beside_per_hour(config: Config) -> float:
    """Dollars an hour of machines that do not train: an anchor, the controller's own. Raises
    CloudError E404 and NoFeasiblePlan E305."""
    hosts = (anchor_host(config), own_host(config))
    return sum(host.price_per_hour for host in hosts if host is not None)
