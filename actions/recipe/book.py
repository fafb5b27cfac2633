"""Recipes as files: what one says, and where it is. Reads YAML; composes nothing.

A recipe has ``settings`` for all its steps, ``steps`` in order, each an action's name or a name
with settings of its own, and ``smoke``, settings for the small scale. A setting is what one would
type: ``train.tokens: 26B`` is train.tokens=26B, and ``cloud: {name: ..., zones: [...]}`` the same
as two dotted keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sailor.errors import ConfigError

STEPS = ("check", "prepare", "profile", "plan", "simulate", "train", "eval", "export", "report")
"""Actions that a recipe may have as steps."""
FOLDER = "recipes"
SUFFIX = ".yaml"
_PARTS = ("about", "settings", "steps", "smoke")
_OF_THE_WHOLE = ("run.name", "run.fresh", "runs_dir", "output")  # one value for all steps
_NOT_TEXT = ("null", "true", "false")  # for Hydra; whoever means these leaves out YAML's quotes
_PLAIN = re.compile(r"[\w./:@%+-]+\Z")


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One action, with the settings only it has: key -> Hydra's words for the value."""

    action: str
    settings: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """One file. Settings are key -> Hydra's words for the value."""

    name: str
    path: Path
    about: str
    settings: Mapping[str, str]
    steps: tuple[Step, ...]
    smoke: Mapping[str, str]

    @property
    def actions(self) -> tuple[str, ...]:
        """The steps' names, in order."""
        return tuple(step.action for step in self.steps)

    def of_step(self, action: str | None) -> Mapping[str, str]:
        """The settings only that step has; none for another action."""
        return next((step.settings for step in self.steps if step.action == action), {})


def find(name: str, *, root: Path, typed: str, arguments: Sequence[str] = ()) -> Path:
    """The file of a recipe: a path, or a name in recipes/ here or in the project.

    ``typed`` is the word that named it, among ``arguments``. Raises ConfigError E102, nearest
    first.
    """
    for path in _candidates(name, root):
        if path.is_file():
            return path.resolve()
    from actions.arguments import command, nearest_option

    ranked = nearest_option(name, list(names(root)))
    key = typed.partition("=")[0].lstrip("+")
    better = [f"{key}={ranked[0]}" if word == typed else word for word in arguments or [typed]]
    raise ConfigError(
        f"no recipe is called {name!r}",
        code="E102",
        why="recipes, nearest first: " + (", ".join(ranked) or "none in recipes/"),
        where=typed,
        fix=command(better) if ranked else "recipe=PATH/TO/FILE.yaml",
    )


def names(root: Path) -> dict[str, Path]:
    """Name -> file, those here before those of the project."""
    folders = (root / FOLDER, Path(FOLDER))
    found = {path.stem: path for folder in folders for path in folder.glob(f"*{SUFFIX}")}
    return dict(sorted(found.items()))


def _candidates(name: str, root: Path) -> Iterator[Path]:
    if name.endswith(SUFFIX):
        yield Path(name).expanduser()
    elif name:
        yield Path(FOLDER) / f"{name}{SUFFIX}"
        yield root / FOLDER / f"{name}{SUFFIX}"


def read(path: Path) -> Recipe:
    """The recipe in a file.

    Raises ConfigError: E109 it is none, E102 a step that is no action, E101 keys that do not exist,
    all of them at once.
    """
    import yaml  # not on the way to --help

    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _unusable(path, str(error)) from error
    if not isinstance(document, dict) or not document.get("steps"):
        raise _unusable(path, "it should have steps:, a list of actions in order")
    strange = [str(part) for part in document if part not in _PARTS]
    if strange:
        raise _unusable(
            path, f"it has {', '.join(strange)} beside {', '.join(_PARTS)}",
            fix=f"settings: {{{strange[0]}: ...}}   where it is one",
        )  # fmt: skip
    recipe = Recipe(
        name=path.stem,
        path=path,
        about=str(document.get("about") or ""),
        settings=_settings(document.get("settings"), path=path, part="settings"),
        steps=_steps(document["steps"], path=path),
        smoke=_settings(document.get("smoke"), path=path, part="smoke"),
    )
    _refuse_unknown(recipe)
    return recipe


