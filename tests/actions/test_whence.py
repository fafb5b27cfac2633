"""What a run's record says it was made of."""

import platform

from actions.whence import changed, versions
from tests.helpers.compose import a_config


def test_the_default_run_differs_from_itself_in_nothing():
    assert changed(a_config()) == {}


def test_what_was_said_is_told_and_nothing_else():
    words = ("train.steps=7", "seed=3", "model.rope_theta=5e5", "ui.mode=plain", "run.name=mine")
    assert changed(a_config(*words)) == {
        "train.steps": 7, "seed": 3, "model.rope_theta": 500_000.0,
    }  # fmt: skip


def test_another_group_is_told_key_by_key():
    told = changed(a_config("model=gpt_125m", "cloud=gcp"))
    assert told["model.name"] == "gpt_125m"
    assert told["cloud.name"] == "gcp"
    assert told["train.sequence_length"] == a_config("model=gpt_125m").train.sequence_length


def test_versions_are_those_that_are_installed():
    told = versions()
    assert told["python"] == platform.python_version()
    assert told["torch"].startswith("2.13")
    assert "skypilot" not in told or told["skypilot"]
