"""Network addresses as text: a host and a port in one word, in the one place that knows brackets.

An IPv6 address has colons of its own, so before a port it stands in brackets (RFC 3986, 3.2.2):
``[fd00::7]:7000``. Everywhere else in the program a host has none.
"""

from __future__ import annotations

import ipaddress

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def joined(host: str, port: int) -> str:
    """'10.0.0.7:7000', 'node-1:7000', '[fd00::7]:7000'."""
    host = bare(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parted(text: str) -> tuple[str, int]:
    """Host and port of such a word. Raises ValueError for anything else: an IPv6 address without
    brackets does not say where it ends."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not bare(host) or not (port.isascii() and port.isdigit()):
        raise ValueError(f"{text!r} is not HOST:PORT")
    if ":" in host and not bracketed:
        raise ValueError(f"{text!r} has an IPv6 address that needs brackets: [ADDRESS]:PORT")
    if int(port) > 65535:
        raise ValueError(f"{text!r}: there is no port {port}")
    return bare(host), int(port)


def bare(host: str) -> str:
    """A host without the brackets that somebody may have written around it."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def numeric(host: str) -> IpAddress | None:
    """The address, if it is one and no name. An IPv4 address inside an IPv6 one is an IPv4 address;
    the interface that a link-local one names (``fe80::1%eth0``) is no part of it."""
    try:
        found = ipaddress.ip_address(bare(host).partition("%")[0])
    except ValueError:
        return None
    inner = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return inner or found


def is_loopback(host: str) -> bool:
    """Whether nobody but this computer can dial it."""
    address = numeric(host)
    return host == "localhost" if address is None else address.is_loopback
