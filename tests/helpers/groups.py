"""The groups of a whole layout in one process, a thread for each rank."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from sailor.parallel.comm import Aborted
from sailor.parallel.groups import build_groups

TIMEOUT_S = 5.0
LEAVE_S = 0.5  # a wait looks every 20 ms; the rest is for loaded cores


def groups_of_all(
    layout, *, store=None, generation=1, timeout_s=TIMEOUT_S, ranks=None, host="127.0.0.1", **reuse
):
    """Every rank's groups, built by as many threads, and each rank's abort event."""
    store = store or dist.HashStore()
    ranks = range(layout.world_size) if ranks is None else ranks
    aborts = {rank: threading.Event() for rank in ranks}

    def build(rank):
        return build_groups(
            layout, rank, generation=generation, store=store, abort=aborts[rank],
            timeout_s=timeout_s, host=host, reuse=reuse.get(f"rank{rank}"),
        )  # fmt: skip

    with ThreadPoolExecutor(len(aborts)) as pool:
        return list(pool.map(build, ranks)), aborts


def world(groups):
    """A rank's group of all."""
    return next(group for key, group in groups.items() if key.startswith("world"))


def assert_left_at_once(group, abort, *, numel):
    """A wait for a member that does not come ends with the abort event, and so does the group."""
    pending = group.all_reduce(torch.zeros(numel))
    timer = threading.Timer(0.1, abort.set)
    timer.start()
    began = time.monotonic()
    with pytest.raises(Aborted):
        pending.wait()
    assert time.monotonic() - began < 0.1 + LEAVE_S
    with pytest.raises(Aborted):
        group.all_reduce(torch.zeros(1))
