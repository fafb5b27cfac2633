"""Groups of one machine, here in threads of one process: what they exchange, and how waits end."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from sailor.parallel import near
from sailor.parallel.comm import Aborted, PeerLost, ProcessGroupCommunicator
from sailor.parallel.groups import build_groups
from sailor.parallel.near import NearCommunicator
from tests.helpers.builders import a_layout, a_plan
from tests.helpers.groups import LEAVE_S, assert_left_at_once, groups_of_all, world
from tests.helpers.near_member import NUMBERS

FEW, SOME, MANY = 1, 1000, 300_000  # elements: with the word, nearly a pipe's most, in a slot


def crew_of(size: int, **how):
    """A world of that many replicas on one machine, and their abort events."""
    groups, aborts = groups_of_all(a_layout(a_plan(*[[]] * size), slots=size), **how)
    crew = [world(rank) for rank in groups]
    assert all(isinstance(group, NearCommunicator) for group in crew)
    return crew, aborts


@pytest.fixture
def pair():
    return crew_of(2)


def numbers(size: int, numel: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """One for each member, no two alike."""
    generator = torch.Generator().manual_seed(numel)
    return [torch.randn(numel, generator=generator).to(dtype) for _ in range(size)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("numel", [FEW, SOME, MANY])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_member_gets_what_it_is_to_have(size, numel, dtype):
    crew, _ = crew_of(size)
    parts = numbers(size, numel, dtype)
    total = parts[0].clone()
    for part in parts[1:]:
        total += part  # in the members' order: to the last bit

    sums = [part.clone() for part in parts]
    for pending in [g.all_reduce(t) for g, t in zip(crew, sums, strict=True)]:
        pending.wait()
    assert all(torch.equal(t, total) for t in sums)

    onto = [part.clone() for part in parts]
    for pending in [g.reduce(t, root=size - 1) for g, t in zip(crew, onto, strict=True)]:
        pending.wait()
    assert torch.equal(onto[-1], total)

    sent = [part.clone() for part in parts]
    for pending in [g.broadcast(t, root=1) for g, t in zip(crew, sent, strict=True)]:
        pending.wait()
    assert all(torch.equal(t, parts[1]) for t in sent)

    rows = [torch.zeros(size, numel, dtype=dtype) for _ in crew]
    for rank, part in enumerate(parts):
        rows[rank][rank] = part
    for pending in [g.all_gather(t) for g, t in zip(crew, rows, strict=True)]:
        pending.wait()
    assert all(torch.equal(t, torch.stack(parts)) for t in rows)

    for pending in [g.reduce_scatter(t) for g, t in zip(crew, rows, strict=True)]:
        pending.wait()
    for rank in range(size):
        torch.testing.assert_close(rows[rank][rank], parts[rank] * size, rtol=2e-2, atol=2e-2)


def test_a_tensor_may_change_as_soon_as_it_was_said(pair):
    crew, _ = pair
    sent, heard = torch.ones(MANY), [torch.empty(MANY) for _ in range(3)]
    under_way = []
    for tensor in heard:
        crew[0].broadcast(sent, root=0).wait()
        under_way.append(crew[1].broadcast(tensor, root=0))
        sent += 10.0
    for pending in under_way:
        pending.wait()
    assert [tensor[-1].item() for tensor in heard] == [1.0, 11.0, 21.0]


def test_operations_may_be_waited_for_in_any_order(pair):
    crew, _ = pair
    tensors = [[torch.full((MANY,), float(step + rank)) for step in range(6)] for rank in range(2)]
    under_way = [
        [crew[rank].all_reduce(tensors[rank][step]) for step in range(6)] for rank in range(2)
    ]
    for step in (3, 0, 5, 1, 2, 4):
        under_way[0][step].wait()
    for step in reversed(range(6)):
        under_way[1][step].wait()
    for rank in range(2):
        assert [t[-1].item() for t in tensors[rank]] == [2.0 * step + 1 for step in range(6)]


def test_memory_is_used_again(pair):
    crew, _ = pair
    tensors = [torch.ones(MANY), torch.ones(MANY)]
    descriptors = 0
    for round_ in range(50):
        for operate in ("all_reduce", "broadcast"):
            more = {"root": 1} if operate == "broadcast" else {}
            for pending in [
                getattr(g, operate)(t, **more) for g, t in zip(crew, tensors, strict=True)
            ]:
                pending.wait()
        for tensor in tensors:
            tensor.fill_(1.0)
        if round_ == 1:
            descriptors = len(os.listdir("/proc/self/fd"))
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_who_speaks_far_ahead_waits_and_nothing_is_lost(pair):
    crew, _ = pair
    most = 5000  # a pipe holds some two thousand words
    heard = []

    def hear():
        time.sleep(0.2)
        tensor = torch.empty(MANY // 100)
        for _ in range(most):
            crew[1].broadcast(tensor, root=0).wait()
            heard.append(int(tensor[0]))

    listener = threading.Thread(target=hear)
    listener.start()
    for step in range(most):
        crew[0].broadcast(torch.full((MANY // 100,), float(step)), root=0).wait()
    listener.join(30.0)
    assert heard == list(range(most))


def test_an_abort_ends_a_wait_at_once_and_the_group_is_never_used_again(pair):
    crew, aborts = pair
    assert_left_at_once(crew[0], aborts[0], numel=MANY)


def test_an_abort_ends_the_wait_of_who_speaks_into_a_full_pipe(pair):
    crew, aborts = pair
    timer = threading.Timer(0.3, aborts[0].set)
    timer.start()
    began = time.monotonic()

    def speak_on():
        while True:
            crew[0].broadcast(torch.zeros(1), root=0).wait()

    with pytest.raises(Aborted):
        speak_on()
    assert time.monotonic() - began < 0.3 + LEAVE_S


def test_what_was_said_is_not_lost_to_an_abort_or_to_who_left(pair):
    crew, aborts = pair
    tensors = [torch.ones(MANY), torch.ones(MANY)]
    under_way = [g.all_reduce(t) for g, t in zip(crew, tensors, strict=True)]
    crew[1].close()
    aborts[0].set()
    under_way[0].wait()
    assert tensors[0][-1].item() == 2.0


def test_who_left_is_noticed_at_once(pair):
    crew, _ = pair
    pending = crew[0].all_reduce(torch.zeros(MANY))
    timer = threading.Timer(0.1, crew[1].close)
    timer.start()
    began = time.monotonic()
    with pytest.raises(PeerLost, match="has left the group"):
        pending.wait()
    assert time.monotonic() - began < 0.1 + LEAVE_S


def test_a_silent_member_is_given_up_after_the_time_that_is_allowed(pair):
    crew, _ = pair
    crew[0].allow(seconds=0.3)
    began = time.monotonic()
    with pytest.raises(PeerLost, match="no answer within 0 s"):
        crew[0].all_reduce(torch.ones(MANY)).wait()
    assert time.monotonic() - began < 4.0  # it was built for 5


def test_a_group_goes_on_in_the_next_generation_and_listens_to_its_abort_event(pair):
    crew, aborts = pair
    abort = threading.Event()
    crew[0].rebind(abort)
    aborts[0].set()  # the old one is nobody's any more
    pending = crew[0].all_reduce(torch.zeros(1))
    crew[1].all_reduce(torch.zeros(1)).wait()
    pending.wait()
    abort.set()
    with pytest.raises(Aborted):
        crew[0].all_reduce(torch.zeros(1)).wait()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_ends_is_noticed_at_once_and_one_that_stops_in_time(tmp_path, end):
    store = tmp_path / "store"
    member = subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.near_member", str(store)], stdout=subprocess.PIPE
    )
    assert member.stdout is not None
    try:
        groups = build_groups(
            a_layout(a_plan([], []), slots=2), 0, generation=1, abort=threading.Event(),
            store=dist.FileStore(str(store), -1), timeout_s=30.0, host="127.0.0.1",
        )  # fmt: skip
        group, tensor = world(groups), torch.ones(NUMBERS)
        assert isinstance(group, NearCommunicator)
        group.all_reduce(tensor).wait()
        assert tensor.sum().item() == 2 * NUMBERS
        assert member.stdout.readline() == b"added up\n"
        group.allow(seconds=1.0)
        began = time.monotonic()
        pending = group.all_reduce(tensor)
        member.send_signal(end)
        with pytest.raises(PeerLost, match="ended" if end == signal.SIGKILL else "no answer"):
            pending.wait()
        took_s = time.monotonic() - began
        assert took_s < LEAVE_S if end == signal.SIGKILL else 1.0 <= took_s < 1.0 + LEAVE_S
    finally:
        member.kill()
        member.wait()
        member.stdout.close()


def test_where_one_may_not_open_anothers_pipes_all_go_by_sockets(monkeypatch):
    opened = near._open

    def refused(pid, descriptor, flags):
        if threading.current_thread() is first:
            raise PermissionError("/proc is hidden here")
        return opened(pid, descriptor, flags)

    monkeypatch.setattr(near, "_open", refused)
    layout, store, built = a_layout(a_plan([], []), slots=2), dist.HashStore(), {}

    def build(rank):
        built[rank] = build_groups(
            layout, rank, generation=1, store=store, abort=threading.Event(), timeout_s=5.0,
            host="127.0.0.1",
        )  # fmt: skip

    first = threading.Thread(target=build, args=(0,))
    first.start()
    build(1)
    first.join()
    tensors = [torch.ones(SOME), torch.ones(SOME)]
    crew = [world(built[rank]) for rank in range(2)]
    assert all(isinstance(group, ProcessGroupCommunicator) for group in crew)
    for pending in [g.all_reduce(t) for g, t in zip(crew, tensors, strict=True)]:
        pending.wait()
    assert tensors[0].sum().item() == 2 * SOME


def test_groups_that_reach_over_machines_go_by_sockets():
    layout = a_layout(a_plan([], [], tp=2), slots=2)
    groups, _ = groups_of_all(layout)
    for rank, built in enumerate(groups):
        for group in layout.groups_of(rank):
            here = len({layout.workers[r].node for r in group.ranks}) == 1
            assert isinstance(built[group.key], NearCommunicator) == here, group
    assert any(isinstance(g, NearCommunicator) for g in groups[0].values())


def test_nothing_is_left_of_groups_that_were_closed():
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    crew, _ = crew_of(3)
    tensors = [torch.ones(MANY) for _ in crew]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda g, t: g.all_reduce(t).wait(), crew, tensors))
    for group in crew:
        group.close()
    del crew, group
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "graveyard":
            thread.join(timeout=20.0)
    assert len(os.listdir("/proc/self/fd")) <= before
