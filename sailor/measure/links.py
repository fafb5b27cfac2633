"""Times messages between two processes of this computer over sizes, and fits alpha and beta.

``python -m sailor.measure.links cpu`` (or cuda) prints one JSON object. NCCL between two GPUs. On a
CPU messages go by gloo, as between machines, and sums as the ranks of one tensor group make them,
who are on one machine. Alpha is what a message takes to start, beta what each byte adds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore

from sailor.measure.layers import quiet
from sailor.parallel.comm import Communicator, ProcessGroupCommunicator
from sailor.parallel.near import near

SIZES = tuple(1 << power for power in range(10, 24, 2))  # bytes
REPEATS = 25
DEADLINE = timedelta(seconds=60)


def main() -> None:
    """Measures and prints both fits. The second process is this command again, with a rank."""
    device, *peer = sys.argv[1:] or ["cpu"]
    if peer:
        _member(1, peer[0], device)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sailor.measure.links", device, folder]
        other = subprocess.Popen(command, env=os.environ)
        try:
            found = _member(0, folder, device)
            other.wait(DEADLINE.total_seconds())
        finally:
            other.kill()
            other.wait()
    sys.stdout.write(json.dumps(found) + "\n")


def _member(rank: int, folder: str, device: str) -> dict[str, dict[str, float]]:
    torch.set_num_threads(1)
    place = torch.device(device, rank) if device == "cuda" else torch.device("cpu")
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo", init_method=f"file://{Path(folder) / 'store'}",
        rank=rank, world_size=2, timeout=DEADLINE,
    )  # fmt: skip
    within = _within_a_machine(rank, folder) if device == "cpu" else None
    points: dict[str, list[tuple[int, float]]] = {"point_to_point": [], "all_reduce": []}
    for size in SIZES:
        tensor = torch.ones(size // 4, device=place)

        def there_and_back(tensor: torch.Tensor = tensor) -> None:
            order = (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send)
            for move in order:
                move(tensor, 1 - rank)

        def reduce(tensor: torch.Tensor = tensor) -> None:
            if within is not None:
                within.all_reduce(tensor).wait()
            else:
                dist.all_reduce(tensor)
            tensor.mul_(0.5)

        points["point_to_point"].append((size, _timed(there_and_back, place) / 2))
        points["all_reduce"].append((size, _timed(reduce, place)))
    dist.destroy_process_group()
    return {name: fit(found) for name, found in points.items()}


def _within_a_machine(rank: int, folder: str) -> Communicator:
    store = PrefixStore("within", FileStore(str(Path(folder) / "store"), 2))
    return near(
        ProcessGroupCommunicator(
            dist.ProcessGroupGloo(store, rank, 2, DEADLINE),
            rank=rank,
            size=2,
            abort=threading.Event(),
            timeout_s=DEADLINE.total_seconds(),
        )  # fmt: skip
    )


def _timed(work: Callable[[], None], device: torch.device) -> float:
    work()
    times = []
    for _ in range(REPEATS):
        dist.barrier()
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return quiet(times)


def fit(points: Sequence[tuple[int, float]]) -> dict[str, float]:
    """alpha and beta of least relative squares, neither negative, and the worst relative miss."""
    weights = [1 / seconds for _, seconds in points]
    # Minimise the sum of (w (a + b x - y))^2 by its normal equations.
    s0 = sum(w * w for w in weights)
    s1 = sum(w * w * x for w, (x, _) in zip(weights, points, strict=True))
    s2 = sum(w * w * x * x for w, (x, _) in zip(weights, points, strict=True))
    t0 = sum(w for w in weights)
    t1 = sum(w * x for w, (x, _) in zip(weights, points, strict=True))
    determinant = s0 * s2 - s1 * s1
    alpha, beta = (t0 * s2 - t1 * s1) / determinant, (s0 * t1 - s1 * t0) / determinant
    if alpha < 0:
        alpha, beta = 0.0, t1 / s2
    if beta < 0:
        alpha, beta = t0 / s0, 0.0
    worst = max(abs(alpha + beta * x - y) / y for x, y in points)
    return {"alpha": alpha, "beta": beta, "worst": worst}


if __name__ == "__main__":
    main()
