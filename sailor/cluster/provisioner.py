"""The seam to whatever rents machines. Everything a cloud does for a run passes through here.

Implementations live in the top-level ``provision`` package and are handed to the controller by
actions/train.py; nothing under ``sailor`` imports them. What each of them owes is one list of
sentences, tests/provision/test_contract.py, that runs against all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from sailor.errors import CloudError

_ANCHOR = "anchor"


def is_anchor(node: str) -> bool:
    """Whether a machine of that name keeps copies and trains nothing."""
    return node.partition("-")[0] == _ANCHOR


def anchor_name(number: int) -> str:
    """anchor-1, anchor-2, ... as they are asked for."""
    return f"{_ANCHOR}-{number}"


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
class Started:
    """A machine runs and costs money from now on. Its agent dials in a little later."""

    node: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """An order that was placed came to nothing; the machine is not rented and will not come.

    ``error`` says why and what helps. ``retry_s`` is how long the cloud wants to be left alone,
    None where it did not say. ``lasting``: asking again will not help before somebody acts.
    """

    node: str
    error: CloudError
    retry_s: float | None = None
    lasting: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Released:
    """Proof that a machine is gone: what was checked and what was found.

    Not ``released``: it could not be proven, or the machine still waits for others it was rented
    together with.
    """

    node: str
    released: bool
    proof: str


News = Notice | Started | Refused | Released
"""What a provisioner tells of its own accord; a Released here is one nobody waited for."""


class Provisioner(Protocol):
    """Rents, watches and releases machines. Calls are idempotent by node name.

    Whatever is about to be rented is written down first: a provisioner of a later process of the
    same run finds it, and ``close`` releases it.
    """

    async def request(self, *requests: NodeRequest) -> None:
        """Order machines. Those of one call that are alike may be rented as one.

        Returns when the orders are placed; each machine's agent dials in later, or news says that
        it was Refused. Raises CloudError for the first order that is refused at once; the others
        of the call may stand.
        """
        ...

    def adopt(self, *nodes: str) -> tuple[str, ...]:
        """Take over machines that an earlier process of the run has rented.

        Returns the names of those that, as far as can be told at once, are still there; from now on
        they are this provisioner's, as if it had rented them.
        """
        ...

    async def release(self, node: str) -> Released:
        """Give a machine back, running or not, and say how that was checked."""
        ...

    def notices(self) -> AsyncIterator[News]:
        """What is seen from outside the machines, as it comes. Ends with ``close``."""
        ...

    async def close(self) -> tuple[Released, ...]:
        """Release everything this provisioner ever rented for the run."""
        ...
