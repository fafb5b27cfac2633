"""What every worker of a run must agree on, besides the layout. Sent once. No torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerSettings:
    """AdamW with decoupled weight decay, and the learning-rate schedule around it."""

    learning_rate: float
    min_learning_rate: float
    schedule: str  # "cosine" | "wsd" | "constant"
    warmup_steps: int
    decay_steps: int  # wsd only: steps of the final decay
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip_norm: float  # global gradient norm; 0 = never clip


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSettings:
    """The training recipe: identical on every worker and in every generation."""

    seed: int
    total_steps: int
    sequence_length: int
    global_batch_size: int
    optimizer: OptimizerSettings
    tokens_path: str  # folder with the memory-mapped shards written by sailor.data.tokens
    deterministic: bool  # exact sums: DP and PP changes do not alter a bit
    compute_dtype: str  # "float32" | "bfloat16"
    device: str  # "cpu" | "cuda"
    eval_every: int  # steps; 0 = only before the first and after the last step
    eval_samples: int  # held-out sequences per evaluation
    snapshot_every: int  # steps between in-memory snapshots; 0: from what they cost and hazard
    persist_every: int  # steps between durable checkpoints; 0 = only at the end
    guard: str = "stop"  # on a step that is not fit to be applied: "stop" | "skip" | "rollback"
    spike_factor: float = 0.0  # a loss so many times the usual is not fit; 0: however large
    sequence_parallel: bool = False  # tensor groups split sequences between their cut parts
    compile_blocks: bool = False  # torch.compile
    init_from: str = ""  # folder the weights of step 0 come from; "" = from the seed
