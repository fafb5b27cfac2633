"""What can happen to a run: the events that ``lifecycle.advance`` takes. Only values.

``at`` is the controller's monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from sailor.parallel.layout import Layout, Member, WorkerId
from sailor.runtime.state import End


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Base of all events."""

    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined(Event):
    """An agent was welcomed; its workers are ready."""

    member: Member
    slots: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejoined(Event):
    """A node of an earlier controller has dialled in, as it was then or not.

    ``going_on``: its workers that train, or have finished, the active generation. ``heard``: the
    highest generation it was ever told of. ``step``: the newest one its workers have applied.
    """

    member: Member
    slots: int
    going_on: frozenset[WorkerId]
    heard: int
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Returned(Event):
    """A node's connection broke and is there again. What was on its way then is lost, both ways.

    ``missed_go``: it was told to train, and knows nothing of it.
    """

    node: str
    missed_go: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost(Event):
    """A node is gone. ``silent_s``: how long before ``at`` its last sign of life was."""

    node: str
    cause: str
    silent_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerDied(Event):
    """A worker is gone; its node lives and will start another."""

    worker: WorkerId
    cause: str
    silent_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerStarted(Event):
    """A node has a new worker in that slot."""

    worker: WorkerId


@dataclass(frozen=True, kw_only=True, slots=True)
class Noticed(Event):
    """A node will leave in ``seconds``."""

    node: str
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveAsked(Event):
    """Somebody wants a node's seats given to another machine: the operator, because it is slow, or
    because the run is better off.

    ``to``: to this one or to none, and only as long as nobody must go; "" to any that fits.
    ``keep_out``: it is not to stand in for others afterwards.
    """

    node: str
    why: str
    to: str = ""
    keep_out: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned(Event):
    """Answer to Replan; ``layout`` None when nothing fits, ``why`` says so."""

    generation: int
    layout: Layout | None
    why: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePrepared(Event):
    """A node is ready for the next generation.

    ``others`` are so at the same moment (only the simulator knows that).
    """

    generation: int
    node: str
    others: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeHalted(Event):
    """A node stands still. ``others`` are so at the same moment (only the simulator knows that)."""

    generation: int
    node: str
    others: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Restorable(Event):
    """Answer to ChooseSources: the step to resume from, and the farthest tier it needs."""

    generation: int
    step: int
    redone: int
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSwitched(Event):
    """A node holds its boxes of the next generation; ``others`` do at the same moment."""

    generation: int
    node: str
    copy_s: float
    others: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFailed(Event):
    """A node could not do its part of the transition."""

    generation: int
    node: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StepApplied(Event):
    """A step was applied everywhere it is known of."""

    generation: int
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeFinished(Event):
    """A node's workers have applied the last step."""

    generation: int
    node: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSaved(Event):
    """A node's part of the final checkpoint is durable: of the step that generation stands at."""

    generation: int
    node: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NothingToSave(Event):
    """Answer to SaveHeld: no node's memory, nor all together, has more than is durable."""

    generation: int
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRefused(Event):
    """A step is not fit to be applied, and was not, anywhere. ``why`` follows the word "its"."""

    generation: int
    step: int
    why: str = "loss is not finite"


@dataclass(frozen=True, kw_only=True, slots=True)
class StopAsked(Event):
    """Finish the step, save, end: the user (interrupted) or a limit."""

    end: End
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplanAsked(Event):
    """Plan again with the machines that are there: the operator."""

    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick(Event):
    """Time passes; deadlines fire."""
