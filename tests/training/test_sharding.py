"""Optimizer sharding (ZeRO-1): who keeps what, in how many bytes, and that no number changes by it.

In deterministic mode sums are exact, so one rank's update is every owner's: to the bit.
"""

import random
from dataclasses import replace

import pytest
import torch

from sailor.parallel.layout import Layout
from sailor.parallel.state import StageState
from sailor.planner.memory import Cut, memory_coefficients, stage_memory
from sailor.profile.profile import Numerics
from tests.helpers.engine import a_gpt, a_llama, a_random_plan, a_replica, a_run, some_settings
from tests.helpers.engine_threads import train
from tests.helpers.planning import a_gpu

CPU = torch.device("cpu")
ALONE = a_run(a_replica(microbatches=6), pieces=4)
LAYOUTS = {
    "dp3": [a_replica(microbatches=n) for n in (3, 1, 2)],
    "pp2 x dp2": [a_replica(2, microbatches=3), a_replica(1, microbatches=3)],
    "pp2 + pp1": [a_replica(3, microbatches=5), a_replica(microbatches=1)],
}
MIXED = [a_replica(2, microbatches=3, tp=(2, 1)), a_replica(microbatches=3)]


def sharded(layout: Layout) -> Layout:
    return replace(layout, plan=replace(layout.plan, optimizer_sharding=True))


def some_layouts():
    layouts = []
    for seed in range(20):
        spec = a_llama() if seed % 2 else a_gpt()
        plan = a_random_plan(spec, random.Random(seed), max_gpus=6, num_samples=12)
        layouts.append(a_run(*plan.replicas, spec=spec, pieces=4))
    return layouts


each_layout = pytest.mark.parametrize("layout", some_layouts(), ids=lambda la: la.plan.describe())


@each_layout
def test_every_box_has_one_keeper_who_owns_it(layout):
    layout = sharded(layout)
    assert [*layout.keepers] == [*layout.owners]
    for box, keepers in layout.keepers.items():
        assert len(keepers) == 1
        assert keepers[0] in layout.owners[box]
    everything = [box for boxes in layout.kept for box in boxes]
    assert sorted(everything) == sorted(layout.owners)


@each_layout
def test_a_rank_keeps_no_more_than_an_even_share_and_one_part(layout):
    layout = sharded(layout)
    for rank, boxes in enumerate(layout.boxes):
        share = sum(box.numel / len(layout.owners[box]) for box in boxes)
        parts: dict[tuple[str, tuple[int, ...]], int] = {}
        for box in boxes:
            part = box.tensor, layout.owners[box]
            parts[part] = parts.get(part, 0) + box.numel
        assert sum(box.numel for box in layout.kept[rank]) <= share + max(parts.values())


def test_the_planner_counts_what_a_rank_of_equal_replicas_keeps_at_most():
    for num_replicas in (2, 3, 4, 6):
        for replica in (a_replica(2, microbatches=1), a_replica(1, microbatches=1, tp=2)):
            layout = sharded(a_run(*[replica] * num_replicas, pieces=4))
            for rank in range(layout.world_size):
                stage = layout.stage_of(rank)
                each = memory_coefficients(
                    layout.spec, tensor_parallel=stage.tensor_parallel, microbatch_size=2,
                    sequence_length=16, recompute=False, numerics=Numerics(compute_bytes=4),
                )  # fmt: skip
                cut = Cut(
                    num_blocks=len(stage.layers), first=layout.is_first(rank),
                    last=layout.is_last(rank),
                )  # fmt: skip
                terms = stage_memory(
                    each, cut, num_in_flight=1, num_owners=num_replicas, optimizer_sharding=True,
                    gpu=a_gpu(),
                )  # fmt: skip
                counted = next(term.value for term in terms if term.name == "optimizer")
                assert 8 * sum(box.numel for box in layout.kept[rank]) <= counted


def test_without_sharding_every_owner_keeps():
    layout = a_run(*LAYOUTS["pp2 x dp2"])
    assert layout.keepers == layout.owners
    assert layout.kept == layout.boxes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@each_layout
