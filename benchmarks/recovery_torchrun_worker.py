"""What a careful user writes for torchrun: DDP, AdamW, torch's distributed checkpoints, resume.

    torchrun ... -m benchmarks.recovery_torchrun_worker SIZE FOLDER EVERY

Appends a line for each step to FOLDER/steps-RANK: wall clock, step, pid. Saves every EVERY steps,
on all ranks at once, to a folder that is renamed when it is whole, and goes on from the newest.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

LENGTH = 128
SHAPES = {"1m": (5, 128, 4, 4), "25m": (8, 512, 8, 1)}  # layers, width, heads, sequences a worker


class Block(nn.Module):
    """Pre-norm attention and MLP, as in GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(size, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(size, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """Bytes in, logits of the next byte out; output matrix tied to the embedding."""

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.positions = nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return F.linear(self.norm(self.blocks(x)), self.tokens.weight)


def main() -> None:
    """One worker, until it is killed."""
    size, folder, every = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    layers, width, heads, batch = SHAPES[size]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(layers, width, heads))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = resume(folder, model, optimizer)
    text = torch.frombuffer(bytearray(Path(os.__file__).read_bytes()), dtype=torch.uint8).long()
    with (folder / f"steps-{rank}").open("a") as log:
        while True:
            step += 1
            starts = [((step * world + rank) * batch + i) * 97 % 30_000 for i in range(batch)]
            rows = torch.stack([text[s : s + LENGTH + 1] for s in starts])
            logits = model(rows[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, 256), rows[:, 1:].reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.write(f"{time.time()} {step} {os.getpid()}\n")
            log.flush()
            if step % every == 0:
                save(folder, step, model, optimizer)


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    weights, moments = get_state_dict(model, optimizer)
    unfinished = folder / f"unfinished-{step}"
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=unfinished)
    if dist.get_rank() == 0 and not (folder / f"step-{step}").exists():
        unfinished.rename(folder / f"step-{step}")


def resume(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    done = max((int(p.name[5:]) for p in folder.glob("step-*")), default=0)
    newest = torch.tensor([done])
    dist.all_reduce(newest, op=dist.ReduceOp.MIN)  # nobody must read what another does not see
    step = int(newest)
    if step:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        dcp.load(state, checkpoint_id=folder / f"step-{step}")
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
    return step


if __name__ == "__main__":
    main()
