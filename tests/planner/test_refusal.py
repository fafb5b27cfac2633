"""No plan: the message says what ended it and the least that would help."""

from __future__ import annotations

import pytest

from sailor.errors import NoFeasiblePlan
from sailor.planner.question import Limits, Space
from tests.helpers.builders import a_spec
from tests.helpers.planning import a_gpu, a_job, a_machine, a_pool, an_offer
from tests.planner.test_search import CHEAPEST, a_local_pool, ask


def refusal(pool, **question) -> NoFeasiblePlan:
    with pytest.raises(NoFeasiblePlan) as caught:
        ask(pool, **question)
    assert caught.value.exit_code == 3
    return caught.value


def test_a_model_too_large_says_bytes_by_part_and_how_much_would_do():
    error = refusal(a_local_pool(memory_mib=0.3, machines=1))
    assert error.code == "E301"
    assert "weights" in error.why
    assert "usable 307.2 KiB" in error.why
    assert "cloud.memory_per_gpu=" in error.fix


def test_the_memory_it_names_is_enough():
    error = refusal(a_local_pool(memory_mib=0.3, machines=1))
    enough = int(error.fix.split("memory_per_gpu=")[1].split("MiB")[0])
    assert ask(a_local_pool(memory_mib=enough, machines=1)).best.feasible


def test_the_number_of_machines_it_names_is_enough():
    space = Space(optimizer_sharding=(False,), recompute=(False,), microbatch_sizes=(1,))
    error = refusal(a_local_pool(memory_mib=0.45, machines=1), space=space)
    nodes = int(error.fix.split("cloud.nodes=")[1].split()[0])
    assert nodes > 1
    assert ask(a_local_pool(memory_mib=0.45, machines=nodes), space=space).best.feasible


def test_a_budget_too_small_names_the_cheapest_plan_and_a_budget_that_is_enough():
    job = a_job(total_tokens=1e9)
    pool = a_local_pool(machines=2)
    error = refusal(pool, job=job, objective=CHEAPEST, limits=Limits(total_dollars=0.01))
    assert error.code == "E302"
    assert "local" in error.why
    enough = float(error.fix.split("total_usd=")[1].split()[0])
    assert ask(pool, job=job, objective=CHEAPEST, limits=Limits(total_dollars=enough)).best.feasible


def test_an_hourly_limit_below_every_machine_is_named():
    error = refusal(a_local_pool(price=5.0), limits=Limits(dollars_per_hour=1.0))
    assert error.code == "E302"
    assert "budget.per_hour_usd=5" in error.fix


def test_an_impossible_deadline_names_the_fastest_plan():
    job = a_job(total_tokens=1e9)
    error = refusal(a_local_pool(), job=job, limits=Limits(deadline_seconds=1.0))
    assert error.code == "E303"
    assert "budget.deadline=" in error.fix


def test_a_speed_that_no_plan_reaches_is_named_with_one_that_is_reached():
    """It said only that all limits at once were too much."""
    error = refusal(a_local_pool(), limits=Limits(min_tokens_per_second=1e12))
    assert error.code == "E303"
    assert "1,000,000,000,000 tokens/s" in error.what
    enough = float(error.fix.split("min_tokens_per_second=")[1].split()[0])
    best = ask(a_local_pool(), limits=Limits(min_tokens_per_second=enough)).best
    assert best.estimate.tokens_per_second >= enough


def test_numbers_that_do_not_divide_are_named_with_the_nearest_that_do():
    error = refusal(a_local_pool(gpus=4), space=Space(tensor_parallel_degrees=(3,)))
    assert error.code == "E304"
    assert "tensor_parallel 3 does not divide num_heads 4" in error.why
    assert "planner.tensor_parallel=2" in error.fix
    assert "planner.tensor_parallel=4" in error.fix


def test_fewer_key_and_value_heads_than_ranks_are_named_with_the_nearest_that_do():
    spec = a_spec(num_kv_heads=2)
    space = Space(tensor_parallel_degrees=(4,))
    error = refusal(a_local_pool(gpus=4), spec=spec, space=space)
    assert error.code == "E304"
    assert error.why == "tensor_parallel 4 does not divide num_kv_heads 2"
    assert error.fix == "planner.tensor_parallel=2   or   planner.tensor_parallel=1"


def test_a_vocabulary_that_does_not_divide_may_be_padded():
    spec = a_spec(vocab_size=67)
    space = Space(tensor_parallel_degrees=(2,))
    error = refusal(a_local_pool(gpus=4), spec=spec, space=space)
    assert error.code == "E304"
    assert error.fix.endswith("model.vocab_size=128 model.vocab_padding=61")
    padded = a_spec(vocab_size=128, vocab_padding=61)
    assert ask(a_local_pool(gpus=4), spec=padded, space=space).best.feasible


def test_more_stages_than_blocks():
    error = refusal(a_local_pool(machines=8), space=Space(num_stages=5))
    assert error.code == "E304"
    assert error.fix == "planner.pipeline_parallel=4"


def test_a_microbatch_that_does_not_divide_the_batch():
    error = refusal(a_local_pool(), job=a_job(batch=9), space=Space(microbatch_sizes=(2,)))
    assert error.code == "E304"
    assert "planner.microbatch_size=1" in error.fix


def test_no_machine_at_all():
    error = refusal(a_pool(an_offer(a_machine(gpu=a_gpu()), count=0)))
    assert error.code == "E301"
    assert "no machine" in error.what
