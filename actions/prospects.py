"""What is to be expected of a plan whose machines may vanish: goodput, hours, dollars, chances.

The search compares plans as if nothing ever happened. Here each gets what is believed of its places
(``actions/hazards.py``), the published costs of a change, and the best way to be
guarded: snapshots, copies and standbys, by the formulas of ``sailor/planner/risk.py``. While
machines are missing the rest is taken to train in proportion; ``action=simulate`` asks the planner
for every number of machines instead, and lives through a trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Any

from actions.hazards import hazard_of
from actions.planning import Question
from sailor.planner.evidence import Place
from sailor.planner.explain import machines, zones
from sailor.planner.futures import Response, Stand
from sailor.planner.hazard import Hazard
from sailor.planner.question import Candidate, Limits, Objective, SearchResult
from sailor.planner.risk import Choice, Guard, Judged, Pay, Speed, expect, judge, rank
from sailor.simulate.costs import Costs, stated
from sailor.units import duration

STATE_BYTES = 12  # of a parameter: fp32 weight and both Adam moments, what a box holds
LINK_SHARE = 0.7  # of a card's nominal rate, as the planner takes it
FUTURES, FEWEST = 1000, 200
INTERVALS = 400  # that many futures are walked in; longer runs have more of them and fewer futures
_LONGEST_S = 600.0  # of an interval: half of what a machine is usually away
_LOOKED_AT = 32  # of the search's best plans; and the best of every other kind of machine
_SPREAD_OVER = 4  # places of a region


@dataclass(frozen=True, kw_only=True)
class Prospect:
    """A candidate, how it is best guarded, and what is then expected."""

    candidate: Candidate
    guard: Guard
    choice: Choice
    hazards: Mapping[Place, Hazard]

    @property
    def goodput(self) -> float:
        """Share of what the same machines would train if they stayed."""
        undisturbed = self._batch / self.candidate.estimate.step_seconds
        return self.choice.samples_per_second / undisturbed

    @property
    def hours(self) -> float:
        """To train all tokens, in the mean."""
        if self.choice.samples_per_second <= 0:
            return float("inf")
        return self.guard.samples / self.choice.samples_per_second / 3600

    @property
    def dollars(self) -> float:
        """For all tokens, in the mean; machines and what crosses zones."""
        value = self.candidate.estimate
        egress = value.egress_dollars_per_step * self.guard.samples / self._batch
        return self.guard.samples * self.choice.dollars_per_sample + egress

    @property
    def _batch(self) -> float:
        return float(self.candidate.plan.global_batch_size)

    @cached_property
    def futures(self) -> Judged | None:
        """Lived through; None when it never gets there."""
        if self.choice.samples_per_second <= 0:
            return None
        horizon_hours = 2.5 * self.hours + 1.0
        intervals = max(INTERVALS, ceil(min(horizon_hours, 2500.0) * 3600 / _LONGEST_S))
        number = min(FUTURES, max(FEWEST, FUTURES * INTERVALS // intervals))
        (found,) = judge(
            [self.choice], self.guard, speed_of(self.candidate), number=number,
            horizon_hours=horizon_hours, most_intervals=intervals,
        )  # fmt: skip
        return found

    def chance(self, limits: Limits) -> float | None:
        """To keep budget and deadline; None where there is neither."""
        if limits.total_dollars is None and limits.deadline_seconds is None:
            return None
        if self.futures is None:
            return 0.0
        within = {}
        dollars = limits.dollars_to_train(self.hours)
        if dollars is not None:
            within["dollars"] = dollars
        if limits.deadline_seconds is not None:
            within["hours"] = limits.deadline_seconds / 3600
        return self.futures.futures.chance(**within)

    def words(self, limits: Limits, *, spread: str = "") -> tuple[str, ...]:
        """Lines for people."""
        if not any(h.shape for h in self.hazards.values()):
            return ()
        judged = self.futures
        lines = []
        if judged is not None:
            (dollars50, dollars90), (hours50, hours90) = judged.dollars, judged.hours
            lines.append(
                f"with interruptions: goodput {self.goodput:.0%}; P50 {duration(hours50 * 3600)} "
                f"and ${dollars50:,.0f}, P90 {_finite(hours90)} and ${dollars90:,.0f} "
                f"({judged.futures.finish_hours.size:,} futures, modelled)"
            )
        asked = self.chance(limits)
        if asked is not None:
            within = []
            if limits.total_dollars is not None:
                within.append(f"${limits.total_dollars:,.0f}")
            if limits.deadline_seconds is not None:
                within.append(duration(limits.deadline_seconds))
            lines.append(f"chance to finish within {' and '.join(within)}: {asked:.0%}")
        choice = self.choice
        guarded = (
            f"snapshot every {choice.snapshot_every} steps"
            if choice.snapshot_every > 1 else "a snapshot every step"
        )  # fmt: skip
        guarded += ", every machine's copied to another" if choice.copies else ""
        guarded += f", {choice.standbys} standing by" if choice.standbys else ", nobody stands by"
        lines.append(f"guard: {guarded}{'; ' + spread if spread else ''}")
        place, hazard = max(self.hazards.items(), key=lambda item: item[1].events_per_machine_hour)
        lines.append(f"believed of {place[0]}: {hazard.describe()}")
        return tuple(lines)

    def document(self, limits: Limits, *, full: bool) -> dict[str, Any]:
        """In JSON types; ``full`` adds what takes living through futures."""
        short = {
            "goodput": self.goodput, "hours": _number(self.hours),
            "dollars": _number(self.dollars), "source": "modelled",
        }  # fmt: skip
        if not full:
            return short
        judged = self.futures
        return short | {
            "hours_p50_p90": None if judged is None else [_number(x) for x in judged.hours],
            "dollars_p50_p90": None if judged is None else [_number(x) for x in judged.dollars],
            "chance": self.chance(limits),
            "snapshot_every": self.choice.snapshot_every, "copies": self.choice.copies,
            "standbys": self.choice.standbys,
            "hazards": {
                f"{zone} {kind}": hazard.describe()
                for (zone, kind), hazard in self.hazards.items()
            },
        }  # fmt: skip


def prospect(candidate: Candidate, asked: Question) -> Prospect | None:
    """What is expected of a candidate; None for machines that are ours and cost nothing, and for a
    job without an end."""
    if not asked.job.total_tokens or candidate.estimate.dollars_per_hour <= 0:
        return None
    stands = tuple(
        Stand(
            place=(r.offer.zone.name, r.offer.machine_type.name), machines=r.num_machines,
            price_per_hour=r.offer.price_per_hour, hazard=hazard_of(r.offer, asked.believed),
        )
        for r in candidate.rentals
    )  # fmt: skip
    guard, speed = guard_of(candidate, asked), speed_of(candidate)
    risky = any(stand.hazard.shape for stand in stands)
    found = [
        expect(stands, guard, speed, standbys=standbys, copies=copies)
        for standbys in (range(guard.most_standbys + 1) if risky else (0,))
        for copies in ((0, 1) if risky else (0,))
        if standbys < sum(stand.machines for stand in stands)
    ]
    choice = min(found, key=lambda c: (c.dollars_per_sample, c.standbys, c.copies))
    hazards = {stand.place: stand.hazard for stand in stands}
    return Prospect(candidate=candidate, guard=guard, choice=choice, hazards=hazards)


def speed_of(candidate: Candidate) -> Speed:
    """Machines that are left train in proportion, as long as they hold one copy of the model."""
    number = sum(r.num_machines for r in candidate.rentals)
    least = _depth(candidate)
    value = candidate.estimate
    samples = candidate.plan.global_batch_size / value.step_seconds

    def speed(counts: Mapping[Place, int]) -> tuple[float, float] | None:
        here = min(sum(counts.values()), number)
        if here < least:
            return None
        return samples * here / number, value.step_seconds * number / here

    return speed


def guard_of(candidate: Candidate, asked: Question) -> Guard:
    """The job and the costs of a change, as published for such machines."""
    number = sum(r.num_machines for r in candidate.rentals)
    line = min(r.offer.machine_type.network_bytes_per_second for r in candidate.rentals)
    return guard_with(
        stated(num_nodes=number, link_bytes_per_second=LINK_SHARE * line),
        samples=(asked.job.total_tokens or 0.0) / asked.job.sequence_length,
        machines=number, depth=_depth(candidate),
        state_bytes=asked.spec.num_parameters * STATE_BYTES, persist_every=asked.persist_every,
    )  # fmt: skip


def guard_with(
    costs: Costs, *, samples: float, machines: int, depth: int, state_bytes: float,
    persist_every: int,
) -> Guard:  # fmt: skip
    """What the spot-aware choice has to know of a job and of what changes cost it."""
    planned, unplanned = costs.planned, costs.unplanned
    copy_s = state_bytes / depth / costs.link_bytes_per_second
    loss_s = (
        costs.detect_s + unplanned.decide_s + unplanned.prepare_s + unplanned.copy_s
        + unplanned.switch_s + copy_s
    )  # fmt: skip
    return Guard(
        samples=samples, machines=machines, depth=depth, state_bytes=state_bytes,
        response=Response(
            loss_s=loss_s, join_s=planned.decide_s + planned.copy_s + planned.switch_s + copy_s,
            boot_s=costs.boot_s,
        ),
        standby_loss_s=loss_s,  # the runtime's pause does not get shorter with one
        start_s=costs.start.decide_s + costs.start.prepare_s + costs.start.extra_s + costs.save_s,
        snapshot_stall_s=costs.snapshot_stall_s, persist_every=max(1, persist_every),
        link_bytes_per_second=costs.link_bytes_per_second,
        storage_bytes_per_second=costs.storage_bytes_per_second,
        persist_stall_s=costs.persist_stall_s,
    )  # fmt: skip


def answered(asked: Question) -> tuple[SearchResult, str]:
    """The search's answer with the plan first that does best once interruptions count, and what
    that changed, in words. Raises NoFeasiblePlan.

    Among plans that keep every limit, those that are expected to keep budget and deadline go first.
    """
    result = asked.answer()
    if not asked.spot_aware:
        return result, ""
    feasible = [c for c in result.candidates if c.feasible]
    looked_at = [*feasible[:_LOOKED_AT], *_best_of_kinds(feasible[_LOOKED_AT:])]
    found = [p for c in looked_at if (p := prospect(c, asked)) is not None]
    if len(found) < len(looked_at) or not found:
        return result, ""
    order = {id(c): number for number, c in enumerate(feasible)}
    best = min(
        found,
        key=lambda p: (_breaks(p, asked.limits), *_worth(p, result.objective),
                       order[id(p.candidate)]),
    )  # fmt: skip
    if best.candidate is result.best:
        return result, ""
    old = result.best
    others = [c for c in result.candidates if c is not best.candidate]
    words = (
        f"{machines(old)} in {zones(old)} would do better if no machine were ever taken: goodput "
        f"{next(p for p in found if p.candidate is old).goodput:.0%} there, "
        f"{best.goodput:.0%} here"
    )
    return replace(result, candidates=(best.candidate, *others)), words


def spread(found: Prospect, asked: Question) -> str:
    """Whether other places of the region would make a useful sample cheaper, in words."""
    first = found.candidate.rentals[0].offer
    if len(found.candidate.rentals) != 1 or not first.spot:
        return ""
    number = found.candidate.rentals[0].num_machines
    near = [
        o for o in asked.catalogue.pool.offers
        if o.machine_type == first.machine_type and o.zone.region == first.zone.region
    ]  # fmt: skip
    offers = sorted((o for o in near if o.spot), key=lambda o: o.price_per_hour)[:_SPREAD_OVER]
    sure = min((o for o in near if not o.spot), key=lambda o: o.price_per_hour, default=None)
    pays = [
        Pay(place=(o.zone.name, o.machine_type.name), machines=min(o.count, number),
            price_per_hour=o.price_per_hour, hazard=hazard_of(o, asked.believed))
        for o in ([*offers, sure] if sure is not None else offers)
    ]  # fmt: skip
    best = next(iter(rank(pays, found.guard, speed_of(found.candidate))), None)
    if best is None or {s.place for s in best.stands} == set(found.hazards):
        return ""
    saved = 1.0 - best.dollars_per_sample / found.choice.dollars_per_sample
    if saved < 0.005:
        return ""
    where = " + ".join(
        f"{s.machines} in {s.place[0]}{'' if s.hazard.shape else ' on demand'}" for s in best.stands
    )
    return f"{where} would make a useful token {saved:.1%} cheaper"


def _best_of_kinds(candidates: list[Candidate]) -> list[Candidate]:
    kinds: dict[Any, Candidate] = {}
    for candidate in candidates:
        kind = tuple(sorted((r.offer.machine_type.name, r.offer.spot) for r in candidate.rentals))
        kinds.setdefault(kind, candidate)
    return list(kinds.values())


def _breaks(found: Prospect, limits: Limits) -> bool:
    dollars, seconds = limits.dollars_to_train(found.hours), limits.deadline_seconds
    return (dollars is not None and found.dollars > dollars) or (
        seconds is not None and found.hours * 3600 > seconds
    )


def _worth(found: Prospect, objective: Objective) -> tuple[float, float]:
    if objective in (Objective.max_throughput, Objective.min_time):
        return -found.choice.samples_per_second, found.dollars
    return found.dollars, found.hours


def _depth(candidate: Candidate) -> int:
    """Machines that hold one copy of the state together."""
    number = sum(r.num_machines for r in candidate.rentals)
    return max(1, ceil(number / max(1, len(candidate.plan.replicas))))


def _finite(hours: float) -> str:
    return duration(hours * 3600) if hours != float("inf") else "never"


def _number(value: float) -> float | None:
    return value if value not in (float("inf"), float("-inf")) else None
