"""The command line before Hydra reads it: short forms made long, and unknown keys refused.

Hydra would take ``+learning_rte=1`` without a word and answers ``learning_rte=1`` with the advice
to add a plus. Here every unknown key is found at once and the command comes back corrected.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from actions.paths import is_path, path_settings
from sailor.config import MIXTURE, SOURCE_NAME, SourceConfig
from sailor.config_keys import groups, keys
from sailor.errors import ConfigError

PROGRAM = "python run.py"
_LIST_KEYS = f"{PROGRAM} --cfg job   lists every key"
_LENGTHS = {"train.steps": "train.tokens", "train.tokens": "train.steps"}
_SHORT = {
    "run": "run.name", "node": "migrate.node", "name": "recipe.name", "to": "recipe.to",
    "recipe": "recipe.name",
}  # fmt: skip
_FLAGS_WITH_VALUE = (
    "--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn",
    "--config-dir", "-cd", "--info", "-i",
)  # fmt: skip


def expand(arguments: Sequence[str], *, root: Path) -> list[str]:
    """The arguments in Hydra's own terms.

    ``recipe=NAME`` (or ``+recipe=NAME``, or a path) becomes the settings of the recipe that the
    other arguments do not have (actions/recipe/words.py). A path where a group wants an option
    becomes the settings that mean it (actions/paths.py). The length of a run is said in steps or
    in tokens: naming one takes back the other. ``root`` is the folder that holds conf/ and
    recipes/. Raises ConfigError E102 for an unknown recipe, and what reading one or the folder of
    a model raises.
    """
    arguments = _without_recipe(arguments, root=root)
    given = {key_of(argument) or "": argument.partition("=")[2] for argument in arguments}
    flags: list[str] = []
    expanded: list[str] = []
    words = iter(arguments)
    for argument in words:
        key, _, value = argument.partition("=")
        other = _LENGTHS.get(key_of(argument) or "")
        if argument.startswith("-"):
            flags.append(argument)
            if argument in _FLAGS_WITH_VALUE:
                flags += [word for word in [next(words, None)] if word is not None]
        elif is_path(key, value, options=options(key, root=root)):
            expanded += path_settings(key, value, given=given)
        elif key in _SHORT:
            expanded.append(f"{_SHORT[key]}={value}")
        elif other is not None and other not in given:
            expanded += [argument, f"{other}=null"]
        elif key.startswith(("model.", MIXTURE)) and is_known(key):
            # Models' files leave out what they do not need; sources are named by the user.
            expanded.append(f"++{argument}")
        else:
            expanded.append(argument)
    return flags + expanded  # argparse wants the overrides side by side


def refuse_unknown_keys(arguments: Sequence[str]) -> None:
    """Raise ConfigError E101 naming every key that is none of ours, each with the nearest one."""
    unknown = {}
    for argument in arguments:
        key = key_of(argument)
        if key is not None and not is_known(key):
            unknown[argument] = key
    if unknown:
        raise unknown_keys(unknown, arguments=arguments)


def unknown_keys(unknown: dict[str, str], *, arguments: Sequence[str]) -> ConfigError:
    """The E101 error for ``unknown``: argument or place -> key."""
    lines, corrected = [], list(arguments)
    for place, key in unknown.items():
        best = nearest(key)
        hint = f"did you mean {best}?" if best else "nothing is called like it"
        lines.append(f"{key} is no key; {hint}")
        if place in corrected:
            index = corrected.index(place)
            corrected[index : index + 1] = [f"{best}={place.partition('=')[2]}"] if best else []
    return ConfigError(
        f"unknown key{'s' if len(unknown) > 1 else ''} {', '.join(unknown.values())}",
        code="E101",
        why="\n".join(lines),
        where=", ".join(dict.fromkeys(unknown)),
        fix=command(corrected) if corrected != list(arguments) else _LIST_KEYS,
    )


def key_of(argument: str) -> str | None:
    """The configuration key an argument sets or removes; None for flags and Hydra's own keys."""
    if argument.startswith("-"):
        return None
    key, equals, _ = argument.partition("=")
    if not equals and not argument.startswith("~"):
        return None  # not an override at all: Hydra's grammar refuses it
    key = key.lstrip("+~").partition("@")[0]
    if key.split(".")[0].split("/")[0] == "hydra":
        return None
    return key


