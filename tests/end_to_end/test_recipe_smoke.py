"""Each of the twelve recipes, all six steps of it, at the small scale: about ten seconds of CPU."""

from __future__ import annotations

import json

import pytest

from actions.recipe.book import read
from tests.helpers.recipes import FOLDER, TWELVE, call
from tests.helpers.running import Place, leftovers

ALL = ("prepare", "plan", "train", "eval", "export", "report")


# One of each kind of model always; all twelve with -m matrix.
ALWAYS = ("gpt_125m_laptop", "opt_350m_two_zones_mixed", "qwen2_0_5b_continue")


@pytest.mark.parametrize(
    "recipe",
    [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.matrix) for name in TWELVE],
)
def test_every_recipe_trains_at_the_small_scale(place: Place, recipe: str):
    name = place.named(f"smoke-{recipe}")
    ended = call(place, f"recipe={recipe}", "recipe.smoke=true", f"run.name={name}")
    assert ended.code == 0, ended.err
    assert ended.states == dict.fromkeys(ALL, "done")
    summary = json.loads((place.runs / name / "summary.json").read_text())
    assert summary["status"] == "done"
    assert summary["lost_samples"] == summary["repeated_samples"] == 0
    assert summary["released"]
    exported = next(s for s in ended.document["steps"] if s["step"] == "export")["document"]
    assert exported["step"] == summary["steps"]
    described = json.loads((place.runs / name / exported["directory"] / "config.json").read_text())
    assert described["model_type"] == model_type(recipe)
    assert leftovers(name) == []


def model_type(recipe: str) -> str:
    """The architecture of transformers that the full-size model is one of."""
    model = read(FOLDER / f"{recipe}.yaml").settings["model"]
    kinds = {"gpt": "gpt2", "opt": "opt", "llama3": "llama", "qwen2": "qwen2"}
    return kinds[model.partition("_")[0]]
