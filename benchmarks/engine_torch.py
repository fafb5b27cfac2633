"""What torch itself offers for the same cuts: torch.distributed.pipelining with 1F1B, and DTensor
inside a stage or FSDP2 across replicas, over the layers of ``transformers``.

Written as torch's own tutorials do it. AdamW is torch's, fused where it takes the tensors.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from benchmarks.engine_rank import Train
from benchmarks.engine_shapes import SEQUENCE, SHAPES, Shape
from benchmarks.engine_transformers import Batches, adamw, llama


class Stage(nn.Module):
    """A run of the model's layers, with the embedding or the head at an end."""

    def __init__(self, shape: Shape, *, stage: int, num_stages: int) -> None:
        super().__init__()
        model = llama(shape)
        layers = shape.num_layers // num_stages
        self.embedding = model.model.embed_tokens if stage == 0 else None
        self.layers = nn.ModuleList(model.model.layers[stage * layers : (stage + 1) * layers])
        last = stage == num_stages - 1
        self.norm = model.model.norm if last else None
        self.head = model.lm_head if last else None
        tables = model.model.rotary_emb(torch.zeros(1), torch.arange(SEQUENCE).unsqueeze(0))
        self._tables = tuple(table.detach() for table in tables)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x, position_embeddings=self._tables, attention_mask=None)
        if self.norm is None or self.head is None:
            return x
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def contender(job: dict[str, Any]) -> Train:
    """A step of one rank. The mesh is (pipeline, tensor or data), as ours deals out ranks."""
    shape = SHAPES[job["shape"]]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", store=dist.FileStore(job["store"], job["world_size"]), rank=job["rank"],
        world_size=job["world_size"],
    )  # fmt: skip
    tensor = job["kind"] == "torch_tp2pp2"
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp" if tensor else "dp"))
    stage = mesh["pp"].get_local_rank()
    module = Stage(shape, stage=stage, num_stages=2)
    if tensor:
        cut_tensors(module, mesh["tp"])
        num_replicas, replica = 1, 0
    else:
        # Its own default gives parameters up after each forward pass and gathers them again for the
        # backward one; torchtitan keeps them where there is a pipeline.
        reshard = bool(job["reshard"])
        for layer in module.layers:
            fully_shard(layer, mesh=mesh["dp"], reshard_after_forward=reshard)
        fully_shard(module, mesh=mesh["dp"], reshard_after_forward=reshard)
        num_replicas, replica = 2, mesh["dp"].get_local_rank()
    share = shape.batch // num_replicas
    schedule = Schedule1F1B(
        PipelineStage(module, stage, 2, torch.device("cpu"), group=mesh["pp"].get_group()),
        n_microbatches=share // shape.microbatch,
        loss_fn=lambda logits, targets: F.cross_entropy(logits.flatten(0, 1), targets.flatten()),
    )
    optimizer = adamw(module)
    batches = Batches(shape, tokens=job["tokens"])

    def train() -> float | None:
        tokens = batches.next()[replica * share : (replica + 1) * share]
        losses: list[torch.Tensor] = []
        if stage == 0:
            schedule.step(tokens[:, :-1])
        else:
            schedule.step(target=tokens[:, 1:], losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).mean().item() if losses else None

    return train


def cut_tensors(module: Stage, mesh: Any) -> None:
    """Megatron's cut, in DTensor's words."""
    for layer in module.layers:
        parallelize_module(
            layer, mesh,
            {
                "self_attn.q_proj": ColwiseParallel(), "self_attn.k_proj": ColwiseParallel(),
                "self_attn.v_proj": ColwiseParallel(), "self_attn.o_proj": RowwiseParallel(),
                "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(),
                "mlp.down_proj": RowwiseParallel(),
            },
        )  # fmt: skip
    if module.embedding is not None:
        parallelize_module(module, mesh, {"embedding": RowwiseParallel(input_layouts=Replicate())})
    if module.head is not None:
        whole = ColwiseParallel(output_layouts=Replicate())
        parallelize_module(module, mesh, {"head": whole})
