"""Peak gigabytes of a GPU for many runs at once: the terms of memory.py in columns.

What other engines keep differs by a few bytes per parameter, and what a figure means by the tool
that read it: allocated tensors, reserved blocks, or everything nvidia-smi shows. ``numbers`` are
those of priors.PEAK (logarithms, in their order).
"""

from __future__ import annotations

import numpy as np

from sailor.profile.stacks.priors import PEAK
from sailor.profile.stacks.runs import Column, Runs

NAMES = tuple(PEAK)


def peak_gigabytes(runs: Runs, numbers: Column) -> Column:
    """In the unit of the source (GB of 1e9, or GiB where it says so)."""
    p = dict(zip(NAMES, np.exp(numbers), strict=True))
    kinds = [row.get("memory_kind", "") for row in runs.rows]
    frameworks = [row["framework"] for row in runs.rows]

    def says(texts: list[str], *words: str) -> Column:
        return np.array([float(any(word in text for word in words)) for text in texts])

    sailor = says(frameworks, "Sailor")
    deepspeed = says(frameworks, "DeepSpeed") * (1 - sailor)
    internevo = says(frameworks, "InternEvo")
    # What nvidia-smi showed is a machine's first GPU. Megatron-LM's log is the last rank's: only
    # that one has a writer (global_vars.py, _set_tensorboard_writer).
    of_first = says(kinds, "nvidia-smi")
    of_last = says(kinds, "rank 0")
    stages = _stages(runs, p, sailor=sailor, deepspeed=deepspeed, internevo=internevo)
    whole_device = says(kinds, "nvidia-smi", "not stated")
    reserved = says(kinds, "reserved")
    ranks = says(kinds, "over ranks") * (1 - reserved)
    beside = np.select(
        [whole_device > 0, reserved > 0, ranks > 0],
        [p["whole_device_bytes"], p["reserved_bytes"], p["ranks_bytes"]],
        p["allocated_bytes"],
    )
    # What comes and goes leaves holes; tensors that are counted one by one have none.
    holes = np.where(whole_device + reserved + ranks > 0, p["fragmentation"], 1.0)
    first, last, fullest = (states + holes * moving for states, moving in stages)
    highest = np.maximum(np.maximum(first, last), fullest)
    total = np.select([of_first > 0, of_last > 0], [first, last], highest)
    total = total + beside + deepspeed * p["deepspeed_buffers"]
    unit = np.where(says(kinds, "GiB") > 0, 2.0**30, 1e9)
    gigabytes: Column = total / unit
    return gigabytes


def _stages(
    runs: Runs, p: dict[str, float], *, sailor: Column, deepspeed: Column, internevo: Column
) -> tuple[tuple[Column, Column], ...]:
    """States, and what comes and goes, of the first stage, the last, and the one whose blocks keep
    most.

    Under 1F1B stage i of P has P - i microbatches in flight. With V interleaved pieces a stage it
    is 2 (P - i - 1) + (V - 1) P + 1 pieces (Megatron-LM, schedules.py: num_warmup_microbatches).
    """
    pp = runs["pp"]
    tp, one = runs["tp"], pp <= 1
    matrix = runs["vocab"] * runs["hidden"] / tp
    both = np.where(one & (runs["untied"] > 0), 2.0, 1.0)
    per_parameter, at_update = _bytes_per_parameter(
        runs, p, sailor=sailor, deepspeed=deepspeed, internevo=internevo
    )
    kept, work, logits = _activations(runs, p, sailor=sailor)
    elements = runs["microbatch"] * runs["tokens_per_sequence"] * runs["hidden"] / runs["cp"]
    width = np.where(runs["fp32"] > 0, 4.0, 2.0)
    # DeepSpeed keeps what a stage sent until its gradient is back (pipe/engine.py, outputs).
    sent = elements * width * np.minimum(1.0, deepspeed + sailor) * (pp > 1)
    # The mask of the embedding's dropout, a byte an element (Korthikanti et al., section 4.3).
    mask = elements * (1 - runs["gated"]) * (1 - sailor)
    mask = mask / np.where(runs["sequence_parallel"] > 0, tp, 1.0)
    rounds = np.maximum(1.0, runs["global_batch"] / (runs["microbatch"] * runs["dp"]))
    pieces = runs["interleaving"]
    in_first = pp + np.where(pieces > 1, (pp - 1) / pieces, 0.0)
    in_last = np.where(pieces > 1, pp - (pp - 1) / pieces, 1.0)
    found = []
    inner, always = runs["fullest_stage"] > 0, np.ones(len(runs), dtype=np.bool_)
    for blocks, matrices, alive, begins, ends in (
        (runs["first_blocks"], both, in_first, always, one),
        (runs["last_blocks"], both, in_last, one, always),
        (runs["fullest_blocks"], np.where(inner, 0.0, both),
         np.where(inner, pp - runs["fullest_stage"], in_first), ~inner, one),
    ):  # fmt: skip
        held = blocks * runs["block_parameters"] / tp + matrices * matrix
        flying = np.minimum(alive, rounds) * (blocks * kept + sent + begins * mask)
        moving = flying + work + np.where(ends, logits, 0.0)
        # An update needs its space when activations are gone.
        moving = np.maximum(moving, at_update * held)
        found.append((held * per_parameter + _gathered(runs, p, held), moving))
    return tuple(found)


