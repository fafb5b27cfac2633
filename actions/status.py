"""action=status: what the run folders hold, what goes on and costs, what may be left over.

    python run.py action=status                    all runs of runs_dir
    python run.py action=status run=NAME           one of them

Reads files, and visits runs that have a machine of their own; disturbs nobody. Whether a machine is
gone is for action=down to prove.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from actions.away import ROOM, away
from actions.console import Console
from actions.recipe.record import kept_for
from actions.run_folder import owner_pid, read_summary, said_of
from provision.local import RECORD
from provision.machines import MachineRecord
from provision.orders import OrderBook
from sailor.config import Config
from sailor.errors import ConfigError
from sailor.observe.events import read_events
from sailor.observe.history import replay
from sailor.observe.ledger import NodeLife
from sailor.observe.summary import summarise
from sailor.runtime.door import Seen


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
    table = Table("run", "state", "steps", "loss", "held-out", "cost", "$/h", "left over", box=None)
    table.add_column("recipe")
    for row in rows:
        table.add_row(
            row["run"], row["state"], _steps(row), _figure(row["loss_last"], "{:.3f}"),
            _figure(row["eval_loss"], "{:.3f}"), _figure(row["cost_usd"], "${:.2f}"),
            f"{row['usd_per_hour']:.2f}" if row["usd_per_hour"] else "-",
            str(len(row["left_over"]) or "-"), _recipe(row["recipe"]),
        )  # fmt: skip
    console.print(table)
    for line in advice(rows):
        console.print(line, soft_wrap=True, markup=False)
    return 0


def advice(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What goes on and what it costs; for what may be left over, the command that ends it."""
    going = [row for row in rows if row["goes_on"]]
    if going:
        rate = sum(row["usd_per_hour"] for row in going)
        cost = f", ${rate:.2f} an hour" if rate else ""
        yield f"{len(going)} go{'es' if len(going) == 1 else ''} on{cost}"
        for row in going:
            yield f"  {said_of(Path(row['folder']), 'watch')}   shows it"
            yield (
                f"  {said_of(Path(row['folder']), 'down')}   saves, stops it and ends its machine"
                if row["elsewhere"]
                else f"  kill -INT {row['pid']}   saves and stops it"
            )
    for row in rows:
        if row["elsewhere"] and not row["goes_on"]:
            yield f"{row['run']} was not brought home"
            yield f"  {said_of(Path(row['folder']), 'watch')}   fetches its results"
    for row in rows:
        if row["left_over"]:
            names = ", ".join(row["left_over"])
            yield f"{row['run']} may have left {names}"
            yield f"  {said_of(Path(row['folder']), 'down')}   ends what lives, and proves it"


def status_of(path: Path) -> dict[str, Any]:
    """One run in a few figures. ``state`` is "running (pid N)" while a process has it open, else
    how it ended, "killed" when it could not say, "never began" without a log.

    ``usd_per_hour``: of machines that are not proven gone. ``left_over``: those of a run that does
    not go on.
    """
    pid, there = owner_pid(path), away(path)
    elsewhere = there is not None and not there.is_home
    seen = there.look() if there is not None and elsewhere else None
    runs_there = seen is not None and seen.exit_code is None
    goes_on = pid is not None or runs_there
    summary = {} if goes_on else read_summary(path)
    log = path / "events.jsonl"
    machines: list[NodeLife] = []
    if summary.get("released") is not True and log.exists():
        history = replay(read_events(log))  # it goes on, or something was not said at its end
        machines = history.ledger.unproven()
        summary = summary or summarise(history)
    ended = str(summary.get("status") or "never began")
    names = ("steps", "total_steps", "loss_last", "eval_loss", "cost_usd")
    return {
        "run": path.name,
        "state": _state(pid, ended, elsewhere=elsewhere, seen=seen),
        "pid": pid,
        "elsewhere": elsewhere,
        "goes_on": goes_on,
        **{name: summary.get(name) for name in names},
        "usd_per_hour": sum(life.price_per_hour for life in machines),
        "left_over": [] if goes_on else _left_over(path, machines),
        "recipe": kept_for(path),
        "folder": str(path),
    }


def _state(pid: int | None, ended: str, *, elsewhere: bool, seen: Seen | None) -> str:
    if elsewhere:
        if seen is None:
            return "out of reach"
        if seen.exit_code is None:
            return "running (own machine)"
        return f"ended ({seen.exit_code}), not fetched"
    if pid:
        return f"running (pid {pid})"
    return "killed" if ended == "running" else ended


def _left_over(path: Path, machines: Sequence[NodeLife]) -> list[str]:
    """Machines nobody has proven gone: by the log, and by what was noted before each order."""
    names = {life.node for life in machines}
    for folder in (path, path / ROOM):  # in the second, the machine of the controller itself
        names |= {node for order in OrderBook(folder).remaining() for node in order.nodes}
        names |= {machine.node for machine in MachineRecord(folder / RECORD).remaining()}
    return sorted(names)


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
