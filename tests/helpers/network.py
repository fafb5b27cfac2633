"""What networks this computer has."""

from __future__ import annotations

import psutil


def has_ipv6() -> bool:
    """Whether it can talk to itself over IPv6."""
    return any(a.address == "::1" for some in psutil.net_if_addrs().values() for a in some)
