"""Small snapshot segments with known contents."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sailor.checkpoint.arena import Arena, open_arena
from sailor.checkpoint.segment import Segment
from sailor.parallel.layout import WorkerId

BOXES = (
    ("embedding.tokens.weight[0:8]", (8, 4)),
    ("blocks.0.attention_norm.weight[0:4]", (4,)),
    ("blocks.0.ffn.down.weight[0:3]", (5, 3)),
)


def a_worker(node: str = "a", slot: int = 0, incarnation: int = 1) -> WorkerId:
    return WorkerId(node=node, slot=slot, incarnation=incarnation)


def an_arena(root: Path, *, node: str = "a", budget_bytes: int = 64 << 20) -> Arena:
    return open_arena(run="test", node=node, budget_bytes=budget_bytes, root=root)


def values_of(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """What box contents a test expects: three kinds, from a seed."""
    return np.random.default_rng(seed).standard_normal((3, *shape), dtype=np.float32)


def write(segment: Segment, *, generation: int, step: int, seed: int = 0) -> None:
    """What a worker does."""
    segment.begin(generation=generation, step=step)
    for i, at in enumerate(segment.manifest.boxes):
        for target, value in zip(
            segment.arrays(at.name), values_of(seed + i, at.shape), strict=True
        ):
            target[...] = value
    segment.finish()


def a_verified_segment(
    arena: Arena,
    *,
    generation: int = 1,
    step: int = 5,
    seed: int = 0,
    writer: WorkerId | None = None,
    boxes: tuple[tuple[str, tuple[int, ...]], ...] = BOXES,
) -> Segment:
    segment = arena.segment(writer=writer or a_worker(), boxes=boxes)
    write(segment, generation=generation, step=step, seed=seed)
    segment.seal()
    return segment
