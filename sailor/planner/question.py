"""What is asked of the search, and what it answers. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from sailor.plan import Plan
from sailor.planner.estimate import Estimate
from sailor.planner.price import Rental
from sailor.profile.profile import Numerics


class Objective(Enum):
    """What makes one feasible plan better than another."""

    max_throughput = "max_throughput"
    min_cost_per_token = "min_cost_per_token"
    min_cost_to_finish = "min_cost_to_finish"
    min_time = "min_time"


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What is to be trained, in what portions. ``total_tokens`` None: no end is known."""

    sequence_length: int
    global_batch_size: int
    numerics: Numerics
    total_tokens: float | None = None

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one global batch."""
        return self.sequence_length * self.global_batch_size


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Hard limits on what the run may cost and take; None is no limit.

    ``dollars_per_hour`` is for machines that train. ``beside_per_hour``: dollars an hour of others
    that the run rents as long as it goes on, which ``total_dollars`` must pay for as well.
    """

    total_dollars: float | None = None
    dollars_per_hour: float | None = None
    deadline_seconds: float | None = None
    min_tokens_per_second: float | None = None
    beside_per_hour: float = 0.0

    def dollars_to_train(self, hours: float | None) -> float | None:
        """What is left of the budget for machines that train, when the run takes so long."""
        if self.total_dollars is None or not self.beside_per_hour:
            return self.total_dollars  # hours may be without end
        return self.total_dollars - self.beside_per_hour * (hours or 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """Which plans may be looked at. None leaves a choice free.

    ``tensor_parallel_degrees``: what the model (and the run's ``pieces``) divide by; the GPUs of a
    machine bound it further. ``microbatch_sizes``: sizes tried; one size keeps training
    deterministic, for sums of a microbatch are made inside a kernel. ``recompute`` and
    ``optimizer_sharding``: the settings allowed, the preferred one first; sharding is taken only
    where memory asks for it, for unsharded state survives the loss of a replica.
    """

    tensor_parallel_degrees: tuple[int, ...] | None = None
    max_stages: int = 64
    microbatch_sizes: tuple[int, ...] | None = None
    recompute: tuple[bool, ...] = (False, True)
    optimizer_sharding: tuple[bool, ...] = (False, True)
    num_stages: int | None = None
    num_replicas: int | None = None
    max_machines: int | None = None
    mix: bool = True  # whether replicas on different machine types may train together


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A plan that fits the machines, with its estimate. ``reasons`` it may not be chosen."""

    plan: Plan
    estimate: Estimate
    rentals: tuple[Rental, ...]
    hours: float | None
    dollars: float | None
    reasons: tuple[str, ...] = ()

    @property
    def feasible(self) -> bool:
        """Whether it keeps every limit."""
        return not self.reasons

    @property
    def num_gpus_rented(self) -> int:
        """GPUs paid for."""
        return sum(rental.num_gpus for rental in self.rentals)


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Candidates, the best feasible one first, then those that break a limit, nearest first.

    ``considered`` counts ways to run the model that were looked at, ``rejected`` those that were
    dropped before pricing, by reason.
    """

    candidates: tuple[Candidate, ...]
    objective: Objective
    considered: int
    rejected: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def best(self) -> Candidate:
        """The chosen one. Only results with a feasible candidate are returned by search."""
        return self.candidates[0]


def limits_broken(
    estimate: Estimate, *, hours: float | None, dollars: float | None, limits: Limits
) -> tuple[str, ...]:
    """Which limits a candidate breaks, in words for the table."""
    broken = []
    if _exceeds(dollars, limits.dollars_to_train(hours)):
        broken.append(f"over budget (${limits.total_dollars:,.0f})")
    if _exceeds(estimate.dollars_per_hour, limits.dollars_per_hour):
        broken.append(f"over ${limits.dollars_per_hour:,.2f}/h")
    seconds = None if hours is None else hours * 3600
    if _exceeds(seconds, limits.deadline_seconds):
        broken.append(f"misses deadline ({(limits.deadline_seconds or 0.0) / 3600:,.1f} h)")
    floor = limits.min_tokens_per_second
    if floor is not None and estimate.tokens_per_second < floor:
        broken.append(f"below {floor:,.0f} tokens/s")
    return tuple(broken)


def _exceeds(value: float | None, limit: float | None) -> bool:
    return value is not None and limit is not None and value > limit


def score(objective: Objective, candidate: Candidate) -> float:
    """Lower is better."""
    match objective:
        case Objective.max_throughput | Objective.min_time:
            return candidate.estimate.step_seconds
        case Objective.min_cost_per_token | Objective.min_cost_to_finish:
            return candidate.estimate.dollars_per_step


ANY_SPACE = Space()
NO_LIMITS = Limits()
