"""Which network interface of a machine its workers talk through, and by which family of addresses.

A machine may have many interfaces: of its zone's network, of containers, of a VPN. Its peers know
it by one address, that of the network they share (its network domain), and only the interface that
holds that address is sure to reach them. Collectives' libraries left to themselves guess from the
host's name (gloo) or take the first interface that is up (NCCL), and members that guess differently
never meet.

Values only: whoever calls looks the interfaces up (``psutil.net_if_addrs``) and sets the variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from sailor.addresses import IpAddress, numeric


class Family(Enum):
    """The two kinds of addresses; members of one group must all have the same."""

    ipv4 = "AF_INET"
    ipv6 = "AF_INET6"

    @classmethod
    def of(cls, address: IpAddress) -> Family:
        """That of an address."""
        return cls.ipv4 if address.version == 4 else cls.ipv6


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """Where a machine is reached: ``address`` (numeric) on ``interface``."""

    interface: str
    address: str

    @property
    def family(self) -> Family:
        """Of its address."""
        found = numeric(self.address)
        assert found is not None
        return Family.of(found)

    def environment(self) -> dict[str, str]:
        """What tells gloo and NCCL. Our own gloo groups are made on the address itself
        (``sailor/parallel/groups.py``): an interface may have several. NCCL takes a name for the
        beginning of one, unless '=' says that it is all of it; and where an interface has addresses
        of both families it asks for the family."""
        return {
            "GLOO_SOCKET_IFNAME": self.interface,
            "NCCL_SOCKET_IFNAME": f"={self.interface}",
            "NCCL_SOCKET_FAMILY": self.family.value,
        }


def way_of(known_by: Sequence[str], interfaces: Mapping[str, Sequence[str]]) -> Way | None:
    """The way to a machine whose peers dial one of these addresses (those of a name, in the order
    they are tried), given the addresses of each of its interfaces.

    The first address that an interface holds is taken; any loopback address is held by the
    interface that has one of its family, for all of 127.0.0.0/8 is this computer. None where no
    interface holds one: it is translated on the way here, or another machine's.
    """
    held: dict[IpAddress, tuple[str, str]] = {}
    loopback: dict[Family, str] = {}
    for interface in interfaces:
        for text in interfaces[interface]:
            if (address := numeric(text)) is None:
                continue
            held.setdefault(address, (interface, text))
            if address.is_loopback:
                loopback.setdefault(Family.of(address), interface)
    for text in known_by:
        wanted = numeric(text)
        if wanted is None or wanted.is_unspecified:
            continue
        if wanted in held:
            interface, as_held = held[wanted]
            return Way(interface=interface, address=as_held)
        if wanted.is_loopback and Family.of(wanted) in loopback:
            return Way(interface=loopback[Family.of(wanted)], address=str(wanted))
    return None
