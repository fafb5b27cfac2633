"""With optimizer sharding: from the one rank that keeps a box's state to all that compute with it.

What every owner would have computed for itself is computed once, by the keeper, and handed out as
the weight that is computed with: in bf16 half of what its fp32 original would be on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from sailor.parallel.buckets import buckets_of
from sailor.parallel.comm import Communicator
from sailor.parallel.state import StageState


class WeightSpread:
    """The weights of one rank that have a keeper and other owners."""

    def __init__(self, state: StageState) -> None:
        self._state = state
        self._buckets = [
            bucket
            for bucket in buckets_of(state)
            if bucket.keeper is not None and len(bucket.owners) > 1
        ]

    def run(self, groups: Mapping[tuple[int, ...], Communicator]) -> None:
        """Before: keepers have published theirs; after: every owner has them. Raises Aborted.

        Left midway, an operation may still write into the weights that others keep.
        """
        state = self._state
        under_way = []
        for bucket in self._buckets:
            assert bucket.keeper is not None
            flat = (
                state.weights.new_empty(bucket.size)
                if bucket.staged
                else state.weights[bucket.start : bucket.stop]
            )
            if bucket.keeper == state.rank:
                for segment, view in bucket.views(flat):
                    view.copy_(segment.of(self._weight(segment.tensor)))
            root = bucket.owners.index(bucket.keeper)
            under_way.append((bucket, flat, groups[bucket.owners].broadcast(flat, root=root)))
        for bucket, flat, pending in under_way:
            pending.wait()
            if bucket.keeper != state.rank:
                for segment, view in bucket.views(flat):
                    segment.of(self._weight(segment.tensor)).copy_(view)

    def _weight(self, tensor: str) -> torch.Tensor:
        return self._state.by_name[tensor].of(self._state.weights)