def is_known(key: str) -> bool:
    """Whether a dotted key is a setting, a group, or lies inside a setting that is a list or a
    mixture's source."""
    known = _known_keys()
    if key in known or key in groups():
        return True
    parts = key.split(".")
    if key.startswith(f"{MIXTURE}.") and SOURCE_NAME.fullmatch(parts[2]):
        return len(parts) == 3 or ".".join(parts[3:]) in _source_keys()
    return any(".".join(parts[:n]) in known and parts[n].isdigit() for n in range(1, len(parts)))


@cache
def _source_keys() -> frozenset[str]:
    return frozenset(keys(SourceConfig))


@cache
def _known_keys() -> frozenset[str]:
    return frozenset(keys())


def nearest(key: str) -> str | None:
    """The known key most likely meant, or None.

    Tried in order: the same last word in another group (``learning_rate`` is
    ``optim.learning_rate``), a similar last word in the same group, its initials (``optim.lr``), a
    similar whole key, a similar last word anywhere. Only a word without a dot may mean a group.
    """
    known = [*keys(), *(() if "." in key else groups())]
    group, _, last = key.rpartition(".")
    if key.startswith(f"{MIXTURE}."):
        name, _, last = key.removeprefix(f"{MIXTURE}.").partition(".")
        better = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_-") or "web"
        nearest_key = nearest_option(last, sorted(_source_keys()))[0] if last else "path"
        return f"{MIXTURE}.{better}.{nearest_key}"
    exact = [name for name in known if name.rpartition(".")[2] == last]
    if exact:
        return nearest_option(key, exact)[0]
    siblings = {name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == group}
    leaves = {name.rpartition(".")[2]: name for name in reversed(known)}
    initials = {"".join(word[0] for word in leaf.split("_")): key for leaf, key in siblings.items()}
    for wanted, candidates, cutoff in (
        (last, siblings, 0.6),
        (last, initials if len(last) > 1 else {}, 1.0),
        (key, {name: name for name in known}, 0.75),
        (last, leaves, 0.75),
    ):
        found = difflib.get_close_matches(wanted, candidates, n=1, cutoff=cutoff)
        if found:
            return candidates[found[0]]
    return None


def nearest_option(name: str, available: Sequence[str]) -> list[str]:
    """The options, nearest first."""

    def distance(option: str) -> float:
        return -difflib.SequenceMatcher(None, name, option).ratio()

    return sorted(available, key=distance)


def options(group: str, *, root: Path) -> list[str]:
    """The options of a group that come with the project."""
    return sorted(path.stem for path in (root / "conf" / group).glob("*.yaml"))


def command(arguments: Sequence[str]) -> str:
    """A command line ready to paste, as a user would type it."""
    typed = (argument.removeprefix("++") for argument in arguments)  # expand() puts them there
    return " ".join([PROGRAM, *map(_shell_quoted, typed)])


def _shell_quoted(argument: str) -> str:
    """For the shell; in double quotes where that reads better and is as safe."""
    if "'" in argument and not set(argument) & set('"$`\\!'):
        return f'"{argument}"'
    return shlex.quote(argument)


def flags_and_words(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The folders named by --config-dir among the flags, and the arguments that are no flags."""
    folders, words = [], []
    left = iter(arguments)
    for argument in left:
        if not argument.startswith("-"):
            words.append(argument)
        elif argument in _FLAGS_WITH_VALUE:
            value = next(left, None)
            if value is not None and argument in ("--config-dir", "-cd"):
                folders.append(value)
    return folders, words


def replaced(arguments: Sequence[str], *instead: str) -> list[str]:
    """The arguments with these instead of those of the same keys, which come last."""
    keys = {_long(key_of(word)) for word in instead}
    return [*(word for word in arguments if _long(key_of(word)) not in keys), *instead]


def _long(key: str | None) -> str | int:
    """A key, short forms made long; flags and values of flags are nobody's equal."""
    return -1 if key is None else _SHORT.get(key, key)


def _without_recipe(arguments: Sequence[str], *, root: Path) -> list[str]:
    """The arguments with a recipe's settings in place of the word that names it."""
    named = [word for word in arguments if key_of(word) in ("recipe", "recipe.name")]
    if not named:
        return list(arguments)
    from actions.recipe.book import find, read
    from actions.recipe.words import with_recipe

    if len(named) > 1 or "," in named[0]:
        raise ConfigError(
            "one recipe at a time", code="E103", where=" ".join(named),
            why="a recipe is a pipeline of its own; other keys can have several values with -m",
            fix=command(replaced(arguments, named[0].partition(",")[0])),
        )  # fmt: skip
    name = named[0].partition("=")[2].strip("'\"")
    recipe = read(find(name, root=root, typed=named[0], arguments=arguments))
    return with_recipe(recipe, arguments, typed=named[0], name=name)
