"""action=status: what the run folders hold. Reads files only, disturbs nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from actions.console import Console
from actions.recipe.record import kept_for
from actions.run_folder import owner_pid, read_summary, said_of
from sailor.config import Config
from sailor.errors import ConfigError
from sailor.observe.events import read_events
from sailor.observe.summary import summarise


def run(config: Config, console: Console) -> int:
    """Show the run named run.name, or all of runs_dir when none is named."""
    root = Path(config.runs_dir).expanduser()
    if config.run.name is not None:
        paths = [root / config.run.name]
        if not (paths[0] / "config.yaml").exists():
            raise no_such_run(paths[0], root=root)
    else:
        paths = sorted(path.parent for path in root.glob("*/config.yaml"))
    rows = [status_of(path) for path in paths]
    console.document(rows)
    if not rows:
        console.print(f"no runs in {root}")
        return 0
    table = Table("run", "state", "steps", "loss", "held-out", "cost", "recipe", "folder", box=None)
    for row in rows:
        table.add_row(
            row["run"], row["state"], _steps(row), _figure(row["loss_last"], "{:.3f}"),
            _figure(row["eval_loss"], "{:.3f}"), _figure(row["cost_usd"], "${:.2f}"),
            _recipe(row["recipe"]), row["folder"],
        )  # fmt: skip
    console.print(table)
    return 0


def status_of(path: Path) -> dict[str, Any]:
    """One run in a few figures. ``state`` is "running (pid N)" while a process has it open, else
    how it ended, "killed" when it could not say, "never began" without a log."""
    pid = owner_pid(path)
    summary = {} if pid else read_summary(path)
    log = path / "events.jsonl"
    if not summary and log.exists():  # it goes on, or was killed before it could sum up
        summary = summarise(read_events(log))
    ended = str(summary.get("status") or "never began")
    names = ("steps", "total_steps", "loss_last", "eval_loss", "cost_usd")
    return {
        "run": path.name,
        "state": f"running (pid {pid})" if pid else "killed" if ended == "running" else ended,
        **{name: summary.get(name) for name in names},
        "recipe": kept_for(path),
        "folder": str(path),
    }


def no_such_run(path: Path, *, root: Path) -> ConfigError:
    """E608, with the runs there are."""
    others = sorted(found.parent.name for found in root.glob("*/config.yaml"))
    return ConfigError(
        f"there is no run {path.name}", code="E608", where=str(path),
        why="runs there are: " + (", ".join(others) or "none"),
        fix=f"{said_of(root, 'status')}   lists all",
    )  # fmt: skip


def _steps(row: dict[str, Any]) -> str:
    if row["steps"] is None:
        return "-"
    return f"{row['steps']} of {row['total_steps']}"


def _recipe(steps: dict[str, str]) -> str:
    """The steps of a recipe that were done, and the one at hand; recipe=NAME has more."""
    if not steps:
        return "-"
    good = sum(1 for state in steps.values() if state in ("done", "skipped"))
    last = next((f", {step} {state}" for step, state in steps.items()
                 if state not in ("done", "skipped")), "")  # fmt: skip
    return f"{good} steps done{last}"


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
