"""Ways to run a stage as columns: what the bound on a step's seconds is computed from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from sailor.cluster.network import Link
from sailor.planner.costs import FloatArray, IntArray, Way
from sailor.planner.memory import Cut, most_blocks
from sailor.planner.own_costs import OwnCosts


@dataclass(frozen=True, kw_only=True, slots=True)
class SizedWays:
    """Ways to run a stage with microbatches of one size, one entry each, the sites in order.

    Seconds of a block, of the embedding, of the head, of one message to the next GPU, and of the
    whole model on one stage (infinity where it does not fit). ``room``, ``room_two``,
    ``room_first`` and ``room_last``: blocks that fit with one microbatch alive, with two, beside
    the embedding, and beside the head.
    """

    size: int
    site: IntArray
    degree: FloatArray
    block: FloatArray
    first: FloatArray
    last: FloatArray
    send: FloatArray
    alone: FloatArray
    room: FloatArray
    room_two: FloatArray
    room_first: FloatArray
    room_last: FloatArray

    def where(self, kept: npt.NDArray[np.bool_]) -> SizedWays:
        """Some of them."""
        columns: dict[str, Any] = {
            name: getattr(self, name)[kept] for name in self.__slots__ if name != "size"
        }
        return replace(self, **columns)

    def twice(self, num_sites: int) -> SizedWays:
        """The same ways again on as many sites more."""
        columns: dict[str, Any] = {
            name: np.tile(getattr(self, name), 2) for name in self.__slots__ if name != "size"
        }
        columns["site"][len(self.site) :] += num_sites
        return replace(self, **columns)


def fastest_link(costs: OwnCosts, site: int, *, inside: bool) -> Link:
    """A link no slower than any between a GPU of the site and another one; ``inside`` a machine,
    too."""
    places = [
        (zone, ground.machine_type.name)
        for ground in costs.grounds
        for zone in _one_of_each_region(costs, ground.zones)
    ]
    ground = costs.grounds[site]
    kind = ground.machine_type.name
    links = [
        costs.network.between(zone, kind, *other)
        for zone in _one_of_each_region(costs, ground.zones)
        for other in places
    ]
    if inside:
        links.append(costs.network.inside(kind))
    return replace(
        links[0],
        seconds_per_message=min(link.seconds_per_message for link in links),
        bytes_per_second=max(link.bytes_per_second for link in links),
    )


def _one_of_each_region(costs: OwnCosts, zones: Iterable[str]) -> list[str]:
    """Two zones of each region: all tiers there are between any."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in zones:
        zone = costs.network.zones[name]
        found.setdefault((zone.cloud, zone.region), []).append(name)
    return [name for names in found.values() for name in names[:2]]


def sized_ways(costs: OwnCosts, size: int, ways: Sequence[Way], links: Sequence[Link]) -> SizedWays:
    blocks = costs.num_blocks
    whole = Cut(num_blocks=blocks, first=True, last=True)
    rows = []
    for way in ways:
        gpu = costs.grounds[way.site].machine_type.gpu
        each = costs.coefficients(way)
        room, beside = (
            most_blocks(
                each, num_blocks=blocks, first=first, last=False, num_in_flight=1,
                num_owners=max(2, costs.num_owners), optimizer_sharding=costs.num_owners > 1,
                gpu=gpu,
            )
            for first in (False, True)
        )  # fmt: skip
        fits = costs.peak_bytes(way, whole, num_in_flight=1) <= gpu.memory_bytes
        rows.append(
            (
                way.site, way.tensor_parallel, way.block, way.first, way.last,
                links[way.site].seconds(each.boundary),
                blocks * way.block + way.first + way.last if fits else inf,
                room, costs.most_blocks(way, stage=1, num_stages=3), beside,
                costs.most_blocks(way, stage=1, num_stages=2),
            )
        )  # fmt: skip
    table = np.array(rows, dtype=float).T
    names = (
        "degree", "block", "first", "last", "send", "alone",
        "room", "room_two", "room_first", "room_last",
    )  # fmt: skip
    columns: dict[str, Any] = dict(zip(names, table[1:], strict=True))
    found = SizedWays(size=size, site=table[0].astype(np.int64), **columns)
    return found.where((found.room >= 1) & ~_stood_in_for(found, blocks))


def _stood_in_for(ways: SizedWays, blocks: int) -> npt.NDArray[np.bool_]:
    """Ways that another one of the site equals or betters in everything."""
    columns = np.array(
        [ways.degree, ways.block, ways.first, ways.last, ways.send, ways.alone, -ways.room,
         -np.minimum(ways.room_two, blocks), -np.minimum(ways.room_first, blocks),
         -np.minimum(ways.room_last, blocks)]
    )  # fmt: skip
    columns[np.isinf(columns)] = 1e300
    better = (columns[:, :, None] <= columns[:, None, :]).all(axis=0)
    better &= ways.site[:, None] == ways.site[None, :]
    # Of two that are equal the first stays.
    equal = better & better.T
    order = np.arange(len(ways.site))
    better &= ~equal | (order[:, None] < order[None, :])
    stood: npt.NDArray[np.bool_] = better.any(axis=0)
    return stood
