"""Dollars: machines by the hour, and what leaves a zone. No plan of its own, no search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sailor.cluster.network import Network
from sailor.cluster.pool import Offer
from sailor.planner.term import Term
from sailor.profile.profile import Mark


@dataclass(frozen=True, kw_only=True, slots=True)
class Rental:
    """Machines of one offer that a plan rents."""

    offer: Offer
    num_machines: int

    def __post_init__(self) -> None:
        if not 1 <= self.num_machines <= self.offer.count:
            raise ValueError(
                f"{self.num_machines} of {self.offer.count} machines {self.offer.machine_type.name}"
            )

    @property
    def key(self) -> tuple[str, str]:
        """(zone, machine type), as plans name it."""
        return self.offer.zone.name, self.offer.machine_type.name

    @property
    def num_gpus(self) -> int:
        """GPUs rented, used or not."""
        return self.num_machines * self.offer.machine_type.num_gpus

    @property
    def dollars_per_hour(self) -> float:
        """All its machines for an hour."""
        return self.num_machines * self.offer.price_per_hour


def rent_terms(rentals: Sequence[Rental]) -> tuple[Term, ...]:
    """Dollars per hour, one term for each offer."""
    return tuple(
        Term(
            name=f"{r.num_machines} x {r.offer.machine_type.name} in {r.offer.zone.name}",
            value=r.dollars_per_hour,
            mark=Mark.measured,
            note=f"{r.offer.source}, {r.offer.as_of}",
        )
        for r in rentals
    )


def egress_dollars(num_bytes: float, *, network: Network, zone: str, other: str) -> float:
    """Dollars for bytes that go from one zone to another."""
    return num_bytes / 1e9 * network.dollars_per_gb(zone, other)
