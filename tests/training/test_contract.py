"""Whatever the planner can emit trains the same model: random plans against one process.

Every plan is drawn: how many replicas, where each is cut, the tensor-parallel degree of every
stage, microbatches and their sizes, recomputation, optimizer sharding, split sequences, whether all
ranks are on one machine, and whose matrix products they take. What one process computes is the
reference.

Tolerances. Another degree, or another size of microbatch, sums the same fp32 numbers in another
order: about 1e-7 of a loss of 5.5 a step. AdamW divides a gradient by its own size: where it is
itself a rounding error (of 1e-8) a weight may move by a share of the learning rate (1e-2) rather
than of the error. Three steps of the test model stay below 2e-5 in the weights; five times that is
allowed. A tensor summed twice, left out, or taken from a neighbour is off by 1e-3 and more.
"""

import random
from dataclasses import dataclass, replace

import pytest
import torch

from sailor.parallel.boxes import finest_pieces
from sailor.plan import Plan
from tests.helpers.engine import a_gpt, a_llama, a_random_plan, a_replica, a_run, some_settings
from tests.helpers.engine_threads import Ran, train
from tests.helpers.products import needs_one_dnn, products_of

LOSS_TOLERANCE, WEIGHT_TOLERANCE = 1e-5, 1e-4
STEPS = range(1, 4)
MAX_GPUS = 6
NUM_PLANS = 240
SAMPLED = range(0, NUM_PLANS, 6)  # in the default run; all of them are "-m matrix"
SPECS = {
    "gpt": a_gpt(),
    "llama": a_llama(),
    "llama of grouped heads": a_llama(num_kv_heads=2, tied_embeddings=True),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One drawn plan, and the family it trains."""

    family: str
    plan: Plan
    deterministic: bool
    sequence_parallel: bool
    together: bool
    one_dnn: bool


def drawn(seed: int) -> Case:
    """The plan of a seed."""
    chance = random.Random(seed)
    family = chance.choice(list(SPECS))
    spec = SPECS[family]
    while True:
        plan = a_random_plan(spec, chance, max_gpus=MAX_GPUS, num_samples=12)
        if not plan.problems(spec):
            plan = replace(plan, optimizer_sharding=chance.random() < 0.5)
            return Case(
                family=family, plan=plan, deterministic=chance.random() < 0.5,
                sequence_parallel=chance.random() < 0.5, together=chance.random() < 0.5,
                one_dnn=chance.random() < 0.5,
            )  # fmt: skip


def run(family: str, plan: Plan, tokens, *, together: bool = False, **changes) -> Ran:
    spec = SPECS[family]
    pieces = finest_pieces(spec, max_degree=8)
    layout = replace(a_run(*plan.replicas, spec=spec, pieces=pieces, together=together), plan=plan)
    return train(layout, some_settings(tokens, layout, **changes), steps=STEPS)


@pytest.fixture(scope="module")
def reference(tokens):
    """One process, one stage, by family; products by the library that torch takes."""
    alone = a_run(a_replica(microbatches=6)).plan
    with products_of(one_dnn=False):
        return {family: run(family, alone, tokens) for family in SPECS}


def check(seed: int, tokens, reference) -> None:
    case = drawn(seed)
    with products_of(one_dnn=case.one_dnn):
        ran = run(
            case.family, case.plan, tokens, deterministic=case.deterministic,
            sequence_parallel=case.sequence_parallel, together=case.together,
        )  # fmt: skip
    expected = reference[case.family]
    pairs = [*zip(ran.losses, expected.losses, strict=True)]
    assert max(abs(a - b) for a, b in pairs) < LOSS_TOLERANCE
    ours, theirs = ran.state(), expected.state()
    assert ours.keys() == theirs.keys()
    furthest = max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)
    assert furthest < WEIGHT_TOLERANCE


@pytest.mark.parametrize("seed", SAMPLED)
def test_a_drawn_plan_trains_the_model_of_one_process(tokens, reference, seed):
    check(seed, tokens, reference)


@pytest.mark.matrix
@pytest.mark.parametrize("seed", [s for s in range(NUM_PLANS) if s not in SAMPLED])
def test_every_drawn_plan_trains_the_model_of_one_process(tokens, reference, seed):
    check(seed, tokens, reference)


@needs_one_dnn
@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_other_replicas_and_stages_change_no_bit_of_one_dnns_products(tokens, family):
    whole = a_run(a_replica(microbatches=6)).plan
    cut = a_run(a_replica(1, microbatches=2), a_replica(2, 3, microbatches=4)).plan
    with products_of(one_dnn=True):
        one, many = (
            run(family, plan, tokens, together=True, deterministic=True) for plan in (whole, cut)
        )
    assert many.losses == one.losses
    ours, theirs = many.state(), one.state()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_the_drawn_plans_are_as_unlike_as_plans_may_be():
    plans = [drawn(seed).plan for seed in range(NUM_PLANS)]
    assert len({plan.to_json() for plan in plans}) >= 200
    assert {plan.num_gpus for plan in plans} == set(range(2, MAX_GPUS + 1))

    def share(trait) -> float:
        return sum(1 for plan in plans if trait(plan)) / NUM_PLANS

    assert share(lambda p: len({r.num_stages for r in p.replicas}) > 1) > 0.2
    assert share(lambda p: len({r.num_microbatches for r in p.replicas}) > 1) > 0.2
    assert share(lambda p: len({s.tensor_parallel for _, _, s in p.stages()}) > 1) > 0.2
    assert share(lambda p: any(s.recompute for _, _, s in p.stages())) > 0.2
    assert share(lambda p: any(len({s.tensor_parallel for s in r.stages}) > 1 for r in p.replicas)) > 0.1  # fmt: skip  # noqa: E501
