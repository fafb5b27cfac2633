"""The state of a run's life: where it stands, who is there, what is changing. Only values.

``lifecycle.advance`` turns (Run, Event) into (Run, commands): what can happen to a run is in
``happenings.py``, what the controller must do about it in ``commands.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from sailor.parallel.layout import Layout, Member, WorkerId


class Phase(Enum):
    """Where a run stands."""

    assembling = "assembling"  # waiting for the first nodes
    adopting = "adopting"  # a new controller of a run that may be training: its nodes dial in
    transition = "transition"  # see Transition.stage; training goes on if ``training`` is set
    training = "training"
    parked = "parked"  # too few nodes for any plan; waiting for more
    stopping = "stopping"  # halting for good, saving
    ended = "ended"


class TransitionStage(Enum):
    """How far a transition has come. The stages are waits; each has a deadline."""

    halt = "halt"
    plan = "plan"
    prepare = "prepare"
    restore = "restore"
    switch = "switch"


class End(Enum):
    """How a run ended."""

    done = "done"
    interrupted = "interrupted"
    diverged = "diverged"
    limit = "limit"
    failed = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A node whose agent is connected. ``slots``: how many workers it has when all live.

    ``leaves_at`` is set by a notice (clock seconds). ``moving``: why its seats are to be given to
    another machine, "" if they are not; ``moving_to``: to which, "" to any that fits. ``unfit``:
    not to be given a leaver's seats. ``warm``: it was asked to get ready for some.
    """

    member: Member
    slots: int
    leaves_at: float | None = None
    moving: str = ""
    moving_to: str = ""
    unfit: bool = False
    warm: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Pause:
    """One interruption of training, taken apart. Seconds; what is not known yet is 0.

    Its parts are all of it: everything before ``booked_at`` belongs to one of them, attempts that
    came to nothing included. ``parked_s`` is the wait for machines. ``hidden_s`` is no part: of a
    planned change, what passed while the old generation trained.
    """

    cause: str
    planned: bool
    began_at: float
    booked_at: float
    detect_s: float = 0.0
    decide_s: float = 0.0
    prepare_s: float = 0.0
    copy_s: float = 0.0
    switch_s: float = 0.0
    parked_s: float = 0.0
    hidden_s: float = 0.0
    steps_redone: int = 0
    source: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Transition:
    """A change from the active layout to the next, under way.

    ``waiting`` are the nodes that have not answered the present stage.
    """

    generation: int
    cause: str
    planned: bool
    stage: TransitionStage
    began_at: float
    entered_at: float  # the present stage
    deadline: float
    waiting: frozenset[str] = frozenset()
    layout: Layout | None = None
    step: int = 0
    copy_s: float = 0.0
    halt_due: float | None = None  # planned: stand still no later than this


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Every wait of the life cycle, in seconds, and how many nodes to start with.

    ``standbys`` of the ``initial_nodes`` stand by (``sailor/runtime/reserve.py``).
    """

    initial_nodes: int
    standbys: int = 0
    assemble_s: float = 120.0
    adopt_s: float = 10.0  # for all nodes of an earlier controller to dial in
    halt_s: float = 10.0
    boundary_s: float = 60.0  # a halt at the end of a step
    plan_s: float = 30.0
    prepare_s: float = 30.0
    restore_s: float = 30.0
    switch_s: float = 60.0
    save_s: float = 120.0
    park_s: float = 600.0
    leave_margin_s: float = 3.0
    overstay_s: float = 30.0  # past its announced end a node is still here: it was a false alarm
    stumble_s: float = 1.0  # for whatever broke a step to be found out, before all start over
    max_restarts: int = 20  # transitions in a row without a step
    roll_back: bool = False  # from a step that is not fit; else such a step ends the run


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """A wish to end, kept until it can be carried out."""

    end: End
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Stumble:
    """A worker left a step that it was not told to leave."""

    at: float
    cause: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything the life cycle knows. Small and frozen."""

    limits: Limits
    total_steps: int
    started_at: float = 0.0
    phase: Phase = Phase.assembling
    generation: int = 0  # the highest ever used
    nodes: Mapping[str, Node] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()  # asked for at the start, and will not come
    active: Layout | None = None  # of the generation that trains or trained last
    active_generation: int = 0
    intact: bool = False  # the active generation's workers still hold its state live
    transition: Transition | None = None
    reconsider: str = ""  # why to plan again as soon as the present transition is over
    reconsider_at: float = 0.0  # and no earlier than this
    setbacks: int = 0  # planned changes in a row that came to nothing
    pause: Pause | None = None  # the interruption under way
    resumed_at: float = 0.0  # when the active generation was told to go
    step: int = 0  # newest step known to be applied
    stumble: Stumble | None = None  # the active generation's step is broken, nobody knows why yet
    restarts: int = 0  # transitions begun since a step was last applied
    refused_step: int = 0  # newest step that was not fit to be applied
    refusals: int = 0  # how often it was not, or an earlier one, until it is applied
    below: int | None = None  # states of this step and later ones are not to be restored
    parked_at: float | None = None
    awaited: frozenset[str] = frozenset()  # adopting: nodes that are believed to live
    going_on: frozenset[WorkerId] = frozenset()  # adopting: workers seen to train ``active``
    stop: Stop | None = None
    stopping: frozenset[str] | None = None  # nodes whose part of the last save is not durable yet
    stop_deadline: float = 0.0
    stopped_parked: bool = False  # the last save is of what memory holds, and of no layout
    finished: frozenset[str] = frozenset()

    @property
    def training(self) -> bool:
        """Whether the active generation is stepping."""
        if self.phase is Phase.training:
            return True
        t = self.transition
        early = (TransitionStage.plan, TransitionStage.prepare)
        return self.phase is Phase.transition and t is not None and t.planned and t.stage in early
