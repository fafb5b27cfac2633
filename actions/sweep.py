"""A sweep: one command, one job for each combination of values (-m). Jobs have runs of their own.

A job's run is called by what sets it apart from the other jobs, so that the same sweep again goes
on with each. A job that fails is a row of the table like any other. Imports next to nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sailor.config import Config

_LONGEST_SUFFIX = 60
_HAVE_A_RUN = ("train", "eval", "export", "report", "recipe")
_SAVED, _KILLED = 75, (130, 143)
SUMMARY = "summary.json"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One combination, and how it went. ``exit_code`` None: it had no turn."""

    chosen: Mapping[str, str]  # key -> value, of the keys that have several
    exit_code: int | None
    document: Any = None  # what a program is told of it

    @property
    def error(self) -> Mapping[str, Any] | None:
        """What was refused."""
        found = self.document.get("error") if isinstance(self.document, Mapping) else None
        return found if isinstance(found, Mapping) else None

    @property
    def is_stopped(self) -> bool:
        """Whether a person ended it: nothing after it shall begin. That no machine could be had
        ends a job with the same code, and says so."""
        ended = self.exit_code in (_SAVED, *_KILLED) and self.error is None
        return self.exit_code is None or ended


def is_asked(arguments: Sequence[str]) -> bool:
    """Whether a command line runs several jobs: -m, and not only to look at something."""
    words = set(arguments)
    looks = {"-c", "--cfg", "-i", "--info", "--hydra-help", "--version"}
    return bool(words & {"-m", "--multirun"}) and not words & looks


def suffix(chosen: Mapping[str, str]) -> str:
    """'-model-gpt_1b-total_usd-300': what sets a job's run apart. "" where it has a name."""
    if "run.name" in chosen or "run" in chosen:
        return ""
    words = "".join(
        f"-{key.rpartition('.')[2]}-{re.sub(r'[^A-Za-z0-9._-]+', '_', value).strip('_')}"
        for key, value in chosen.items()
    )
    if len(words) > _LONGEST_SUFFIX:
        exact = repr(sorted(chosen.items())).encode()
        words = f"{words[: _LONGEST_SUFFIX - 9]}-{hashlib.sha256(exact).hexdigest()[:8]}"
    return words


def set_apart(config: Config, words: str) -> None:
    """Name the job's run, if it has one."""
    if any(action in _HAVE_A_RUN for action in config.actions):
        from actions.run_folder import run_name

        config.run.name = run_name(config) + words


def document(job: Job) -> dict[str, Any]:
    """One row of the table in JSON types, with all that the job said."""
    return {
        "overrides": dict(job.chosen),
        **_figures(job.document),
        "exit_code": job.exit_code,
        "error": None if job.error is None else dict(job.error),
        "document": None if job.error is not None else job.document,
    }


def show(jobs: Sequence[Job], *, folder: Path | None, json: bool) -> None:
    """Print the table and keep it in the sweep's folder. ``json``: on standard error."""
    import msgspec
    from rich.table import Table

    from actions.console import Console
    from sailor.config import Output

    console = Console(output=Output.json if json else Output.text)
    keys = list(dict.fromkeys(key for job in jobs for key in job.chosen))
    table = Table("#", *keys, "plan", "step", "cost", "loss", "exit", box=None)
    for number, job in enumerate(jobs, start=1):
        row = _figures(job.document)
        table.add_row(
            str(number), *(job.chosen.get(key, "-") for key in keys), row["plan"] or "-",
            _figure(row["step_s"], "{:.3g} s"), _figure(row["cost_usd"], "${:,.2f}"),
            _figure(row["loss"], "{:.3f}"), _how(job),
        )  # fmt: skip
    if console.is_terminal is False:
        console.width = max(console.width, 180)
    failed = sum(1 for job in jobs if job.exit_code)
    console.print(f"sweep of {len(jobs)} jobs" + f", {failed} failed" * bool(failed))
    console.print(table)
    if folder is not None and folder.is_dir():
        path = folder / SUMMARY
        path.write_bytes(msgspec.json.format(msgspec.json.encode([document(j) for j in jobs])))
        console.print(f"kept in {path}", soft_wrap=True)


def _how(job: Job) -> str:
    if job.exit_code is None:
        return "not begun"
    return (
        f"{job.exit_code}  {job.error['code']} {job.error['what']}"
        if job.error
        else str(job.exit_code)
    )


def _figures(told: Any) -> dict[str, Any]:
    """Plan, step time, dollars and loss of a job, as far as its actions say them: training's own
    figures before those of a plan."""
    figures: dict[str, Any] = dict.fromkeys(("plan", "step_s", "cost_usd", "loss", "run"))
    for said in _documents(told):
        if said.get("action") == "plan":
            chosen = said["chosen"]
            machines = ", ".join(f"{m['count']} x {m['machine_type']}" for m in chosen["machines"])
            found = {
                "plan": f"{machines}, {chosen['layout']}", "step_s": chosen["step_s"],
                "cost_usd": chosen["dollars"], "loss": None,
            }  # fmt: skip
        elif "plan_vs_actual" in said:
            checks = said["plan_vs_actual"]
            found = {
                "plan": checks[0]["layout"] if checks else None,
                "step_s": next((c["actual_step_s"] for c in reversed(checks)
                                if c["actual_step_s"] is not None), None),
                "cost_usd": said["cost_usd"], "loss": said["loss_last"], "run": said["run"],
            }  # fmt: skip
        else:
            continue
        figures |= {key: value for key, value in found.items() if value is not None}
    return figures


def _documents(told: Any) -> list[Mapping[str, Any]]:
    """The documents of all actions of a job, a recipe's steps among them."""
    if isinstance(told, list):
        return [found for entry in told for found in _documents(entry)]
    if not isinstance(told, Mapping):
        return []
    if told.get("action") == "recipe":
        return [found for step in told["steps"] for found in _documents(step["document"])]
    return [told]


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
