"""Seconds of a step for many runs at once: the physics of timing.py and analytic.py in columns.

    step = microbatches * (slowest stage + sending) + bubble + gradient reduction + optimizer + host

with what other engines add: interleaved schedules divide the bubble, full sharding gathers weights
for every microbatch, context parallelism passes keys and values around. ``numbers`` are those of
priors.STEP, as an array in their order (logarithms), so that fit.py can move them.
"""

from __future__ import annotations

import numpy as np

from sailor.profile.stacks.priors import ATTENTION_BACKWARD, LAUNCHES, STEP, TENSORS
from sailor.profile.stacks.runs import Column, Mask, Runs

NAMES = tuple(STEP)


def step_seconds(runs: Runs, numbers: Column) -> Column:
    """Seconds of one optimizer step."""
    return sum_of(step_terms(runs, numbers))


def sum_of(terms: dict[str, Column]) -> Column:
    """All terms together."""
    total: Column = np.sum(list(terms.values()), axis=0)
    return total


def step_terms(runs: Runs, numbers: Column) -> dict[str, Column]:
    """The step taken apart."""
    p = dict(zip(NAMES, np.exp(numbers), strict=True))
    several = runs["num_gpus"] > runs["machine_gpus"]
    network = runs["network_bytes"] * np.where(runs["tcp"] > 0, p["tcp_share"], p["network_share"])
    # Cards without NVLink pass through host memory, and share it.
    link = runs["link"] * p["link_share"] * np.where(runs["tcp"] > 0, p["host_share"], 1.0)
    block, exchange = _block(runs, p, link, network)
    head = _head(runs, p)
    pipelined = runs["pp"] > 1
    # The slowest stage sets the pace. Where a source states its stages, that is a long one inside
    # or the last with the head; elsewhere even ones, and a last one that has little to spare.
    ends = (runs["inner_blocks"] - runs["last_blocks"]) * (block + exchange) < head
    blocks = np.where(ends, runs["last_blocks"], runs["inner_blocks"])
    shown = np.where(runs["stages_stated"] > 0, ends, p["end_stage"])
    shown = np.where(pipelined, shown, 1.0) * head
    compute = blocks * (block + exchange) + shown
    gather = _gathering(runs, p, link, network, several)
    width = np.where(runs["fp32"] > 0, 4.0, 2.0)
    tokens = runs["microbatch"] * runs["tokens_per_sequence"] / runs["cp"]
    boundary = tokens * runs["hidden"] * width
    boundary = boundary / np.where(runs["sequence_parallel"] > 0, runs["tp"], 1.0)
    rate = np.where(several, network / runs["machine_gpus"] * p["boundary_share"], link)
    send = np.where(pipelined, 2 * boundary / rate * runs["interleaving"], 0.0)
    rounds = np.maximum(1.0, runs["global_batch"] / (runs["microbatch"] * runs["dp"]))
    # Weights are gathered while the block before computes; some of the shorter one shows.
    hidden = np.maximum(gather - compute, 0.0) + p["gather_exposed"] * np.minimum(compute, gather)
    # The first ZeRO-3 waited for every gather (DeepSpeed issue 1069).
    hidden = np.where(runs["early_zero3"] > 0, gather, hidden)
    # A pipeline fills by what its other stages take for one microbatch, as in timing.py.
    others = np.maximum(runs["layers"] * (block + exchange) + head - compute, 0.0)
    return {
        "compute": rounds * blocks * block,
        "tensor-parallel exchange": rounds * blocks * exchange,
        "head": rounds * shown,
        # In a pipeline weights stay whole for a step: they would be gathered for every microbatch.
        "weight gathering": np.where(pipelined, 1.0, rounds) * hidden,
        "stage to stage": rounds * send,
        "pipeline bubble": (others + (runs["pp"] - 1) * send) / runs["interleaving"],
        "gradient reduction": _reduction(
            runs, p, link, network, several, blocks, backward=compute * 2 / 3
        ),
        "optimizer": _optimizer(runs, p),
        "host": np.full(len(runs), p["host_seconds"]),
    }


def matmul_rate(runs: Runs, p: dict[str, float]) -> Column:
    """FLOP/s of matrix products in 16 bit (or fp32), with saturation in width and tokens."""
    efficiency = np.full(len(runs), p["matmul_other"])
    for name in ("A100", "H100", "B200", "V100", "T4", "GeForce"):
        efficiency = np.where(runs.classes == name, p[f"matmul_{name}"], efficiency)
    ceiling = runs["matmul"] * np.where(runs["fp32"] > 0, 0.5, 1.0)
    width = runs["hidden"] / runs["tp"]
    tokens = runs["microbatch"] * runs["tokens_per_sequence"] / runs["cp"]
    saturation = 1 / (1 + p["half_width"] / width) / (1 + p["half_tokens"] / tokens)
    # Tensor cores want multiples of 64: a hidden size of 14,400 cut eight ways is not.
    odd = (width % 64 != 0) | ((runs["inner"] / runs["tp"]) % 64 != 0)
    rate: Column = ceiling * efficiency * saturation / np.where(odd, p["misaligned"], 1.0)
    return rate


