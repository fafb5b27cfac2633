"""A plan in the words of other engines: Megatron-LM, torchtitan, DeepSpeed. Text only.

Those engines know one mesh: every replica is cut alike, on GPUs of one kind, with one
tensor-parallel degree and the same number of microbatches. A plan that is more than that is refused
with what they have no word for, never bent into something they would run differently.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sailor.models.spec import Activation, Family, ModelSpec, Norm, Positions
from sailor.plan import Plan
from sailor.profile.profile import Numerics


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """What one engine is told, or why it cannot be told. ``form`` is arguments, toml or json."""

    engine: str
    form: str
    text: str
    refused: tuple[str, ...] = ()


def exports(plan: Plan, *, spec: ModelSpec, numerics: Numerics) -> tuple[Export, ...]:
    """The plan for every engine we know."""
    writers: Mapping[str, tuple[str, Callable[[Plan, ModelSpec, Numerics], list[str] | str]]] = {
        "megatron-lm": ("arguments", _megatron),
        "torchtitan": ("toml", _torchtitan),
        "deepspeed": ("json", _deepspeed),
    }
    found = []
    for engine, (form, write) in writers.items():
        refused = tuple(_refusals(plan, spec, engine))
        said = "" if refused else write(plan, spec, numerics)
        text = said if isinstance(said, str) else shlex.join(said)
        found.append(Export(engine=engine, form=form, text=text, refused=refused))
    return tuple(found)


def _refusals(plan: Plan, spec: ModelSpec, engine: str) -> list[str]:
    """What of the plan the engine has no word for."""
    first = plan.replicas[0]
    found = []
    cuts = {tuple(len(stage.layers) for stage in replica.stages) for replica in plan.replicas}
    if len(cuts) > 1:
        found.append("replicas that are cut differently")
    degrees = {stage.tensor_parallel for _, _, stage in plan.stages()}
    if len(degrees) > 1:
        found.append(f"unequal tensor parallelism ({', '.join(map(str, sorted(degrees)))})")
    kinds = {stage.gpu for _, _, stage in plan.stages()}
    if len(kinds) > 1:
        found.append(f"GPUs of several kinds ({', '.join(sorted(kinds))})")
    shares = {(r.num_microbatches, r.microbatch_size) for r in plan.replicas}
    if len(shares) > 1:
        found.append("replicas with different shares of the batch (uneven data parallelism)")
    if len({stage.recompute for _, _, stage in plan.stages()}) > 1:
        found.append("recompute in some stages only")
    if engine == "torchtitan" and spec.family is not Family.llama:
        found.append(f"models of the {spec.family.value} family")
    if engine == "deepspeed":
        if degrees != {1}:
            found.append("tensor parallelism: the model itself must bring it")
        if first.num_stages > 1:
            found.append("pipeline stages: they are made in code (PipelineModule), not configured")
    if engine == "megatron-lm" and spec.sliding_window:
        found.append("a sliding window for all layers by arguments alone")
    return found


def _megatron(plan: Plan, spec: ModelSpec, numerics: Numerics) -> list[str]:
    """Arguments of pretrain_gpt.py with Megatron-Core models; data parallelism is what is left of
    the world. The layout string is 'Et*3|t*4|t*3L': E the embedding, t a block, L the head."""
    replica = plan.replicas[0]
    stages = replica.stages
    counts = [len(stage.layers) for stage in stages]
    words: list[str] = [
        "--use-mcore-models",
        "--tensor-model-parallel-size", str(stages[0].tensor_parallel),
        "--pipeline-model-parallel-size", str(len(stages)),
        "--micro-batch-size", str(replica.microbatch_size),
        "--global-batch-size", str(plan.global_batch_size),
        "--num-layers", str(spec.num_layers),
        "--hidden-size", str(spec.hidden_size),
        "--ffn-hidden-size", str(spec.ffn_hidden_size),
        "--num-attention-heads", str(spec.num_heads),
        "--kv-channels", str(spec.head_size),
        "--seq-length", str(plan.sequence_length),
        "--max-position-embeddings", str(spec.max_positions),
        "--norm-epsilon", f"{spec.norm_epsilon:g}",
    ]  # fmt: skip
    if len(set(counts)) > 1:
        parts = [f"t*{count}" if count > 1 else "t" for count in counts]
        layout = "|".join(["E" + parts[0], *parts[1:]]) + "L"
        words += ["--pipeline-model-parallel-layout", layout]
    if spec.num_kv_heads != spec.num_heads:
        words += ["--group-query-attention", "--num-query-groups", str(spec.num_kv_heads)]
    if spec.activation is Activation.swiglu:
        words.append("--swiglu")
    if spec.norm is Norm.rmsnorm:
        words += ["--normalization", "RMSNorm"]
    if spec.positions is Positions.rotary:
        words += ["--position-embedding-type", "rope", "--rotary-base", f"{spec.rope_theta:g}"]
    if not spec.tied_embeddings:
        words.append("--untie-embeddings-and-output-weights")
    if not spec.ffn_bias:
        words.append("--disable-bias-linear")
        if spec.attention_bias:
            words.append("--add-qkv-bias")
    if numerics.compute_bytes == 2:
        words.append("--bf16")
    if plan.optimizer_sharding:
        words.append("--use-distributed-optimizer")
    if stages[0].recompute:
        words += ["--recompute-granularity", "full", "--recompute-method", "uniform",
                  "--recompute-num-layers", "1"]  # fmt: skip
    return words


def _torchtitan(plan: Plan, spec: ModelSpec, numerics: Numerics) -> str:
    """The parts of a job's TOML that the plan decides."""
    replica = plan.replicas[0]
    stages = replica.stages
    replicas = len(plan.replicas)
    dtype = "bfloat16" if numerics.compute_bytes == 2 else "float32"
    lines = [
        "[training]",
        f"local_batch_size = {replica.num_samples}",
        f"global_batch_size = {plan.global_batch_size}",
        f"seq_len = {plan.sequence_length}",
        f'mixed_precision_param = "{dtype}"',
        "",
        "[parallelism]",
        # Its nearest word for state spread over replicas shards the weights too.
        f"data_parallel_replicate_degree = {1 if plan.optimizer_sharding else replicas}",
        f"data_parallel_shard_degree = {replicas if plan.optimizer_sharding else 1}",
        f"tensor_parallel_degree = {stages[0].tensor_parallel}",
        f"pipeline_parallel_degree = {len(stages)}",
    ]
    if len(stages) > 1:
        lines += [
            'pipeline_parallel_schedule = "1F1B"',
            f"pipeline_parallel_microbatch_size = {replica.microbatch_size}",
            "module_fqns_per_model_part = [",
        ]
        for index, stage in enumerate(stages):
            names = ["tok_embeddings"] if index == 0 else []
            names += [f"layers.{layer}" for layer in stage.layers]
            names += ["norm", "output"] if index == len(stages) - 1 else []
            lines.append(f"  {json.dumps(names)},")
        lines.append("]")
    mode = "full" if stages[0].recompute else "none"
    lines += ["", "[activation_checkpoint]", f'mode = "{mode}"']
    return "\n".join(lines) + "\n"


def _deepspeed(plan: Plan, spec: ModelSpec, numerics: Numerics) -> str:
    """The JSON configuration of data parallelism with or without ZeRO-1."""
    replica = plan.replicas[0]
    document = {
        "train_batch_size": plan.global_batch_size,
        "train_micro_batch_size_per_gpu": replica.microbatch_size,
        "gradient_accumulation_steps": replica.num_microbatches,
        "bf16": {"enabled": numerics.compute_bytes == 2},
        "zero_optimization": {"stage": 1 if plan.optimizer_sharding else 0},
    }
    if replica.stages[0].recompute:
        document["activation_checkpointing"] = {"number_checkpoints": spec.num_layers}
    return json.dumps(document, indent=2) + "\n"
