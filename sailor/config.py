"""What a user may say, as types: one dataclass per group of conf/, every field with its meaning.

Plain and unfrozen because Hydra fills them in; the code behind works with the frozen values that
actions/domain.py makes of them. Ranges and rules across fields are in sailor/rules.py. Quantities
with a unit are strings ("24h", "80GiB", "20B"), read by sailor/units.py. No field may hold a
secret: name an environment variable of the cloud's own tools instead.

Standard library only, apart from the model's enumerations, which are too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from sailor.models.spec import Activation, Family, Norm, Positions

MIXTURE = "data.mixture"
"""The key below which the user names sources."""
SOURCE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
"""What a source may be called: its files are named after it."""


class Schedule(Enum):
    """The learning rate after warm-up."""

    cosine = "cosine"
    wsd = "wsd"
    constant = "constant"


class Guard(Enum):
    """What happens on a step whose loss is not a number, or is a spike."""

    stop = "stop"
    skip = "skip"
    rollback = "rollback"


class Dtype(Enum):
    """The number format of matrix products. Weights and optimizer state are float32 always."""

    float32 = "float32"
    bfloat16 = "bfloat16"


class Objective(Enum):
    """What the planner looks for among the plans that keep every limit."""

    min_cost_to_finish = "min_cost_to_finish"
    min_cost_per_token = "min_cost_per_token"
    min_time = "min_time"
    max_throughput = "max_throughput"


class ExportFormat(Enum):
    """The forms a model leaves in."""

    hf = "hf"
    dcp = "dcp"


class Device(Enum):
    """What a worker computes on."""

    cpu = "cpu"
    cuda = "cuda"


class ControllerPlace(Enum):
    """Where a run's controller lives: in the command that starts it, or on a machine of its own."""

    here = "here"
    cluster = "cluster"


class UiMode(Enum):
    """How a run shows itself: a live table, plain lines, or one JSON event per line."""

    auto = "auto"
    plain = "plain"
    live = "live"
    json = "json"


class Output(Enum):
    """What goes to standard output: text for people, or exactly one JSON document."""

    text = "text"
    json = "json"


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    """The shape of the transformer: the fields of sailor.models.spec.ModelSpec, and its origin."""

    name: str
    """What plans, reports and run names call it."""
    family: Family
    """Which module builds it."""
    num_layers: int
    """Transformer blocks."""
    hidden_size: int
    """Width of the residual stream."""
    num_heads: int
    """Query heads."""
    num_kv_heads: int
    """Key and value heads; fewer than num_heads is grouped-query attention."""
    head_size: int
    """Width of one head."""
    ffn_hidden_size: int
    """Inner width of the feed-forward part."""
    vocab_size: int
    """Rows of the token matrix; at least the tokenizer's number of tokens."""
    max_positions: int
    """Longest sequence, in tokens."""
    tied_embeddings: bool
    """Whether the output matrix is the token matrix."""
    activation: Activation
    """The feed-forward non-linearity."""
    norm: Norm
    """The normalisation before each part of a block."""
    norm_epsilon: float
    """Added under the root of the normalisation."""
    positions: Positions
    """How a token knows its place."""
    rope_theta: float = 10_000.0
    """Base of the rotary frequencies."""
    attention_bias: bool = True
    """Whether query, key and value projections add a bias."""
    attention_output_bias: bool = True
    """Whether the attention's output projection adds a bias."""
    ffn_bias: bool = True
    """Whether the feed-forward projections add a bias."""
    vocab_padding: int = 0
    """Rows at the end of the token matrix that are no tokens: they let it divide among GPUs."""
    position_offset: int = 0
    """Rows of the position matrix before that of the first position (2 in OPT)."""
    rope_scaling_factor: float = 1.0
    """How far the slow rotary frequencies are stretched, as in Llama 3.1; 1 is not at all."""
    rope_low_freq_factor: float = 1.0
    """Stretched in full: frequencies of fewer turns than this in rope_original_positions."""
    rope_high_freq_factor: float = 4.0
    """Not stretched: frequencies of more turns than this in rope_original_positions."""
    rope_original_positions: int = 8192
    """Longest sequence, in tokens, the rotary frequencies were made for before stretching."""
    sliding_window: int = 0
    """Tokens one token sees, itself included; 0 is all before it."""
    init_from: str | None = None
    """Folder the weights of step 0 come from, of Hugging Face or torch DCP; null is the seed."""