def test_state_takes_the_bytes_that_the_layout_says(layout, dtype):
    """Weights to compute with everywhere; two moments, and a master in bf16, where they are kept.

    Parameters start on lines of 16 elements. In fp32 a parameter of which a rank keeps a part needs
    a copy of that part, for the optimizer wants it in one piece.
    """
    layout = sharded(layout)
    for rank in range(layout.world_size):
        state = StageState(layout, rank, device=CPU, dtype=dtype)
        held = sum(box.numel for box in layout.boxes[rank])
        kept = sum(box.numel for box in layout.kept[rank])
        parts = sum(
            box.numel
            for entry in state.kept
            if entry.segment is not None
            for box, _ in entry.boxes()
        )
        copies = kept if dtype is torch.bfloat16 else parts
        expected = held * dtype.itemsize + 8 * kept + 4 * copies
        slack = 16 * len(state.slots) * (dtype.itemsize + 12)
        assert expected <= state.state_bytes <= expected + slack


def test_four_replicas_keep_a_quarter_each():
    layout = a_run(*[a_replica(microbatches=1, size=1)] * 4, pieces=4)
    whole = StageState(layout, 0, device=CPU).moments1.numel()
    for rank in range(4):
        share = StageState(sharded(layout), rank, device=CPU).moments1.numel()
        assert share == pytest.approx(whole / 4, rel=0.15)  # matrices are not cut


@pytest.fixture(scope="module")
def alone(tokens):
    return train(ALONE, some_settings(tokens, ALONE), steps=range(1, 6))


def equal(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("name", LAYOUTS)
def test_sharding_changes_no_bit(tokens, alone, name):
    layout = sharded(a_run(*LAYOUTS[name], pieces=4))
    ran = train(layout, some_settings(tokens, layout), steps=range(1, 6))
    assert ran.losses == alone.losses
    assert ran.grad_norms == alone.grad_norms
    assert equal(ran.state(), alone.state())


def test_sharding_changes_no_bit_where_ranks_keep_parts_of_parameters(tokens):
    layout = a_run(*MIXED, pieces=4)
    settings = some_settings(tokens, layout)
    plain = train(layout, settings, steps=range(1, 4))
    ran = train(sharded(layout), settings, steps=range(1, 4))
    assert any(k.segment is not None for t in ran.trainers for k in t._state.kept)
    assert ran.losses == plain.losses
    assert equal(ran.state(), plain.state())


@pytest.mark.parametrize(
    ("before", "after"), [("dp3", "pp2 x dp2"), ("pp2 x dp2", "pp2 + pp1"), ("pp2 + pp1", "dp3")]
)
@pytest.mark.parametrize("then_sharded", [True, False])
def test_state_goes_through_other_layouts_with_the_same_losses(
    tokens, alone, before, after, then_sharded
):
    first, second = (a_run(*LAYOUTS[name], pieces=4) for name in (before, after))
    first = sharded(first)
    second = sharded(second) if then_sharded else second
    settings = some_settings(tokens, first)
    one = train(first, settings, steps=range(1, 3))
    other = train(second, settings, steps=range(3, 6), state=one.state())
    assert one.losses + other.losses == alone.losses
    assert equal(other.state(), alone.state())


def test_fast_sums_are_sharded_too(tokens, alone):
    layout = sharded(a_run(*LAYOUTS["pp2 x dp2"], pieces=4))
    ran = train(layout, some_settings(tokens, layout, deterministic=False), steps=range(1, 6))
    pairs = zip(ran.losses, alone.losses, strict=True)
    assert max(abs(a - b) for a, b in pairs) < 1e-5


def test_weights_are_handed_out_before_an_evaluation_too(tokens):
    layout = sharded(a_run(*LAYOUTS["dp3"], pieces=4))
    settings = some_settings(tokens, layout)
    ran = train(layout, settings, steps=range(1, 3), evaluate=True)
    plain = train(ALONE, settings, steps=range(1, 3), evaluate=True)
    assert ran.eval_losses == plain.eval_losses
