"""Whether all keepers of a box hold the same bytes after a step (invariant I2). Pure.

Replicas step in lockstep and never exchange their weights again, so a bit that flips in one of them
goes on unseen: no loss and no collective tells. The digests that agents make when they seal a
snapshot do, at the cost of sending them. With optimizer sharding a box has one keeper and there is
nothing to compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sailor.parallel.boxes import Box
from sailor.parallel.layout import Layout, WorkerId

_STEPS_REMEMBERED = 4  # reports of one step arrive within a step or two of each other


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A box whose keepers disagree after ``step``: each digest with the workers that have it."""

    step: int
    box: str
    holders: tuple[tuple[int, tuple[WorkerId, ...]], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """All ranks have told of a step. ``num_compared`` boxes had two keepers or more."""

    step: int
    num_compared: int
    differences: tuple[Difference, ...]


@dataclass(kw_only=True)
class Agreement:
    """Collects the digests of one generation's ranks."""

    layout: Layout
    _told: dict[int, dict[int, tuple[int, ...]]] = field(default_factory=dict)  # step -> rank -> …

    def hear(self, worker: WorkerId, *, step: int, digests: Sequence[int]) -> Comparison | None:
        """A rank's digests after a step, one for each box it keeps in the layout's order.

        Answers once, when the last rank has told. What does not fit the layout is ignored.
        """
        rank = self.layout.rank_of(worker)
        if rank is None or len(digests) != len(self.layout.kept[rank]):
            return None
        told = self._told.setdefault(step, {})
        told[rank] = tuple(digests)
        for old in sorted(self._told)[:-_STEPS_REMEMBERED]:
            del self._told[old]
        if len(told) < self.layout.world_size:
            return None
        self._told.pop(step, None)
        return self._compare(step, told)

    def _compare(self, step: int, told: dict[int, tuple[int, ...]]) -> Comparison:
        found: dict[Box, dict[int, list[WorkerId]]] = {}
        for rank, digests in told.items():
            for box, digest in zip(self.layout.kept[rank], digests, strict=True):
                found.setdefault(box, {}).setdefault(digest, []).append(self.layout.workers[rank])
        differences = tuple(
            Difference(
                step=step,
                box=box.name,
                holders=tuple((digest, tuple(who)) for digest, who in sorted(by_digest.items())),
            )
            for box, by_digest in sorted(found.items(), key=lambda entry: entry[0].name)
            if len(by_digest) > 1
        )
        shared = sum(len(keepers) > 1 for keepers in self.layout.keepers.values())
        return Comparison(step=step, num_compared=shared, differences=differences)
