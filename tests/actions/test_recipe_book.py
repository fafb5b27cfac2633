"""What a recipe's file says, how it becomes a command line, and every way it can be wrong."""

from __future__ import annotations

import pytest
import yaml

from actions.recipe.book import read, words_for
from actions.recipe.header import NOT_RUN, read_header, with_header
from actions.recipe.words import layered
from sailor.errors import ConfigError
from tests.helpers.compose import a_config
from tests.helpers.recipes import a_recipe

MINE = """\
# python run.py recipe=mine
#
# Mine.
about: mine
settings:
  model: gpt_tiny
  train: {steps: 20, global_batch_size: 8}
steps:
  - prepare
  - train: {seed: 7}
  - eval: {eval.prompts: [], eval.tokens: 3}
smoke: {train.steps: 5}
"""


def test_settings_of_all_steps_then_the_steps_own_then_the_command_line(tmp_path):
    path = a_recipe(tmp_path, MINE)
    whole = a_config(f"recipe={path}")
    assert (whole.action, whole.run.name, whole.train.steps) == ("recipe", "mine", 20)
    assert whole.seed == 0
    assert a_config(f"recipe={path}", "action=train").seed == 7
    assert a_config(f"recipe={path}", "action=train", "seed=8").seed == 8
    assert a_config(f"recipe={path}", "action=eval").eval.prompts == []
    assert a_config(f"recipe={path}", "run=other").run.name == "other"


def test_a_length_in_tokens_takes_the_place_of_one_in_steps(tmp_path):
    path = a_recipe(tmp_path, MINE)
    config = a_config(f"recipe={path}", "train.tokens=1M")
    assert (config.train.steps, config.train.tokens) == (None, "1M")
    assert layered({"train.tokens": "1B"}, {"train.steps": "4"}) == {"train.steps": "4"}
    assert layered({"train.tokens": "1B"}, {"train.steps": "null"}) == {
        "train.tokens": "1B",
        "train.steps": "null",
    }


def test_the_small_scale_has_a_run_of_its_own_and_the_recipes_own_word_on_it(tmp_path):
    config = a_config(f"recipe={a_recipe(tmp_path, MINE)}", "recipe.smoke=true", "runs_dir=r")
    assert (config.run.name, config.train.steps, config.model.num_layers) == ("mine-smoke", 5, 2)
    assert (config.cloud.name, config.data.path) == ("local", "r/smoke/text")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "null"), (True, "true"), (3, "3"), (2.5, "2.5"), ("24h", "24h"),
        ("s3://a/b", "s3://a/b"), ("it's a, b", r"'it\'s a, b'"), ([], "[]"), (["a", 1], "[a,1]"),
        ([{"kind": "join", "at": "75%"}], "[{kind:join,at:75%}]"),
        ("${runs_dir}/x", "${runs_dir}/x"),
    ],
)  # fmt: skip
def test_a_value_of_yaml_is_one_of_hydra(value, words):
    assert words_for(value) == words


def test_what_is_awkward_to_say_arrives_as_it_is(tmp_path):
    prompts = ['it\'s {a}, [b] = "c" $d \\ e', "a\\", "\\'", "", "null", "#"]
    said = yaml.safe_dump({"settings": {"eval.prompts": prompts}, "steps": ["prepare"]})
    assert a_config(f"recipe={a_recipe(tmp_path, said)}").eval.prompts == prompts


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("settings: [", "E109", "cannot be used"),
        ("just words", "E109", "steps:"),
        ("settings: {seed: 1}", "E109", "steps:"),
        ("steps: train", "E109", "list"),
        ("steps: [train]\nsetings: {seed: 1}", "E109", "setings"),
        ("steps: [train]\nsettings: [1]", "E109", "mapping"),
        ("steps: [train]\nsettings: {action: plan}", "E109", "command line"),
        ("steps: [train, train]", "E109", "twice"),
        ("steps: [train: {run.name: x}]", "E109", "which all steps share"),
        ("steps: [[train]]", "E109", "should be a name"),
        ("steps: [prepare, trian]", "E102", "- train"),
        ("steps: [down]", "E102", "no action of one"),
        ("steps: [train]\nsettings: {model.n_layers: 3}", "E101", "model.num_layers"),
        ("steps: [train: {lr: 1}]\nsmoke: {trian.steps: 3}", "E101", "train.steps"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_a_file_that_is_no_recipe_gets_one_message_that_names_it(tmp_path, text, code, words):
    path = a_recipe(tmp_path, text)
    with pytest.raises(ConfigError) as refusal:
        read(path)
    assert refusal.value.code == code
    assert words in refusal.value.render()
    assert str(path) in refusal.value.where
    assert refusal.value.fix


def test_unknown_keys_of_a_recipe_are_all_named(tmp_path):
    text = "settings: {model: {n_layers: 3}, optim.lr: 1}\nsteps: [plan, train: {extra: 1}]\n"
    with pytest.raises(ConfigError) as refusal:
        a_config(f"recipe={a_recipe(tmp_path, text)}")
    assert refusal.value.code == "E101"
    for key in ("model.n_layers", "optim.lr", "extra"):
        assert key in refusal.value.what


def test_a_recipe_that_is_not_there_is_refused_with_the_nearest():
    with pytest.raises(ConfigError) as refusal:
        a_config("+recipe=spot_choas_demo", "seed=1")
    assert refusal.value.code == "E102"
    assert refusal.value.fix == "python run.py recipe=spot_chaos_demo seed=1"


def test_two_recipes_at_once_are_refused():
    with pytest.raises(ConfigError, match="one recipe at a time"):
        a_config("recipe=spot_chaos_demo,gpt_125m_laptop")


def test_a_header_is_written_once_and_leaves_the_rest_alone():
    once = with_header(MINE, machine="1 x A", planned="2 h", measured=NOT_RUN)
    assert once.splitlines()[:7] == [
        "# python run.py recipe=mine", "#", "# Mine.", "#", "# machine   1 x A",
        "# planned   2 h", "# measured  not run yet",
    ]  # fmt: skip
    assert once.partition("about:")[2] == MINE.partition("about:")[2]
    assert with_header(once, planned="3 h") == once.replace("2 h", "3 h")
    header = read_header(once)
    assert (header.command, header.planned) == ("python run.py recipe=mine", "2 h")
