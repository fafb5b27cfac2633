"""What differs between two layouts: groups to build, boxes to move. Pure, no torch.

Everything not named here is kept as it is: processes, buffers, connections. Where moving boxes come
from is ``sailor.checkpoint.restore``'s decision, for it depends on who still holds what.
"""

from __future__ import annotations

from dataclasses import dataclass

from sailor.parallel.boxes import Box
from sailor.parallel.layout import Group, Layout


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutChange:
    """The difference between an old layout (or none) and a new one.

    ``arriving[rank]`` are the boxes that the rank's worker keeps in the new layout and did not keep
    before.
    """

    kept: tuple[Group, ...]
    built: tuple[Group, ...]
    dropped: tuple[Group, ...]
    arriving: tuple[tuple[Box, ...], ...]

    @property
    def bytes_moved(self) -> int:
        """Snapshot bytes that have to reach a worker that does not hold them."""
        return sum(box.num_bytes for boxes in self.arriving for box in boxes)


def change_between(old: Layout | None, new: Layout) -> LayoutChange:
    """Compare by member, never by rank: a worker that keeps its boxes keeps them at any rank.

    A group is kept when the same incarnations, in the same order, need it for the same purpose.
    """
    old_groups = {group.key: group for group in old.groups} if old is not None else {}
    new_keys = {group.key for group in new.groups}
    held = (
        {worker: frozenset(old.kept[rank]) for rank, worker in enumerate(old.workers)}
        if old is not None
        else {}
    )
    return LayoutChange(
        kept=tuple(group for group in new.groups if group.key in old_groups),
        built=tuple(group for group in new.groups if group.key not in old_groups),
        dropped=tuple(group for key, group in old_groups.items() if key not in new_keys),
        arriving=tuple(
            tuple(box for box in boxes if box not in held.get(worker, frozenset()))
            for worker, boxes in zip(new.workers, new.kept, strict=True)
        ),
    )
