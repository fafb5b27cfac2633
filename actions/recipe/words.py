"""A command line with recipe=NAME becomes one without: the recipe's settings, then what was typed.

Later wins: the recipe's settings for all steps, the step's own, those of the small scale, the
command line. A key that is said twice is said once, by who comes last, because Hydra takes a group
only once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from actions.recipe.book import Recipe, words_for
from actions.recipe.smoke import smoke_settings

PIPELINE = "recipe"
"""The action that runs a recipe's steps."""
_INSTEAD = {"train.steps": "train.tokens", "train.tokens": "train.steps"}
_TRUE = ("true", "yes", "on", "1")


def with_recipe(
    recipe: Recipe, arguments: Sequence[str], *, typed: str, name: str
) -> list[str]:  # fmt: skip
    """The command line without ``typed``, the word that named the recipe ``name``.

    Which step's settings count is said by action=STEP among the arguments; without action all steps
    are meant.
    """
    from actions.arguments import key_of

    rest = [word for word in arguments if word != typed]
    said = {key: word.partition("=")[2] for word in rest if (key := key_of(word)) is not None}
    smoke = said.get("recipe.smoke", "").lower() in _TRUE
    settings = layered(
        {"run.name": f"{recipe.name}-smoke" if smoke else recipe.name},
        recipe.settings,
        recipe.of_step(said.get("action")),
        smoke_settings(recipe) if smoke else {},
        recipe.smoke if smoke else {},
    )
    typed_keys = {"run.name" if key == "run" else key for key in said}
    hidden = typed_keys | {_INSTEAD[key] for key in typed_keys if key in _INSTEAD}
    words = [f"{key}={value}" for key, value in settings.items() if key not in hidden]
    if "action" not in said:
        words.append(f"action={PIPELINE}")
    return [f"recipe.name={words_for(name)}", *words, *rest]


def layered(*layers: Mapping[str, str]) -> dict[str, str]:
    """Settings of all layers, the last word on each key. Steps and tokens are one: the length."""
    merged: dict[str, str] = {}
    for layer in layers:
        for key, value in layer.items():
            merged.pop(key, None)
            if value != "null":
                merged.pop(_INSTEAD.get(key, ""), None)
            merged[key] = value
    return merged
