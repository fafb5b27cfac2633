"""The same layout with other workers in some of its seats. Pure, no torch.

Whoever leaves is replaced one to one: stages, cuts and ranks stay as they are, so that survivors
keep their boxes, and groups without the leaver keep their key. Which machines may stand in, and
when, is the life cycle's business (``sailor/runtime/reserve.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sailor.parallel.layout import Layout, Member, WorkerId
from sailor.parallel.slots import same_places
from sailor.plan import Plan


def stand_in(
    layout: Layout,
    *,
    staying: Sequence[Member],
    others: Sequence[Member],
    meant: Mapping[str, str] | None = None,
) -> Layout | None:
    """The layout with every seat taken by a worker of ``staying`` or ``others``; None if it cannot.

    ``staying`` may keep seats; ``others``, in order of preference, may take some over. A node that
    has lost a worker and started another keeps its seats; one that cannot fill all of its seats
    gives all of them up, for a tensor group never spans machines. They go to one machine of the
    same type in a zone the plan uses, the same zone first; those of a node in
    ``meant`` to the machine named there or to none. The very same layout comes back when nobody is
    missing.
    """
    workers = list(layout.workers)
    by_name = {member.node: member for member in staying}
    homeless: list[tuple[str, list[int]]] = []
    for node in layout.nodes:
        ranks = [rank for rank, worker in enumerate(workers) if worker.node == node]
        filled = _filled(ranks, workers, by_name.get(node))
        if filled is None:
            homeless.append((node, ranks))
        else:
            for rank, worker in filled.items():
                workers[rank] = worker
    taken = set(layout.nodes) - {node for node, _ in homeless}
    free = [m for m in others if m.node not in taken and m.workers]
    meant = meant or {}
    moved: dict[int, str] = {}  # rank -> zone it goes to
    for node, ranks in homeless:
        stage = layout.stage_of(ranks[0])
        taken_by = meant.get(node)
        spoken_for = set(meant.values()) - {taken_by}
        fitting = [
            member
            for member in free
            if member.node not in {node, *spoken_for}
            and taken_by in (None, member.node)
            and fits(layout, ranks, member)
        ]
        if not fitting:
            return None
        chosen = min(fitting, key=lambda member: member.zone != stage.zone)  # stable: order counts
        free.remove(chosen)
        for rank, worker in zip(ranks, sorted(chosen.workers), strict=False):
            workers[rank] = worker
            moved[rank] = chosen.zone
    if tuple(workers) == layout.workers:
        return layout
    return replace(layout, plan=with_zones(layout, moved), workers=tuple(workers))


def fits(layout: Layout, ranks: Sequence[int], member: Member) -> bool:
    """Whether a machine is of the type that all these ranks of one node were planned for, large
    enough, and in a zone the plan uses."""
    return (
        member.machine_type == layout.stage_of(ranks[0]).machine_type
        and len(member.workers) >= len(ranks)
        and any(stage.zone == member.zone for _, _, stage in layout.plan.stages())
    )


def same_seat(old: Layout, old_rank: int, new: Layout, new_rank: int) -> bool:
    """Whether two ranks of two layouts do the same work on the same state, among others perhaps.

    Then its trainer, with its state, and its snapshot memory serve on: how many microbatches it
    has, who owns the same boxes and who is before and behind it may all be different.
    """
    before, after = old.stage_of(old_rank), new.stage_of(new_rank)
    return (
        old.spec == new.spec
        and old.pieces == new.pieces
        and old.plan.sequence_length == new.plan.sequence_length
        and old.plan.global_batch_size == new.plan.global_batch_size
        # Others write into weights that are handed out: a trainer that was left is not used again.
        and not (old.plan.optimizer_sharding or new.plan.optimizer_sharding)
        and replace(before, gpu="", machine_type="", zone="")
        == replace(after, gpu="", machine_type="", zone="")
        and old.coordinates[old_rank].tensor_rank == new.coordinates[new_rank].tensor_rank
        and same_places(old, old_rank, new, new_rank)
    )


def only_workers_differ(old: Layout, old_rank: int, new: Layout, new_rank: int) -> bool:
    """Whether a rank of two layouts has the same rank, owners and share of every batch in both: a
    machine was replaced by another, and for whoever stays nothing but some groups is new."""
    return (
        old_rank == new_rank
        and old.spec == new.spec
        and old.pieces == new.pieces
        and (old.plan == new.plan or without_places(old.plan) == without_places(new.plan))
    )


def without_places(plan: Plan) -> Plan:
    """The plan, wherever and on whatever machines it runs."""
    replicas = tuple(
        replace(
            replica,
            stages=tuple(replace(s, gpu="", machine_type="", zone="") for s in replica.stages),
        )
        for replica in plan.replicas
    )
    return replace(plan, replicas=replicas)


def _filled(
    ranks: Sequence[int], workers: Sequence[WorkerId], member: Member | None
) -> dict[int, WorkerId] | None:
    """Who of its own a node seats at these ranks, or None when it has too few workers."""
    if member is None or len(member.workers) < len(ranks):
        return None
    seated = {rank: workers[rank] for rank in ranks if workers[rank] in member.workers}
    free = sorted(set(member.workers) - set(seated.values()))
    for rank in ranks:
        if rank not in seated:
            same_slot = [w for w in free if w.slot == workers[rank].slot]
            seated[rank] = (same_slot or free)[0]
            free.remove(seated[rank])
    return seated


def with_zones(layout: Layout, moved: dict[int, str]) -> Plan:
    """The plan, with the stages of moved ranks in these zones. Nothing else changes."""
    zones = {(c.replica, c.stage): moved[r] for r, c in enumerate(layout.coordinates) if r in moved}
    replicas = tuple(
        replace(
            replica,
            stages=tuple(
                replace(stage, zone=zones.get((r, s), stage.zone))
                for s, stage in enumerate(replica.stages)
            ),
        )
        for r, replica in enumerate(layout.plan.replicas)
    )
    return replace(layout.plan, replicas=replicas)
