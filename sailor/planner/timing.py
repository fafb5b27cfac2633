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

from sailor.cluster.network import Link


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


def ring_seconds(num_bytes: float, *, num_owners: int, link: Link, num_sharing: float) -> float:
    """All-reduce, or reduce-scatter plus all-gather, of ``num_bytes`` on each owner.

    A ring sends 2 (D - 1) / D of the bytes over its slowest link (Patarasu and Yuan 2009);
    ``num_sharing`` rings use that link at the same time.
    """
    if num_owners < 2 or num_bytes <= 0:
        return 0.0
    steps = 2 * (num_owners - 1)
    rate = link.bytes_per_second / num_sharing
    return steps * link.seconds_per_message + steps / num_owners * num_bytes / rate


def sharing(*, gpus_per_machine: int, gpus_per_replica: int) -> float:
    """Gradient rings that leave a machine at once, when replicas fill machines one after another.

    A replica that fits a machine several times has that many owners of each box there, and their
    ring crosses the card once; one that takes whole machines has one ring for each GPU.
    """
    owners_on_machine = max(1, gpus_per_machine // gpus_per_replica)
    return max(1.0, min(gpus_per_machine, gpus_per_replica * owners_on_machine) / owners_on_machine)
