"""Machines without GPUs that a run rents: which there are, and for how much.

An anchor (``sailor/runtime/anchors.py``) is one, for its memory; a controller's own machine is
another. On demand, never spot: they are to be there when all spot machines are gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sailor.errors import CloudError, NoFeasiblePlan
from sailor.units import gib

LOCAL_HOST = "local-memory"  # this computer posing as one
LOCAL_CONTROLLER = "local-controller"  # and as that of a controller: free
AS_OF = "2025"
SOURCE = "public list prices of US regions; other regions cost up to a third more"
# /dev/shm holds half of a machine's memory, and of that an anchor takes nine tenths.
USABLE = 0.45


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A machine type and what it costs on demand, US dollars an hour. ``memory_gib`` of all of it.
    Machines that have no name are asked for by their memory, ``named`` false."""

    name: str
    memory_gib: int
    price_per_hour: float
    named: bool = True


def _sizes(*entries: tuple[str, int, float]) -> tuple[Host, ...]:
    return tuple(Host(name=n, memory_gib=m, price_per_hour=p) for n, m, p in entries)


_HOSTS: Mapping[str, tuple[Host, ...]] = {
    "gcp": _sizes(
        ("n2-highmem-2", 16, 0.1310), ("n2-highmem-4", 32, 0.2620), ("n2-highmem-8", 64, 0.5241),
        ("n2-highmem-16", 128, 1.0481), ("n2-highmem-32", 256, 2.0962),
        ("n2-highmem-64", 512, 4.1924), ("n2-highmem-80", 640, 5.2405),
    ),
    "aws": _sizes(
        ("r6i.large", 16, 0.126), ("r6i.xlarge", 32, 0.252), ("r6i.2xlarge", 64, 0.504),
        ("r6i.4xlarge", 128, 1.008), ("r6i.8xlarge", 256, 2.016), ("r6i.16xlarge", 512, 4.032),
        ("r6i.32xlarge", 1024, 8.064),
    ),
    "azure": _sizes(
        ("E2s_v5", 16, 0.126), ("E4s_v5", 32, 0.252), ("E8s_v5", 64, 0.504),
        ("E16s_v5", 128, 1.008), ("E32s_v5", 256, 2.016), ("E64s_v5", 512, 4.032),
    ),
}  # fmt: skip
_BY_MEMORY = ("slurm", "kubernetes")  # clusters of one's own: any amount, free


_CONTROLLER_BYTES = 6 << 30  # SkyPilot's server and its workers, the controller beside them


def rents_hosts(cloud: str) -> bool:
    """Whether machines without GPUs can be had there."""
    return cloud in _HOSTS or cloud in _BY_MEMORY


def controller_host(cloud: str) -> Host:
    """The cheapest machine of a cloud that a controller can live on. Raises CloudError E404."""
    if cloud in _BY_MEMORY:
        return Host(name="memory-6GiB", memory_gib=6, price_per_hour=0.0, named=False)
    if cloud not in _HOSTS:
        raise CloudError(
            f"{cloud} rents no machine without GPUs",
            code="E404",
            why="a controller of its own machine needs one, which is not preempted",
            where="cloud.controller=cluster",
            fix="cloud.controller=here",
        )
    return next(h for h in _HOSTS[cloud] if h.memory_gib * 2**30 >= _CONTROLLER_BYTES)


def host(cloud: str, *, needed_bytes: int) -> Host:
    """The cheapest machine of a cloud that holds that much in shared memory.

    Raises CloudError E404 where machines without GPUs cannot be rented, NoFeasiblePlan E305 where
    none is large enough.
    """
    if cloud in _BY_MEMORY:
        memory_gib = -(-int(needed_bytes / USABLE) // (1 << 30)) + 1
        name = f"memory-{memory_gib}GiB"
        return Host(name=name, memory_gib=memory_gib, price_per_hour=0.0, named=False)
    if cloud not in _HOSTS:
        raise CloudError(
            f"{cloud} rents no machine without GPUs",
            code="E404",
            why="the copies that checkpoint.anchor asks for need a machine that is not preempted",
            where="checkpoint.anchor=true",
            fix="checkpoint.anchor=false",
        )
    for found in _HOSTS[cloud]:
        if needed_bytes <= USABLE * found.memory_gib * 2**30:
            return found
    largest = _HOSTS[cloud][-1]
    raise does_not_fit(
        needed_bytes,
        there=f"the largest machine known there, {largest.name}, has {largest.memory_gib} GiB, of "
        f"which {gib(USABLE * largest.memory_gib * 2**30)} can hold snapshots",
    )


def does_not_fit(needed_bytes: int, *, there: str) -> NoFeasiblePlan:
    """E305: the copies have no room."""
    return NoFeasiblePlan(
        f"no machine holds the {gib(needed_bytes)} of copies that checkpoint.anchor asks for",
        code="E305",
        why=there,
        where="checkpoint.anchor=true",
        fix="checkpoint.anchor=false   leaves copies to the machines that train and to disk",
    )
