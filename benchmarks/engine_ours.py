"""Our engine as a contender: the trainer of a rank over its own groups, and nothing around it."""

from __future__ import annotations

import threading
from itertools import count
from typing import Any

import torch.distributed as dist

from benchmarks.engine_rank import Train
from benchmarks.engine_shapes import SHAPES, layout_of, plan_of, settings_of
from sailor.parallel import products
from sailor.parallel.groups import build_groups, loopback_groups
from sailor.training.trainer import Trainer


def contender(job: dict[str, Any]) -> Train:
    """A step of rank ``job["rank"]`` of a shape, cut as ``job["cut"]``. With ``same_products``
    matrix products are made by the library that torch itself takes."""
    if job.get("same_products"):
        products.one_dnn = False
    shape = SHAPES[job["shape"]]
    plan = plan_of(shape, job["cut"], batch=job.get("batch"), sharded=job.get("sharded", False))
    layout = layout_of(plan, shape.spec(), apart=job.get("apart", False))
    rank = job["rank"] if layout.world_size > 1 else 0  # several of one rank: each for itself
    settings = settings_of(plan, tokens=job["tokens"], deterministic=job["deterministic"])
    trainer = Trainer(layout=layout, rank=rank, settings=settings)
    trainer.initialise(layout.kept[rank])
    if layout.world_size == 1:
        groups = loopback_groups(layout, rank)
    else:
        groups = build_groups(
            layout, rank, generation=1, store=dist.FileStore(job["store"], -1),
            abort=threading.Event(), timeout_s=120.0, host="127.0.0.1",
        )  # fmt: skip
    trainer.connect(groups)
    steps = count(1)
    return lambda: trainer.step(next(steps), stop=False).loss
