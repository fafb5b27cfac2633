"""action=status recipe=NAME: the steps of a recipe, what became of each, and what is still to do.

Composes every step and looks at its files, so that it says what the next command would do. Writes
nothing.
"""

from __future__ import annotations

from typing import Any

from rich.table import Table

from actions.console import Console
from actions.recipe import Compose
from actions.recipe.due import earlier_results, why_due
from actions.recipe.inputs import inputs_of
from actions.recipe.outputs import Output, missing
from actions.recipe.pipeline import clock_time, named
from actions.recipe.record import RUNNING, Record, StepRecord, is_held, record_path
from sailor.config import Config
from sailor.units import duration

TO_DO = "to do"


def run(config: Config, console: Console, *, compose: Compose) -> int:
    """Show the steps. Raises ConfigError, as composing them does."""
    recipe = named(config)
    path = record_path(config)
    steps = {step: compose(f"action={step}") for step in recipe.actions}
    rows = states(steps, Record(path, recipe=recipe.name), at_work=is_held(path))
    console.document({"recipe": recipe.name, "run": path.stem, "steps": rows})
    table = Table("step", "state", "when", "took", "why", box=None)
    for row in rows:
        table.add_row(
            row["step"], row["state"], "-" if row["when"] is None else clock_time(row["when"]),
            "-" if not row["seconds"] else duration(row["seconds"]), row["why"],
        )  # fmt: skip
    console.print(f"recipe {recipe.name}, run {path.stem}", soft_wrap=True, markup=False)
    console.print(table)
    return 0


def states(steps: dict[str, Config], record: Record, *, at_work: bool) -> list[dict[str, Any]]:
    """One row a step: done, skipped, running, failed or to do, with when and why.

    Steps after one that is to be done are to do as well, for what it will make is not known.
    """
    rows: list[dict[str, Any]] = []
    made: dict[str, tuple[Output, ...]] = {}
    waits_for = ""
    for step, config in steps.items():
        kept = record.steps.get(step)
        if at_work and kept is not None and kept.state == RUNNING:
            rows.append(_row(step, RUNNING, kept, f"process {record.pid}: {kept.why}"))
            waits_for = waits_for or step
            continue
        why = why_due(
            step, kept, inputs=inputs_of(step, config), earlier=earlier_results(step, made),
            missing=missing,
        )  # fmt: skip
        if kept is not None and kept.is_good and not why and not (waits_for and step != "train"):
            made[step] = kept.outputs
            rows.append(_row(step, kept.state, kept, kept.why))
            continue
        failed = kept is not None and kept.state == "failed"
        if waits_for and kept is not None and kept.is_good:
            why = why or f"after {waits_for}"
        rows.append(_row(step, "failed" if failed else TO_DO, kept, why))
        waits_for = waits_for or step
    return rows


def _row(step: str, state: str, kept: StepRecord | None, why: str) -> dict[str, Any]:
    return {
        "step": step,
        "state": state,
        "when": None if kept is None else kept.since,
        "seconds": 0.0 if kept is None else round(kept.seconds, 3),
        "why": kept.why if kept is not None and state == "failed" else why,
        "exit_code": 0 if kept is None else kept.exit_code,
    }
