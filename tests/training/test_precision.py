"""Computing in bf16: masters and sums stay fp32, and whatever holds of layouts in fp32 holds here.

bf16 keeps 8 bits, so every product is off by up to 2^-9 of itself. Over a model of four blocks that
leaves the loss of 5.5 within a few 1e-3 of what fp32 has; a wrong sum, a lost master or a gradient
of another tensor is off by a hundred times as much after five steps.
"""

from dataclasses import replace

import pytest
import torch

from sailor.parallel.reduce import FastSum
from sailor.parallel.state import StageState
from sailor.parallel.tensor import TensorGroup
from sailor.runtime.poison import stricken
from sailor.training.trainer import StepRefused, Trainer
from tests.helpers.engine import a_gpt, a_llama, a_replica, a_run, some_settings
from tests.helpers.engine_threads import train
from tests.parallel.test_state import module_of

NEAR_FP32 = 5e-3
NEAR_EACH_OTHER = 2e-3  # other tensor-parallel degrees
SPECS = {"gpt": a_gpt(), "llama": a_llama()}
STEPS = range(1, 6)

SAME_BITS = {
    "dp3": [a_replica(microbatches=n) for n in (3, 1, 2)],
    "pp2 x dp2, recomputed": [
        a_replica(2, microbatches=3, recompute=True),
        a_replica(1, microbatches=3),
    ],
}
CLOSE = {
    "tp2 x pp2": [a_replica(2, microbatches=6, tp=2)],
    "tp2 -> tp1, and tp1": [a_replica(2, microbatches=3, tp=(2, 1)), a_replica(microbatches=3)],
}


def run(tokens, replicas, *, family="gpt", sharding=False, steps=STEPS, state=None, **changes):
    layout = a_run(*replicas, spec=SPECS[family], pieces=4)
    layout = replace(layout, plan=replace(layout.plan, optimizer_sharding=sharding))
    settings = some_settings(tokens, layout, **{"compute_dtype": "bfloat16", **changes})
    return train(layout, settings, steps=steps, state=state)


def equal(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def alone(tokens):
    """By family: one process in bf16."""
    return {family: run(tokens, [a_replica(microbatches=6)], family=family) for family in SPECS}


@pytest.mark.parametrize("family", SPECS)
def test_losses_are_near_those_of_fp32(tokens, alone, family):
    exact = run(tokens, [a_replica(microbatches=6)], family=family, compute_dtype="float32")
    pairs = [*zip(alone[family].losses, exact.losses, strict=True)]
    assert max(abs(a - b) for a, b in pairs) < NEAR_FP32
    assert any(a != b for a, b in pairs)


@pytest.mark.parametrize("sharding", [False, True])
@pytest.mark.parametrize("name", SAME_BITS)
@pytest.mark.parametrize("family", SPECS)
def test_replicas_stages_and_sharding_change_no_bit(tokens, alone, family, name, sharding):
    ran = run(tokens, SAME_BITS[name], family=family, sharding=sharding)
    assert ran.losses == alone[family].losses
    assert ran.grad_norms == alone[family].grad_norms
    assert equal(ran.state(), alone[family].state())


@pytest.mark.parametrize("name", CLOSE)
def test_tensor_parallel_degrees_change_little(tokens, alone, name):
    ran = run(tokens, CLOSE[name], sharding=True)
    pairs = zip(ran.losses, alone["gpt"].losses, strict=True)
    assert max(abs(a - b) for a, b in pairs) < NEAR_EACH_OTHER


def test_fast_sums_change_little(tokens, alone):
    ran = run(tokens, SAME_BITS["dp3"], deterministic=False)
    pairs = zip(ran.losses, alone["gpt"].losses, strict=True)
    assert max(abs(a - b) for a, b in pairs) < NEAR_EACH_OTHER


def test_state_goes_through_another_layout_with_the_same_losses(tokens, alone):
    before = run(tokens, SAME_BITS["dp3"], sharding=True, steps=range(1, 3))
    after = run(tokens, SAME_BITS["pp2 x dp2, recomputed"], steps=range(3, 6), state=before.state())
    assert before.losses + after.losses == alone["gpt"].losses
    assert equal(after.state(), alone["gpt"].state())


def test_state_is_fp32_and_what_is_computed_with_is_its_rounding(alone):
    (trainer,) = alone["gpt"].trainers
    weights = {name: p for name, p in trainer._state.by_name.items()}
    for box, tensors in trainer.state.items():
        assert tensors.weight.dtype is tensors.moment2.dtype is torch.float32
        slot = weights[box.tensor]
        computed = slot.box_of(slot.of(trainer._state.weights), box)
        assert computed.dtype is torch.bfloat16
        assert torch.equal(computed, tensors.weight.bfloat16())
    assert any(not t.weight.eq(t.weight.bfloat16()).all() for t in trainer.state.values())


def test_updates_too_small_for_bf16_are_not_lost(tokens):
    """A weight of 1.0 moves by 2^-8 or not at all in bf16; ten times 1e-4 must still add up."""
    replicas = [a_replica(microbatches=6)]
    settings = {"steps": range(1, 11)}
    layout = a_run(*replicas, pieces=4)
    gentle = replace(
        some_settings(tokens, layout).optimizer, learning_rate=1e-4, min_learning_rate=1e-4,
        warmup_steps=0, schedule="constant", weight_decay=0.0,
    )  # fmt: skip
    ran = run(tokens, replicas, optimizer=gentle, **settings)
    gains = ran.state()["head.norm.weight[0:32] weight"]
    moved = (gains - 1.0).abs()
    assert 2e-4 < float(moved.max()) < 2e-3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_weight_that_is_struck_for_one_step_is_seen_and_then_forgotten(tokens, dtype):
    layout = a_run(a_replica(microbatches=1))
    settings = some_settings(tokens, layout, compute_dtype=dtype)
    trainer = Trainer(layout=layout, rank=0, settings=settings)
    trainer.initialise(trainer.state)
    trainer.connect({})
    with (
        pytest.raises(StepRefused),
        stricken(trainer.state, True, changed=trainer.republish),
    ):
        trainer.step(1, stop=False)
    assert trainer.step(1, stop=False).loss == pytest.approx(5.5, abs=0.2)


def test_microbatches_add_up_in_fp32():
    """Three hundred gradients of 1: bf16 would stop at 256."""
    layout = a_run(a_replica(microbatches=6, layers=1), spec=a_gpt(num_layers=1))
    state = StageState(layout, 0, device=torch.device("cpu"), dtype=torch.bfloat16)
    parameters = state.bind(module_of(layout, 0).leaves())
    total = FastSum(state, parameters, tokens_per_step=1)
    total.begin({}, num_microbatches=300)
    for _ in range(300):
        for _, parameter in parameters:
            parameter.backward(torch.ones_like(parameter))
    total.reduce()
    for name, parameter in parameters:
        uses = [other for other, _ in parameters].count(name)  # a tied matrix is two parameters
        assert state.by_name[name].of(state.gradients).eq(300.0 * uses).all()
        assert parameter.grad is None


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_frequent_token_adds_up_in_fp32(device):
    weight = torch.zeros(4, 8, dtype=torch.bfloat16, device=device, requires_grad=True)
    tokens = torch.full((3, 100), 2, device=device)
    TensorGroup(rank=0, size=1).embed(tokens, weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad[2].eq(300.0).all()
    assert weight.grad[[0, 1, 3]].eq(0.0).all()