@dataclass(kw_only=True, slots=True)
class SourceConfig:
    """One source of a mixture."""

    name: str = "text"
    """text, tokens, datasets or stdlib, as in DataConfig."""
    path: str | None = None
    """As in DataConfig."""
    field: str = "text"
    """As in DataConfig."""
    split: str = "train"
    """As in DataConfig."""
    weight: float = 1.0
    """How much is read of it, against the weights of the others, which need not add up to 1."""


@dataclass(kw_only=True, slots=True)
class DataConfig:
    """The text to train on."""

    name: str = "stdlib"
    """"stdlib" is the Python standard library's own source; "text", "tokens" and "datasets" (a
    folder that Hugging Face datasets saved) read ``path``; "mixture" reads several of them."""
    path: str | None = None
    """A file or a folder, or what fsspec opens (s3://...); null for a corpus found by name."""
    mixture: dict[str, SourceConfig] = field(default_factory=dict)
    """mixture only: name -> source; data.mixture.NAME.path=PATH data.mixture.NAME.weight=2."""
    field: str = "text"
    """Where JSON lines, parquet rows and datasets have their text."""
    split: str = "train"
    """datasets only: which of its parts."""
    megatron: str | None = None
    """prepare only: write Megatron's NAME_train.bin and .idx as well, and NAME_held_out's."""
    prepared: str | None = None
    """A folder of tokens that action=prepare has made, taken as it is: the text is not needed."""
    cache: str | None = None
    """Folder for tokens made once and used by every run; null is the user's cache folder."""


@dataclass(kw_only=True, slots=True)
class TokenizerConfig:
    """How text becomes numbers."""

    name: str = "bytes"
    """"bytes" takes each byte as a token and needs no file, "bpe" is learned from the text, "file"
    is at ``path``."""
    path: str | None = None
    """file only: tokenizer.json, SentencePiece .model, or their folder; tokenizer=PATH sets it."""
    vocab_size: int | None = None
    """bpe only: tokens to learn; null is as many as the model has rows for."""
    end_of_text: str | None = None
    """file only: the token that ends a document; null looks in tokenizer_config.json."""


@dataclass(kw_only=True, slots=True)
class OptimConfig:
    """AdamW with decoupled weight decay, and the learning rate over time."""

    learning_rate: float = 3e-4
    """Peak learning rate, reached at the end of warm-up."""
    min_learning_rate: float | None = None
    """Learning rate at the last step; null is a tenth of the peak."""
    schedule: Schedule = Schedule.cosine
    """Shape of the way down."""
    warmup_steps: int | None = None
    """Steps of linear rise from zero; null is a tenth of all steps, at most 500."""
    decay_steps: int | None = None
    """Steps of the final decay, for wsd only; null is a fifth of all steps."""
    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.95
    """Decay of the second moment."""
    epsilon: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.1
    """Decay of matrices per unit of learning rate; vectors do not decay."""
    clip_norm: float = 1.0
    """Largest global gradient norm; 0 never clips."""


@dataclass(kw_only=True, slots=True)
class TrainConfig:
    """How long and in what portions to train."""

    steps: int | None = None
    """Optimizer steps. Exactly one of steps and tokens is set."""
    tokens: int | str | None = None
    """Tokens to train on ("20B"), rounded up to whole steps."""
    global_batch_size: int = 256
    """Sequences per step, all replicas together; kept whatever machines come and go."""
    sequence_length: int = 2048
    """Tokens per sequence."""
    deterministic: bool | None = None
    """Exact gradient sums: losses do not depend on how the work is split. null: on CPUs only."""
    dtype: Dtype | None = None
    """Format of matrix products; null is float32 on CPUs and bfloat16 on GPUs."""
    sequence_parallel: bool = False
    """Where GPUs share matrices, let each have a part of the tokens in between: less memory."""
    compile: bool = False
    """Put blocks through torch.compile: minutes before the first step, faster ones on GPUs."""
    eval_every: int = 0
    """Steps between evaluations; 0 evaluates before the first and after the last step only."""
    eval_samples: int = 64
    """Held-out sequences per evaluation."""
    guard: Guard = Guard.stop
    """On a step whose loss is NaN, infinite or a spike: stop the run (exit code 6); skip leaves the
    step out; rollback goes back to the newest snapshot, the second time to an older one, and stops
    at the third."""
    spike_factor: float = 0.0
    """A loss this many times the median of the last 32 is a spike; 0: however large."""


