"""The analytic profile: orders of magnitude that are known, and the directions of all knobs."""

from __future__ import annotations

import pytest

from sailor.cluster.gpu import GPU_TYPES
from sailor.profile.analytic import AnalyticProfile
from sailor.profile.profile import Mark, Numerics, Part
from sailor.profile.stacks.fit import shipped
from sailor.profile.stacks.priors import STEP, gpu_class
from sailor.profile.stacks.runs import runs_of
from sailor.profile.stacks.step import step_terms
from tests.helpers.builders import a_spec
from tests.helpers.planning import a_gpu


def big_spec(**changes):
    fields = {"num_layers": 24, "hidden_size": 2048, "num_heads": 16, "num_kv_heads": 16,
              "head_size": 128, "ffn_hidden_size": 8192, "vocab_size": 50304,
              "max_positions": 2048}  # fmt: skip
    return a_spec(**{**fields, **changes})


def block(gpu="A100-40", *, spec=None, tp=1, size=4, tokens=2048, **changes):
    profile = AnalyticProfile(spec=spec or big_spec(), sequence_length=tokens, **changes)
    kind = GPU_TYPES[gpu] if isinstance(gpu, str) else gpu
    return profile.part_seconds(Part.block, gpu=kind, tensor_parallel=tp, microbatch_size=size)


@pytest.mark.parametrize(("gpu", "low", "high"), [("A100-40", 0.35, 0.7), ("H100-80", 0.3, 0.65)])
def test_a_large_block_runs_at_the_utilisation_seen_in_practice(gpu, low, high):
    """Published runs of billion-parameter models reach 40-55 % of the data sheet on A100, 35-50 %
    on H100, embedding and communication included; a block alone may do somewhat better."""
    spec = big_spec()
    flops = 6 * spec.block_parameters + 6 * 2048 * spec.num_heads * spec.head_size
    seconds = block(gpu)
    utilisation = flops * 4 * 2048 / (seconds.forward + seconds.backward)
    assert low < utilisation / GPU_TYPES[gpu].peak_flops < high


def test_backward_takes_about_twice_as_long_as_forward():
    seconds = block()
    assert 1.6 < seconds.backward / seconds.forward < 2.8


def test_small_work_is_bound_by_launches():
    small = block("H100-80", spec=a_spec(), size=1, tokens=16)
    assert small.forward > 22 * 5e-6


def test_tensor_parallelism_divides_work_and_adds_exchange():
    alone, four = block(tp=1), block(tp=4)
    assert four.forward < alone.forward
    assert four.communication > 0 == alone.communication


def test_a_faster_gpu_is_faster_and_fp32_is_slower():
    assert block("H100-80").forward < block("A100-40").forward < block("V100-16").forward
    fp32 = block(numerics=Numerics(compute_bytes=4))
    assert fp32.forward > block().forward


def test_a_scale_is_marked_calibrated():
    profile = AnalyticProfile(spec=big_spec(), sequence_length=2048, scale=1.2)
    assert profile.mark is Mark.calibrated
    assert block(scale=1.2).forward == pytest.approx(1.2 * block().forward)


def test_a_device_nobody_measured_is_taken_at_the_cautious_share():
    unknown = a_gpu(name="XPU-7", has_context=True)
    assert gpu_class(unknown) == "other"
    assert STEP["matmul_other"].fitted < STEP["matmul_A100"].fitted
    assert block(unknown).forward > 0


@pytest.mark.parametrize(
    ("gpu", "tp", "size"), [("A100-80", 1, 4), ("H100-80", 4, 2), ("T4-16", 2, 1)]
)
def test_plans_are_made_with_the_physics_that_accuracy_is_scored_on(gpu, tp, size):
    """One block and the head, by the scalar formulas and by the columns of the benchmark."""
    spec = big_spec(vocab_size=51200)
    row = {
        "gpu": {"A100-80": "A100-80-SXM", "H100-80": "H100-80-SXM", "T4-16": "T4-16"}[gpu],
        "source": "s", "model": "m", "framework": "DeepSpeed", "arch": "gpt", "layers": "1",
        "hidden": str(spec.hidden_size), "ffn_hidden": str(spec.ffn_hidden_size),
        "heads": str(spec.num_heads), "kv_heads": "", "vocab": str(spec.vocab_size), "seq": "2048",
        "num_gpus": str(tp), "tp": str(tp), "pp": "1", "dp": "1", "cp": "1", "vpp": "",
        "micro_batch": str(size), "global_batch": str(size), "gpus_per_node": "8",
        "precision": "bf16", "recompute": "none", "zero_fsdp": "none", "seq_parallel": "no",
        "flash_attn": "yes", "internode_gbps_per_node": "", "iter_time_s": "1",
    }  # fmt: skip
    runs, _ = runs_of([row])
    terms = step_terms(runs, shipped(STEP))
    one = block(gpu, spec=spec, tp=tp, size=size)
    assert one.forward + one.backward == pytest.approx(terms["compute"][0], rel=1e-9)
    assert one.communication == pytest.approx(
        terms["tensor-parallel exchange"][0], rel=1e-9, abs=1e-15
    )
    profile = AnalyticProfile(spec=spec, sequence_length=2048)
    head = profile.part_seconds(
        Part.head, gpu=GPU_TYPES[gpu], tensor_parallel=tp, microbatch_size=size
    )
    assert head.forward + head.backward == pytest.approx(terms["head"][0], rel=1e-9)
