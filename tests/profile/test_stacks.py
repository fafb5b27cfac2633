"""Published runs as columns, and what they are priced at: whose figure it is, what runs there."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.accuracy import bound_factor
from benchmarks.accuracy_floor import floors
from sailor.profile.stacks.fit import shipped
from sailor.profile.stacks.peak import peak_gigabytes
from sailor.profile.stacks.priors import PEAK, STEP
from sailor.profile.stacks.runs import runs_of
from sailor.profile.stacks.step import step_terms

ROW = {
    "gpu": "A100-80-SXM", "source": "s", "model": "m", "framework": "Megatron-Core", "arch": "gpt",
    "layers": "24", "hidden": "2048", "ffn_hidden": "8192", "heads": "16", "kv_heads": "",
    "vocab": "51200", "seq": "2048", "num_gpus": "8", "tp": "1", "pp": "4", "dp": "2", "cp": "1",
    "vpp": "", "micro_batch": "1", "global_batch": "64", "gpus_per_node": "8", "precision": "bf16",
    "recompute": "none", "zero_fsdp": "none", "seq_parallel": "no", "flash_attn": "yes",
    "internode_gbps_per_node": "", "iter_time_s": "1", "measured_memory_gb": "1",
    "memory_kind": "", "notes": "", "source_detail": "",
}  # fmt: skip


def one(**changed):
    runs, left_out = runs_of([{**ROW, **changed}])
    assert not left_out
    return runs


def column(name, **changed):
    return float(one(**changed)[name][0])


def peak(**changed):
    return float(peak_gigabytes(one(**changed), shipped(PEAK))[0])


def compute(**changed):
    return float(step_terms(one(**changed), shipped(STEP))["compute"][0])


def test_stages_are_those_that_a_source_states():
    note = "stage layers [5, 7, 7, 7] (incl. embedding+head layers)"
    stated = {"notes": note, "vocab": "1000"}  # a head that takes less than a block
    assert [column(f"{end}_blocks", **stated) for end in ("first", "inner", "last")] == [4, 7, 6]
    assert column("fullest_blocks", **stated) == 7
    assert column("fullest_stage", **stated) == 1
    assert compute(**stated) == pytest.approx(compute(vocab="1000") * 7 / 6)
    assert compute(notes=note) == compute()  # with a large one the last stage is the slowest


@pytest.mark.parametrize("note", ["", "stage layers [5, 7, 7] (incl. embedding+head layers)"])
def test_stages_that_no_note_or_a_wrong_one_states_are_even(note):
    assert column("first_blocks", notes=note) == column("last_blocks", notes=note) == 6


def test_a_pipeline_of_torchtitan_cuts_its_batch_into_as_many_microbatches_as_stages():
    titan = {"framework": "torchtitan", "micro_batch": "32"}
    assert column("microbatch", **titan) == 8
    assert column("microbatch", **titan, pp="1", dp="8") == 32
    assert column("interleaving", **titan, notes="interleaved 1F1B") == 2


def test_two_thirds_of_a_gated_width_are_rounded_up_as_the_code_does():
    assert column("inner", arch="llama(swiglu)", ffn_hidden="10922") == 11008
    assert column("inner", arch="gpt", ffn_hidden="10922") == 10922


def test_a_loss_compiled_with_the_model_keeps_less_of_its_logits():
    titan = {
        "framework": "torchtitan", "zero_fsdp": "fsdp2-full", "pp": "1", "dp": "8",
        "vocab": "128256", "micro_batch": "8", "notes": "torch.compile",
    }  # fmt: skip
    before, after = "llama3_h100_202412_torchtitan.md", "llama3-8b_h200_202506.md"
    assert peak(**titan, source_detail=after) < peak(**titan, source_detail=before)


def test_the_log_of_megatron_is_the_last_ranks_and_nvidia_smi_shows_the_first_gpu():
    """Of four stages the first has four microbatches in flight; the last has one, and logits."""
    assert peak(memory_kind="allocated, rank 0") < peak(memory_kind="allocated")
    many = {"vocab": "500000"}
    assert peak(memory_kind="nvidia-smi", **many) < peak(memory_kind="tool not stated", **many)


def test_scores_are_kept_where_attention_is_not_fused():
    assert peak(flash_attn="no") > 1.5 * peak(flash_attn="yes")
    assert peak(model="gpt3_mcore_te_tp1_pp4") == peak(flash_attn="no")
    assert peak(model="gpt3_mcore_te_tp1_pp4_resume_torch_dist") == peak()


def test_zero_of_deepspeed_sums_whole_gradients_and_gathers_weights_after():
    def reduction(framework):
        runs = one(framework=framework, zero_fsdp="zero1")
        return float(step_terms(runs, shipped(STEP))["gradient reduction"][0])

    assert reduction("Megatron-DeepSpeed") == pytest.approx(1.5 * reduction("Megatron"))


def test_the_bound_of_few_runs_is_their_worst_and_of_many_nearly():
    few, many = np.linspace(1, 2, 50), np.linspace(1, 2, 1001)
    assert bound_factor(few) == 2
    assert 1.99 < bound_factor(many) < 2


def test_runs_reported_alike_and_measured_differently_leave_an_error_to_any_model():
    peaks = ("40", "50", "50", "60")
    rows = [{**ROW, "measured_memory_gb": figure} for figure in peaks[:3]]
    runs, _ = runs_of([*rows, {**ROW, "tp": "2", "pp": "2", "measured_memory_gb": peaks[3]}])
    assert floors(runs, "memory_gb").tolist() == pytest.approx([0.25, 0, 0, 0])
