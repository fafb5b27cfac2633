"""The way to this machine: which of its interfaces holds the address that its peers dial."""

from __future__ import annotations

import socket

import psutil

from sailor.addresses import bare, numeric
from sailor.cluster.interfaces import Way, way_of


def way_here(host: str) -> Way:
    """Where on this machine its peers reach it, who dial that address or name. Raises OSError for a
    name that nobody knows, ValueError for an address that no interface here holds."""
    found = socket.getaddrinfo(bare(host), None, type=socket.SOCK_STREAM)
    interfaces = {
        name: tuple(address.address for address in addresses)
        for name, addresses in psutil.net_if_addrs().items()
    }
    way = way_of([str(entry[4][0]) for entry in found], interfaces)
    if way is None:
        held = ", ".join(a for some in interfaces.values() for a in some if numeric(a))
        raise ValueError(f"no interface of this machine holds {host}; they hold {held}")
    return way