def words_for(value: Any) -> str:
    """A value of YAML as Hydra reads it on a command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{words_for(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(words_for(entry) for entry in value) + "]"
    text = str(value)
    if (_PLAIN.match(text) and text.lower() not in _NOT_TEXT) or (
        text.startswith("${") and " " not in text
    ):
        return text
    # In Hydra's quotes a backslash is one, except before a quote.
    escaped = re.sub(r"(\\*)(\'|$)", lambda m: m[1] * 2 + m[2].replace("'", "\\'"), text)
    return f"'{escaped}'"


def _settings(value: Any, *, path: Path, part: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _unusable(path, f"{part} should be a mapping, like {{train.steps: 20}}")
    return {key: words_for(entry) for key, entry in _flat(value)}


def _flat(value: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, entry in value.items():
        if isinstance(entry, Mapping):
            yield from _flat(entry, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", entry


def _steps(value: Any, *, path: Path) -> tuple[Step, ...]:
    if not isinstance(value, list):
        raise _unusable(path, "steps should be a list, like [prepare, plan, train]")
    steps: list[Step] = []
    for entry in value:
        if isinstance(entry, Mapping) and len(entry) == 1:
            ((action, said),) = entry.items()
        else:
            action, said = entry, None
        if not isinstance(action, str):
            raise _unusable(path, f"the step {entry!r} should be a name, or one name: its settings")
        if action not in STEPS:
            from actions.arguments import nearest_option

            ranked = nearest_option(action, STEPS)
            raise ConfigError(
                f"recipe {path.stem} has a step {action!r}, which is no action of one", code="E102",
                why="steps, nearest first: " + ", ".join(ranked), where=f"{path}, steps",
                fix=f"- {ranked[0]}   in its place",
            )  # fmt: skip
        if any(step.action == action for step in steps):
            raise _unusable(
                path, f"the step {action} is there twice", fix="a second recipe, run after this one"
            )
        settings = _settings(said, path=path, part=f"the step {action}")
        whole = [key for key in settings if key in _OF_THE_WHOLE]
        if whole:
            raise _unusable(
                path, f"the step {action} sets {whole[0]}, which all steps share",
                fix=f"settings: {{{whole[0]}: {settings[whole[0]]}}}",
            )  # fmt: skip
        steps.append(Step(action=action, settings=settings))
    return tuple(steps)


def _refuse_unknown(recipe: Recipe) -> None:
    """Raise ConfigError E101 for every key that is none, E109 for one it may not set."""
    from actions.arguments import is_known, nearest

    parts = {"settings": recipe.settings, "smoke": recipe.smoke}
    parts |= {f"step {step.action}": step.settings for step in recipe.steps}
    wrong = []
    for part, settings in parts.items():
        for key in settings:
            if key == "action" or key.partition(".")[0] == "recipe":
                raise _unusable(recipe.path, f"{part} sets {key}, which is for the command line")
            if not is_known(key):
                best = nearest(key)
                hint = f"did you mean {best}?" if best else "nothing is called like it"
                wrong.append((key, f"{key} in {part} is no key; {hint}", best))
    if wrong:
        better = [f"{best}   instead of {key}" for key, _, best in wrong if best]
        raise ConfigError(
            f"recipe {recipe.name} has unknown key{'s' if len(wrong) > 1 else ''} "
            + ", ".join(key for key, _, _ in wrong),
            code="E101", why="\n".join(why for _, why, _ in wrong), where=str(recipe.path),
            fix="\n".join(better) or "python run.py --cfg job   lists every key",
        )  # fmt: skip


def _unusable(path: Path, why: str, *, fix: str = "") -> ConfigError:
    return ConfigError(
        f"the recipe {path.stem} cannot be used", code="E109", why=why, where=str(path),
        fix=fix or "python run.py action=recipe.list   lists those there are; "
        "docs/how-to/recipes.md shows how one is written",
    )  # fmt: skip
