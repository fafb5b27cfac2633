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
    states = _states(runs, p, sailor=sailor, deepspeed=deepspeed, internevo=internevo)
    moving = _moving(runs, p, first_stage_only=says(kinds, "rank 0"))
    total = states + moving + deepspeed * p["deepspeed_buffers"] + _gathered(runs, p)
    whole_device = says(kinds, "nvidia-smi", "not stated")
    reserved = says(kinds, "reserved")
    ranks = says(kinds, "over ranks") * (1 - reserved)
    total = np.select(
        [whole_device > 0, reserved > 0, ranks > 0],
        [
            total * p["whole_device_factor"] + p["whole_device_bytes"],
            total * p["reserved_factor"] + p["reserved_bytes"],
            total * p["ranks_factor"] + p["ranks_bytes"],
        ],
        total + p["allocated_bytes"],
    )
    unit = np.where(says(kinds, "GiB") > 0, 2.0**30, 1e9)
    gigabytes: Column = total / unit
    return gigabytes


def _held(runs: Runs) -> Column:
    """Parameters of the fullest rank."""
    blocks = np.ceil(runs["layers"] / runs["pp"] - 1e-9) * runs["block_parameters"] / runs["tp"]
    matrix = runs["vocab"] * runs["hidden"] / runs["tp"]
    both = np.where((runs["pp"] <= 1) & (runs["untied"] > 0), 2.0, 1.0)
    held: Column = blocks + matrix * both
    return held


def _states(
    runs: Runs, p: dict[str, float], *, sailor: Column, deepspeed: Column, internevo: Column
) -> Column:
    """Weights, gradients, master copy and Adam moments, by what each engine keeps."""
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
            2 + p["deepspeed_gradient_bytes"] + 12 / shared,
        ],
        np.where(runs["sharded_optimizer"] > 0, 6 + 12 / shared, 18.0),  # Megatron-Core
    )
    states: Column = _held(runs) * per_parameter
    return states


def _gathered(runs: Runs, p: dict[str, float]) -> Column:
    """Full sharding: some blocks, and the embedding, whole at a time. In a pipeline everything is:
    weights would be gathered for every microbatch, and gradients are summed before they are spread,
    in fp32."""
    sharded = np.minimum(1.0, runs["sharded_all"] + runs["sharded_machine"])
    blocks = p["gathered_blocks"] * runs["block_parameters"] / runs["tp"] * 2
    at_a_time = blocks + runs["vocab"] * runs["hidden"] / runs["tp"] * 4
    gathered: Column = sharded * np.where(runs["pp"] > 1, 6 * _held(runs), at_a_time)
    return gathered


def _moving(runs: Runs, p: dict[str, float], *, first_stage_only: Column) -> Column:
    """Activations in flight, work space and logits: first stage or last, whichever is fuller."""
    tp, pp, hidden = runs["tp"], runs["pp"], runs["hidden"]
    tokens = runs["microbatch"] * runs["tokens_per_sequence"] / runs["cp"]
    width = np.where(runs["fp32"] > 0, 4.0, 2.0)
    whole = 5 * hidden / np.where(runs["sequence_parallel"] > 0, tp, 1.0)
    cut = (2 * (1 + runs["kv_share"]) * hidden + runs["inner"] * (2 + runs["gated"])) / tp
    scores = runs["heads"] * runs["tokens_per_sequence"] * 2.5 / tp * p["score_matrix"]
    scores = np.where(runs["fused_attention"] > 0, 0.0, scores)
    block = tokens * (whole + cut + scores) * width * p["activations"]
    no_scores = tokens * (whole + cut) * width * p["activations"]
    inputs = tokens * hidden * width / np.where(runs["sequence_parallel"] > 0, tp, 1.0)
    kept = np.select(
        [
            runs["recompute_all"] > 0,
            runs["recompute_attention"] > 0,
            runs["recompute_some"] > 0,
        ],
        [inputs * p["checkpoints"], no_scores, block * p["kept_of_some"]],
        block,
    )
    rounds = np.maximum(1.0, runs["global_batch"] / (runs["microbatch"] * runs["dp"]))
    alive = np.minimum(pp, rounds)
    deeper = pp * (1 + (pp - 1) / pp / runs["interleaving"])
    alive = np.where(runs["interleaving"] > 1, np.minimum(deeper, rounds), alive)
    work = np.where(runs["recompute_all"] > 0, block, 0.0)
    work = work + tokens * runs["inner"] / tp * width * 2 * p["work_space"]
    per_logit = np.where(runs["sharded_all"] > 0, p["logit_bytes"], p["logit_bytes_fused"])
    blocks = np.ceil(runs["layers"] / pp - 1e-9)
    first = alive * blocks * kept + work
    last = blocks * kept + work + tokens * runs["vocab"] / tp * per_logit
    fullest = np.where(first_stage_only > 0, first, np.maximum(first, last))
    moving: Column = np.where(pp > 1, fullest, last)
    return moving
