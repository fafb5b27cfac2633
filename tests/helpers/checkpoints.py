"""Durable checkpoints with known weights, written as agents and the controller write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from sailor.checkpoint.store import complete, step_directory, write_part
from sailor.models.spec import ModelSpec
from sailor.parallel.boxes import Box, all_boxes
from sailor.runtime.messages import Persisted
from tests.helpers.settings import some_settings
from tests.helpers.snapshots import a_worker, an_arena


def a_checkpoint_of(
    spec: ModelSpec, read: Callable[[Box], np.ndarray], *, directory: Path, memory: Path,
    pieces: int = 2, step: int = 5,
) -> Path:  # fmt: skip
    """The folder of a complete checkpoint by two nodes, its weights from ``read``.

    The moments are the weights times 2 and 3. ``memory`` poses as shared memory.
    """
    boxes = all_boxes(spec, pieces=pieces)
    parts = []
    for node, some in (("a", boxes[::2]), ("b", boxes[1::2])):
        (memory / node).mkdir(parents=True)
        arena = an_arena(memory / node, node=node, budget_bytes=256 << 20)
        shapes = tuple((box.name, box.shape) for box in some)
        segment = arena.segment(writer=a_worker(node), boxes=shapes)
        segment.begin(generation=1, step=step)
        for box in some:
            weight = np.asarray(read(box))
            for factor, target in enumerate(segment.arrays(box.name), start=1):
                target[...] = weight * np.float32(factor)
        segment.finish()
        segment.seal()
        names = [box.name for box in some]
        total = write_part(directory, step=step, name=f"{node}-0", sources=[(segment, names)])
        files = {f"{node}-0.safetensors": total}
        parts.append(Persisted(generation=1, node=node, step=step, files=files, boxes=()))
    settings = msgspec.structs.replace(some_settings(), spec=spec, pieces=pieces)
    complete(directory, step, parts, settings=settings, keep=1)
    return step_directory(directory, step)
