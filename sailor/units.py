"""Units as people write and read them. Inside the code there are only seconds, bytes and counts."""

from __future__ import annotations

import re

GIB = 1 << 30
MIB = 1 << 20
KIB = 1 << 10

_BYTES = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": KIB, "mib": MIB, "gib": GIB, "tib": 1 << 40,
}  # fmt: skip
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_NUMBER = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*$")


def _parse(text: str | int | float, table: dict[str, float], *, kind: str, example: str) -> float:
    match = _NUMBER.match(str(text).lower().replace("_", ""))
    if match is None or match[2] not in table:
        raise ValueError(f"{text!r} is not {kind}; write it like {example}")
    return float(match[1]) * table[match[2]]


def parse_bytes(text: str | int) -> int:
    """Bytes of '80GiB', '512 MB' or a plain number of bytes. Raises ValueError."""
    table: dict[str, float] = {"": 1, **_BYTES}
    return round(_parse(text, table, kind="a size", example="80GiB"))


def parse_seconds(text: str) -> float:
    """Seconds of '24h', '90s' or '30min'; a bare number is refused, for it has no unit."""
    return _parse(text, _SECONDS, kind="a duration", example="24h, 90s or 30min")


def parse_count(text: str | int) -> int:
    """A whole number from '20B', '300k' or 5000."""
    table: dict[str, float] = dict(_COUNTS)
    return round(_parse(text, table, kind="a count", example="20B"))


def gib(num_bytes: float) -> str:
    """'17.2 GiB' or '48.0 MiB', whichever reads better."""
    for unit, size in (("TiB", 1 << 40), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes:.0f} B"


def count(number: float) -> str:
    """'1.3 B', '820 k': a large count with three digits."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def duration(seconds: float) -> str:
    """'13.2 h', '4 min 10 s', '0.62 s'."""
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:.1f} h"
    if seconds >= 120:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds:.2f} s"


def clock(seconds: float) -> str:
    """A moment after a beginning: '0.5 s', '1:30', '2:05:00' or '3 d 4 h'."""
    if seconds >= 3 * 86_400:
        days, hours = int(seconds // 86_400), int(seconds % 86_400 // 3600)
        return f"{days} d {hours} h" if hours else f"{days} d"
    if seconds != int(seconds):
        return f"{seconds:.1f} s"
    whole = int(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
