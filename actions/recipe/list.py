"""action=recipe.list: the recipes there are, with what they take and what they cost."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from actions.console import Console
from actions.recipe.book import names, read
from actions.recipe.header import read_header
from sailor.config import Config

ROOT = Path(__file__).resolve().parents[2]


def run(config: Config, console: Console) -> int:
    """Show those of recipes/ here and in the project. Raises ConfigError for one that is none."""
    table = Table("recipe", "what", "machines", "planned", "measured", box=None)
    rows = []
    for name, path in names(ROOT).items():
        recipe, header = read(path), read_header(path.read_text())
        table.add_row(name, recipe.about, header.machine, header.planned, header.measured)
        rows.append(
            {"recipe": name, "about": recipe.about, "steps": list(recipe.actions),
             "path": str(path), **asdict(header)}
        )  # fmt: skip
    console.print(table)
    console.print("python run.py recipe=NAME   does its steps; recipe.smoke=true tries it here")
    console.document(rows)
    return 0
