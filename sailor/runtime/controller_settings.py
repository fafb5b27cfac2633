"""What a controller is told before it starts, whom it asks for plans, and what it says when it has
ended. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sailor.checkpoint.interval import LossRate
from sailor.cluster.provisioner import NodeRequest, Released
from sailor.parallel.layout import Member
from sailor.plan import Plan
from sailor.runtime import messages as m
from sailor.runtime import state as s
from sailor.runtime.straggler import Rules


@dataclass(frozen=True, kw_only=True, slots=True)
class ControllerSettings:
    """What one controller needs to know. Seconds; ``keep`` and ``keep_every``: see
    checkpoint.store.kept."""

    directory: Path  # the run folder
    run: m.RunSettings
    limits: s.Limits
    nodes: tuple[NodeRequest, ...]  # asked for at the start
    hazard: LossRate  # of a machine, before anything is seen
    host: str = "127.0.0.1"
    port: int = 0
    lease_s: float = 60.0
    heartbeat_s: float = 0.2
    reconnect_s: float = 0.4
    silence_s: float = 5.0
    keep: int = 2
    keep_every: int = 0
    losses: Mapping[int, float] = field(default_factory=dict)  # by step, of earlier starts
    recorded: frozenset[tuple[int, int]] = frozenset()  # (generation, step) in the log already
    stragglers: Rules | None = None  # where machines stand by; None never suspects any
    rehearse: bool = True  # standbys run a step in the sandbox for the seats they may take
    leave_s: float = 120.0  # for a machine that is given back to hand over what it holds
    anchor: NodeRequest | None = None  # what to ask for as one; see runtime.anchors
    anchor_join_s: float = 1200.0
    rebalance_every_s: float | None = None  # None never asks who should have whose seats
    link_factor: float | None = None  # a newcomer's line that many times slower is planned anew for


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How the run ended, and the proof that its machines are gone."""

    end: s.End
    why: str
    step: int
    released: tuple[Released, ...]


Replanner = Callable[[Sequence[Member]], Plan]  # raises NoFeasiblePlan
Foretold = Callable[[Plan], Mapping[str, Any]]  # the fields of the event ``plan_chosen``


class Prospect(Protocol):
    """What a placement of machines is expected to be like. Called from a thread."""

    def step_seconds(self, plan: Plan) -> float:
        """What one step of a plan takes, as links and machines are known."""

    def losses_per_s(self, request: NodeRequest) -> float:
        """How often a machine like this is taken away."""


class NotWorth(Protocol):
    """Why a change from one plan to another, both possible, does not pay; "" when it does."""

    def __call__(self, old: Plan, new: Plan, *, steps_left: int, pause_s: float) -> str: ...
