"""Every file in conf/ composes, and its values are the documented ones."""

from __future__ import annotations

import ast
import dataclasses
import re
from itertools import product

import pytest
import yaml

import sailor.config
from actions import domain
from actions.arguments import options
from sailor.config import Config
from sailor.config_keys import flatten, groups, keys, plain
from sailor.errors import ConfigError
from sailor.models.spec import ModelSpec
from tests.helpers.compose import ROOT, a_config

CONF = ROOT / "conf"
GROUP_FILES = sorted(path for path in CONF.glob("*/*.yaml"))
# Options that name a file or folder of the user's own.
NEEDS = {
    "data/text": ["data.path=here"], "data/tokens": ["data.path=here"],
    "data/datasets": ["data.path=here"], "data/mixture": ["data.mixture.web.path=here"],
    "faults/file": ["faults.path=here.yaml"], "tokenizer/file": ["tokenizer.path=here.json"],
}  # fmt: skip
# Read from a folder of the user's own: tests/actions/test_paths.py.
OF_A_FOLDER = "hf"
MODELS = [name for name in options("model", root=ROOT) if name != OF_A_FOLDER]


def test_nothing_said_is_the_demonstration():
    config = a_config()
    assert (config.model.name, config.data.name, config.cloud.name) == (
        "gpt_tiny",
        "stdlib",
        "local",
    )
    assert config.faults.name == "demo"
    assert config.train.global_batch_size == 16
    assert config.train.sequence_length == 128
    assert domain.total_steps(config) == 200
    assert domain.is_deterministic(config)


def overridden(key, arguments):
    set_here = {argument.partition("=")[0] for argument in arguments}
    return key in set_here or (key == "train.tokens" and "train.steps" in set_here)


def alike(value, said):
    """Whether a setting is what a file says; YAML takes 3e-4 for text, Hydra for a number."""
    if isinstance(said, str) and "${" in said:
        return value is not None
    if isinstance(said, list):  # of entries whose keys have defaults
        return len(value) == len(said)
    try:
        return float(value) == float(said)
    except (TypeError, ValueError):
        return value == said


@pytest.mark.parametrize("path", GROUP_FILES, ids=lambda path: f"{path.parent.name}={path.stem}")
def test_every_option_composes(path):
    option = f"{path.parent.name}/{path.stem}"
    if option == f"model/{OF_A_FOLDER}":
        pytest.skip("needs a folder: tests/actions/test_paths.py")
    needs = NEEDS.get(option, [])
    if path.parent.name == "train":  # made for another model than the default one
        needs = ["model.max_positions=8192", "train.steps=1"]
    config = a_config(option.replace("/", "="), *needs)
    said = yaml.safe_load(path.read_text()) or {}
    group = getattr(config, path.parent.name)
    for key in said.keys() - {"defaults"}:
        value = plain(getattr(group, key))
        assert overridden(f"{path.parent.name}.{key}", needs) or alike(value, said[key]), key


@pytest.mark.parametrize(("model", "cloud"), list(product(MODELS, options("cloud", root=ROOT))))
def test_every_model_composes_with_every_cloud(model, cloud):
    config = a_config(f"model={model}", f"cloud={cloud}")
    spec = domain.model_spec(config)
    assert spec.name == model
    assert config.cloud.name == cloud
    assert domain.total_steps(config) > 0


@pytest.mark.parametrize("model", options("model", root=ROOT))
def test_every_model_says_what_it_is_trained_with(model):
    assert (CONF / "train" / f"{model}.yaml").exists()
    assert (CONF / "optim" / f"{model}.yaml").exists()


def test_a_run_without_a_length_is_refused():
    with pytest.raises(ConfigError, match="nothing says how long"):
        a_config("train.steps=null", "train.tokens=null")


def test_naming_tokens_takes_back_steps_and_the_reverse():
    assert domain.total_steps(a_config("train.tokens=1M")) == -(-(10**6) // (16 * 128))
    assert domain.total_steps(a_config("model=gpt_1b", "train.steps=7")) == 7


@pytest.mark.parametrize("path", [CONF / "config.yaml", *GROUP_FILES], ids=lambda p: p.stem)
def test_every_yaml_file_opens_with_the_command_that_uses_it(path):
    assert path.read_text().startswith("# python run.py ")


@pytest.mark.parametrize(
    "group", ["budget", "planner", "runtime", "checkpoint", "export", "eval", "ui", "run", "recipe"]
)
def test_yaml_and_dataclass_agree_on_defaults(group):
    said = getattr(a_config(), group)
    assert said == type(said)()


def test_the_default_optimizer_is_that_of_the_dataclass():
    assert a_config("optim=adamw").optim == type(a_config().optim)()


@pytest.mark.parametrize("group", ["runtime", "checkpoint", "budget", "planner", "export", "eval"])
def test_the_default_file_of_a_group_shows_every_key(group):
    name = {"budget": "none", "planner": "cheapest"}.get(group, "default")
    shown = yaml.safe_load((CONF / group / f"{name}.yaml").read_text())
    assert set(shown) == {key.split(".")[1] for key in keys() if key.startswith(f"{group}.")}


def test_every_group_of_the_schema_has_a_folder():
    folders = {path.name for path in CONF.iterdir() if path.is_dir()}
    assert folders == set(groups()) - {"run", "recipe"}


def test_every_key_of_the_schema_is_described():
    """A string under each field: what it means and in which unit."""
    tree = ast.parse((ROOT / "sailor" / "config.py").read_text())
    undescribed = []
    for node in tree.body:
        if not (isinstance(node, ast.ClassDef) and node.name.endswith("Config")):
            continue
        for field, below in zip(node.body, [*node.body[1:], ast.Pass()], strict=True):
            is_field = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            described = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            is_group = is_field and ast.unparse(field.annotation).endswith("Config")
            if is_field and not described and not is_group:
                undescribed.append(f"{node.name}.{field.target.id}")
    assert undescribed == []


def test_no_key_is_for_show():
    """What nobody reads cannot do anything. (That it does the right thing is tested elsewhere.)"""
    code = "\n".join(path.read_text() for path in (ROOT / "actions").rglob("*.py"))
    code += (ROOT / "run.py").read_text()
    read = set(re.findall(r"\.(\w+)", code))
    read.add("action")  # read as Config.actions
    read |= {field.name for field in dataclasses.fields(ModelSpec)}  # all of them, by model_spec
    assert [key for key in keys() if key.rpartition(".")[2] not in read] == []


def test_model_config_has_the_fields_of_a_model_spec():
    here = {field.name for field in dataclasses.fields(sailor.config.ModelConfig)}
    assert here - {"init_from"} == {field.name for field in dataclasses.fields(ModelSpec)}


def test_a_configuration_survives_yaml():
    config = a_config("train.tokens=1M", "optim.epsilon=1e-8")
    assert flatten(yaml.safe_load(yaml.safe_dump(plain(config)))) == flatten(config)
    # Below data.mixture are the names that a user gives to sources, and here are none.
    assert set(flatten(config)) == set(keys(Config)) - {sailor.config.MIXTURE}
