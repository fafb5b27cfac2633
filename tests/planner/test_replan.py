"""Re-planning for the members that live: exact pools, quickly, the same as planning afresh."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from sailor.errors import NoFeasiblePlan
from sailor.parallel.layout import Layout
from sailor.planner.question import Space
from sailor.planner.replan import replan
from tests.helpers.builders import a_member, a_spec
from tests.helpers.planning import a_gpu, a_job, a_machine, a_network, a_pool, an_offer

# 4 blocks need two of these: 0.6 MiB of state and more of activations
ROOM = Space(optimizer_sharding=(False,), recompute=(False,), microbatch_sizes=(1,))


def again(nodes, *, memory_mib=0.45, slots=1, gpus=1, space=ROOM, batch=8):
    pool = a_pool(an_offer(a_machine(gpu=a_gpu(memory_mib=memory_mib), gpus=gpus)))
    members = [a_member(f"n{i}", slots=slots) for i in range(nodes)]
    plan = replan(
        members, spec=a_spec(), job=a_job(batch=batch), network=a_network(pool), space=space
    )
    return plan, members


@pytest.mark.parametrize("nodes", range(2, 9))
def test_the_plan_can_be_seated_and_keeps_the_batch(nodes):
    plan, members = again(nodes)
    assert plan.global_batch_size == 8
    assert all(replica.microbatch_size == 1 for replica in plan.replicas)
    layout = Layout.of(plan, spec=a_spec(), pieces=1, members=members)
    assert layout.world_size <= nodes


def test_losing_one_of_four_changes_depth_and_width():
    four, _ = again(4)
    three, _ = again(3)
    assert (four.describe(), three.describe()) == ("pp2 x dp2 x tp1", "pp3 x dp1 x tp1")


def test_a_depth_that_was_asked_for_is_kept_while_the_members_allow_it():
    deep = replace(ROOM, num_stages=4)
    assert [again(nodes, space=deep)[0].describe() for nodes in (8, 4, 3, 2)] == [
        "pp4 x dp2 x tp1", "pp4 x dp1 x tp1", "pp3 x dp1 x tp1", "pp2 x dp1 x tp1",
    ]  # fmt: skip
    with pytest.raises(NoFeasiblePlan, match="does not fit"):
        again(1, space=deep)


def test_too_few_members_is_an_answer_with_a_reason():
    with pytest.raises(NoFeasiblePlan, match="does not fit"):
        again(1)


def test_nobody_left_is_an_answer_too():
    with pytest.raises(NoFeasiblePlan, match="no machine is left"):
        again(0)


def test_planning_after_a_shrink_is_planning_afresh():
    """A known fault of the published planner: it returned the larger cluster's plan again."""
    fresh, _ = again(3)
    again(8)
    shrunk, _ = again(3)
    assert shrunk == fresh


def test_a_machine_that_lost_a_worker_is_still_used():
    pool = a_pool(an_offer(a_machine(gpu=a_gpu(memory_mib=0.45), gpus=2)))
    members = [a_member("n0", slots=2), a_member("n1", slots=1)]
    plan = replan(members, spec=a_spec(), job=a_job(), network=a_network(pool), space=ROOM)
    assert {s.machine_type for _, _, s in plan.stages()} == {"local"}
    Layout.of(plan, spec=a_spec(), pieces=1, members=members)


def test_a_small_pool_is_planned_within_a_tenth_of_a_second():
    again(8)
    start = time.process_time()
    again(7)
    assert time.process_time() - start < 0.1
