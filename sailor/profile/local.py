"""This computer's CPU as a GpuType: measured once, remembered with its provenance.

What measures is ``python -m sailor.measure.core``, in a process of its own.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from sailor.cluster.gpu import GpuType

log = logging.getLogger(__name__)

VERSION = 2
# What a slow virtual core does; used, and said so, when measuring fails.
FALLBACK_FLOPS = 20e9
FALLBACK_BYTES_PER_SECOND = 5e9
MEASURE_TIMEOUT_SECONDS = 60.0  # on a busy computer torch takes its time to load


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """One core: fp32 matrix products and copying. ``source`` says measured when, or fallback."""

    flops: float
    bytes_per_second: float
    source: str


def local_gpu(*, memory_bytes: int, num_workers: int, cache: Path | None = None) -> GpuType:
    """The CPU share of one of ``num_workers`` workers, one thread each.

    More workers than cores share the cores. What workers of one machine exchange is copied into
    memory that they share, and read there: twice through a core.
    """
    speed = core_speed(cache=cache)
    share = min(1.0, num_cores() / max(1, num_workers))
    return GpuType(
        name="cpu",
        memory_bytes=memory_bytes,
        peak_flops=speed.flops * share,
        peak_flops_fp32=speed.flops * share,
        memory_bytes_per_second=speed.bytes_per_second * share,
        link_bytes_per_second=speed.bytes_per_second * share / 2.0,
        has_bf16=False,
        source=speed.source,
        has_context=False,
    )


def num_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def core_speed(*, cache: Path | None = None) -> Speed:
    """The remembered speed of this computer's cores, measured now if there is none.

    ``cache`` is the folder to remember in; by default the user's cache folder.
    """
    folder = cache if cache is not None else cache_folder()
    path = folder / f"cpu-{VERSION}-{_fingerprint()}.json"
    try:
        known = json.loads(path.read_text())
        return Speed(
            flops=float(known["flops"]),
            bytes_per_second=float(known["bytes_per_second"]),
            source=str(known["source"]),
        )
    except (OSError, ValueError, KeyError):
        pass  # nothing remembered, or not by this version: measure
    try:
        speed = _measure_in_child()
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        log.warning("could not measure this computer's cores (%s); a slow core is assumed", error)
        return Speed(
            flops=FALLBACK_FLOPS,
            bytes_per_second=FALLBACK_BYTES_PER_SECOND,
            source="assumed: measuring failed",
        )
    _remember(path, speed)
    return speed


def cache_folder() -> Path:
    """Where a user's caches live (XDG)."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "sailor"


def _fingerprint() -> str:
    """Another processor has another file."""
    text = f"{platform.machine()}-{platform.processor() or _model_name()}-{num_cores()}"
    return "".join(c if c.isalnum() else "_" for c in text)[:80]


def _model_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux: the machine's architecture must do
    return "unknown"


def _measure_in_child() -> Speed:
    one_thread = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
                                         "MKL_NUM_THREADS")}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "sailor.measure.core"],
        env={**os.environ, **one_thread, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        check=True,
        timeout=MEASURE_TIMEOUT_SECONDS,
    )
    found = json.loads(done.stdout)
    day = time.strftime("%Y-%m-%d")
    return Speed(
        flops=float(found["flops"]),
        bytes_per_second=float(found["bytes_per_second"]),
        source=f"measured on this computer on {day}",
    )


def _remember(path: Path, speed: Speed) -> None:
    """Written beside and renamed, so that two first runs do not meet in the middle."""
    document = {
        "flops": speed.flops,
        "bytes_per_second": speed.bytes_per_second,
        "source": speed.source,
        "version": VERSION,
        "machine": _model_name(),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(document, indent=2))
        beside.replace(path)
    except OSError as error:
        log.warning("the speed of this computer's cores is not remembered: %s", error)
