"""Builds the groups of a rank: those of its layout that it is in, on gloo or NCCL, or, where all
members are on one machine without GPUs, on memory that they share (near.py).

All members build together, directly over a store that hands their addresses around. What a group
can do is comm.py's.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store

from sailor.parallel.comm import (
    SLICE_S,
    Aborted,
    Communicator,
    LoopbackCommunicator,
    PeerLost,
    ProcessGroupCommunicator,
    end_kernels,
)
from sailor.parallel.layout import Group, Layout
from sailor.parallel.near import near

MARGIN_S = 2.0  # what a set-up may take longer than its waits for others
# Set unless the user did, before the first NCCL group: whoever waits too long is our business.
_NCCL_ENVIRONMENT = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}  # fmt: skip


def loopback_groups(layout: Layout, rank: int) -> dict[str, Communicator]:
    """A stand-in for every group a rank takes part in."""
    return {
        group.key: LoopbackCommunicator(rank=group.ranks.index(rank), size=len(group.ranks))
        for group in layout.groups_of(rank)
    }


def build_groups(
    layout: Layout,
    rank: int,
    *,
    generation: int,
    store: Store,
    abort: threading.Event,
    timeout_s: float,
    host: str,
    device: str = "cpu",
    reuse: Mapping[str, Communicator] | None = None,
    waiting: Callable[[], None] = lambda: None,
) -> dict[str, Communicator]:
    """The groups of ``rank``, by Group.key, built together with their other members.

    Blocks until every member of each group builds it too, at most ``timeout_s`` a group; no
    operation on them may then take longer than that either, or than ``allow`` says. ``host`` is the
    address others reach this worker at. A group whose key is in ``reuse`` is taken over untouched;
    all its members must do the same. ``waiting`` is called now and then by whoever waits in one of
    them: a sign of life that a thread stuck elsewhere does not give. Raises Aborted; half-built
    groups are then closed, reused ones are not.
    """
    reuse = reuse or {}
    built: dict[str, Communicator] = {}
    link: Any = None
    try:
        for index, group in enumerate(layout.groups):
            if rank not in group.ranks:
                continue
            if group.key in reuse:
                built[group.key] = reuse[group.key]
                continue
            if abort.is_set():
                raise Aborted("the generation was aborted while its groups were built")
            if device == "cpu" and link is None:
                link = dist.ProcessGroupGloo.create_device(hostname=host)
            at = group.ranks.index(rank)
            prefixed = PrefixStore(f"g{generation}/{index}", store)
            build = partial(_process_group, prefixed, at, len(group.ranks), timeout_s, link)
            if link is not None:
                process_group = _left_if_need_be(build, abort=abort, timeout_s=timeout_s)
            else:
                process_group = build()
                _connect(process_group, abort, timeout_s)
            plain = ProcessGroupCommunicator(
                process_group,
                rank=at,
                size=len(group.ranks),
                abort=abort,
                timeout_s=timeout_s,
                waiting=waiting,
            )
            built[group.key] = plain
            if device == "cpu" and _is_on_one_node(layout, group):
                built[group.key] = near(plain)
    except BaseException as error:
        for key, half_built in built.items():
            if key not in reuse:
                half_built.close()
        if isinstance(error, RuntimeError | TimeoutError):  # the store's and the network's, too
            raise PeerLost(f"groups of generation {generation}: {error}") from error
        raise
    return built


def _is_on_one_node(layout: Layout, group: Group) -> bool:
    return len({layout.workers[rank].node for rank in group.ranks}) == 1


def _left_if_need_be(build: Callable[[], Any], *, abort: threading.Event, timeout_s: float) -> Any:
    """What ``build`` returns or raises; its thread is left behind when it is to be waited for no
    longer. gloo calls a member that has said where it is five times, each for the time-out, though
    nobody may listen there any more. Raises Aborted, TimeoutError.
    """
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(build())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="group set-up", daemon=True).start()
    deadline = time.monotonic() + timeout_s + MARGIN_S
    while not wait((outcome,), timeout=SLICE_S).done:
        if abort.is_set():
            raise Aborted("the generation was aborted while its groups were built")
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all members came within {timeout_s:.0f} s")
    return outcome.result()


def _process_group(store: Store, rank: int, size: int, timeout_s: float, link: Any) -> Any:
    """gloo on the given link, NCCL when there is none."""
    if link is not None:
        gloo: Any = dist.ProcessGroupGloo  # the stub lacks its options
        options = gloo._Options()
        options._timeout = timedelta(seconds=timeout_s)
        options._threads = 1
        options._devices = [link]
        return gloo(store, rank, size, options)
    for name, value in _NCCL_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    nccl = dist.ProcessGroupNCCL.Options()
    nccl._timeout = timedelta(seconds=timeout_s)
    nccl.config.blocking = 0  # or nobody could leave a set-up whose other members never come
    return dist.ProcessGroupNCCL(store, rank, size, nccl)


def _connect(group: Any, abort: threading.Event, timeout_s: float) -> None:
    """Have an NCCL group meet now and not in its first operation. Raises Aborted."""
    group.eager_connect_single_device(torch.device("cuda", torch.cuda.current_device()))
    deadline = time.monotonic() + timeout_s
    while not group._is_initialized():
        if abort.is_set() or time.monotonic() > deadline:
            threading.Thread(target=end_kernels, args=(group, ()), daemon=True).start()
            if abort.is_set():
                raise Aborted("the generation was aborted while its groups were built")
            raise PeerLost(f"not all members came within {timeout_s:.0f} s")
        time.sleep(SLICE_S / 4)


def check_runtime() -> None:
    """Try every private name used here on this torch; RuntimeError says which one is gone.

    Two members in two threads of this process build a group, sum and broadcast.
    """
    store = HashStore()
    results: list[list[float]] = [[], []]
    errors: list[BaseException] = []

    def member(rank: int) -> None:
        try:
            link = dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")
            group = _process_group(PrefixStore("check", store), rank, 2, 10.0, link)
            communicator = ProcessGroupCommunicator(
                group, rank=rank, size=2, abort=threading.Event(), timeout_s=10.0
            )
            tensor = torch.tensor([1.0 + rank])
            communicator.all_reduce(tensor).wait()
            results[rank].append(float(tensor))
            communicator.broadcast(tensor.fill_(10.0 + rank), root=1).wait()
            results[rank].append(float(tensor))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors or results != [[3.0, 11.0], [3.0, 11.0]]:
        raise RuntimeError(
            f"torch {torch.__version__} does not run groups as sailor needs them: "
            f"{errors[0] if errors else results}"
        )
