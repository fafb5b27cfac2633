"""Policies side by side on one fleet, against the bound that no runtime can pass.

All policies meet the same machines, the same speeds and the same batch, so what differs is what
each does when machines come and go. The bound is what those machines would train if every change
took no time and lost no work. Having more machines, from more zones, moves the bound; using them
better moves a policy towards it: ``Gains`` keeps the two apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from sailor.planner.evidence import Place
from sailor.simulate.costs import Costs
from sailor.simulate.fleet import Change, Fleet
from sailor.simulate.job import Job, Outcome
from sailor.simulate.pace import Speeds, WithStandbys
from sailor.simulate.policies import (
    Restart,
    bamboo_like,
    bamboo_seconds,
    checkpoint_restart,
    framework_seconds,
    oobleck_like,
    oobleck_seconds,
    parcae_like,
    parcae_seconds,
    trainmover_like,
    tuned,
)
from sailor.simulate.rivals import Newcomers, Rules, follow
from sailor.simulate.world import simulate

BULK_S = 180.0
"""Losses within three minutes are one event: most that belong together are (Spot-and-Scoot)."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A fleet, what its machines make of a job, and how long a death goes unnoticed."""

    fleet: Fleet
    speeds: Speeds
    job: Job
    detect_s: float


@dataclass(frozen=True, kw_only=True)
class Result:
    """One policy in a scene."""

    policy: str
    outcome: Outcome
    share_of_bound: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Gains:
    """Kept samples of one policy and fleet over another's: the parts multiply to the whole."""

    runtime: float  # better use of the same machines
    nodes: float  # more machines: the ratio of the bounds

    @property
    def total(self) -> float:
        """Both together."""
        return self.runtime * self.nodes


def bound_samples(fleet: Fleet, speeds: Speeds, *, samples_per_step: float) -> float:
    """Samples if nothing cost anything: the best speed of the usable machines at every moment."""
    counts: Counter[Place] = Counter()
    total, since = 0.0, 0.0

    def rate() -> float:
        pace = speeds.best({place: n for place, n in counts.items() if n})
        return samples_per_step / pace.step_seconds if pace is not None else 0.0

    now = rate() if counts else 0.0
    stale = False
    for event in fleet.events:
        if event.change is Change.told:
            continue
        if event.t > since:
            if stale:
                now, stale = rate(), False
            total += (event.t - since) * now
            since = event.t
        counts[event.place] += 1 if event.change is Change.came else -1
        stale = True
    return total + (fleet.seconds - since) * (rate() if stale else now)


def mean_time_between_losses(fleet: Fleet) -> float:
    """Seconds of usable time per loss event, losses close together counted once; inf if none."""
    events, last = 0, -inf
    for event in fleet.events:
        if event.change is Change.gone:
            if event.t - last > BULK_S:
                events += 1
            last = event.t
    up = sum(end - begin for begin, end, number in fleet.levels() if number)
    return up / events if events else inf


def ours(scene: Scene, costs: Costs, *, standbys: int = 0) -> Outcome:
    """Our runtime in a scene: the life cycle itself."""
    speeds = WithStandbys(scene.speeds, number=standbys) if standbys else scene.speeds
    return simulate(scene.fleet, speeds=speeds, costs=costs, job=scene.job)


def rival(scene: Scene, rules: Rules) -> Outcome:
    """Another system in the same scene."""
    return follow(
        scene.fleet, speeds=scene.speeds, rules=rules,
        samples_per_step=scene.job.samples_per_step, detect_s=scene.detect_s,
    )  # fmt: skip


