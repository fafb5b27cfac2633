"""How much longer than usual a stage of a change may take where machines hold much state. Pure.

The limits a user sets are for what does not depend on the model's size. Faulting memory in, copying
and saving do: without this a model of some tens of gigabytes a machine could never be recovered,
however often it were tried.
"""

from __future__ import annotations

from sailor.parallel.boxes import total_bytes
from sailor.parallel.layout import Layout

SLOW_BYTES_PER_S = 100e6  # a line of one gigabit, not all of it ours; memory and disks are faster


def extra_s(*layouts: object) -> float:
    """For all state of the machine that has the most of it, in any of these layouts.

    None, or one of the simulated world, which has its own costs, asks for no patience.
    """
    return max(map(_heaviest_bytes, layouts), default=0) / SLOW_BYTES_PER_S


def _heaviest_bytes(layout: object) -> int:
    if not isinstance(layout, Layout):
        return 0
    by_node: dict[str, int] = {}
    for worker, boxes in zip(layout.workers, layout.kept, strict=True):
        by_node[worker.node] = by_node.get(worker.node, 0) + total_bytes(boxes)
    return max(by_node.values(), default=0)
