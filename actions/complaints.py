"""What is wrong with a command line, in words: turns findings into ConfigError. Pure text.

run.py recognises Hydra's and OmegaConf's exceptions and hands over what they know; here it becomes
one message with a corrected command. Codes E101-E104; docs/errors.md has them all.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from actions import ACTIONS
from actions.arguments import PROGRAM, command, key_of, nearest_option, options
from sailor.errors import ConfigError
from sailor.rules import Problem

_HELP = f"{PROGRAM} --help"
_NOT_NAMES = ("null", "true", "false")  # what Hydra does not take for a name


def unknown_option(
    *, group: str, name: str, available: Sequence[str], arguments: Sequence[str]
) -> ConfigError:
    """E102: ``model=gpt_2b`` when there is no such file in the group."""
    ranked = nearest_option(name, available)
    place = _place(group, arguments)
    why = "options, nearest first: " + ", ".join(ranked)
    if place is None and group in ("train", "optim"):  # they follow the model
        why += f"\na model of your own needs {group}=OPTION, or conf/{group}/{name}.yaml"
    if group == "budget" and _is_number(name):
        better = f"budget.total_usd={name}"
    elif group == "data" and "/" in name:
        better = f"data=text data.path={name}"
    elif ranked:
        better = f"{group}={ranked[0]}"
    else:
        better = ""
    return ConfigError(
        f"{group} has no option {name!r}",
        code="E102",
        why=why,
        where=place or f"{group}={name}",
        fix=_replaced(arguments, place or "", *better.split()) if better else _HELP,
    )


def not_an_option(arguments: Sequence[str], *, root: Path) -> ConfigError | None:
    """E102 for a group set to a number or null (``budget=300``), or None when none is."""
    for argument in arguments:
        group, _, value = argument.lstrip("+").partition("=")
        if (root / "conf" / group).is_dir() and (_is_number(value) or value in _NOT_NAMES):
            available = options(group, root=root)
            return unknown_option(group=group, name=value, available=available, arguments=arguments)
    return None


def unknown_action(name: str, *, arguments: Sequence[str]) -> ConfigError:
    """E102 for an action nobody wrote."""
    ranked = nearest_option(name, list(ACTIONS))
    place = _place("action", arguments) or f"action={name}"
    return ConfigError(
        f"action has no option {name!r}",
        code="E102",
        why="actions, nearest first: " + ", ".join(ranked),
        where=place,
        fix=_replaced(arguments, place, place.replace(name, ranked[0])),
    )


def grammar(*, override: str, message: str, arguments: Sequence[str]) -> ConfigError:
    """E103: an argument Hydra's grammar cannot read, with the likely slip named."""
    arguments = list(arguments)
    index = arguments.index(override) if override in arguments else -1
    before = arguments[index - 1] if index > 0 else ""
    if "=" not in override and before.endswith("="):
        joined = [*arguments[: index - 1], before + override, *arguments[index + 1 :]]
        why, fix = f"there is a space after {before!r}", command(joined)
    elif override in ACTIONS:
        why, fix = (
            "actions are named with action=",
            _replaced(arguments, override, f"action={override}"),
        )
    elif "=" not in override:
        why, fix = "a setting is written key=value, without spaces", f"{PROGRAM} --help"
    else:
        key, _, value = override.partition("=")
        why = f"this value needs quotes ({message.splitlines()[0]})"
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        fix = _replaced(arguments, override, f"{key}='{escaped}'")
    return ConfigError(f"cannot read {override!r}", code="E103", why=why, where=override, fix=fix)


def ambiguous(message: str, *, arguments: Sequence[str]) -> ConfigError:
    """E103: anything else Hydra refuses about how values are combined."""
    for place in arguments:
        key, _, value = place.partition("=")
        if place in message and "," in value and "multirun" in message:
            return ConfigError(
                f"{key} has several values: {value}",
                code="E103",
                why="several values make a sweep, one run each, and need -m; a list needs brackets",
                where=place,
                fix=command(["-m", *arguments])
                + f"\nor {_replaced(arguments, place, f'{key}=[{value}]')}",
            )
        if place.startswith("+") and key.lstrip("+").replace("/", ".") in message.replace("/", "."):
            return ConfigError(
                f"{key.lstrip('+')} is there already",
                code="E103",
                why="a plus adds; to change a value or choose an option leave it out",
                where=place,
                fix=_replaced(arguments, place, place.lstrip("+")),
            )
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return ConfigError(
        "the configuration cannot be put together", code="E103",
        why="\n".join(lines[:8]), fix=f"{PROGRAM} --info defaults   shows what is read",
    )  # fmt: skip


