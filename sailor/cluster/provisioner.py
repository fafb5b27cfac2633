"""The seam to whatever rents machines. Everything a cloud does for a run passes through here.

Implementations live in the top-level ``provision`` package and are handed to the controller by
run.py; nothing under ``sailor`` imports them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRequest:
    """One machine asked for. ``node`` is the name the agent will announce itself by."""

    node: str
    zone: str
    machine_type: str
    spot: bool
    price_per_hour: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """A cloud says a machine will go. ``seconds`` is the time it promised, best effort; 0 says
    that it is going now, or gone."""

    node: str
    seconds: float
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Released:
    """Proof that a machine is gone: what was checked and what was found."""

    node: str
    released: bool
    proof: str


class Provisioner(Protocol):
    """Rents, watches and releases machines. Calls are idempotent by node name."""

    async def request(self, request: NodeRequest) -> None:
        """Ask for a machine. Returns when the order is placed; the machine's agent dials in later.

        Raises CloudError when the order is refused.
        """
        ...

    async def release(self, node: str) -> Released:
        """Give a machine back, running or not, and say how that was checked."""
        ...

    def notices(self) -> AsyncIterator[Notice]:
        """Preemption notices seen from outside the machine, as they come."""
        ...

    async def close(self) -> tuple[Released, ...]:
        """Release everything this provisioner ever rented for the run."""
        ...