@dataclass(kw_only=True, slots=True)
class TraceConfig:
    """The past, or a drawn future, that machines follow with cloud=trace and action=simulate."""

    paths: list[str] = field(default_factory=list)
    """Files in a format of docs/traces.md, one a zone where they name none; empty draws a trace."""
    rates: str = "aws_v100_churny"
    """Measured behaviour to draw from: a name in provision/spot_model.py."""
    zones: int = 2
    """Zones of a drawn trace, independent of each other."""
    begin: str = "0s"
    """Where in the trace the run begins, on the trace's own clock."""
    length: str = "6h"
    """How much of the trace is played; when it is over things stay as they are."""
    faster: float = 60.0
    """The trace's time is divided by this. Notices and all that machines do keep their length."""
    most: int = 8
    """Most machines at once, all zones together: larger traces are scaled down to it."""
    notice: str | None = None
    """How long before a loss its machine is told; null: as the file says, else without a word."""


@dataclass(kw_only=True, slots=True)
class CloudConfig:
    """Where machines come from and which of them may be used."""

    name: str = "local"
    """local: this computer poses as several machines; else a provider or cluster."""
    regions: list[str] = field(default_factory=list)
    """Regions allowed; empty is all."""
    zones: list[str] = field(default_factory=list)
    """Zones allowed; empty is all of the regions."""
    machine_types: list[str] = field(default_factory=list)
    """Machine types allowed; empty is all in the catalogue."""
    spot: bool | None = None
    """true: preemptible machines only, false: on-demand only, null: whichever is better."""
    max_nodes: int = 16
    """Most machines rented at once."""
    nodes: int = 4
    """local only: how many machines this computer poses as."""
    gpus_per_node: int = 1
    """local only: worker processes per machine."""
    isolated: bool = False
    """local only: machines have network namespaces and addresses of their own, so that their links
    can be cut; needs root and iproute2."""
    memory_per_gpu: str = "1GiB"
    """local only: memory each worker may use."""
    live: bool | None = None
    """Whether the cloud is asked for machines on offer, prices and quotas; null: when training."""
    standbys: int | None = 0
    """Machines beyond the plan's that are paid for, warm and idle, to take a leaver's place; null:
    as many as pay best by hazard and price, which may be none."""
    replace: bool = True
    """Whether another machine is asked for when one is lost."""
    trace: TraceConfig = field(default_factory=TraceConfig)
    """trace only."""
    cluster: str | None = None
    """slurm, kubernetes: SkyPilot's name of the cluster; null where it has only one."""
    shared_files: bool = False
    """Whether machines and this computer see the same files: text is then not copied to them."""
    python: str | None = None
    """Interpreter on the machines that has Sailor's requirements; null installs them."""
    nodes_per_cluster: int = 4
    """Most machines rented as one: they come together, and are given back together."""
    launches: int = 3
    """Most clusters asked for at the same time."""
    join: str = "20min"
    """A machine that has not reported this long after it was asked for is given back."""
    idle: str = "15min"
    """A cluster that nobody uses ends itself after this long, where the cloud can do that."""
    controller: ControllerPlace = ControllerPlace.here
    """here: in this command, which must run as long as training does; cluster: on a machine of its
    own (cloud=local: in a process of its own), so that this computer may be switched off."""
    controller_keeps: str = "24h"
    """cluster only: how long its machine waits for results to be fetched, when the run is over."""


