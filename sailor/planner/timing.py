"""Seconds of a pipeline and of a gradient reduction. The formulas; no plan, no search.

A stage is busy for ``busy`` seconds per microbatch: its compute, its tensor-parallel exchange and
what it sends to its neighbours. Under 1F1B the slowest stage sets the pace and the others add their
part once, when the pipeline fills and drains; this holds for uneven stages too:

    seconds(N) = sum(busy) + (N - 1) * max(busy)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

from sailor.cluster.network import LATENCY_SECONDS, Link, Tier


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineSeconds:
    """One replica's pipeline: ``fill`` once, ``pace`` for every microbatch after the first."""

    fill: float
    pace: float

    @staticmethod
    def of(busy: Sequence[float]) -> PipelineSeconds:
        """From the busy seconds of each stage for one microbatch."""
        return PipelineSeconds(fill=sum(busy), pace=max(busy))

    def seconds(self, num_microbatches: int) -> float:
        """The whole pipeline for one step, from its first forward to its last backward."""
        return self.fill + (num_microbatches - 1) * self.pace

    def microbatches_within(self, seconds: float) -> int:
        """Most microbatches that finish in the given time; 0 when not even one does."""
        if seconds < self.fill:
            return 0
        # A bound that was computed from a count must give that count back.
        return 1 + floor((seconds - self.fill) / self.pace * (1 + 1e-12) + 1e-9)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ring:
    """What an all-reduce runs over: its slowest link, how many rings use that at the same time, and
    the zones it visits, ``far_seconds`` apart."""

    link: Link
    num_sharing: float = 1.0
    num_zones: int = 1
    far_seconds: float = 0.0

    def latency(self, num_owners: int) -> float:
        """Seconds of the messages that follow one another; near ones, and those between zones."""
        if self.num_zones == 1:
            return message_steps(num_owners) * self.link.seconds_per_message
        near = message_steps(num_owners) * LATENCY_SECONDS[Tier.zone]
        return near + message_steps(self.num_zones + 1) * self.far_seconds


def message_steps(num_owners: int) -> int:
    """Messages one after another: twice around the ring, or up and down two binary trees where
    those are sooner (as NCCL chooses). The bytes take as long either way."""
    if num_owners < 2:
        return 0
    return min(2 * (num_owners - 1), 4 * (num_owners - 1).bit_length())


def ring_seconds(num_bytes: float, *, num_owners: int, ring: Ring) -> float:
    """All-reduce, or reduce-scatter plus all-gather, of ``num_bytes`` on each owner.

    2 (D - 1) / D of the bytes pass the slowest link (Patarasuk and Yuan 2009).
    """
    if num_owners < 2 or num_bytes <= 0:
        return 0.0
    rate = ring.link.bytes_per_second / ring.num_sharing
    return ring.latency(num_owners) + 2 * (num_owners - 1) / num_owners * num_bytes / rate


def sharing(*, gpus_per_machine: int, gpus_per_replica: int) -> float:
    """Gradient rings that leave a machine at once, when replicas fill machines one after another.

    A replica that fits a machine several times has that many owners of each box there, and their
    ring crosses the card once; one that takes whole machines has one ring for each GPU.
    """
    owners_on_machine = max(1, gpus_per_machine // gpus_per_replica)
    return max(1.0, min(gpus_per_machine, gpus_per_replica * owners_on_machine) / owners_on_machine)
