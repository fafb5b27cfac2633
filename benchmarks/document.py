"""The one form in which every benchmark reports: figures, detail, and the machine they are of."""

from __future__ import annotations

import json
import os
import platform
from typing import Any


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def show(document: dict[str, Any], *, as_json: bool) -> None:
    """One JSON document on standard output, or the figures as lines."""
    if as_json:
        print(json.dumps(document, indent=2))
        return
    print(document["benchmark"])
    width = max(map(len, document["figures"]), default=0)
    for name, value in document["figures"].items():
        text = "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
        print(f"  {name:<{width}}  {text}")


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()
