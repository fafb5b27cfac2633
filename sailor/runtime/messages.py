"""Every message of the control plane, and its one encoding. Typed msgpack; never pickle.

Three links speak it: controller <-> agent (TLS), agent <-> agent (TLS, bulk state) and agent <->
worker (an inherited socket pair). Each message carries the protocol version and the generation it
speaks of; a receiver ignores what is not of its generation. docs/protocol.md has the order.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sailor.models.spec import ModelSpec
from sailor.parallel.layout import Member, WorkerId
from sailor.plan import Plan, decode_hook, encode_hook
from sailor.training.settings import TrainSettings

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 64 << 20  # control frames only; bulk state is streamed in chunks


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    """What all messages carry. ``generation`` 0 means: not about any generation."""

    version: int = PROTOCOL_VERSION
    generation: int = 0


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What never changes during a run. ``pieces`` is the cut of its tensors into boxes.

    ``compare_every``: after every so many steps all owners of a box are compared; 0 never.
    ``anchored``: a copy of everything is kept on a machine that does not train.
    """

    run: str
    spec: ModelSpec
    pieces: int
    train: TrainSettings
    checkpoint_directory: str
    compare_every: int = 0
    anchored: bool = False


class SnapshotId(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One worker's state after ``step``, as written by that worker in ``generation``."""

    generation: int
    step: int
    worker: WorkerId


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """A verified snapshot, or part of one, in the CPU memory of ``node``. Boxes by name."""

    node: str
    snapshot: SnapshotId
    boxes: tuple[str, ...]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker gets some of its boxes from.

    ``tier``: "live" (it holds them already: all that no other source names, and this one names
    none, for in most changes that is nearly everything), "memory" (a snapshot on ``node``, its own
    or another), "disk" (``path`` of a durable checkpoint) or "init" (the seed).
    """

    tier: str
    boxes: tuple[str, ...]
    node: str = ""
    snapshot: SnapshotId | None = None
    path: str = ""


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one applied step was: the same numbers on every rank."""

    step: int
    generation: int
    loss: float
    tokens: int
    grad_norm: float
    learning_rate: float
    seconds: float
    phases: dict[str, float]  # seconds by phase of the reporting rank
    first_sample: int
    num_samples: int
    eval_loss: float | None = None
    skipped: str = ""  # what was wrong with it, where it was left out
    snapshot_every: int = 1  # steps between in-memory snapshots, as it is at present


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as its agent sees it. ``step`` is the last one applied, -1 before any state;
    ``generation`` the one it sits in, 0 before the first."""

    worker: WorkerId
    pid: int
    step: int
    doing: str  # "idle" | "preparing" | "training" | "halted" | "finished"
    peak_bytes: int = 0  # the most it has held: of its own memory, or of its GPU's allocator
    base_bytes: int = 0  # of its own when it came up: the interpreter and torch
    generation: int = 0
    busy_s: float = 0.0  # of its last step: at work, its waits for others left out


# Agent -> controller


class Hello(Message, frozen=True, kw_only=True):
    """First word of an agent on a connection, and all that a new controller must know of it.

    ``host``/``port`` is where peers fetch snapshots from it. ``start`` tells this start of the
    agent from any other. ``generation`` is the one it trains or trained last, ``heard`` the highest
    it was ever told of. ``persisted`` is the newest part of a durable checkpoint it has written.
    """

    node: str
    zone: str
    machine_type: str
    pid: int
    host: str
    port: int
    workers: tuple[WorkerStatus, ...]
    holdings: tuple[Holding, ...] = ()
    start: str = ""
    heard: int = 0
    persisted: tuple[Persisted, ...] = ()


class Heartbeat(Message, frozen=True, kw_only=True):
    """Every fraction of a second; renews the lease by being answered."""

    node: str
    workers: tuple[WorkerStatus, ...]


class WorkerUp(Message, frozen=True, kw_only=True):
    """A (new incarnation of a) worker is ready to take a role."""

    node: str
    worker: WorkerId
    pid: int


class WorkerLost(Message, frozen=True, kw_only=True):
    """A worker ended, or was ended for being stopped or stuck. ``silent_s`` since its last sign."""

    node: str
    worker: WorkerId
    cause: str
    silent_s: float


class Prepared(Message, frozen=True, kw_only=True):
    """All of this node's workers have built their groups and buffers for the generation."""

    node: str


class Halted(Message, frozen=True, kw_only=True):
    """All of this node's workers stand still between two steps.

    ``workers`` say which step of the halted generation each has applied last. A snapshot of exactly
    that step is among ``holdings``. ``records`` are steps that the log may lack.
    """

    node: str
    workers: tuple[WorkerStatus, ...]
    holdings: tuple[Holding, ...]
    records: tuple[StepRecord, ...]


class Switched(Message, frozen=True, kw_only=True):
    """All of this node's workers hold their boxes of the new generation at the agreed step.

    ``cpu_s``: processor seconds that the agent and the busiest of its workers have spent on the
    change since they stood still, or were told to switch. However many share a processor, it is
    the same.
    """

    node: str
    copy_s: float
    bytes_moved: int
    cpu_s: float = 0.0


class TransitionFailed(Message, frozen=True, kw_only=True):
    """This node could not prepare, restore or switch. The reason is for the log.

    ``spoiled``: sources whose bytes are not what was written; they must not be chosen again.
    """

    node: str
    reason: str
    spoiled: tuple[Source, ...] = ()


class Stepped(Message, frozen=True, kw_only=True):
    """A step was applied. Sent by rank 0's agent; others follow by heartbeat."""

    node: str
    record: StepRecord


class Snapshotted(Message, frozen=True, kw_only=True):
    """A snapshot was verified in own memory (``peer`` empty) or copied to a peer's. ``stall_s``
    that beginning it held its worker up, ``copy_s`` that the copy into own memory took.

    ``digests``: one for each box of the worker in the layout's order, where owners are compared.
    """

    node: str
    snapshot: SnapshotId
    boxes: int
    bytes: int
    stall_s: float = 0.0
    copy_s: float = 0.0
    peer: str = ""
    digests: tuple[int, ...] = ()


class Persisted(Message, frozen=True, kw_only=True):
    """This node's files of a durable checkpoint are complete. ``files``: name -> xxh3 digest.

    ``last``: it is what a Halt asked to be made durable, and no earlier step.
    """

    node: str
    step: int
    files: dict[str, str]
    boxes: tuple[str, ...]
    error: str = ""
    last: bool = False


class CopiedOut(Message, frozen=True, kw_only=True):
    """Answer to CopyOut: this node's share of the state after ``step`` is with the anchor, or not
    and ``error`` says why."""

    node: str
    step: int
    bytes: int = 0
    error: str = ""


class Finished(Message, frozen=True, kw_only=True):
    """This node's workers have applied the last step of the run."""

    node: str
    step: int


class NoticeSeen(Message, frozen=True, kw_only=True):
    """The machine will be taken away in about ``seconds``."""

    node: str
    seconds: float
    source: str


class Diverged(Message, frozen=True, kw_only=True):
    """A step is not fit to be applied; nothing was. ``why`` follows the word "its"."""

    node: str
    step: int
    loss: float
    why: str = "loss is not finite"


class Recorded(Message, frozen=True, kw_only=True):
    """What collectives answered one rank of a role in one step: a sandbox.Recording's bytes."""

    role: str
    data: bytes


class Warmed(Message, frozen=True, kw_only=True):
    """A standby has rehearsed a role in every worker it has, or could not and says why."""

    node: str
    role: str
    seconds: float
    error: str = ""


class Probed(Message, frozen=True, kw_only=True):
    """Answer to Probe: seconds of the same exchange with each peer; those it did not reach lack."""

    node: str
    seconds: dict[str, float]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """What a line between two machines does, there and back alike."""

    seconds_per_message: float
    bytes_per_second: float


class Measured(Message, frozen=True, kw_only=True):
    """Answer to Measure. ``own``: what our code manages where there is no line at all; lines to
    peers that were not reached lack."""

    node: str
    own: Line
    lines: dict[str, Line]


class StoreSet(Message, frozen=True, kw_only=True):
    """Group set-up: publish a value under a key of this generation."""

    key: str
    value: bytes


class StoreGet(Message, frozen=True, kw_only=True):
    """Group set-up: wait for keys, at most ``seconds``. Answered by StoreValues."""

    request: int
    keys: tuple[str, ...]
    seconds: float


# Controller -> agent


class Welcome(Message, frozen=True, kw_only=True):
    """The agent is known; its lease runs until ``lease_s`` after the last word it got from us.

    ``logged``: generation and step of the newest record in the run's log. The agent tells again of
    whatever is newer.
    """

    settings: RunSettings
    lease_s: float
    heartbeat_s: float
    logged: tuple[int, int] = (0, -1)


class Refused(Message, frozen=True, kw_only=True):
    """The agent is not wanted (a zombie of an earlier start, a run that ended): it must exit."""

    reason: str


class Beat(Message, frozen=True, kw_only=True):
    """Answer to a heartbeat."""


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """A transfer that a node will ask for in the switch, if all goes as it is meant to."""

    node: str  # whom it will ask
    num_bytes: int
    num_boxes: int


class Prepare(Message, frozen=True, kw_only=True):
    """Build groups and buffers for a layout, in the background if an older generation trains.

    ``ahead``: what this node's workers will most likely be told to take, where everybody stands
    still already. Whatever of it is elsewhere may be fetched meanwhile; only Switch is binding.
    """

    plan: Plan
    members: tuple[Member, ...]
    workers: tuple[WorkerId, ...]  # rank order
    peers: dict[str, tuple[str, int]]  # node -> address of its bulk port
    copies: dict[str, tuple[str, ...]]  # node -> peers that keep copies of its snapshots
    timeout_s: float = 20.0  # of each group's set-up and of every exchange over it
    warm_up: bool = True  # newcomers run a short step alone
    rehearse: bool = False  # newcomers run a step in the sandbox first: there is time
    expected: dict[str, tuple[Expected, ...]] = {}  # node -> what it will fetch
    ahead: tuple[Source, ...] = ()


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of seat, one rank that has it, and a recording of it."""

    role: str
    rank: int
    recording: bytes


class Warm(Message, frozen=True, kw_only=True):
    """Stand by for a layout that trains: rehearse these roles, the likeliest first."""

    plan: Plan
    workers: tuple[WorkerId, ...]  # rank order
    roles: tuple[Role, ...]


class Halt(Message, frozen=True, kw_only=True):
    """Stand still. ``boundary``: after the step under way, agreed by vote; else drop it at once.

    ``logged``: (generation, step) of the newest step that is in the log: only newer ones are told.
    """

    boundary: bool
    persist: bool = False
    logged: tuple[int, int] = (0, -1)


class Save(Message, frozen=True, kw_only=True):
    """Make the first snapshot of step ``first`` or later durable, once."""

    first: int


class Switch(Message, frozen=True, kw_only=True):
    """Take the boxes of the prepared generation at ``step``: per worker, from these sources."""

    step: int
    sources: dict[str, tuple[Source, ...]]  # str(WorkerId) -> sources


class Go(Message, frozen=True, kw_only=True):
    """Train, from the step after ``step``. ``losses`` of the newest steps up to it, oldest first,
    NaN for one that was skipped: what later ones are compared with. ``record``: ranks that record
    their second step. ``losses_per_s``: how often one of the layout's machines is expected to be
    lost."""

    step: int
    losses: tuple[float, ...] = ()
    record: tuple[int, ...] = ()
    losses_per_s: float = 0.0


class Drop(Message, frozen=True, kw_only=True):
    """Forget a prepared generation that will not come."""


class Probe(Message, frozen=True, kw_only=True):
    """Measure the lines to these peers: node -> address of its bulk port."""

    peers: dict[str, tuple[str, int]]


class Measure(Message, frozen=True, kw_only=True):
    """Measure how good the lines to these peers are: node -> address of its bulk port; ``own`` is
    that of the machine itself."""

    own: tuple[str, int]
    peers: dict[str, tuple[str, int]]


class CopyOut(Message, frozen=True, kw_only=True):
    """Copy your share of the first snapshot at or after ``step`` to the anchor at ``address``."""

    step: int
    anchor: str
    address: tuple[str, int]


class SaveHeld(Message, frozen=True, kw_only=True):
    """Make these boxes of snapshots and copies in your memory durable, as the last save; answered
    by Persisted, also where there are none."""

    step: int
    sources: tuple[Source, ...]


class Retain(Message, frozen=True, kw_only=True):
    """To an anchor: of all copies keep those of that step of that generation, and newer ones that
    are still on their way; none where ``step`` is -1."""

    step: int


class Shutdown(Message, frozen=True, kw_only=True):
    """End workers, free memory, exit."""

    reason: str


class StoreValues(Message, frozen=True, kw_only=True):
    """Answer to StoreGet; ``values`` is empty when the wait ran out."""

    request: int
    values: tuple[bytes, ...]


ToController = (
    Hello | Heartbeat | WorkerUp | WorkerLost | Prepared | Halted | Switched | TransitionFailed
    | Stepped | Snapshotted | Persisted | Finished | NoticeSeen | Diverged | StoreSet | StoreGet
    | Recorded | Warmed | Probed | Measured | CopiedOut
)  # fmt: skip
ToAgent = (
    Welcome | Refused | Beat | Prepare | Warm | Probe | Halt | Save | Switch | Go | Drop | Shutdown
    | StoreValues | Measure | CopyOut | Retain | SaveHeld
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder(enc_hook=encode_hook)


def encode(message: msgspec.Struct) -> bytes:
    """A message as msgpack bytes, without framing."""
    return _encoder.encode(message)


def decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """A decoder for a union of messages. Its decode raises msgspec.MsgspecError on bad input."""
    return msgspec.msgpack.Decoder(kind, dec_hook=decode_hook)
