"""Unknown keys and short forms on the command line."""

from __future__ import annotations

import pytest

from actions.arguments import (
    command,
    expand,
    is_known,
    nearest,
    refuse_unknown_keys,
    replaced,
)
from sailor.errors import ConfigError
from tests.helpers.compose import ROOT, a_config


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("modle", "model"),
        ("model.n_layers", "model.num_layers"),
        ("optim.learnig_rate", "optim.learning_rate"),
        ("learning_rate", "optim.learning_rate"),
        ("deadline", "budget.deadline"),
        ("steps", "train.steps"),
        ("budget.total", "budget.total_usd"),
        ("planner.tensor_paralell", "planner.tensor_parallel"),
        ("parallel.tensor_parallel", "planner.tensor_parallel"),
        ("cluod.zones", "cloud.zones"),
        ("runs.name", "run.name"),
        ("sed", "seed"),
        ("zzzz", None),
    ],
)
def test_the_nearest_key_is_the_one_meant(typed, meant):
    assert nearest(typed) == meant


@pytest.mark.parametrize("sign", ["", "+", "++", "~"])
def test_an_unknown_key_is_refused_whatever_sign_it_carries(sign):
    with pytest.raises(ConfigError) as refusal:
        refuse_unknown_keys([f"{sign}optim.learnig_rate=1"])
    assert refusal.value.code == "E101"
    assert refusal.value.fix == "python run.py optim.learning_rate=1"


def test_all_unknown_keys_are_named_at_once():
    with pytest.raises(ConfigError) as refusal:
        refuse_unknown_keys(["modle=x", "seed=1", "+model.n_layers=2", "foo.bar=3"])
    for key in ("modle", "model.n_layers", "foo.bar"):
        assert key in refusal.value.what
    assert refusal.value.fix == "python run.py model=x seed=1 model.num_layers=2"


@pytest.mark.parametrize(
    "argument",
    ["model=gpt_1b", "+seed=1", "hydra.verbose=true", "hydra/launcher=basic", "-m", "--cfg", "job",
     "train.steps=1,2", "~budget", "run.name=x", "optim@optim=adamw"],
)  # fmt: skip
def test_known_keys_and_flags_pass(argument):
    refuse_unknown_keys([argument])


def test_a_key_inside_a_list_is_known():
    assert is_known("faults.script.0.kind")
    assert not is_known("seed.x")


@pytest.mark.parametrize("form", ["recipe=spot_chaos_demo", "+recipe=spot_chaos_demo"])
def test_a_recipe_is_a_starting_point_that_the_command_line_overrides(form):
    config = a_config(form, "seed=9", "faults=none")
    assert config.run.name == "spot_chaos_demo"
    assert (config.recipe.name, config.faults.name, config.seed) == ("spot_chaos_demo", "none", 9)


def test_a_fault_file_is_told_from_an_option(tmp_path):
    assert expand(["faults=demo"], root=ROOT) == ["faults=demo"]
    assert expand(["faults=demoo"], root=ROOT) == ["faults=demoo"]
    path = tmp_path / "it's.yaml"
    assert a_config(f"faults={path}").faults.path == str(path)


def test_other_words_take_the_place_of_those_of_the_same_key():
    words = ["-m", "run=x", "seed=1", "--cfg", "job"]
    assert replaced(words, "run.name=y") == ["-m", "seed=1", "--cfg", "job", "run.name=y"]
    assert replaced(words, "+seed=2") == ["-m", "run=x", "--cfg", "job", "+seed=2"]


def test_a_command_can_be_pasted():
    assert command(["action=[plan,train]", "run.name='a b'"]) == (
        "python run.py 'action=[plan,train]' \"run.name='a b'\""
    )