def _block(runs: Runs, p: dict[str, float], link: Column, network: Column) -> tuple[Column, Column]:
    """Forward, backward and recompute of one block; and its exchanges."""
    tp, hidden, inner = runs["tp"], runs["hidden"], runs["inner"]
    tokens = runs["microbatch"] * runs["tokens_per_sequence"] / runs["cp"]
    width = np.where(runs["fp32"] > 0, 4.0, 2.0)
    bandwidth = runs["memory_rate"] * p["memory_share"]
    gain = 1 + runs["fp8"] * (runs["fp8_gain"] - 1) * p["fp8_share"]
    products = 2 * tokens * runs["block_parameters"] / tp / (matmul_rate(runs, p) * gain)
    ceiling = runs["matmul"] * np.where(runs["fp32"] > 0, 0.5, 1.0)
    share = np.full(len(runs), p["attention_A100"])
    share = np.where(runs.classes == "H100", p["attention_H100"], share)
    share = np.where(runs.classes == "B200", p["attention_B200"], share)
    share = share * np.where(runs["fast_attention"] > 0, p["attention_cudnn"], 1.0)
    share = share / (1 + p["half_sequence"] / runs["tokens_per_sequence"])
    share = np.where(runs["fused_attention"] > 0, share, p["attention_unfused"])
    # Causal: half of the score matrix. Unfused attention also moves that matrix several times.
    attention = 2 * tokens * runs["tokens_per_sequence"] * hidden / tp / (ceiling * share)
    # Contiguous shares of a sequence are unequal work under a causal mask: the last one looks back
    # at all others. Balanced engines deal out early and late pieces together.
    uneven = np.where(runs["contiguous_context"] > 0, 2 - 1 / runs["cp"], 1.0)
    attention = attention * uneven
    scores = tokens * runs["tokens_per_sequence"] * runs["heads"] / tp * width
    attention = attention + np.where(
        runs["fused_attention"] > 0, 0.0, scores * p["score_passes"] / bandwidth
    )
    whole = hidden * 10 / np.where(runs["sequence_parallel"] > 0, tp, 1.0)
    cut = (hidden * 4 + inner * (3 + 2 * runs["gated"])) / tp
    # Compilers and fused kernels keep in registers what eager kernels write and read again.
    passes = np.where(runs["fused_kernels"] > 0, p["elementwise_fused"], p["elementwise"])
    elementwise = tokens * (whole + cut) * width * passes / bandwidth
    launch = LAUNCHES * np.where(runs["eager_python"] > 0, p["launch_python"], p["launch"])
    forward = np.hypot(products + attention + elementwise, launch)
    backward = np.hypot(2 * (products + elementwise) + ATTENTION_BACKWARD * attention, 2 * launch)
    # Every microbatch's gradient is added to the sum: two reads and a write.
    backward = backward + 3 * width * runs["block_parameters"] / tp / bandwidth
    again = (
        runs["recompute_all"] * forward
        + runs["recompute_attention"] * p["recompute_attention"] * attention
        + runs["recompute_some"] * p["recompute_some"] * forward
        + runs["recompute_cheap"] * elementwise
    )
    between = np.where(
        tp <= runs["nvlink_gpus"],
        link,
        runs["network_bytes"] / runs["machine_gpus"] * p["network_share"],
    )
    moved = 2 * (tp - 1) / tp * tokens * hidden * width
    exchange = np.where(tp > 1, 4 * (moved / between + p["ring_seconds"] * tp), 0.0)
    exchange = exchange * (1 + 0.5 * runs["recompute_all"])
    passed = 3 * (runs["cp"] - 1) * tokens * 2 * hidden * runs["kv_share"] / tp * 2
    around = np.where(runs["cp"] > 1, passed / (network / runs["machine_gpus"] * 4), 0.0)
    return forward + backward + again, exchange + around


def _head(runs: Runs, p: dict[str, float]) -> Column:
    """Output matrix and loss of one microbatch; never in fp8."""
    tokens = runs["microbatch"] * runs["tokens_per_sequence"] / runs["cp"]
    bandwidth = runs["memory_rate"] * p["memory_share"]
    arithmetic = 6 * tokens * runs["hidden"] * runs["vocab"] / runs["tp"] / matmul_rate(runs, p)
    head: Column = p["head"] * (arithmetic + tokens * runs["vocab"] / runs["tp"] * 24 / bandwidth)
    return head


