"""What an exchange of two ranks of one machine takes: through memory they share, and by gloo.

``python -m benchmarks.exchanges [--json]``. The same two processes and tensors in turns; processor
time of one of them (all its threads; of a broadcast, of who sends) and time by the clock, the best
of a few rounds. ``times_*`` are ratios, gloo over shared memory. ``meeting_s`` is what a group
takes longer to build.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.document import machine, show

SIZES = {"32b": 8, "256k": 64 << 10, "8m": 2 << 20}  # fp32 numbers
ROUNDS = 5
ROUND_S = 0.2  # about
DEADLINE_S = 120.0
Took = tuple[float, float]  # seconds by the clock, processor seconds


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        ranks = [
            context.Process(target=_rank, args=(rank, store, theirs if rank == 0 else None))
            for rank in range(2)
        ]
        for rank in ranks:
            rank.start()
        try:
            if not ours.poll(DEADLINE_S):
                raise RuntimeError("the two processes did not come to an end")
            found: dict[str, Any] = ours.recv()
        finally:
            for rank in ranks:
                rank.join(10.0)
                rank.kill()
    figures = {"meeting_s": found.pop("meeting_s")}
    for name in SIZES:
        for operation in ("all_reduce", "broadcast"):
            gloo, near = (found[f"{operation} {name} {how}"] for how in ("gloo", "near"))
            figures[f"times_cpu_{operation}_{name}"] = gloo[1] / near[1]
            figures[f"times_wall_{operation}_{name}"] = gloo[0] / near[0]
    document = {
        "benchmark": "exchanges", "figures": figures,
        "detail": {key: {"wall_s": t[0], "cpu_s": t[1]} for key, t in found.items()},
        "machine": machine(),
    }  # fmt: skip
    show(document, as_json=options.json)
    return 0


def _rank(rank: int, store: str, told: Any) -> None:
    import torch
    import torch.distributed as dist

    from sailor.parallel.comm import ProcessGroupCommunicator
    from sailor.parallel.near import near

    torch.set_num_threads(1)
    group = dist.ProcessGroupGloo(dist.FileStore(store, 2), rank, 2, timedelta(seconds=DEADLINE_S))
    gloo = ProcessGroupCommunicator(
        group, rank=rank, size=2, abort=threading.Event(), timeout_s=DEADLINE_S
    )
    gloo.all_reduce(torch.ones(1)).wait()
    began = time.monotonic()
    shared = near(gloo)
    found: dict[str, Any] = {"meeting_s": time.monotonic() - began}
    for name, numel in SIZES.items():
        tensor = torch.zeros(numel)
        for operation in ("all_reduce", "broadcast"):
            for how, communicator in (("gloo", gloo), ("near", shared)):
                start = getattr(communicator, operation)
                more = {"root": 0} if operation == "broadcast" else {}
                times = max(5, int(ROUND_S / (2e-4 + numel * 2e-9)) // 4)
                rounds = [
                    _timed(lambda s=start, t=tensor, m=more: s(t, **m).wait(), times=times)
                    for _ in range(ROUNDS)
                ]
                found[f"{operation} {name} {how}"] = tuple(map(min, zip(*rounds, strict=True)))
    if told is not None:
        told.send(found)


def _timed(exchange: Callable[[], None], *, times: int) -> Took:
    began, began_cpu_s = time.monotonic(), time.process_time()
    for _ in range(times):
        exchange()
    return (time.monotonic() - began) / times, (time.process_time() - began_cpu_s) / times


if __name__ == "__main__":
    sys.exit(main())
