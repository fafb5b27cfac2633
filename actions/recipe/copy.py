"""action=recipe.copy name=NAME to=NEW_NAME: a recipe of the user's own that starts as another."""

from __future__ import annotations

import re
from pathlib import Path

from actions.console import Console
from actions.recipe.book import FOLDER, SUFFIX, find, read
from actions.recipe.header import NOT_RUN, with_header
from sailor.config import Config
from sailor.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def run(config: Config, console: Console) -> int:
    """Copy the file and say how it is run.

    Raises ConfigError: E102 no such recipe, E104 none is named, E110 something is there already,
    E607 it cannot be written.
    """
    name = config.recipe.name
    if name is None:
        raise ConfigError(
            "which recipe shall be copied is not said", code="E104", where="action=recipe.copy",
            fix="python run.py action=recipe.copy name=NAME",
            why="python run.py action=recipe.list   shows those there are",
        )  # fmt: skip
    source = find(name, root=ROOT, typed=f"name={name}",
                  arguments=["action=recipe.copy", f"name={name}"])  # fmt: skip
    read(source)
    target = _target(config.recipe.to or f"my_{source.stem}")
    if target.exists():
        raise ConfigError(
            f"{target} is there already, and is kept", code="E110", where=str(target),
            why="a copy never overwrites",
            fix=f"python run.py action=recipe.copy name={name} to=ANOTHER_NAME",
        )  # fmt: skip
    shown = target.stem if target.parent == Path(FOLDER) else str(target)
    text = re.sub(r"\brecipe=[\w./-]+", f"recipe={shown}", source.read_text(), count=1)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x") as file:
            file.write(with_header(text, measured=NOT_RUN))
    except OSError as error:
        raise ConfigError(
            f"the copy cannot be written to {target}", code="E607", why=str(error),
            where=str(target), fix="to=ANOTHER/FOLDER/NAME.yaml",
        ) from error  # fmt: skip
    console.print(
        f"{target} is yours to change\nrun it with   python run.py recipe={shown}",
        soft_wrap=True, markup=False,
    )  # fmt: skip
    console.document({"action": "recipe.copy", "recipe": shown, "of": source.stem,
                      "path": str(target)})  # fmt: skip
    return 0


def _target(said: str) -> Path:
    """A name is a file in recipes/ here; anything else is a path."""
    if "/" in said or said.endswith(SUFFIX):
        return Path(said).expanduser().with_suffix(SUFFIX)
    return Path(FOLDER) / f"{said}{SUFFIX}"
