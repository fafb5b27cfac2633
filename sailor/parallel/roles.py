"""Which ranks do the same kind of work, whatever they are called. Pure, no torch.

Two ranks have the same role when a step of one runs the same operations on tensors of the same
shapes as a step of the other: the same code, model, place in the pipeline, number of microbatches
and groups. What was recorded of one rank (``sandbox.py``) can then be replayed for another.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

import msgspec
import xxhash

from sailor.parallel.layout import GroupKind, Layout
from sailor.plan import encode_hook

_SUMS = (GroupKind.world, GroupKind.reduce)
_ROOMS = ("models", "parallel", "training")  # whose code a step runs


def role_of(layout: Layout, rank: int, *, numerics: str, code: str | None = None) -> str:
    """Names the role of a rank: 16 hexadecimal digits, the same in every process.

    ``numerics`` says how numbers are made besides: device, types, determinism.
    """
    at, stage = layout.coordinates[rank], layout.stage_of(rank)
    replica = layout.plan.replicas[at.replica]
    groups = [
        # In a sum nobody has a place of its own.
        (group.kind.value, len(group.ranks), 0 if group.kind in _SUMS else group.ranks.index(rank))
        for group in layout.groups_of(rank)
    ]
    reduced = [
        sum(box.num_bytes for box in layout.boxes[rank] if layout.owners[box] == group.ranks)
        for group in layout.groups_of(rank)
        if group.kind is GroupKind.reduce
    ]
    facts = (
        code_digest() if code is None else code, layout.spec, layout.pieces, numerics,
        len(stage.layers), layout.is_first(rank), layout.is_last(rank), at.stage,
        replica.num_stages, stage.tensor_parallel, at.tensor_rank, stage.recompute,
        replica.num_microbatches, replica.microbatch_size, layout.plan.sequence_length,
        layout.plan.optimizer_sharding, layout.plan.num_microbatches, len(layout.owners),
        groups, reduced,
    )  # fmt: skip
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(facts, enc_hook=encode_hook))


def roles(layout: Layout, *, numerics: str) -> Mapping[str, tuple[int, ...]]:
    """Role -> its ranks; the role most ranks have comes first, for it is the likeliest to be left.

    Every machine is taken to be as likely to go as any other.
    """
    found: dict[str, list[int]] = {}
    for rank in range(layout.world_size):
        found.setdefault(role_of(layout, rank, numerics=numerics), []).append(rank)
    ordered = sorted(found.items(), key=lambda entry: (-len(entry[1]), entry[1]))
    return {role: tuple(ranks) for role, ranks in ordered}


@cache
def code_digest() -> str:
    """Of the source of everything that runs in a step, and torch's version."""
    hasher = xxhash.xxh3_64(version("torch").encode())
    root = Path(__file__).resolve().parent.parent
    for room in _ROOMS:
        for path in sorted((root / room).glob("*.py")):
            hasher.update(path.name.encode() + b"\0" + path.read_bytes())
    return hasher.hexdigest()
