"""The simulators against published results: what the Oobleck artifact (SOSP'23) reports for three
systems on seven traces and five models, read from data beside the project.

Three checks. ``artifact``: the published rules to the letter, all rows. ``clockwork``: our own
rules for those systems, on the rows that no peculiarity of the original decides. ``life cycle``:
our own runtime with Oobleck's pauses, on the traces where machines only leave.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from provision.trace import Trace, read_trace
from sailor.simulate.artifact import Published, published_rate
from sailor.simulate.costs import FREE, Pauses
from sailor.simulate.fleet import rent
from sailor.simulate.pace import TableSpeeds
from sailor.simulate.policies import bamboo_like, checkpoint_restart, oobleck_like
from sailor.simulate.rivals import Checkpointing, Newcomers, Rules, follow
from sailor.simulate.world import Job, simulate

CREATION_S = 45.0
_MODELS = {
    "BERT-large": "BERT-large", "GPT-2-ours": "GPT-2", "GPT-3-medium": "GPT-3-medium",
    "GPT-3-2_7b": "GPT-3-2.7B", "GPT-3-6_7b": "GPT-3-6.7B",
}  # fmt: skip
_SMALL = ("BERT-large", "GPT-2", "GPT-3-medium")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One published row and what is needed to work it out again. Seconds."""

    trace: str
    model: str
    system: str
    rate: float  # samples per second
    table: dict[int, float]
    batch: float
    restart_s: float
    stall_s: float = 0.0
    rebalance_s: float = 0.0

    @property
    def recorded(self) -> bool:
        """Whether its trace was recorded, and not made with equal gaps."""
        return self.trace.startswith("scale_")


def cases(folder: Path) -> Iterator[Case]:
    """The published rows that have a throughput table."""
    parameters = json.loads((folder / "sim_params.json").read_text())
    for row in json.loads((folder / "oobleck_artifact_results.json").read_text()):
        model, system = _MODELS[row["model"]], row["system"]
        table = parameters["throughput_samples_s_by_nodes"][model].get(system)
        if table is None:
            continue  # out of memory: published as zero
        costs: dict[str, float] = {}
        if system == "varuna":
            stall = parameters["varuna_ckpt_restart"]["checkpoint_stall_s"][model]
            # The published restart overlaps with one checkpoint's stall.
            costs = {"restart_s": parameters["varuna_ckpt_restart"]["restart_s"][model] - stall,
                     "stall_s": stall}  # fmt: skip
        elif system == "oobleck":
            costs = {"restart_s": parameters["oobleck"]["reconfig_s"][model]}
        else:
            costs = {"restart_s": parameters["bamboo"]["global_rendezvous_s"],
                     "rebalance_s": parameters["bamboo"]["rebalance_s"][model]}  # fmt: skip
        yield Case(
            trace=row["trace"], model=model, system=system, rate=row["avg_samples_per_s"],
            table={int(n): rate for n, rate in table.items()},
            batch=parameters["models"][model]["global_batch"], **costs,
        )  # fmt: skip


def by_the_letter(case: Case, folder: Path) -> float:
    """The published rules."""
    published = Published(
        samples_per_step=case.batch,
        samples_per_second=case.table,
        restart_ms=int(case.restart_s * 1000),
        rebalance_ms=int(case.rebalance_s * 1000),
        stall_ms=int(case.stall_s * 1000),
        loses_work=case.system == "varuna" and not (case.recorded and case.model in _SMALL),
        redundant=case.system == "bamboo",
    )
    with (folder / f"oobleck_{case.trace}").open() as file:
        events = [(int(r["t_ms"]), r["event"] == "add", r["node"]) for r in csv.DictReader(file)]
    return published_rate(published, events)


def by_our_clockwork(case: Case, trace: Trace) -> float:
    """Our rules for the same system."""
    rules: Rules
    if case.system == "varuna":
        every = Checkpointing(every=10, stall_s=case.stall_s)
        rules = checkpoint_restart(case.restart_s, every)
    elif case.system == "oobleck":
        rules = oobleck_like(reconfigure_s=case.restart_s, newcomers=Newcomers.wait)
    else:
        # Twice the work of a step is in its table already.
        rules = bamboo_like(
            rendezvous_s=case.restart_s, rebalance_s=case.rebalance_s, step_factor=1.0
        )
    fleet = rent(trace.events, seconds=trace.seconds, target=30, boot_seconds=CREATION_S)
    speeds = TableSpeeds(case.table, samples_per_step=case.batch, depth=1)
    outcome = follow(fleet, speeds=speeds, rules=rules, samples_per_step=case.batch)
    return outcome.samples / (outcome.wall_s - CREATION_S)


def by_the_life_cycle(case: Case, trace: Trace) -> float:
    """Our runtime with Oobleck's pause and nothing else."""
    fleet = rent(trace.events, seconds=trace.seconds, target=30, boot_seconds=CREATION_S)
    outcome = simulate(
        fleet,
        speeds=TableSpeeds(case.table, samples_per_step=case.batch, depth=1),
        costs=replace(FREE, unplanned=Pauses(prepare_s=case.restart_s)),
        job=Job(samples_per_step=case.batch, state_bytes=0.0),
    )
    waited = outcome.seconds.get("start_up", 0.0) + outcome.seconds.get("capacity", 0.0)
    return outcome.samples / (outcome.wall_s - waited)


def free_of_peculiarities(case: Case) -> bool:
    """Whether a row follows from the rules as anyone would read them.

    Not where timers of losses in a row stop training (Oobleck on the busiest trace), nor where the
    queue's order decides which checkpoints count (models whose restart takes minutes), nor where
    lost work is switched off (small models on recorded traces).
    """
    if case.system == "bamboo":
        return True
    if case.system == "oobleck":
        return case.trace != "scale_p3-trace.csv"
    slow = case.model in ("GPT-3-2.7B", "GPT-3-6.7B")
    return not case.recorded and not (slow and case.trace in ("30m.csv", "10m.csv"))


def report(folder: Path) -> dict[str, Any]:
    """The largest errors of the three checks, and every row."""
    rows = []
    for case in cases(folder):
        trace = read_trace(folder / f"oobleck_{case.trace}", zone="z")
        row: dict[str, Any] = {
            "trace": case.trace, "model": case.model, "system": case.system,
            "published": case.rate, "artifact": by_the_letter(case, folder),
            "clockwork": by_our_clockwork(case, trace),
            "clockwork_counts": free_of_peculiarities(case),
        }  # fmt: skip
        if case.system == "oobleck" and not case.recorded:
            row["life_cycle"] = by_the_life_cycle(case, trace)
        rows.append(row)
    return {
        "artifact_worst_error": max(_error(row, "artifact") for row in rows),
        "clockwork_worst_error": max(
            _error(row, "clockwork") for row in rows if row["clockwork_counts"]
        ),
        "life_cycle_worst_error": max(
            _error(row, "life_cycle") for row in rows if "life_cycle" in row
        ),
        "rows": rows,
    }


def _error(row: dict[str, Any], name: str) -> float:
    """Relative; a published zero has to be found as less than a hundredth of a sample a second."""
    if not row["published"]:
        return 0.0 if row[name] < 0.01 else 1.0
    return float(abs(row[name] / row["published"] - 1.0))
