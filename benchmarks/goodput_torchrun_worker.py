"""A careful user's elastic torchrun worker: DDP with a constant global batch, DCP, resume.

    torchrun ... -m benchmarks.goodput_torchrun_worker FOLDER EVERY
    python -m benchmarks.goodput_torchrun_worker --store PORT

Rank 0 appends a line for each step to FOLDER/steps: wall clock, step, pid, world size, seconds of
the step, seconds of the save after it (0 if none). With ``--store`` it is only the rendezvous'
store, on a machine that nobody takes away.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from benchmarks.recovery_torchrun_worker import LENGTH, Model, resume, save

BATCH = 12  # divided evenly by 1, 2, 3 and 4 workers
SHAPE = (5, 128, 4)  # layers, width, heads: 1 M parameters


def main() -> None:
    """One worker, until it is killed or a peer is."""
    if sys.argv[1] == "--store":
        store = dist.TCPStore(
            "127.0.0.1", int(sys.argv[2]), None, is_master=True, wait_for_workers=False,
            timeout=timedelta(hours=1),
        )  # fmt: skip
        while store is not None:
            time.sleep(3600)
    folder, every = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(*SHAPE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = resume(folder, model, optimizer)
    text = torch.frombuffer(bytearray(Path(os.__file__).read_bytes()), dtype=torch.uint8).long()
    mine = BATCH // world
    with (folder / "steps").open("a") as log:
        while True:
            began = time.monotonic()
            step += 1
            starts = [(step * BATCH + rank * mine + i) * 97 % 30_000 for i in range(mine)]
            rows = torch.stack([text[s : s + LENGTH + 1] for s in starts])
            logits = model(rows[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, 256), rows[:, 1:].reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            stepped = time.monotonic()
            if step % every == 0:
                save(folder, step, model, optimizer)
            if rank == 0:
                saved_s = time.monotonic() - stepped if step % every == 0 else 0.0
                line = f"{time.time()} {step} {os.getpid()} {world} {stepped - began} {saved_s}\n"
                log.write(line)
                log.flush()


if __name__ == "__main__":
    main()
