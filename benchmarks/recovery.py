"""How long training stands still when something dies, beside torchrun with torch's checkpoints.

    python -m benchmarks.recovery            minutes: both sizes, every kind of victim, growth
    python -m benchmarks.recovery --quick    one layout at 1 M parameters, and with a standby
    python -m benchmarks.recovery --sizes 1m,25m,100m     ours alone, a machine lost at each size:
                                             how the pause grows; 100m takes 14 GiB and minutes
    python -m benchmarks.recovery --json

Real processes, real SIGKILLs in the middle of a step, on this computer, ours and the baseline's one
after the other. Time counts from the signal to the next committed step: ours by the run's log, the
baseline's (``benchmarks/recovery_torchrun.py``) by its slowest worker. Both have four workers and
as many parameters; the baseline is data parallel, which is all that it can recover.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.document import machine, show
from benchmarks.recovery_run import (
    PARAMETERS,
    PARTS,
    SIZES,
    BrokenRun,
    Joining,
    Recovery,
    broken_run,
)
from benchmarks.recovery_torchrun import EVERY, Restart, restarts
from sailor.observe.events import Event

INTO_STEP = 0.5
STATE_BYTES = 12  # of a parameter: weight and both moments
SETTLE = 5  # steps between two events


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """A layout and who dies in it. ``roles``: so many a standby has rehearsed before anybody does;
    0 where nobody stands by."""

    name: str
    size: str
    words: tuple[str, ...]
    victims: tuple[str, ...]  # "node" or "worker", in this order
    joins: bool = False
    nodes: int = 4
    roles: int = 0


PP2DP2 = ("cloud.nodes=4", "planner.pipeline_parallel=2")
DP4 = ("cloud.nodes=4", "planner.pipeline_parallel=1", "planner.tensor_parallel=1")
TP2PP2 = (
    "cloud.nodes=2", "cloud.gpus_per_node=2", "planner.pipeline_parallel=2",
    "planner.tensor_parallel=2",
)  # fmt: skip


def with_standby(size: str) -> Scene:
    """A machine is lost and a warm one takes its place."""
    words = (*PP2DP2, "cloud.standbys=1")
    return Scene(name="standby", size=size, words=words, victims=("node",), nodes=5, roles=2)


QUICK = (
    Scene(name="pp2dp2", size="1m", words=PP2DP2, victims=("node", "worker"), joins=True),
    with_standby("1m"),
)


def growing(sizes: Iterable[str]) -> tuple[Scene, ...]:
    """One machine lost at each size, with survivors alone and with a standby."""
    return tuple(
        scene
        for size in sizes
        for scene in (
            Scene(name="pp2dp2", size=size, words=PP2DP2, victims=("node",)),
            with_standby(size),
        )
    )


def scenes(sizes: Iterable[str]) -> tuple[Scene, ...]:
    """Every kind of victim at every size."""
    return tuple(
        scene
        for size in sizes
        for scene in (
            Scene(name="pp2dp2", size=size, words=PP2DP2, victims=("node", "worker"), joins=True),
            Scene(name="dp4", size=size, words=DP4, victims=("node", "node")),
            Scene(name="tp2pp2", size=size, words=TP2PP2, victims=("worker", "worker"), nodes=2),
            with_standby(size),
        )
    )


GROWTH = tuple(
    Scene(
        name=f"dp{n}", size="1m", nodes=n, victims=("node",),
        words=(f"cloud.nodes={n}", "planner.pipeline_parallel=1", "planner.tensor_parallel=1"),
    )
    for n in (2, 8)
)  # fmt: skip


def played(scene: Scene, folder: Path) -> tuple[list[Recovery], list[Joining]]:
    """One run, broken as the scene says."""
    found: list[Recovery] = []
    joinings: list[Joining] = []
    joins = (2 * SETTLE + 8,) if scene.joins else ()
    with broken_run(folder, *SIZES[scene.size], *scene.words, joins=joins) as run:
        run.steps_on(SETTLE)
        if scene.roles:
            run.until(partial(_rehearsed, roles=scene.roles), what="a warm standby")
            run.steps_on(SETTLE)
        for number, kind in enumerate(scene.victims):
            if number:
                run.steps_on(SETTLE)
            name = run.worker_of_rank(1)  # a rank of the middle: neither logs nor leads
            victim = name.partition("/")[0] if kind == "node" else name
            found.append(run.recover_from(victim, _killer(run, kind, victim), into_step=INTO_STEP))
            if scene.joins and number == 0:
                joinings.append(run.joined(f"node-{scene.nodes + 1}"))
    return found, joinings


def _rehearsed(log: tuple[Event, ...], *, roles: int) -> bool:
    """Whether a standby has so many roles behind it."""
    warm = [e for e in log if e.kind == "standby" and e["state"] == "warm"]
    return len({e["role"] for e in warm}) >= roles


def _killer(run: BrokenRun, kind: str, victim: str) -> Any:
    kill = run.kill_node if kind == "node" else run.kill_worker
    return lambda: kill(victim)


def measure(
    chosen: Iterable[Scene], *, sizes: Iterable[str], kills: int, folder: Path
) -> dict[str, Any]:
    """Play all scenes and the baseline; the document."""
    ours: dict[tuple[str, str], list[Recovery]] = {}
    joinings: dict[str, list[Joining]] = {}
    failed: dict[str, str] = {}
    for scene in chosen:
        try:
            found, came = played(scene, folder / f"{scene.name}-{scene.size}")
        except TimeoutError as error:
            failed[f"{scene.name} {scene.size}"] = str(error)[-400:]
            continue
        ours[scene.name, scene.size] = found
        joinings.setdefault(scene.size, []).extend(came)
    theirs: dict[str, list[Restart]] = {}
    for size in sizes:
        try:
            theirs[size] = restarts(size, folder / f"torchrun-{size}", workers=kills, nodes=0)
        except TimeoutError as error:
            failed[f"torchrun {size}"] = str(error)
    return {
        "benchmark": "recovery",
        "figures": figures(ours, joinings, theirs),
        "detail": {
            "ours": {f"{name} {size}": [asdict(r) for r in f] for (name, size), f in ours.items()},
            "joining": {size: [asdict(j) for j in found] for size, found in joinings.items()},
            "torchrun": {size: [asdict(r) for r in found] for size, found in theirs.items()},
            "torchrun_saves_every": {size: EVERY[size] for size in theirs},
            "growth": growth(ours),
            "failed": failed,
        },
        "machine": machine(),
    }


def figures(
    ours: dict[tuple[str, str], list[Recovery]],
    joinings: dict[str, list[Joining]],
    theirs: dict[str, list[Restart]],
) -> dict[str, float | int | None]:
    """The keys others rely on. A total is the worst of the layouts' medians, over all victims."""
    every = [r for found in ours.values() for r in found]
    agents = [r.detect_s for r in every if "/" not in r.victim]
    workers = [r.detect_s for r in every if "/" in r.victim]
    came = joinings.get("1m", [])
    moved = [(r.bytes_moved, r.parts["copy_s"]) for r in every if r.parts["copy_s"] > 0]
    result: dict[str, float | int | None] = {
        "detect_s": _median(workers + agents),
        "detect_node_s": _median(agents),
        "detect_worker_s": _median(workers),
    }
    for size in SIZES:
        medians = [
            statistics.median(r.total_s for r in found)
            for (name, of), found in ours.items()
            if of == size and name in ("pp2dp2", "dp4", "tp2pp2")
        ]
        if medians:
            result[f"total_s_{size}"] = max(medians)
            result[f"overhead_s_{size}"] = _median(
                [
                    r.total_s - r.step_s
                    for (_, of), found in ours.items()
                    if of == size
                    for r in found
                ]
            )
    alike = {
        size: _median([r.total_s for r in ours.get(("dp4", size), [])])
        or result.get(f"total_s_{size}")
        for size in ("1m", "25m")
    }
    result |= {
        "join_s": _median([j.first_step_s for j in came]),
        "join_pause_s": _median([j.pause_s for j in came]),
        "steps_redone": max((r.steps_redone for r in every), default=None),
        # Of the same layout; beside it our worst one, which it cannot recover at all.
        "ratio_vs_torchrun_dcp": _ratio(theirs.get("1m"), alike["1m"]),
        "ratio_vs_torchrun_dcp_25m": _ratio(theirs.get("25m"), alike["25m"]),
        "ratio_vs_torchrun_dcp_worst_layout": _ratio(theirs.get("1m"), result.get("total_s_1m")),
        "ratio_vs_torchrun_dcp_warm_standby": _ratio(
            theirs.get("1m"), _median([r.total_s for r in ours.get(("standby", "1m"), [])])
        ),
        "reshard_bytes_per_s": _median([size / seconds for size, seconds in moved]),
        "growth_1m_to_25m": _quotient(result.get("total_s_25m"), result.get("total_s_1m")),
        "growth_1m_to_100m": _grown(growth(ours), "pp2dp2"),
        "growth_1m_to_100m_standby": _grown(growth(ours), "standby"),
        "growth_2_to_8": _quotient(
            _median([r.total_s for r in ours.get(("dp8", "1m"), [])]),
            _median([r.total_s for r in ours.get(("dp2", "1m"), [])]),
        ),
    }
    return result


