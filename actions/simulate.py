"""action=simulate: what becomes of the plan when machines vanish. Rents nothing, waits for nothing.

The run's own life cycle, recruiting and planner on a simulated clock, over recorded or drawn spot
availability; other systems on the same machines; the spot-aware choice with P50, P90 and chances.
Only wiring and words: docs/goodput.md has the model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from actions.console import Console
from actions.scenes import Setting, setting
from sailor.config import Config
from sailor.planner.evidence import Place
from sailor.planner.risk import Judged, choose
from sailor.simulate.fleet import Fleet
from sailor.simulate.goodput import (
    Gains,
    Result,
    bound_samples,
    contenders,
    gains,
    mean_time_between_losses,
    side_by_side,
    tuned_restart,
)
from sailor.simulate.picture import page
from sailor.simulate.policies import Restart, framework_seconds
from sailor.simulate.what_ifs import Point, chances, sweep_hazard, sweep_price
from sailor.units import count, duration, parse_seconds

SHARES_OF_TARGET = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # sizes a system of fixed size may choose
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
GAINS_AT = 1.0  # GB/s of storage per GPU, for restarting on one zone
_SWEPT_FUTURES = 500


def run(config: Config, console: Console) -> int:
    """Simulate, show, write the page. Raises what planning raises, and DataError for traces."""
    with console.waiting(f"simulating {config.simulate.futures:,} futures of each choice"):
        here = setting(config)
        judged = choose(
            here.pays(), here.guard(), here.speed, number=config.simulate.futures, seed=config.seed
        )
    best = judged[0]
    with console.waiting("simulating other systems on the same machines"):
        fleet = here.fleet()
        results = compare(here, fleet, snapshot_every=best.choice.snapshot_every)
        zones = more_machines(here, results, storage=GAINS_AT)
    words = [*opening(here, fleet, best), *gained(zones)]
    text = page(
        title=f"{here.asked.spec.name} on {here.target} x {here.kind}, simulated",
        words=words, futures=best.futures, fleet=fleet, results=results,
    )  # fmt: skip
    path = _write(text, folder=Path(config.runs_dir).expanduser() / "simulations")
    console.document(
        document(here, fleet, results, judged, path=path)
        | {"gains_over_one_zone": {zone: _gains(found) for zone, found in zones.items()}}
    )
    for line in words:
        console.print(line, soft_wrap=True, markup=False)
    console.print(table(results))
    console.print(choices_table(judged))
    for line in limits(config, best):
        console.print(line, soft_wrap=True, markup=False)
    console.print(f"written: {path}", soft_wrap=True)
    return 0


def compare(here: Setting, fleet: Fleet, *, snapshot_every: int) -> tuple[Result, ...]:
    """Ours and the others on this fleet, best first."""
    scene = here.scene(fleet, snapshot_every=snapshot_every)
    sizes = sorted({max(1, round(share * here.target)) for share in SHARES_OF_TARGET})
    outcomes = contenders(
        scene, here.costs, size=here.size, sizes=sizes,
        storage_bytes_per_second=[rate * 1e9 for rate in here.config.simulate.storage],
    )  # fmt: skip
    return side_by_side(scene, outcomes)


def more_machines(here: Setting, results: Sequence[Result], *, storage: float) -> dict[str, Gains]:
    """Zone -> what ours on all zones gains over restarting on that zone alone, GB/s per GPU of
    storage: of better use, and of more machines. Nothing where there is one zone."""
    zones = [zone for zone, _ in here.trace.places]
    if len(zones) < 2:
        return {}
    outcome = next(r.outcome for r in results if r.policy == "ours")
    scene = here.scene(here.fleet(), snapshot_every=1)
    samples = scene.job.samples_per_step
    everywhere = bound_samples(scene.fleet, scene.speeds, samples_per_step=samples)
    restart = Restart(
        framework_s=framework_seconds(here.size.num_gpus),
        bytes_per_gpu=here.size.state_bytes / here.size.num_gpus,
        storage_bytes_per_second=storage * 1e9, snapshot_s=here.costs.snapshot_stall_s,
    )  # fmt: skip
    found = {}
    for zone in zones:
        alone = replace(scene, fleet=here.fleet(zones=(zone,)))
        bound = bound_samples(alone.fleet, alone.speeds, samples_per_step=samples)
        _, rival = tuned_restart(alone, restart)
        found[zone] = gains(ours_many=outcome, bounds=(bound, everywhere), rival_few=rival)
    return found


def gained(zones: Mapping[str, Gains]) -> list[str]:
    """The same in words."""
    return [
        f"over restarting on {zone} alone: {found.total:.2f} times as much, of which "
        f"{found.nodes:.2f} from more machines and {found.runtime:.2f} from using them better"
        for zone, found in zones.items()
        if found.total != float("inf")
    ]


def _gains(found: Gains) -> dict[str, float | None]:
    return {
        "total": _finite(found.total), "from_more_machines": _finite(found.nodes),
        "from_the_runtime": _finite(found.runtime),
    }  # fmt: skip


def opening(here: Setting, fleet: Fleet, best: Judged) -> list[str]:
    """What was simulated, on what, and what is believed."""
    between = mean_time_between_losses(fleet)
    lines = [
        f"{here.asked.spec.name} {count(here.asked.spec.num_parameters)} params | plan "
        f"{here.chosen.plan.describe()} on {here.target} x {here.kind} | "
        f"{duration(fleet.seconds)} of {fleet.source}",
        f"{fleet.num_lost} machines lost, "
        + (f"one loss event every {duration(between)}" if fleet.num_lost else "no loss")
        + f"; {fleet.node_seconds / fleet.seconds:.1f} machines usable on average; "
        f"costs: {here.costs.sources.get('all', 'published figures, docs/goodput.md')}",
    ]
    lines += [f"{zone}: {hazard.describe()}" for (zone, _), hazard in here.hazards().items()]
    lines += [f"note: {note}" for note in here.notes]
    lines.append(f"chosen: {best.choice.describe()}")
    return lines


def table(results: Sequence[Result]) -> Table:
    """The policies; samples per second are kept ones over the whole time."""
    ours = next(r.outcome.samples for r in results if r.policy == "ours")
    shown = Table(
        "policy", "samples/s", "of the bound", "ours / it", "goodput", "steps redone",
        "where the rest goes", box=None, pad_edge=False,
    )  # fmt: skip
    for result in results:
        outcome = result.outcome
        lost = [
            f"{cause} {seconds / outcome.wall_s:.1%}"
            for cause, seconds in outcome.seconds.items()
            if cause != "good" and seconds / outcome.wall_s >= 0.001
        ]
        shown.add_row(
            result.policy, f"{outcome.samples_per_second:.4g}", f"{result.share_of_bound:.1%}",
            f"{ours / outcome.samples:.2f}" if outcome.samples else "-",
            f"{outcome.goodput:.1%}", f"{outcome.redone_steps:,}", ", ".join(lost[:4]),
        )  # fmt: skip
    return shown


def choices_table(judged: Sequence[Judged]) -> Table:
    """The short list of the spot-aware choice."""
    shown = Table(
        "#", "machines", "standby", "snapshot", "copies", "$ P50", "$ P90", "hours P50",
        "hours P90", "finishes", box=None, pad_edge=False,
    )  # fmt: skip
    for number, entry in enumerate(judged, start=1):
        choice = entry.choice
        where = " + ".join(
            f"{s.machines} {s.place[0]}" + ("" if s.hazard.shape else " (on demand)")
            for s in choice.stands
        )
        shown.add_row(
            str(number), where, str(choice.standbys), f"every {choice.snapshot_every}",
            str(choice.copies), f"{entry.dollars[0]:,.0f}", f"{entry.dollars[1]:,.0f}",
            f"{entry.hours[0]:,.1f}", f"{entry.hours[1]:,.1f}", f"{entry.futures.chance():.0%}",
        )  # fmt: skip
    return shown


def limits(config: Config, best: Judged) -> list[str]:
    """The chance to keep the budget and the deadline, where there is one."""
    dollars = config.budget.total_usd
    deadline = config.budget.deadline
    if dollars is None and deadline is None:
        return []
    hours = parse_seconds(deadline) / 3600 if deadline is not None else None
    chance = best.futures.chance(
        dollars=dollars if dollars is not None else float("inf"),
        hours=hours if hours is not None else float("inf"),
    )
    within = " and ".join(
        part for part in (
            f"${dollars:,.0f}" if dollars is not None else "",
            f"{hours:,.1f} h" if hours is not None else "",
        ) if part
    )  # fmt: skip
    return [f"chance to finish within {within}: {chance:.0%}"]


def document(
    here: Setting, fleet: Fleet, results: Sequence[Result], judged: Sequence[Judged], *, path: Path
) -> dict[str, Any]:
    """Everything the tables show and more, in JSON types."""
    best, seed = judged[0], here.config.seed
    guard = here.guard()
    swept = min(_SWEPT_FUTURES, here.config.simulate.futures)
    scene = here.scene(fleet, snapshot_every=best.choice.snapshot_every)
    return {
        "action": "simulate",
        "model": {"name": here.asked.spec.name, "parameters": here.asked.spec.num_parameters},
        "plan": here.chosen.plan.describe(),
        "machines": {"type": here.kind, "wished": here.target,
                     "usable_mean": fleet.node_seconds / fleet.seconds},
        "trace": {"source": fleet.source, "seconds": fleet.seconds, "lost": fleet.num_lost,
                  "seconds_between_losses": _finite(mean_time_between_losses(fleet)),
                  "notes": list(here.notes)},
        "bound_samples_per_s": bound_samples(
            fleet, here.speeds, samples_per_step=scene.job.samples_per_step
        ) / fleet.seconds,
        "dollars": _dollars(here, fleet),
        "policies": [
            {"policy": r.policy, "samples_per_s": r.outcome.samples_per_second,
             "share_of_bound": r.share_of_bound, "goodput": r.outcome.goodput,
             "redone_steps": r.outcome.redone_steps, "wall_s": r.outcome.wall_s,
             "seconds": dict(r.outcome.seconds)}
            for r in results
        ],
        "hazards": {
            f"{zone} {kind}": {**asdict(h), "text": h.describe()}
            for (zone, kind), h in here.hazards().items()
        },
        "choices": [_choice(entry) for entry in judged],
        "what_if": {
            "chances": {k: [list(p) for p in v] for k, v in chances(best.futures).items()},
            "hazard": [_point(p) for p in sweep_hazard(
                best.choice, guard, here.speed, factors=FACTORS, number=swept, seed=seed)],
            "price": [_point(p) for p in sweep_price(
                best.choice, guard, here.speed, factors=FACTORS, number=swept, seed=seed)],
        },
        "chance": {
            "text": limits(here.config, best),
            "dollars": here.config.budget.total_usd, "deadline": here.config.budget.deadline,
        },
        "costs": {"sources": dict(here.costs.sources)},
        "seed": seed,
        "page": str(path),
    }  # fmt: skip


def _choice(entry: Judged) -> dict[str, Any]:
    choice, futures = entry.choice, entry.futures
    return {
        "text": choice.describe(),
        "stands": [
            {"zone": s.place[0], "machine_type": s.place[1], "machines": s.machines,
             "price_per_hour": s.price_per_hour, "on_demand": not s.hazard.shape}
            for s in choice.stands
        ],
        "standbys": choice.standbys,
        "snapshot_every": choice.snapshot_every,
        "copies": choice.copies,
        "expected": {
            "samples_per_s": choice.samples_per_second,
            "dollars_per_hour": choice.dollars_per_hour,
            "dollars_per_sample": _finite(choice.dollars_per_sample),
        },
        "dollars": dict(zip(("p50", "p90"), map(_finite, entry.dollars), strict=True)),
        "hours": dict(zip(("p50", "p90"), map(_finite, entry.hours), strict=True)),
        "finishes": futures.chance(),
        "fan": {
            "quantiles": list(futures.quantiles),
            "hours": futures.grid_hours.tolist(),
            "done": futures.done.tolist(),
            "dollars": futures.dollars.tolist(),
        },
    }  # fmt: skip


def _dollars(here: Setting, fleet: Fleet) -> float:
    prices: Mapping[Place, float] = here.prices
    return fleet.dollars(prices) * here.config.simulate.price_factor


def _point(point: Point) -> dict[str, Any]:
    return {
        "factor": point.factor,
        "dollars": [_finite(value) for value in point.dollars],
        "hours": [_finite(value) for value in point.hours],
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity; None is never."""
    return value if value not in (float("inf"), float("-inf")) else None


def _write(text: str, *, folder: Path) -> Path:
    """The page, named by its content: the same simulation is the same file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:8]}.html"
    path.write_text(text)
    return path


def as_bytes(value: Any) -> bytes:
    """A document in one form: the same seed gives the same bytes."""
    return json.dumps(value, sort_keys=True).encode()
