"""Groups of ranks, here in threads of one process: sums, broadcasts, and waits that are left."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from sailor.parallel.comm import Aborted, LoopbackCommunicator, PeerLost
from sailor.parallel.groups import MARGIN_S, build_groups, check_runtime, loopback_groups
from tests.helpers.builders import a_layout, a_plan
from tests.helpers.groups import LEAVE_S, assert_left_at_once, groups_of_all, world
from tests.helpers.network import has_ipv6

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def pair():
    """Two replicas of one stage: a world group and a reduce group of two."""
    groups, aborts = groups_of_all(a_layout(a_plan([], [])))
    yield groups, aborts
    for group in (g for rank in groups for g in rank.values()):
        group.close()


def test_this_torch_has_the_private_names_that_groups_need():
    check_runtime()


@pytest.mark.skipif(not has_ipv6(), reason="this computer has no IPv6")
def test_machines_known_by_ipv6_addresses_sum_over_them():
    groups, _ = groups_of_all(a_layout(a_plan([], [])), host="::1")
    tensors = [torch.tensor([1.0 + rank]) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for work in pool.map(
            lambda rank: world(groups[rank]).all_reduce(tensors[rank]), range(2)
        ):  # fmt: skip
            work.wait()
    assert [float(tensor) for tensor in tensors] == [3.0, 3.0]
    for group in (g for rank in groups for g in rank.values()):
        group.close()


def test_every_rank_of_a_mixed_plan_gets_the_groups_it_is_in():
    layout = a_layout(a_plan([2], [], tp=1))
    groups, _ = groups_of_all(layout)
    for rank, built in enumerate(groups):
        assert list(built) == [group.key for group in layout.groups_of(rank)]
        assert all(built[g.key].rank == g.ranks.index(rank) for g in layout.groups_of(rank))
        for group in built.values():
            group.close()


def test_a_sum_and_a_broadcast_reach_every_member(pair):
    groups, _ = pair
    tensors = [torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])]
    for pending in [world(g).all_reduce(t) for g, t in zip(groups, tensors, strict=True)]:
        pending.wait()
    assert [t.tolist() for t in tensors] == [[11.0, 22.0], [11.0, 22.0]]
    tensors[1].fill_(5.0)
    for pending in [world(g).broadcast(t, root=1) for g, t in zip(groups, tensors, strict=True)]:
        pending.wait()
    assert tensors[0].tolist() == [5.0, 5.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_sums_onto_one_gatherings_and_sums_of_rows(pair, dtype):
    groups, _ = pair
    ones, tens = torch.tensor([1.0, 2.0], dtype=dtype), torch.tensor([10.0, 20.0], dtype=dtype)
    onto = [ones.clone(), tens.clone()]
    for pending in [world(g).reduce(t, root=1) for g, t in zip(groups, onto, strict=True)]:
        pending.wait()
    assert onto[1].tolist() == [11.0, 22.0]

    rows = [torch.zeros(2, 2, dtype=dtype) for _ in groups]
    rows[0][0], rows[1][1] = ones, tens
    for pending in [world(g).all_gather(t) for g, t in zip(groups, rows, strict=True)]:
        pending.wait()
    assert [t.tolist() for t in rows] == [[[1.0, 2.0], [10.0, 20.0]]] * 2

    rows = [torch.stack((ones, tens)), torch.stack((tens, ones))]
    for pending in [world(g).reduce_scatter(t) for g, t in zip(groups, rows, strict=True)]:
        pending.wait()
    assert rows[0][0].tolist() == [11.0, 22.0]
    assert rows[1][1].tolist() == [11.0, 22.0]


def test_an_abort_ends_a_wait_at_once_and_the_group_is_never_used_again(pair):
    groups, aborts = pair
    assert_left_at_once(world(groups[0]), aborts[0], numel=1)


def test_what_is_complete_is_not_lost_to_an_abort(pair):
    groups, aborts = pair
    tensors = [torch.ones(1), torch.ones(1)]
    under_way = [world(g).all_reduce(t) for g, t in zip(groups, tensors, strict=True)]
    under_way[1].wait()
    while not under_way[0].done:  # set by the group's own thread
        time.sleep(0.001)
    aborts[0].set()
    under_way[0].wait()
    assert tensors[0].item() == 2.0


def test_a_silent_peer_is_given_up_after_the_time_out():
    groups, _ = groups_of_all(a_layout(a_plan([], [])), timeout_s=1.0)
    with pytest.raises(PeerLost):
        world(groups[0]).all_reduce(torch.zeros(1)).wait()
    groups[1][next(iter(groups[1]))].close()


def test_a_group_waits_as_long_as_it_is_allowed_and_never_longer_than_it_was_built_for():
    groups, _ = groups_of_all(a_layout(a_plan([], [])), timeout_s=5.0)
    group, other = world(groups[0]), world(groups[1])
    group.allow(seconds=0.3)
    began = time.monotonic()
    with pytest.raises(PeerLost, match="no answer within 0 s"):
        group.all_reduce(torch.ones(3)).wait()
    assert time.monotonic() - began < 4.0  # it was built for 5
    other.allow(seconds=300.0)
    assert other.timeout_s == 5.0


def test_building_with_a_member_that_never_comes_is_given_up_after_the_time_out():
    with pytest.raises(PeerLost, match="generation 1"):
        groups_of_all(a_layout(a_plan([], [])), ranks=[0], timeout_s=0.5)


def test_building_stops_when_the_generation_is_aborted():
    abort = threading.Event()
    abort.set()
    with pytest.raises(Aborted):
        build_groups(
            a_layout(a_plan([], [])), 0, generation=1, store=dist.HashStore(), abort=abort,
            timeout_s=1.0, host="127.0.0.1",
        )  # fmt: skip


class _Gone(dist.Store):
    """The store of a member that says where it is to be found, and is not there then."""

    def __init__(self, real: dist.Store) -> None:
        super().__init__()
        self._real = real

    def set(self, key, value):
        self._real.set(key, value)

    def wait(self, keys, timeout=None):
        raise dist.DistStoreError("gone")


def test_building_with_a_member_that_went_away_half_way_stops_at_an_abort_and_in_time():
    layout, store, abort = a_layout(a_plan([], [])), dist.HashStore(), threading.Event()
    with pytest.raises(PeerLost, match="gone"):
        groups_of_all(layout, store=_Gone(store), ranks=[1])
    timer = threading.Timer(0.3, abort.set)
    timer.start()
    began = time.monotonic()
    with pytest.raises(Aborted):
        build_groups(
            layout, 0, generation=1, store=store, abort=abort, timeout_s=60.0, host="127.0.0.1"
        )
    assert time.monotonic() - began < 0.3 + LEAVE_S
    began = time.monotonic()
    with pytest.raises(PeerLost, match="generation 1"):
        groups_of_all(layout, store=store, ranks=[0], timeout_s=0.5)
    assert time.monotonic() - began < 0.5 + MARGIN_S + LEAVE_S


def test_a_group_of_unchanged_members_is_taken_over_by_the_next_generation(pair):
    groups, _ = pair
    layout = a_layout(a_plan([], []))
    again, _ = groups_of_all(
        layout, generation=2, rank0=groups[0], rank1=groups[1], store=dist.HashStore()
    )
    for old, new in zip(groups, again, strict=True):
        assert all(new[key] is old[key] for key in old)
    abort = threading.Event()
    world(again[0]).rebind(abort)
    pending = world(again[0]).all_reduce(torch.zeros(1))
    abort.set()
    with pytest.raises(Aborted):
        pending.wait()


def test_one_store_serves_many_generations():
    layout = a_layout(a_plan([], []))
    store = dist.HashStore()
    for generation in range(1, 6):
        groups, _ = groups_of_all(layout, store=store, generation=generation)
        tensors = [torch.ones(1), torch.ones(1)]
        for pending in [world(g).all_reduce(t) for g, t in zip(groups, tensors, strict=True)]:
            pending.wait()
        assert tensors[0].item() == 2.0
        for group in (g for rank in groups for g in rank.values()):
            group.close()


def test_abandoned_groups_leave_no_thread_once_their_time_is_over():
    layout = a_layout(a_plan([], []))
    groups, aborts = groups_of_all(layout, timeout_s=0.5)
    pending = world(groups[0]).all_reduce(torch.zeros(1))
    aborts[0].set()
    with pytest.raises(Aborted):
        pending.wait()
    del pending
    for group in (g for rank in groups for g in rank.values()):
        group.close()
    for thread in threading.enumerate():
        if thread.name == "graveyard":
            thread.join(timeout=20.0)  # other tests' groups rest there too
            assert not thread.is_alive()


_CLOSE_AND_END = """
from tests.helpers.builders import a_layout, a_plan
from tests.helpers.groups import groups_of_all

groups, _ = groups_of_all(a_layout(a_plan([1], [1], [1])))
for group in (g for rank in groups for g in rank.values()):
    group.close()
del groups, group
"""


def test_a_process_may_end_as_soon_as_its_groups_are_closed():
    """It was aborted in the middle of destroying them."""
    ended = subprocess.run([sys.executable, "-c", _CLOSE_AND_END], cwd=ROOT, timeout=120)
    assert ended.returncode == 0


def test_a_loopback_answers_alone_with_finite_numbers():
    alone = LoopbackCommunicator(rank=1, size=2)
    received = torch.full((2,), float("nan"))
    alone.broadcast(received, root=0).wait()
    assert received.tolist() == [0.0, 0.0]
    sent = torch.tensor([3.0])
    alone.broadcast(sent, root=1).wait()
    alone.all_reduce(sent).wait()
    assert sent.item() == 3.0


def test_loopbacks_stand_in_for_every_group_of_a_rank():
    layout = a_layout(a_plan([1], [2]))
    for rank in range(layout.world_size):
        assert set(loopback_groups(layout, rank)) == {g.key for g in layout.groups_of(rank)}