def _bytes_per_parameter(
    runs: Runs, p: dict[str, float], *, sailor: Column, deepspeed: Column, internevo: Column
) -> tuple[Column, Column]:
    """Weights, gradients, master copy and Adam moments, by what each engine keeps; and what its
    update adds for its time.

    ZeRO-1 of DeepSpeed and InternEvo sums gradients in 16 bit, and copies an owner's share to fp32
    when it updates (stage_1_and_2.py, hybrid_zero_optim.py).
    """
    dp = runs["dp"] * runs["cp"]
    owners = np.where(runs["shard_group"] > 0, runs["shard_group"], dp)
    shared = np.where(runs["sharded_optimizer"] > 0, owners, 1.0)
    sharded = np.minimum(1.0, runs["sharded_all"] + runs["sharded_machine"])
    group = np.maximum(1.0, runs["num_gpus"] / runs["tp"] / runs["pp"])
    per_parameter = np.select(
        [sailor > 0, sharded > 0, internevo > 0, deepspeed > 0],
        [
            np.full(len(runs), p["sailor_bytes"]),
            # What an engine keeps of a parameter, it keeps of its share.
            np.where(internevo > 0, 14 + p["internevo_bytes"], 16.0) / group,
            2 + p["internevo_bytes"] + 12 / shared,
            4 + 12 / shared,
        ],
        np.where(runs["sharded_optimizer"] > 0, 6 + 12 / shared, 18.0),  # Megatron-Core
    )
    at_update = deepspeed * (1 - sharded) * 4 / shared
    return per_parameter, at_update


def _gathered(runs: Runs, p: dict[str, float], held: Column) -> Column:
    """Full sharding: some blocks, and the embedding, whole at a time. In a pipeline everything is:
    weights would be gathered for every microbatch, and gradients are summed before they are spread,
    in fp32."""
    sharded = np.minimum(1.0, runs["sharded_all"] + runs["sharded_machine"])
    blocks = p["gathered_blocks"] * runs["block_parameters"] / runs["tp"] * 2
    at_a_time = blocks + runs["vocab"] * runs["hidden"] / runs["tp"] * 4
    gathered: Column = sharded * np.where(runs["pp"] > 1, 6 * held, at_a_time)
    return gathered


def _activations(
    runs: Runs, p: dict[str, float], *, sailor: Column
) -> tuple[Column, Column, Column]:
    """Bytes of one microbatch that a block keeps, that it works with, and of logits.

    Korthikanti et al. 2022, section 4.1: with dropout 10 bytes of hidden size a token whole on
    every rank, 24 cut, 5 for every score; engines without dropout keep a score once, and no masks.
    """
    tp, hidden, inner = runs["tp"], runs["hidden"], runs["inner"]
    tokens = runs["microbatch"] * runs["tokens_per_sequence"] / runs["cp"]
    width = np.where(runs["fp32"] > 0, 4.0, 2.0)
    along = np.where(runs["sequence_parallel"] > 0, tp, 1.0)
    whole = np.where(sailor > 0, 4.0, 5.0) * hidden / along
    cut = (2 * (1 + runs["kv_share"]) * hidden + inner * (2 + runs["gated"])) / tp
    scores = runs["heads"] * runs["tokens_per_sequence"] / tp * np.where(sailor > 0, 1.0, 2.5)
    scores = np.where(runs["fused_attention"] > 0, 0.0, scores)
    per_token = tokens * width
    inputs = per_token * hidden / along
    no_scores = per_token * (whole + cut) * p["activations"]
    block = no_scores + per_token * scores
    # torchtitan's op-wise choice saves every other matrix product of seven (query, value, gate and
    # down projection), the attention's output and the block's input (parallelize_llama.py).
    some = inputs + per_token * (hidden / along + ((2 + runs["kv_share"]) * hidden + inner) / tp)
    kept = np.select(
        [runs["recompute_all"] > 0, runs["recompute_attention"] > 0, runs["recompute_some"] > 0],
        [inputs * p["checkpoints"], no_scores, some],
        block,
    )
    work = np.where(runs["recompute_all"] + runs["recompute_some"] > 0, block, 0.0)
    work = work + per_token * inner / tp * 2 * p["work_space"]
    unfused = (runs["sharded_all"] > 0) & (runs["compiled_loss"] == 0)
    per_logit = np.where(unfused, p["logit_bytes"], p["logit_bytes_fused"])
    return kept, work, tokens * runs["vocab"] / tp * per_logit
