"""The models and cuts that engines are compared on. No torch.

The two Llama shapes, their batches and microbatches are those that other 3D codes were measured
with, so that rates can be put next to theirs as ratios to the same one-process model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sailor.data.corpus import Corpus, standard_library
from sailor.data.prepare import prepare
from sailor.data.source import TextSource
from sailor.data.tokenizer import tokenizer
from sailor.models.spec import Activation, Family, ModelSpec, Norm, Positions
from sailor.parallel.layout import Layout, WorkerId
from sailor.plan import Plan, Replica, Stage
from sailor.training.settings import OptimizerSettings, TrainSettings

SEQUENCE = 128
CUTS: dict[str, tuple[int, int, int]] = {  # tensor, pipeline, data parallel
    "one": (1, 1, 1),
    "tp2pp2": (2, 2, 1),
    "pp2dp2": (1, 2, 2),
    "dp2": (1, 1, 2),
    "dp4": (1, 1, 4),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A Llama-like model and the batch it is measured with. Bytes for tokens."""

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    ffn_hidden_size: int
    batch: int  # sequences of a step
    microbatch: int

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a global batch."""
        return self.batch * SEQUENCE

    def spec(self) -> ModelSpec:
        """The model in our terms."""
        return ModelSpec(
            name=self.name, family=Family.llama, num_layers=self.num_layers,
            hidden_size=self.hidden_size, num_heads=self.num_heads, num_kv_heads=self.num_heads,
            head_size=self.hidden_size // self.num_heads, ffn_hidden_size=self.ffn_hidden_size,
            vocab_size=256, max_positions=SEQUENCE, tied_embeddings=False,
            activation=Activation.swiglu, norm=Norm.rmsnorm, norm_epsilon=1e-6,
            positions=Positions.rotary, attention_bias=False, attention_output_bias=False,
            ffn_bias=False,
        )  # fmt: skip


SHAPES = {
    "tiny": Shape(
        name="tiny", num_layers=2, hidden_size=32, num_heads=4, ffn_hidden_size=64, batch=4,
        microbatch=1,
    ),
    "3m": Shape(
        name="3m", num_layers=4, hidden_size=256, num_heads=8, ffn_hidden_size=816, batch=8,
        microbatch=2,
    ),
    "25m": Shape(
        name="25m", num_layers=8, hidden_size=512, num_heads=8, ffn_hidden_size=1376, batch=4,
        microbatch=1,
    ),
}  # fmt: skip


def plan_of(shape: Shape, cut: str, *, batch: int | None = None, sharded: bool = False) -> Plan:
    """The shape, cut into equal parts; replicas share the batch and, if ``sharded``, the
    optimizer's work and memory."""
    tensor, pipeline, data = CUTS[cut]
    layers, left = divmod(shape.num_layers, pipeline)
    assert left == 0
    stages = tuple(
        Stage(
            layers=range(s * layers, (s + 1) * layers), gpu="cpu", machine_type="local",
            zone="local", tensor_parallel=tensor,
        )
        for s in range(pipeline)
    )  # fmt: skip
    count = (batch or shape.batch) // (shape.microbatch * data)
    replica = Replica(stages=stages, num_microbatches=count, microbatch_size=shape.microbatch)
    return Plan(
        model=shape.name, replicas=(replica,) * data, sequence_length=SEQUENCE,
        optimizer_sharding=sharded,
    )  # fmt: skip


def layout_of(plan: Plan, spec: ModelSpec, *, apart: bool = False) -> Layout:
    """The plan on made-up workers of one machine, or of as many machines if ``apart``."""
    workers = tuple(
        WorkerId(node=f"m{s}", slot=0, incarnation=1)
        if apart
        else WorkerId(node="here", slot=s, incarnation=1)
        for s in range(plan.num_gpus)
    )
    pieces = max(stage.tensor_parallel for _, _, stage in plan.stages())
    return Layout(plan=plan, spec=spec, pieces=pieces, workers=workers)


def settings_of(plan: Plan, *, tokens: str, deterministic: bool) -> TrainSettings:
    """AdamW with decay and a clip that never bites but is always computed."""
    optimizer = OptimizerSettings(
        learning_rate=1e-4, min_learning_rate=1e-4, schedule="constant", warmup_steps=0,
        decay_steps=0, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1, clip_norm=1e6,
    )  # fmt: skip
    return TrainSettings(
        seed=1, total_steps=1_000_000, sequence_length=plan.sequence_length,
        global_batch_size=plan.global_batch_size, optimizer=optimizer, tokens_path=tokens,
        deterministic=deterministic, compute_dtype="float32", device="cpu", eval_every=0,
        eval_samples=4, snapshot_every=1, persist_every=0,
    )  # fmt: skip


def some_text(directory: Path) -> str:
    """A prepared folder of a few modules of the standard library, as bytes."""
    library = standard_library()
    files = tuple(file for file in library.files if file.name in {"argparse.py", "ast.py"})
    corpus = Corpus(name="two modules", root=library.root, files=files)
    return str(prepare(TextSource(corpus, tokenizer("bytes")), directory=directory).path)