def tuned_restart(scene: Scene, restart: Restart) -> tuple[Rules, Outcome]:
    """Checkpoint-and-restart at its best on this very fleet: interval by Young and around it,
    newcomers taken in at once or at the next stop, whichever trains more."""
    between = mean_time_between_losses(scene.fleet)
    step_s = usual_step_seconds(scene)
    young = restart.checkpoints(mean_time_between_losses_s=between, step_s=step_s)
    least = max(1, -int(-young.write_s // step_s))
    around = {max(least, round(young.every * f)) for f in (0.35, 0.6, 1.0, 1.6, 2.7)} | {least}
    best: tuple[Rules, Outcome] | None = None
    for newcomers in (Newcomers.wait, Newcomers.join):
        rules, _ = tuned(
            checkpoint_restart(restart.restart_s, young, newcomers=newcomers),
            candidates=sorted(around),
            score=lambda candidate: rival(scene, candidate).samples,
        )
        outcome = rival(scene, rules)
        if best is None or outcome.samples > best[1].samples:
            best = (rules, outcome)
    assert best is not None
    return best


def best_size(scene: Scene, make: Mapping[int, Rules]) -> tuple[Rules, Outcome]:
    """A system of fixed size at the size that trains most on this very fleet."""
    outcomes = {size: rival(scene, rules) for size, rules in make.items()}
    size = max(outcomes, key=lambda n: (outcomes[n].samples, -n))
    return make[size], outcomes[size]


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """How large a job is, as far as the other systems' costs depend on it."""

    parameters: float
    num_gpus: int
    state_bytes: float


def contenders(
    scene: Scene,
    costs: Costs,
    *,
    size: Size,
    storage_bytes_per_second: Sequence[float],
    sizes: Sequence[int],
) -> dict[str, Outcome]:
    """Every policy in the scene, each at its best there. ``sizes``: machine counts that a system of
    fixed size may choose from. Storage is per GPU."""
    parameters = size.parameters
    found = {"ours": ours(scene, costs), "ours, 1 standby": ours(scene, costs, standbys=1)}
    for rate in storage_bytes_per_second:
        for how, snapshot_s in (("blocking", None), ("async", costs.snapshot_stall_s)):
            restart = Restart(
                framework_s=framework_seconds(size.num_gpus),
                bytes_per_gpu=size.state_bytes / size.num_gpus,
                storage_bytes_per_second=rate,
                snapshot_s=snapshot_s,
            )
            _, outcome = tuned_restart(scene, restart)
            found[f"restart, {how}, {rate / 1e9:g} GB/s"] = outcome
    add_s, remove_s = parcae_seconds(parameters)
    found["parcae-like"] = rival(scene, parcae_like(add_s=add_s, remove_s=remove_s))
    oobleck = oobleck_like(reconfigure_s=oobleck_seconds(parameters))
    found["oobleck-like"] = rival(scene, oobleck)
    bamboo = bamboo_like(rendezvous_s=30.0, rebalance_s=bamboo_seconds(parameters), step_factor=1.2)
    found["bamboo-like"] = rival(scene, bamboo)
    _, found["trainmover-like"] = best_size(scene, {n: trainmover_like(size=n) for n in sizes})
    return found


def side_by_side(scene: Scene, outcomes: Mapping[str, Outcome]) -> tuple[Result, ...]:
    """Outcomes with their share of the bound, best first."""
    bound = bound_samples(scene.fleet, scene.speeds, samples_per_step=scene.job.samples_per_step)
    results = [
        Result(policy=name, outcome=outcome,
               share_of_bound=outcome.samples / bound if bound else 0.0)
        for name, outcome in outcomes.items()
    ]  # fmt: skip
    return tuple(sorted(results, key=lambda r: (-r.share_of_bound, r.policy)))


def gains(*, ours_many: Outcome, bounds: tuple[float, float], rival_few: Outcome) -> Gains:
    """What is gained over a rival on fewer machines. ``bounds``: of few and of many machines."""
    few, many = bounds
    nodes = many / few if few else inf
    total = ours_many.samples / rival_few.samples if rival_few.samples else inf
    return Gains(runtime=total / nodes, nodes=nodes)


def usual_step_seconds(scene: Scene) -> float:
    """A step on the machines that are usually up."""
    levels = scene.fleet.levels()
    weight: Counter[int] = Counter()
    for begin, end, number in levels:
        weight[number] += int(end - begin)
    counts: Counter[Place] = Counter()
    seen: dict[int, Mapping[Place, int]] = {}
    for event in scene.fleet.events:
        if event.change is not Change.told:
            counts[event.place] += 1 if event.change is Change.came else -1
            seen.setdefault(sum(counts.values()), {p: n for p, n in counts.items() if n})
    for number, _ in weight.most_common():
        pace = scene.speeds.best(seen.get(number, {}))
        if pace is not None:
            return pace.step_seconds
    return 1.0


def table(results: Sequence[Result]) -> list[dict[str, object]]:
    """The comparison in JSON types."""
    return [
        {
            "policy": r.policy,
            "samples_per_s": r.outcome.samples_per_second,
            "share_of_bound": r.share_of_bound,
            "goodput": r.outcome.goodput,
            "redone_steps": r.outcome.redone_steps,
            "seconds": dict(r.outcome.seconds),
        }
        for r in results
    ]