def _gathering(
    runs: Runs, p: dict[str, float], link: Column, network: Column, several: Mask
) -> Column:
    """Full sharding: two gathers and one scatter of a rank's weights for every microbatch."""
    width = np.where(runs["fp32"] > 0, 4.0, 2.0)
    held = runs["parameters"] / runs["tp"] / runs["pp"] * width
    alone = runs["sharded_gradients"] * (runs["pp"] <= 1)
    sharded = np.minimum(1.0, runs["sharded_all"] + alone + runs["sharded_machine"])
    group = np.where(
        runs["sharded_machine"] > 0,
        np.minimum(runs["machine_gpus"], runs["num_gpus"]),
        runs["num_gpus"],
    )
    across = (runs["sharded_machine"] == 0) & (several > 0)
    rings = np.where(
        runs["tp"] * runs["pp"] > 1,
        np.minimum(runs["machine_gpus"], runs["tp"] * runs["pp"]),
        1.0,
    )
    each = np.where(across, held * rings / network, held * (group - 1) / group / link)
    each = each / np.where(runs["early_zero3"] > 0, p["early_zero3"], 1.0)
    # It gathered tensor by tensor too, until pull request 1453; others a block at a time.
    at_once = np.where(runs["early_zero3"] > 0, TENSORS, 1.0)
    starts = 3 * runs["layers"] / runs["pp"] * at_once * group * p["gather_seconds"]
    seconds: Column = sharded * ((3 - runs["sharded_gradients"]) * each + starts)
    return seconds


def _reduction(
    runs: Runs, p: dict[str, float], link: Column, network: Column, several: Mask, blocks: Column,
    *, backward: Column,
) -> Column:  # fmt: skip
    """Rings of gradients over replicas, and what optimizer sharding gathers afterwards.

    Stacks that overlap it hide half behind the last microbatch's ``backward``, half (the weights
    that are gathered again) behind the first one's forward: no more than those take.
    """
    width = np.where(runs["fp32"] > 0, 4.0, 2.0)
    held = runs["parameters"] / runs["tp"] / runs["pp"]
    dp = runs["dp"]
    moved = held * 2 * width * (dp - 1) / np.maximum(dp, 1.0)
    # DeepSpeed's ZeRO-1 sums whole gradients and gathers weights after (DeepSpeed issue 5758).
    moved = moved * np.where((runs["sharded_optimizer"] > 0) & (runs["deepspeed"] > 0), 1.5, 1.0)
    rings = np.minimum(runs["machine_gpus"], runs["tp"] * runs["pp"])
    alone = runs["sharded_gradients"] * (runs["pp"] <= 1)
    sharded = np.minimum(1.0, runs["sharded_all"] + alone + runs["sharded_machine"])
    ring = np.where(several, moved * rings / network, moved / link)
    shown = ring * p["reduction_exposed"]
    hidden = np.maximum(ring - 1.5 * backward, 0.0) + p["overlap_shown"] * np.minimum(
        ring, 1.5 * backward
    )
    shown = np.where(runs["overlapped_reduction"] > 0, np.minimum(hidden, shown), shown)
    seconds = shown * (1 - sharded)
    between = np.where((runs["sharded_machine"] > 0) & several, held * 4 / network, 0.0)
    seconds = seconds + between * p["reduction_exposed"]
    gather = np.where((runs["gather_exposed"] > 0) & several, dp * blocks, 0.0)
    total: Column = seconds + gather * p["owner_seconds"]
    return total


def _optimizer(runs: Runs, p: dict[str, float]) -> Column:
    held = runs["parameters"] / runs["tp"] / runs["pp"]
    owners = np.where(runs["shard_group"] > 0, runs["shard_group"], runs["dp"])
    share = np.where(
        runs["sharded_optimizer"] > 0,
        owners,
        np.where(runs["sharded_all"] > 0, runs["num_gpus"], 1.0),
    )
    seconds: Column = p["optimizer"] * held * 30 / share / runs["memory_rate"]
    return seconds


def with_unstated_choices(runs: Runs, numbers: Column) -> Runs:
    """Runs whose microbatch is not stated are taken at the fastest that fits: 1 to 16, plain or
    interleaved. What a source leaves out it did not leave to chance."""
    unknown = runs["microbatch_stated"] == 0
    if not unknown.any():
        return runs
    best = np.full(len(runs), np.inf)
    sizes, depths = runs["microbatch"].copy(), runs["interleaving"].copy()
    per_stage = np.ceil(runs["layers"] / runs["pp"])
    for size in (1.0, 2.0, 4.0, 8.0, 16.0):
        for interleaved in (False, True):
            tried = runs.with_columns(
                microbatch=np.where(
                    unknown,
                    np.minimum(size, np.maximum(1.0, runs["global_batch"] / runs["dp"])),
                    runs["microbatch"],
                ),
                interleaving=np.where(
                    unknown & (runs["pp"] > 1) & interleaved,
                    np.minimum(8.0, per_stage),
                    runs["interleaving"],
                ),
            )
            # Kept activations of the usual 34 bytes a token and width, in half of an 80 GB GPU.
            kept = 34 * tried["microbatch"] * runs["tokens_per_sequence"] * runs["hidden"]
            kept = kept * runs["layers"] / runs["pp"] / runs["tp"]
            fits = (kept < 40e9) | (runs["recompute_all"] > 0) | (size == 1.0)
            seconds = step_seconds(tried, numbers)
            better = unknown & fits & (seconds < best)
            best = np.where(better, seconds, best)
            sizes = np.where(better, tried["microbatch"], sizes)
            depths = np.where(better, tried["interleaving"], depths)
    return runs.with_columns(microbatch=sizes, interleaving=depths)
