"""action=recipe.header: above each recipe, what it takes as planned and as measured;
recipes/README.md.

The lines ``# machine``, ``# planned`` and ``# measured`` of a recipe are written here and nowhere
else: the first two by the planner, the third from the summary of a run of that recipe in runs_dir
that is done.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actions.console import Console
from actions.planning import question
from actions.prospects import answered
from actions.recipe import Compose
from actions.recipe.book import FOLDER, Recipe, find, names, read
from actions.run_folder import read_summary, run_name
from sailor.config import Config
from sailor.observe.summary import write_atomically
from sailor.planner.explain import machines, zones
from sailor.planner.question import Candidate
from sailor.planner.term import worst_mark
from sailor.units import count, duration

ROOT = Path(__file__).resolve().parents[2]
NOT_RUN = "not run yet"
OWN = "my_"
"""How copies are called unless their owner says otherwise: they are in nobody's table."""
_LINE = re.compile(r"^# (machine|planned|measured) +(.*)$", re.M)
_OPENING = """\
# Recipes

Pipelines to run as they are, to try on this computer (`recipe.smoke=true`), or to copy and change
(`action=recipe.copy name=NAME`). [How they work](../docs/how-to/recipes.md). This page is made
by `python run.py action=recipe.header`: planned is what the planner says of built-in prices,
without interruptions; measured is what a run of the recipe was.

| recipe | what | machines | planned | measured |
|---|---|---|---|---|
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """The comment above a recipe."""

    command: str
    machine: str = ""
    planned: str = ""
    measured: str = NOT_RUN


def run(config: Config, console: Console, *, compose: Compose) -> int:
    """Write the header of recipe.name, or of all of the project's, and the table.

    Raises NoFeasiblePlan and ConfigError, as planning does.
    """
    name = config.recipe.name
    folder = ROOT / FOLDER
    paths = (
        [path for path in names(ROOT).values() if not path.stem.startswith(OWN)]
        if name is None
        else [find(name, root=ROOT, typed=f"recipe={name}")]
    )
    rows = []
    for path in paths:
        own = compose(f"recipe={path}", "action=plan", "recipe.smoke=false")
        machine, planned = foretold(own)
        measured = measured_words(Path(config.runs_dir).expanduser() / run_name(own))
        measured = measured or read_header(path.read_text()).measured
        lines = {"machine": machine, "planned": planned, "measured": measured}
        write_atomically(path, with_header(path.read_text(), **lines).encode())
        rows.append({"recipe": path.stem, **lines})
        console.print(f"{path.stem}: {machine}; {planned}", soft_wrap=True, markup=False)
    page = table(read(path) for path in book(folder))
    write_atomically(folder / "README.md", page.encode())
    console.document(rows)
    return 0


def book(folder: Path) -> list[Path]:
    """The recipes of a folder that belong into its table."""
    return [path for path in sorted(folder.glob("*.yaml")) if not path.stem.startswith(OWN)]


def table(recipes: Iterable[Recipe]) -> str:
    """recipes/README.md: a row for each recipe, from its file alone."""
    rows = []
    for recipe in recipes:
        header = read_header(recipe.path.read_text())
        cells = (f"[{recipe.name}]({recipe.path.name})", recipe.about, header.machine,
                 header.planned, header.measured)  # fmt: skip
        rows.append("| " + " | ".join(cells) + " |\n")
    return _OPENING + "".join(rows)


def read_header(text: str) -> Header:
    """The header of a recipe's file."""
    lines = {label: words.strip() for label, words in _LINE.findall(text)}
    first = text.partition("\n")[0].removeprefix("#").strip()
    return Header(command=first, **lines)


def with_header(text: str, **lines: str) -> str:
    """The file's text with these lines in its header: machine, planned, measured."""
    kept = {label: words.strip() for label, words in _LINE.findall(text)} | lines
    bare = _LINE.sub("", text)
    comment, rest = [], bare.splitlines()
    while rest and rest[0].startswith("#") or (rest and not rest[0]):
        comment.append(rest.pop(0))
    while comment and comment[-1] in ("", "#"):
        comment.pop()
    written = [
        f"# {label:<9} {kept[label]}" for label in ("machine", "planned", "measured")
        if label in kept
    ]  # fmt: skip
    return "\n".join([*comment, "#", *written, *rest]) + "\n"


def foretold(config: Config) -> tuple[str, str]:
    """The machines of the best plan, and what it takes. Raises NoFeasiblePlan."""
    asked = question(config)
    best = answered(asked)[0].best
    when = asked.catalogue.as_of
    source = f"prices of {when.isoformat()}" if when else asked.catalogue.label
    if best.dollars is not None and not best.dollars:
        source = (
            "your own machines"
            if config.cloud.name not in ("local", "trace")
            else (f"{os.cpu_count()} cores of one computer")
        )
    return f"{machines(best)} in {zones(best)}", f"{_takes(best, asked.job.total_tokens)}; {source}"


def _takes(best: Candidate, tokens: float | None) -> str:
    value = best.estimate
    time = "" if best.hours is None else f"{duration(best.hours * 3600)}, "
    money = "" if not best.dollars else f"${best.dollars:,.0f}, "
    much = "" if tokens is None else f"{count(tokens)} tokens, "
    mark = worst_mark(value.step_terms).value
    return (
        f"{time}{money}{much}{value.step_seconds:.3g} s a step "
        f"+- {value.step_relative_error:.0%} ({mark})"
    )


def measured_words(folder: Path) -> str:
    """What a run of the recipe that is done was; "" when there is none."""
    summary: dict[str, Any] = read_summary(folder)
    if summary.get("status") != "done":
        return ""
    kinds = {machine.get("machine_type") for machine in summary["machines"]}
    here = f" ({os.cpu_count()} cores)" if kinds <= {"local"} else ""
    held_out = summary.get("eval_loss")
    return (
        f"{summary['steps']:,} steps in {duration(summary['wall_s'])} on "
        f"{len(summary['machines'])} x {', '.join(sorted(str(kind) for kind in kinds))}{here}, "
        f"${summary['cost_usd']:,.2f}, loss {summary['loss_first']:.3f} to "
        f"{summary['loss_last']:.3f}"
        + (f", held out {held_out:.3f}" if held_out is not None else "")
        + f", goodput {summary['goodput']:.0%}"
    )