@dataclass(kw_only=True, slots=True)
class BudgetConfig:
    """What the run may cost. Limits are hard: a run that reaches one saves, stops, exits 7."""

    total_usd: float | None = None
    """US dollars for the whole run, machines lost on the way included."""
    per_hour_usd: float | None = None
    """US dollars per hour at any moment."""
    deadline: str | None = None
    """Duration from the start ("24h")."""


@dataclass(kw_only=True, slots=True)
class PlannerConfig:
    """What to look for, and which choices to take from the planner. null leaves it free."""

    objective: Objective = Objective.min_cost_to_finish
    """What makes one plan better than another."""
    min_tokens_per_second: float | None = None
    """The slowest plan that is good enough, tokens of the whole run per second."""
    spot_aware: bool = True
    """Compare plans by what they make of their machines' interruptions (docs/goodput.md)."""
    tensor_parallel: int | None = None
    """GPUs that share each matrix."""
    pipeline_parallel: int | None = None
    """Stages the layers are cut into; fewer once machines are lost that so many would need."""
    data_parallel: int | None = None
    """Replicas of the pipeline."""
    microbatch_size: int | None = None
    """Sequences that pass through the pipeline together."""
    recompute: bool | None = None
    """Compute activations twice instead of keeping them."""
    optimizer_sharding: bool | None = None
    """Spread optimizer state over replicas (ZeRO-1)."""
    profile: str | None = None
    """A file of measured times to plan with, as action=profile writes it; null: data sheets."""
    calibrate: str | None = None
    """A run here whose measured step time sets the scale of all predictions; null: none."""
    patience: str = "10min"
    """How long to wait for machines when there are too few for any plan."""
    picture: bool | None = None
    """Whether action=plan draws its picture too, some 0.7 s of work; null: in a terminal."""


@dataclass(kw_only=True, slots=True)
class RuntimeConfig:
    """The clockwork of a run. Every wait is bounded by one of these durations."""

    device: Device | None = None
    """What workers compute on; null is the CPU for machines without GPU and CUDA elsewhere."""
    host: str = "127.0.0.1"
    """Address the controller listens on, IPv4 or IPv6."""
    address: str | None = None
    """Address at which machines reach the controller; null is ``host``."""
    port: int = 0
    """Port the controller listens on; 0 takes a free one."""
    heartbeat: str = "0.2s"
    """Time between an agent's signs of life."""
    silence: str = "5s"
    """A node that is connected but silent for this long counts as lost."""
    reconnect: str = "0.4s"
    """A node whose connection broke may come back within this time."""
    link_factor: float | None = 4.0
    """A newcomer's line to those it is to talk to is measured; where messages take this many times
    as long as was planned with, it is planned again. null measures nothing."""
    lease: str = "60s"
    """An agent that hears nothing from the controller for this long ends itself and its workers."""
    assemble: str | None = None
    """For the first machines to report; null is 120s on this computer, cloud.join elsewhere."""
    halt: str = "10s"
    """For workers to stand still at once. To this, boundary, prepare, switch and save come 10 s for
    each GB of state that the fullest machine holds."""
    boundary: str = "60s"
    """For workers to stand still at the end of a step."""
    plan: str = "30s"
    """For finding a new layout."""
    prepare: str = "30s"
    """For building the next generation's groups and buffers."""
    restore: str = "30s"
    """For choosing a step and a source for every box."""
    switch: str = "60s"
    """For copying boxes."""
    save: str = "120s"
    """For the last durable checkpoint."""
    leave_margin: str = "3s"
    """How long before its announced end a machine must be out of the layout."""
    straggler: float | None = 1.5
    """With cloud.standbys: a machine whose work takes this many times longer than it used to, and
    than the others' does, is moved away from where that pays; null suspects none."""
    rebalance_every: str | None = "10min"
    """How often it is asked whether a machine that stands by should have another one's seats, and
    one is moved where that pays; null never asks."""
    rehearse: bool = True
    """Whether standbys and newcomers first run a step in the sandbox, with recorded answers."""
    max_restarts: int = 20
    """Transitions in a row without a single step before the run gives up."""