def no_jobs(arguments: Sequence[str]) -> ConfigError:
    """E103: -m, and nothing to run: a pattern that matches no option."""
    pattern = next((word for word in arguments if "glob(" in word), "")
    key = pattern.partition("=")[0]
    return ConfigError(
        "the sweep has no jobs", code="E103", where=pattern or "-m",
        why=f"no option of {key} matches" if pattern else "no key has several values",
        fix=_replaced(arguments, pattern, f"{key}=glob(*)") if pattern else _HELP,
    )  # fmt: skip


def wrong_type(key: str, *, what: str, value: object, default: object) -> Problem:
    """E104 for a value OmegaConf cannot convert; ``default`` is what the key has otherwise."""
    if isinstance(default, Enum):
        fix = f"{key}={nearest_option(str(value), [member.name for member in type(default)])[0]}"
    elif isinstance(default, Sequence) and not isinstance(default, str):
        fix = f"{key}=[{value}]"
    elif str(value).endswith("%") and _is_number(str(value)[:-1]):
        fix = f"{key}={float(str(value)[:-1]) / 100:g}"
    elif default is None:
        fix = f"{key}=<value>"
    else:
        fix = f"{key}={default}"
    return Problem(key=key, what=what, fix=fix)


def source(key: str, value: object) -> Problem:
    """E104 for a source of a mixture that is given one value instead of its settings."""
    if value is None:
        return Problem(key=key, what="a source is left out with ~", fix=f"~{key}   leaves it out")
    setting = "weight" if _is_number(str(value)) else "path"
    return Problem(
        key=key, what=f"a source has a path and a weight, and this is {value!r}",
        fix=f"{key}.{setting}={value}",
    )  # fmt: skip


def not_installed(module: str) -> ConfigError:
    """E605: a library is missing."""
    return ConfigError(
        f"the library {module} is not installed", code="E605",
        why="Sailor's own requirements are not all there, or another Python is running",
        where=sys.executable, fix="pip install -e .",
    )  # fmt: skip


def secret(keys: Sequence[str]) -> ConfigError:
    """E107: a value looks like a password or a key. The value itself is not repeated."""
    return ConfigError(
        f"the value of {', '.join(keys)} looks like a secret", code="E107", where=", ".join(keys),
        why="what is said here is written to the run folder and shown by ps",
        fix="leave it to the cloud's own login or an environment variable, and change that secret",
    )  # fmt: skip


def wrong_values(problems: Sequence[Problem], *, arguments: Sequence[str]) -> ConfigError:
    """One error for everything found wrong. Overrides among the fixes correct the command."""
    corrected, loose = list(arguments), []
    first: dict[str, Problem] = {}
    for problem in problems:
        first.setdefault(problem.key, problem)  # a wrong type makes other rules complain as well
    problems = list(first.values())
    for problem in problems:
        single = "=" in problem.fix and " " not in problem.fix and "<" not in problem.fix
        place = _place(problem.key, corrected)
        if single and place is not None:
            corrected[corrected.index(place)] = problem.fix
        elif single:
            corrected.append(problem.fix)
        else:
            loose.append(problem.fix)
    fixes = [command(corrected)] if corrected != list(arguments) else []
    what = f"{problems[0].key}: {problems[0].what}"
    where = [_place(problem.key, arguments) or problem.key for problem in problems]
    return ConfigError(
        what if len(problems) == 1 else f"{len(problems)} settings cannot be used",
        code=problems[0].code,
        why="" if len(problems) == 1 else "\n".join(f"{p.key}: {p.what}" for p in problems),
        where=", ".join(dict.fromkeys(where)),
        fix="\n".join([*fixes, *loose]),
    )


def _place(key: str, arguments: Sequence[str]) -> str | None:
    """The last argument that sets a key: it is the one that counts."""
    return next((a for a in reversed(arguments) if key_of(a) == key), None)


def _replaced(arguments: Sequence[str], place: str, *by: str) -> str:
    """The command with one argument replaced, or with the new ones added."""
    index = arguments.index(place) if place in arguments else len(arguments)
    return command([*arguments[:index], *by, *arguments[index + 1 :]])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
