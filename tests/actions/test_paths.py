"""A path where a group wants an option: model=FOLDER, tokenizer=FILE, checkpoint=STEP."""

from __future__ import annotations

import json

import pytest

from actions import domain
from sailor.data.tokenizer import ByteTokenizer
from sailor.errors import ConfigError, DataError
from sailor.models.hf.config import spec_of
from tests.helpers.compose import a_config

# As config.json has it: the shape of Qwen2-0.5B, made small.
CONFIG = {
    "model_type": "qwen2", "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 257, "rope_theta": 1e6,
    "max_position_embeddings": 64, "tie_word_embeddings": True, "rms_norm_eps": 1e-6,
}  # fmt: skip
LENGTH = "train.steps=3"


@pytest.fixture
def folder(tmp_path):
    """config.json and a tokenizer; the weights are nobody's business here."""
    path = tmp_path / "small one"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    for name, content in ByteTokenizer().files().items():
        (path / name).write_bytes(content)
    return path


def test_a_folder_is_a_model_with_its_own_shape_tokenizer_and_first_weights(folder):
    config = a_config(f"model={folder}", LENGTH)
    assert domain.model_spec(config) == spec_of(CONFIG, name="small one")
    assert domain.first_weights(config) == str(folder)
    assert (config.tokenizer.name, config.tokenizer.path) == ("file", str(folder))
    assert config.train.sequence_length == 64  # as long as the model allows
    assert config.optim.learning_rate == 3e-5  # conf/optim/hf.yaml


def test_what_the_user_says_is_left_to_the_user(folder):
    config = a_config(
        "train.sequence_length=32", f"model={folder}", LENGTH, "model.max_positions=48",
        "model.name=mine", "tokenizer=bytes", "optim.learning_rate=1e-3",
    )  # fmt: skip
    assert (config.model.max_positions, config.model.name) == (48, "mine")
    assert (config.train.sequence_length, config.tokenizer.name) == (32, "bytes")
    assert config.optim.learning_rate == 1e-3


def test_a_known_model_may_take_its_weights_from_a_folder(folder):
    config = a_config("model=gpt_tiny", f"model.init_from='{folder}'")
    assert config.model.name == "gpt_tiny"
    assert domain.first_weights(config) == str(folder)
    assert domain.first_weights(a_config()) == ""


def test_the_option_and_its_folder_may_be_said_apart(folder):
    apart = a_config("model=hf", f"model.init_from='{folder}'", LENGTH)
    assert apart == a_config(f"model={folder}", LENGTH)
    with pytest.raises(ConfigError, match="needs the folder"):
        a_config("model=hf", LENGTH)


def test_a_run_from_a_folder_must_say_how_long(folder):
    with pytest.raises(ConfigError, match="nothing says how long"):
        a_config(f"model={folder}")


def test_a_path_that_is_no_model_is_said_to_be_none(tmp_path):
    with pytest.raises(DataError) as caught:
        a_config("model=no/such/folder")
    assert caught.value.code == "E511"
    with pytest.raises(DataError) as caught:
        a_config(f"model={tmp_path}")
    assert caught.value.code == "E511"


def test_a_model_without_a_tokenizer_asks_which(folder):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(DataError) as caught:
        a_config(f"model={folder}", LENGTH)
    assert caught.value.code == "E507"
    assert a_config(f"model={folder}", LENGTH, "tokenizer=bytes").tokenizer.name == "bytes"


def test_a_tokenizer_and_a_checkpoint_may_be_paths(folder):
    config = a_config(f"tokenizer={folder / 'tokenizer.json'}", "checkpoint=runs/it/step-00000004")
    assert config.tokenizer.path == str(folder / "tokenizer.json")
    assert config.checkpoint.path == "runs/it/step-00000004"
    assert a_config("checkpoint=default").checkpoint.path is None
    with pytest.raises(ConfigError, match="needs a file"):
        a_config("tokenizer=file")