@dataclass(kw_only=True, slots=True)
class CheckpointConfig:
    """Snapshots in CPU memory, and durable checkpoints on disk or in a store."""

    snapshot_every: int = 1
    """Steps between snapshots into CPU memory; 0 chooses them from what one costs, as measured,
    and how often machines are lost, as expected and seen."""
    compare_every: int = 0
    """Steps between comparisons of all replicas' state by digest; 0 never compares."""
    persist_every: int = 100
    """Steps between durable checkpoints; 0 writes one at the end only."""
    keep: int = 2
    """Durable checkpoints kept; older ones are removed once a newer one is complete."""
    keep_every: int = 0
    """The first at or after every so many steps is kept for good as well; 0 keeps none for good."""
    anchor: bool = False
    """Whether a machine without GPUs is rented, on demand, that keeps a copy of all state in its
    memory: it is there when all preemptible ones are gone."""
    directory: str | None = None
    """Folder or fsspec address; null is ``checkpoints`` in the run folder."""
    path: str | None = None
    """One step's folder or fsspec address, for export, eval and check; checkpoint=PATH sets it.
    null is the newest of the run."""


@dataclass(kw_only=True, slots=True)
class ExportConfig:
    """What action=export writes. Nothing here changes what is trained."""

    format: ExportFormat = ExportFormat.hf
    """hf: a Hugging Face folder; dcp: a torch distributed checkpoint, with optimizer state."""
    directory: str | None = None
    """Folder to write, which must not exist; null is in the run folder, named by the step."""
    dtype: Dtype = Dtype.float32
    """hf only: format of the weights; float32 keeps every bit."""
    max_shard: str = "5GB"
    """hf only: most bytes of weights in one file."""


@dataclass(kw_only=True, slots=True)
class EvalConfig:
    """What action=eval looks at, besides the held-out loss."""

    prompts: list[str] = field(default_factory=lambda: ["def ", "The "])
    """Beginnings of texts the model continues; empty is none."""
    tokens: int = 100
    """Most tokens of a continuation; an end of text ends it before."""
    temperature: float = 0.8
    """Randomness of a continuation; 0 takes the likeliest token each time."""
    top_k: int = 0
    """Only the likeliest so many tokens are drawn from; 0 is all."""


@dataclass(kw_only=True, slots=True)
class MigrateConfig:
    """action=migrate: which machine hands its seats over. Nothing here changes what is trained."""

    node: str | None = None
    """The machine, as the live view and the log call it; node=NAME sets it."""
    why: str = "asked by the operator"
    """Said in the log."""
    wait: str = "5min"
    """How long the command waits for the move; the run goes on with it in any case."""


@dataclass(kw_only=True, slots=True)
class FaultConfig:
    """One thing that shall go wrong. Kinds and targets: sailor/faults.py."""

    kind: str
    """preempt, kill_node, kill_worker, stop_worker, join, ..."""
    at: str
    """When: a step ("120"), a share of all steps ("40%") or a time since the start ("12s")."""
    target: str | None = None
    """Node or node/slot; null picks one that is in use."""
    notice: str | None = None
    """preempt only: how long before the end the machine is told."""
    lasts: str | None = None
    """stop_worker, slow_node: how long; null is for good."""
    factor: float | None = None
    """slow_node only: the node gets 1/factor of the time; null is 2."""


@dataclass(kw_only=True, slots=True)
class FaultsConfig:
    """Faults to inject, to watch a run survive them."""

    name: str = "none"
    """demo, none, or file."""
    path: str | None = None
    """YAML or JSON file with a list like ``script``; faults=PATH sets it."""
    clouds: list[str] = field(default_factory=list)
    """The script is left out on other clouds than these; empty is any."""
    script: list[FaultConfig] = field(default_factory=list)
    """What goes wrong, in any order."""


