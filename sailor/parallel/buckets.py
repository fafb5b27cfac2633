"""What ranks that hold the same boxes exchange in one operation: gradients to be summed, or weights
to be handed out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from sailor.parallel.comm import Communicator, Pending
from sailor.parallel.slots import Segment, Slot, padded
from sailor.parallel.state import StageState


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """What is summed over one set of owners in one operation, for the one that keeps its state.

    Either slots that the set owns whole, which lie together in the flat arrays at [start, stop), or
    ``staged`` segments of slots that several sets share. An owner with the highest tensor-parallel
    degree has the former where one with a lower degree has the latter: same elements, same order.
    ``keeper`` None: every owner wants the sum. ``tensors``: whose gradients it waits for.
    """

    owners: tuple[int, ...]
    keeper: int | None
    start: int
    stop: int
    staged: tuple[Segment, ...]
    tensors: tuple[str, ...]

    @property
    def size(self) -> int:
        """Elements in the operation."""
        return self.stop - self.start + sum(padded(segment.numel) for segment in self.staged)

    def views(self, flat: torch.Tensor) -> list[tuple[Segment, torch.Tensor]]:
        """Each staged segment with its view of an array of ``size`` elements."""
        views = []
        at = 0
        for segment in self.staged:
            views.append((segment, flat[at : at + segment.numel].view(segment.shape)))
            at += padded(segment.numel)
        return views

    def wanted_by(self, rank: int) -> bool:
        """Whether the sum is of use to a rank."""
        return self.keeper is None or self.keeper == rank

    def start_sum(
        self, flat: torch.Tensor, groups: Mapping[tuple[int, ...], Communicator]
    ) -> Pending | None:
        """Sum over the owners; None where there is one. Raises Aborted."""
        if len(self.owners) == 1:
            return None
        group = groups[self.owners]
        if self.keeper is None:
            return group.all_reduce(flat)
        return group.reduce(flat, root=self.owners.index(self.keeper))


def buckets_of(state: StageState, *, most: int | None = None) -> tuple[Bucket, ...]:
    """Every bucket of a rank, in the order of their owners and keepers: the same on all of them.

    One for each set of owners and keeper, or several of about ``most`` elements, cut between
    parameters, which are in one order on all owners.
    """
    sets: dict[tuple[tuple[int, ...], int | None], list[tuple[Slot, Segment]]] = {}
    for slot in state.slots:
        for segment in slot.segments:
            sets.setdefault((segment.owners, segment.keeper), []).append((slot, segment))
    buckets = []
    for owners, keeper in sorted(sets, key=lambda key: (key[0], -1 if key[1] is None else key[1])):
        for part in _portions(sets[owners, keeper], most):
            whole = [slot for slot, _ in part if len(slot.segments) == 1]
            staged = tuple(segment for slot, segment in part if len(slot.segments) > 1)
            assert not (whole and staged), "one set of owners cuts all its tensors alike"
            start = whole[0].offset if whole else 0
            stop = padded(whole[-1].offset + whole[-1].numel) if whole else 0
            buckets.append(
                Bucket(
                    owners=owners, keeper=keeper, start=start, stop=stop, staged=staged,
                    tensors=tuple(slot.logical.name for slot, _ in part),
                )
            )  # fmt: skip
    return tuple(buckets)


def _portions(
    segments: list[tuple[Slot, Segment]], most: int | None
) -> Iterator[list[tuple[Slot, Segment]]]:
    """Neighbours, until they have ``most`` elements together."""
    portion: list[tuple[Slot, Segment]] = []
    size = 0
    for slot, segment in segments:
        portion.append((slot, segment))
        size += segment.numel
        if most is not None and size >= most:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion
