"""The written record of rented clusters: what a later process needs to find and end leftovers.

``orders.jsonl`` in the run folder. A cluster is written down before anybody is asked for it, and
struck out only when it was seen to be gone, so whatever a crash leaves behind is on the list.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from provision.lines import append_line, read_lines

PREFIX = "sailor-"  # every cluster of ours begins with it
FILE = "orders.jsonl"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterOrder:
    """Equal machines that are rented, and given back, as one. ``nodes`` are in order of rank.

    ``infra`` is who was asked, in the launcher's own words, for a reader of the file.
    """

    cluster: str
    nodes: tuple[str, ...]
    zone: str
    machine_type: str
    spot: bool
    infra: str = ""


class OrderBook:
    """Append-only. Every line is on disk before the call returns."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._stem = cluster_stem(folder)

    def next_name(self) -> str:
        """A cluster name that no order of this run ever had."""
        used = sum(1 for line in read_lines(self.path) if line.get("act") == "wish")
        return f"{self._stem}-{used + 1}"

    def owns(self, cluster: str) -> bool:
        """Whether a cluster of that name is this run's, written down or not."""
        return cluster.startswith(f"{self._stem}-")

    def wish(self, order: ClusterOrder) -> None:
        """About to ask for it."""
        append_line(self.path, {"act": "wish", **msgspec.to_builtins(order)})

    def up(self, cluster: str) -> None:
        """Its machines run."""
        append_line(self.path, {"act": "up", "cluster": cluster})

    def gone(self, cluster: str, *, proof: str) -> None:
        """It was seen to be gone, or never to have been."""
        append_line(self.path, {"act": "gone", "cluster": cluster, "proof": proof})

    def remaining(self) -> tuple[ClusterOrder, ...]:
        """Clusters wished for and not seen to be gone, oldest first."""
        orders: dict[str, ClusterOrder] = {}
        for line in read_lines(self.path):
            match line.get("act"):
                case "wish":
                    order = msgspec.convert(
                        {key: value for key, value in line.items() if key != "act"}, ClusterOrder
                    )
                    orders[order.cluster] = order
                case "gone":
                    orders.pop(str(line.get("cluster")), None)
        return tuple(orders.values())


def cluster_stem(folder: Path) -> str:
    """The beginning of a run's cluster names: readable, and of this very folder.

    Lower case, digits and hyphens, at most 27 characters: what every cloud accepts, and short
    enough for the number and what SkyPilot adds.
    """
    folder = folder.absolute()
    slug = re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-")[:12].strip("-") or "run"
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:6]
    return f"{PREFIX}{slug}-{digest}"