@dataclass(kw_only=True, slots=True)
class SimulateConfig:
    """action=simulate: what is asked of a future that is worked out instead of waited for.

    Which machines come and go is said by cloud.trace: paths or rates, zones, begin, notice.
    """

    length: str = "7d"
    """How much time passes; a file that is shorter ends it."""
    machines: int | None = None
    """Machines wished for; null is as many as the plan has."""
    costs: str | None = None
    """Run folder whose measured pauses are used; null uses published ones (docs/cost-model.md)."""
    futures: int = 2000
    """Possible futures drawn for P50, P90 and chances."""
    hazard_factor: float = 1.0
    """Losses come this many times as often as they are believed to; to sweep over."""
    price_factor: float = 1.0
    """Spot machines cost this many times their price; to sweep over."""
    storage: list[float] = field(default_factory=lambda: [0.25, 0.5, 1.0, 2.0])
    """GB/s per GPU that checkpoint-and-restart is compared at."""


@dataclass(kw_only=True, slots=True)
class TrackerConfig:
    """Where else the run's series are shown; tracker=[csv,mlflow] sets several."""

    auto: bool = False
    """TensorBoard files where its writer is installed."""
    tensorboard: bool = False
    """Event files in the run folder's trackers/tensorboard."""
    csv: bool = False
    """metrics.csv in the run folder."""
    mlflow: bool = False
    """An MLflow run, the same one over resumes."""
    mlflow_uri: str | None = None
    """MLflow's tracking URI; null is the SQLite file mlflow.db in runs_dir."""
    wandb: bool = False
    """An offline Weights & Biases run in the run folder's trackers/wandb."""
    wandb_project: str = "sailor"
    """Project that wandb sync uploads to."""
    prometheus: bool = False
    """A text endpoint on loopback; address and token are in the run folder's trackers/."""
    prometheus_port: int = 0
    """Port of the endpoint; 0 takes a free one."""


@dataclass(kw_only=True, slots=True)
class UiConfig:
    """How a run shows itself while it goes on."""

    mode: UiMode = UiMode.auto
    """auto is live on a terminal and plain elsewhere."""
    web: bool = False
    """Show the run as a page in the browser as well, for this computer only; its address is
    printed."""
    port: int = 0
    """The page's port; 0 takes a free one."""


@dataclass(kw_only=True, slots=True)
class RunConfig:
    """Which run this is."""

    name: str | None = None
    """Name of the run folder; null makes one from model, cloud and configuration."""
    all: bool = False
    """down only: every run of runs_dir, and whatever else of ours SkyPilot lists."""
    fresh: bool = False
    """Start over: an existing folder of that name is set aside, never removed."""


@dataclass(kw_only=True, slots=True)
class RecipeConfig:
    """Which recipe the settings came from. Nothing here changes what is computed."""

    name: str | None = None
    """A name in recipes/ or a file; recipe=NAME sets it and brings the recipe's settings."""
    smoke: bool = False
    """The recipe at the smallest scale: two blocks of its kind of model, a few steps, this
    computer, a text made on the spot, a run of its own."""
    to: str | None = None
    """recipe.copy only: name or file of the copy; to=NAME sets it. null is my_ and the old name."""


@dataclass(kw_only=True, slots=True)
class Config:
    """Everything a user may say."""

    # Any, because OmegaConf knows no union of a string and a list.
    action: Any = "train"
    """What to do, or a list of actions in order: [plan,train]."""
    seed: int = 0
    """Decides initial weights and the order of samples."""
    runs_dir: str = "runs"
    """Folder that holds one folder per run."""
    output: Output = Output.text
    """json prints one document on standard output and nothing else there."""
    model: ModelConfig
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    cloud: CloudConfig = field(default_factory=CloudConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    faults: FaultsConfig = field(default_factory=FaultsConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    simulate: SimulateConfig = field(default_factory=SimulateConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    migrate: MigrateConfig = field(default_factory=MigrateConfig)
    ui: UiConfig = field(default_factory=UiConfig)
    run: RunConfig = field(default_factory=RunConfig)
    recipe: RecipeConfig = field(default_factory=RecipeConfig)

    @property
    def actions(self) -> list[str]:
        """The actions in order, however they were written."""
        return [self.action] if isinstance(self.action, str) else list(self.action)