def growth(ours: dict[tuple[str, str], list[Recovery]]) -> dict[str, list[dict[str, float]]]:
    """By scene, a row for each size: parameters, what its state takes, and how long a machine's
    loss holds it up beyond the step that is done again. ``overhead_s_per_gb``: of all state."""
    rows: dict[str, list[dict[str, float]]] = {}
    for (name, size), found in ours.items():
        lost = [r for r in found if "/" not in r.victim]
        if name not in ("pp2dp2", "standby") or not lost:
            continue
        overhead_s = statistics.median(r.total_s - r.step_s for r in lost)
        num_bytes = STATE_BYTES * PARAMETERS[size]
        rows.setdefault(name, []).append(
            {
                "parameters": PARAMETERS[size], "state_bytes": num_bytes,
                "total_s": statistics.median(r.total_s for r in lost),
                "step_s": statistics.median(r.step_s for r in lost),
                "overhead_s": overhead_s, "overhead_s_per_gb": overhead_s / (num_bytes / 1e9),
                "bytes_moved": statistics.median(r.bytes_moved for r in lost),
                **{part: statistics.median(r.parts[part] for r in lost) for part in PARTS},
            }
        )  # fmt: skip
    return rows


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def _grown(rows: dict[str, list[dict[str, float]]], name: str) -> float | None:
    """How many times longer a loss holds up 100 M parameters than 1 M, the steps left out."""
    overheads = {row["parameters"]: row["overhead_s"] for row in rows.get(name, [])}
    return _quotient(overheads.get(PARAMETERS["100m"]), overheads.get(PARAMETERS["1m"]))


def _quotient(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def _ratio(theirs: list[Restart] | None, ours: float | None) -> float | None:
    """How many times longer the baseline stands still; more is better for us."""
    return _quotient(_median([r.total_s for r in theirs or []]), ours)


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sizes", help="by commas, of " + ", ".join(SIZES) + ": growth alone")
    asked = parser.parse_args()
    sizes = asked.sizes.split(",") if asked.sizes else []
    if unknown := [size for size in sizes if size not in SIZES]:
        parser.error(f"--sizes knows {', '.join(SIZES)}, not {', '.join(unknown)}")
    signal.signal(signal.SIGTERM, _leave)  # what was started is ended, as after Ctrl-C
    with tempfile.TemporaryDirectory(prefix="sailor-recovery-") as name:
        folder = Path(name)
        if sizes:
            document = measure(growing(sizes), sizes=(), kills=0, folder=folder)
        elif asked.quick:
            document = measure(QUICK, sizes=("1m",), kills=1, folder=folder)
        else:
            chosen = (*scenes(("1m", "25m")), *GROWTH)
            document = measure(chosen, sizes=("1m", "25m"), kills=3, folder=folder)
    show(document, as_json=asked.json)
    return 1 if document["detail"]["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
