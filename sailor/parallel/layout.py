"""Who holds what in one generation: rank <-> coordinates, box <-> owners, and which groups exist.

An owner of a box computes with its weight; a keeper has its state. Without optimizer sharding they
are the same.

A pure function of (plan, model, members): every worker computes the same Layout from the same
three values, so nothing about it has to be agreed on at run time. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from sailor.models.spec import ModelSpec
from sailor.parallel.boxes import Box, cut, pieces_of_rank
from sailor.plan import Plan, Stage


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class WorkerId:
    """One worker process: a slot (GPU) of a node, and which start of it this is.

    A restarted process has a higher ``incarnation`` and never passes for its predecessor.
    """

    node: str
    slot: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.node}/{self.slot}.{self.incarnation}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A node that may take part: where it is and which of its workers live."""

    node: str
    zone: str
    machine_type: str
    workers: tuple[WorkerId, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Coordinates:
    """Where a rank stands."""

    replica: int
    stage: int
    tensor_rank: int


class GroupKind(Enum):
    """What a communication group is for."""

    world = "world"  # every rank: norm, loss, stop vote
    tensor = "tensor"  # one stage's tensor-parallel ranks
    forward = "forward"  # leaders of two neighbouring stages: activations
    backward = "backward"  # the same two ranks: gradients of activations
    reduce = "reduce"  # the owners of some boxes across replicas (and tied stages)


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Ranks that communicate, in order. ``key`` names members, so it survives a generation."""

    kind: GroupKind
    ranks: tuple[int, ...]
    key: str


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One plan laid over one set of workers. ``workers[rank]`` is the process of that rank."""

    plan: Plan
    spec: ModelSpec
    pieces: int
    workers: tuple[WorkerId, ...]

    @staticmethod
    def of(
        plan: Plan,
        *,
        spec: ModelSpec,
        pieces: int,
        members: Sequence[Member],
        previous: Layout | None = None,
    ) -> Layout:
        """Seat every stage of the plan on members of its (zone, machine type).

        Workers keep their seat of ``previous`` where the stage there is the same run of layers, so
        that as few boxes as possible move. Raises ValueError when the members cannot seat the plan.
        """
        return Layout(plan=plan, spec=spec, pieces=pieces, workers=_seat(plan, members, previous))

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.workers)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes in use, each once, in rank order."""
        return tuple(dict.fromkeys(worker.node for worker in self.workers))

    @cached_property
    def coordinates(self) -> tuple[Coordinates, ...]:
        """Coordinates of each rank: replica, then stage, then tensor rank."""
        return tuple(
            Coordinates(replica=r, stage=s, tensor_rank=t)
            for r, s, stage in self.plan.stages()
            for t in range(stage.tensor_parallel)
        )

    @cached_property
    def ranks(self) -> Mapping[tuple[int, int, int], int]:
        """(replica, stage, tensor rank) -> rank."""
        return {
            (c.replica, c.stage, c.tensor_rank): rank for rank, c in enumerate(self.coordinates)
        }

    def rank_of(self, worker: WorkerId) -> int | None:
        """The rank a worker plays, or None when the layout does not use it."""
        try:
            return self.workers.index(worker)
        except ValueError:
            return None

    def stage_of(self, rank: int) -> Stage:
        """The plan's stage that a rank belongs to."""
        at = self.coordinates[rank]
        return self.plan.replicas[at.replica].stages[at.stage]

    def tensor_ranks(self, rank: int) -> tuple[int, ...]:
        """All ranks of the same stage and replica, in tensor-rank order."""
        at = self.coordinates[rank]
        degree = self.stage_of(rank).tensor_parallel
        return tuple(self.ranks[at.replica, at.stage, t] for t in range(degree))

    def is_first(self, rank: int) -> bool:
        """Whether the rank's stage holds the embedding."""
        return self.coordinates[rank].stage == 0

    def is_last(self, rank: int) -> bool:
        """Whether the rank's stage holds the head."""
        at = self.coordinates[rank]
        return at.stage == self.plan.replicas[at.replica].num_stages - 1

    def leader(self, *, replica: int, stage: int) -> int:
        """The rank that speaks for a stage: its tensor rank 0."""
        return self.ranks[replica, stage, 0]

    def microbatch_offset(self, replica: int) -> int:
        """Index, in the step's global list of microbatches, of a replica's first one."""
        return sum(r.num_microbatches for r in self.plan.replicas[:replica])

    def sample_offset(self, replica: int) -> int:
        """Index, in the step's global list of samples, of a replica's first one."""
        return sum(r.num_samples for r in self.plan.replicas[:replica])

    @cached_property
    def boxes(self) -> tuple[tuple[Box, ...], ...]:
        """Boxes of each rank, in the fixed global order."""
        by_tensor = {tensor.name: cut(tensor, pieces=self.pieces) for tensor in self.spec.tensors}
        held = []
        for rank, at in enumerate(self.coordinates):
            stage = self.stage_of(rank)
            tensors = self.spec.tensors_of(
                blocks=stage.layers, first=self.is_first(rank), last=self.is_last(rank)
            )
            held.append(
                tuple(
                    box
                    for tensor in tensors
                    for box in pieces_of_rank(
                        by_tensor[tensor.name],
                        tensor_rank=at.tensor_rank,
                        degree=stage.tensor_parallel,
                    )
                )
            )
        return tuple(held)

    @cached_property
    def owners(self) -> Mapping[Box, tuple[int, ...]]:
        """Ranks that hold each box, ascending; boxes in the fixed global order."""
        order = {tensor.name: i for i, tensor in enumerate(self.spec.tensors)}
        owners: dict[Box, list[int]] = {}
        for rank, boxes in enumerate(self.boxes):
            for box in boxes:
                owners.setdefault(box, []).append(rank)
        ordered = sorted(owners, key=lambda box: (order[box.tensor], box.offset))
        return {box: tuple(owners[box]) for box in ordered}

    @cached_property
    def keepers(self) -> Mapping[Box, tuple[int, ...]]:
        """Ranks that keep the state of each box: its fp32 weight and both moments; same order.

        All owners, each for itself; with optimizer sharding (ZeRO-1) one of them for all. What goes
        together is what of one tensor has the same owners: the largest first, each to the owner
        furthest below its share. A rank's share is an even part of everything it owns; it keeps
        less than that and one such part (Graham's bound for the longest-processing-time rule).
        """
        if not self.plan.optimizer_sharding:
            return self.owners
        parts: dict[tuple[str, tuple[int, ...]], list[Box]] = {}
        for box, owners in self.owners.items():
            parts.setdefault((box.tensor, owners), []).append(box)
        sizes = {part: sum(box.numel for box in boxes) for part, boxes in parts.items()}
        room = [0.0] * self.world_size
        for (_, owners), boxes in parts.items():
            for rank in owners:
                room[rank] += sum(box.numel for box in boxes) / len(owners)
        keeper: dict[Box, tuple[int, ...]] = {}
        for part in sorted(parts, key=lambda part: -sizes[part]):
            rank = max(part[1], key=lambda rank: (room[rank], -rank))
            room[rank] -= sizes[part]
            keeper.update(dict.fromkeys(parts[part], (rank,)))
        return {box: keeper[box] for box in self.owners}

    @cached_property
    def kept(self) -> tuple[tuple[Box, ...], ...]:
        """Boxes whose state each rank keeps, in the fixed global order: what is snapshotted, moved
        and restored. The other boxes of a rank are copies that their keeper hands out."""
        return tuple(
            tuple(box for box in boxes if rank in self.keepers[box])
            for rank, boxes in enumerate(self.boxes)
        )

    @cached_property
    def kept_names(self) -> tuple[frozenset[str], ...]:
        """Names of the boxes that each rank keeps."""
        return tuple(frozenset(box.name for box in boxes) for boxes in self.kept)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Every group of two or more ranks, in one fixed order that all ranks build them in."""
        found: dict[tuple[GroupKind, tuple[int, ...]], None] = {
            (GroupKind.world, tuple(range(self.world_size))): None
        }
        for r, s, stage in self.plan.stages():
            ranks = tuple(self.ranks[r, s, t] for t in range(stage.tensor_parallel))
            found.setdefault((GroupKind.tensor, ranks))
            if s + 1 < self.plan.replicas[r].num_stages:
                pair = (self.leader(replica=r, stage=s), self.leader(replica=r, stage=s + 1))
                found.setdefault((GroupKind.forward, pair))
                found.setdefault((GroupKind.backward, pair))
        for ranks in self.owners.values():
            found.setdefault((GroupKind.reduce, ranks))
        return tuple(
            Group(kind=kind, ranks=ranks, key=self._key(kind, ranks))
            for kind, ranks in found
            if len(ranks) > 1
        )

    def groups_of(self, rank: int) -> tuple[Group, ...]:
        """The groups a rank takes part in, in building order."""
        return tuple(group for group in self.groups if rank in group.ranks)

    def _key(self, kind: GroupKind, ranks: tuple[int, ...]) -> str:
        return f"{kind.value}:" + ",".join(str(self.workers[rank]) for rank in ranks)


def _seat(plan: Plan, members: Sequence[Member], previous: Layout | None) -> tuple[WorkerId, ...]:
    """One worker per rank: old seats first, then the emptiest fitting node."""
    free: dict[str, list[WorkerId]] = {m.node: sorted(m.workers) for m in members}
    pools = {m.node: (m.zone, m.machine_type) for m in members}
    seats: dict[tuple[int, int], list[WorkerId]] = {}
    stages = list(plan.stages())
    if previous is not None:
        _keep_seats(stages, previous, free, pools, seats)
    for r, s, stage in stages:
        if (r, s) in seats:
            continue
        fitting = [
            node
            for node, workers in free.items()
            if pools[node] == (stage.zone, stage.machine_type)
            and len(workers) >= stage.tensor_parallel
        ]
        if not fitting:
            raise ValueError(
                f"no {stage.machine_type} in {stage.zone} with {stage.tensor_parallel} free "
                f"GPU(s) for stage {s} of replica {r}"
            )
        # Fill the fullest node that still fits, so that large tensor groups find room later.
        node = min(fitting, key=lambda n: (len(free[n]), n))
        seats[r, s] = [free[node].pop(0) for _ in range(stage.tensor_parallel)]
    return tuple(worker for r, s, _ in stages for worker in seats[r, s])


def _keep_seats(
    stages: list[tuple[int, int, Stage]],
    previous: Layout,
    free: dict[str, list[WorkerId]],
    pools: dict[str, tuple[str, str]],
    seats: dict[tuple[int, int], list[WorkerId]],
) -> None:
    """Let groups of the previous layout sit where their layers and degree are wanted again."""
    old = []
    for r, s, stage in previous.plan.stages():
        ranks = previous.tensor_ranks(previous.leader(replica=r, stage=s))
        old.append((stage, [previous.workers[rank] for rank in ranks]))
    wanted = sorted(stages, key=lambda entry: (entry[0], entry[1]))
    for exact in (True, False):
        for r, s, stage in wanted:
            if (r, s) in seats:
                continue
            best, best_common = None, 0
            for candidate in old:
                was, workers = candidate
                common = len(range(max(was.layers.start, stage.layers.start),
                                   min(was.layers.stop, stage.layers.stop)))  # fmt: skip
                if was.tensor_parallel != stage.tensor_parallel or common <= best_common:
                    continue
                if exact and was.layers != stage.layers:
                    continue
                node = workers[0].node
                if pools.get(node) != (stage.zone, stage.machine_type):
                    continue
                if all(worker in free[node] for worker in workers):
                    best, best_common = candidate, common
            if best is not None:
                old.remove(best)
                seats[r, s] = best[1]
                for worker in best[1]:
                    free[worker.node].remove(worker)
