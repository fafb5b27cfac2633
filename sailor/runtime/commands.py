"""What the controller must now do: the commands that ``lifecycle.advance`` answers. Only values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sailor.parallel.layout import Layout, Member
from sailor.runtime.state import End


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """Base of all commands."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Provision(Command):
    """Nobody of an earlier start is left: ask for the machines of the start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replan(Command):
    """Find the best layout for these members; answer with Planned."""

    generation: int
    members: tuple[Member, ...]
    previous: Layout | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SendPrepare(Command):
    """Tell the nodes of a layout to prepare it."""

    generation: int
    layout: Layout


@dataclass(frozen=True, kw_only=True, slots=True)
class SendWarm(Command):
    """Have nodes that stand by get ready for seats of a layout that trains."""

    generation: int
    layout: Layout
    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SendHalt(Command):
    """Tell nodes to stand still after the step under way, or at once; ``generation`` trains."""

    generation: int
    nodes: tuple[str, ...]
    boundary: bool
    persist: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveHeld(Command):
    """Nobody trains, and too few are left to: have the newest step that their memory, and an
    anchor's, has all of made durable. Answered by NodeSaved of each, or NothingToSave. ``below``:
    as in ChooseSources."""

    generation: int
    nodes: tuple[str, ...]
    below: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChooseSources(Command):
    """From what the halted nodes hold, choose a step and a source per box; answer Restorable.

    ``live``: workers of the active generation still hold their boxes and need not copy them.
    ``below``: only states of earlier steps than this may be chosen.
    """

    generation: int
    layout: Layout
    live: bool
    below: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SendSwitch(Command):
    """Tell the nodes of a layout to take their boxes at ``step``."""

    generation: int
    layout: Layout
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SendGo(Command):
    """Tell the nodes of a layout to train on."""

    generation: int
    layout: Layout
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SendDrop(Command):
    """Tell nodes to forget a prepared generation."""

    generation: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fence(Command):
    """Treat a silent node as gone, for good, and refuse it if it comes back."""

    node: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Release(Command):
    """Give a node back: the layout does not need it and its notice runs."""

    node: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Record(Command):
    """Write an event to the run's log."""

    kind: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finish(Command):
    """The run is over: release everything, write the summary."""

    end: End
    why: str
