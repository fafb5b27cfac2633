"""The memory bound: arithmetic that can be checked by hand, and monotone in everything."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sailor.cluster.gpu import GPU_TYPES
from sailor.parallel.state import StageState
from sailor.planner.memory import (
    CONTEXT_BYTES,
    Cut,
    Rooms,
    memory_coefficients,
    most_blocks,
    stage_bytes,
    stage_memory,
)
from sailor.planner.term import total
from sailor.profile.profile import Numerics
from tests.helpers.builders import a_layout, a_plan, a_spec
from tests.helpers.planning import a_gpu

WHOLE = Cut(num_blocks=4, first=True, last=True)


def coefficients(spec=None, *, tp=1, size=1, tokens=16, recompute=False, width=4, exact=False):
    return memory_coefficients(
        spec or a_spec(), tensor_parallel=tp, microbatch_size=size, sequence_length=tokens,
        recompute=recompute, numerics=Numerics(compute_bytes=width, deterministic=exact),
    )  # fmt: skip


def peak(each, cut=WHOLE, *, alive=1, owners=1, sharding=False, gpu=None):
    return stage_bytes(
        each, cut, num_in_flight=alive, num_owners=owners, optimizer_sharding=sharding,
        gpu=gpu or a_gpu(),
    )  # fmt: skip


def test_a_whole_model_on_one_worker_has_sixteen_bytes_for_each_parameter():
    spec = a_spec()
    terms = stage_memory(
        coefficients(spec), WHOLE, num_in_flight=1, num_owners=1, optimizer_sharding=False,
        gpu=a_gpu(),
    )  # fmt: skip
    state = {t.name: t.value for t in terms}
    held = state["weights"] + state["gradients"] + state["optimizer"]
    assert held == 16 * spec.num_parameters


def test_exact_sums_take_eight_bytes_more():
    spec = a_spec()
    more = peak(coefficients(spec, exact=True)) - peak(coefficients(spec))
    assert more == 8 * spec.num_parameters


def test_stages_of_a_tied_model_hold_the_token_matrix_twice():
    spec = a_spec()
    each = coefficients(spec)
    first = each.parameters(Cut(num_blocks=2, first=True, last=False))
    last = each.parameters(Cut(num_blocks=2, first=False, last=True))
    assert first + last == spec.num_parameters + spec.vocab_size * spec.hidden_size


def test_the_terms_add_up_to_the_number_the_search_uses():
    each = coefficients(width=2, exact=True, recompute=True, tp=2)
    for gpu in (a_gpu(), GPU_TYPES["A100-40"]):
        terms = stage_memory(
            each, WHOLE, num_in_flight=3, num_owners=4, optimizer_sharding=True, gpu=gpu
        )
        found = peak(each, alive=3, owners=4, sharding=True, gpu=gpu)
        assert total(terms) == pytest.approx(found, rel=1e-12)  # another order of the same sum


def test_a_driver_context_is_counted_on_gpus_only():
    each = coefficients()
    names = {
        t.name
        for t in stage_memory(
            each, WHOLE, num_in_flight=1, num_owners=1, optimizer_sharding=False, gpu=a_gpu()
        )
    }
    assert "context" not in names
    assert peak(each, gpu=GPU_TYPES["A100-40"]) > peak(each) + (1 << 30)


@settings(deadline=None)
@given(
    size=st.sampled_from([1, 2, 4]),
    blocks=st.integers(1, 3),
    alive=st.integers(1, 4),
    owners=st.integers(2, 8),
    recompute=st.booleans(),
    ends=st.tuples(st.booleans(), st.booleans()),
)
def test_more_of_anything_never_takes_less_memory(size, blocks, alive, owners, recompute, ends):
    cut = Cut(num_blocks=blocks, first=ends[0], last=ends[1])
    bigger = Cut(num_blocks=blocks + 1, first=ends[0], last=ends[1])
    each = coefficients(size=size, recompute=recompute)
    base = peak(each, cut, alive=alive, owners=owners)
    assert peak(each, bigger, alive=alive, owners=owners) > base
    assert peak(each, cut, alive=alive + 1, owners=owners) > base
    assert peak(coefficients(size=2 * size, recompute=recompute), cut, alive=alive) > base
    assert peak(each, cut, alive=alive, owners=owners, sharding=True) < base
    assert peak(coefficients(size=size, recompute=recompute, tp=2), cut, alive=alive) < base


def test_recompute_pays_off_once_several_microbatches_are_alive():
    assert peak(coefficients(recompute=True), alive=4) < peak(coefficients(), alive=4)


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("sharding", [False, True])
def test_states_are_no_less_than_what_the_engine_keeps(width, sharding):
    spec = a_spec(hidden_size=64, ffn_hidden_size=256)
    plan = replace(a_plan([2], [2]), optimizer_sharding=sharding)
    layout = a_layout(plan, spec=spec)
    dtype = torch.bfloat16 if width == 2 else torch.float32
    numerics = Numerics(compute_bytes=width)
    each = memory_coefficients(
        spec, tensor_parallel=1, microbatch_size=1, sequence_length=16, recompute=False,
        numerics=numerics,
    )  # fmt: skip
    for rank in range(4):
        state = StageState(layout, rank, device=torch.device("cpu"), dtype=dtype)
        stage = rank % 2
        cut = Cut(num_blocks=2, first=stage == 0, last=stage == 1)
        owners = 2 if sharding else 1
        kept = each.kept(cut, num_owners=owners)
        said = width * each.parameters(cut) + each.state_bytes_per_parameter * kept
        # The engine starts every parameter on a 64-byte line of each array.
        slack = 64 * 4 * len(state.slots)
        assert state.state_bytes <= said + slack


@settings(deadline=None)
@given(
    memory_mib=st.floats(0.1, 40.0),
    owners=st.sampled_from([1, 2, 8]),
    size=st.sampled_from([1, 2, 8]),
    sharding=st.booleans(),
    recompute=st.booleans(),
    on_gpu=st.booleans(),
    ends=st.sampled_from([(True, True), (True, False), (False, True), (False, False)]),
)
def test_the_most_blocks_for_every_number_in_flight_are_those_one_by_one(
    memory_mib, owners, size, sharding, recompute, on_gpu, ends
):
    gpu = GPU_TYPES["A100-40"] if on_gpu else a_gpu()
    # A context alone is a GiB: the rest is what the blocks of the small model compete for.
    gpu = replace(gpu, memory_bytes=int(memory_mib * 2**20) + (on_gpu * CONTEXT_BYTES))
    question = {
        "num_blocks": 4, "first": ends[0], "last": ends[1], "num_owners": owners,
        "optimizer_sharding": sharding, "gpu": gpu,
    }  # fmt: skip
    each = coefficients(size=size, recompute=recompute)
    rooms = Rooms(each, **question)
    for alive in range(1, 7):
        assert rooms.most_blocks(alive) == most_blocks(each, num_in_flight=alive, **question)
