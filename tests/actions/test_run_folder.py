"""A run folder belongs to one configuration and to one process at a time."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml

from actions.run_folder import (
    FREE_KEYS,
    RunFolder,
    config_digest,
    differences,
    open_run,
    owner_pid,
    read_summary,
    run_name,
)
from sailor.config_keys import flatten, groups, keys
from sailor.errors import ConfigError
from tests.helpers.compose import ROOT, a_config


def begun(*arguments: str) -> RunFolder:
    """A run that has written something, and ended."""
    with open_run(a_config(*arguments), command="python run.py") as folder:
        folder.events.write_text("{}\n")
    return folder


HOLD = """
import sys
from actions.run_folder import open_run
from tests.helpers.compose import a_config
with open_run(a_config(*sys.argv[1:]), command="python run.py"):
    print("open", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def said(tmp_path):
    """What every configuration of these tests says."""
    return [f"runs_dir={tmp_path / 'runs'}", "run.name=it"]


def test_a_new_run_gets_a_folder_with_its_configuration(said, tmp_path):
    with open_run(a_config(*said, "seed=3"), command="python run.py seed=3") as folder:
        assert folder.path == tmp_path / "runs" / "it"
        assert not folder.resumed
        assert not folder.is_done
    text = (folder.path / "config.yaml").read_text()
    assert text.startswith("# python run.py seed=3\n")
    assert yaml.safe_load(text)["seed"] == 3


def test_the_same_configuration_resumes(said):
    begun(*said)
    with open_run(a_config(*said), command="") as folder:
        assert folder.resumed


def test_what_does_not_change_the_result_may_change(said):
    begun(*said)
    changed = ["output=json", "ui=plain", "budget.total_usd=5", "checkpoint.keep=9",
               "runtime.silence=9s", "planner.patience=1h"]  # fmt: skip
    with open_run(a_config(*said, *changed), command="") as folder:
        assert folder.resumed


def test_another_configuration_is_refused_with_the_difference_and_nothing_changes(said):
    folder = begun(*said)
    before = (folder.path / "config.yaml").read_bytes()
    with (
        pytest.raises(ConfigError) as refusal,
        open_run(a_config(*said, "seed=4", "optim.learning_rate=1e-4"), command="second"),
    ):
        pass
    assert refusal.value.code == "E603"
    assert "seed: 0 there, 4 here" in refusal.value.why
    assert "optim.learning_rate: 0.003 there, 0.0001 here" in refusal.value.why
    assert "seed=0 optim.learning_rate=0.003" in refusal.value.fix
    assert (folder.path / "config.yaml").read_bytes() == before


def test_a_run_that_never_began_has_no_claim_on_its_name(said):
    with open_run(a_config(*said, "data=text", "data.path=/nowhere"), command=""):
        pass  # no data: nothing was written
    with open_run(a_config(*said), command="") as folder:
        assert not folder.resumed
    assert yaml.safe_load((folder.path / "config.yaml").read_text())["data"]["path"] is None


def test_a_fresh_start_sets_the_old_folder_aside(said, tmp_path):
    begun(*said)
    for number in (1, 2):
        with open_run(a_config(*said, "seed=4", "run.fresh=true"), command="") as folder:
            assert not folder.resumed
            assert not folder.events.exists()
            folder.events.write_text("later\n")
        assert (tmp_path / "runs" / f"it.old-{number}").is_dir()
    assert (tmp_path / "runs" / "it.old-1" / "events.jsonl").read_text() == "{}\n"


def test_a_folder_in_use_is_refused_and_free_again_when_its_process_was_killed(said, tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, *said],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(ConfigError) as refusal, open_run(a_config(*said), command=""):
            pass
        assert refusal.value.code == "E606"
        assert str(holder.pid) in refusal.value.why
        assert owner_pid(tmp_path / "runs" / "it") == holder.pid
    finally:
        holder.kill()
        holder.communicate()
    assert owner_pid(tmp_path / "runs" / "it") is None
    begun(*said)


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError) as refusal,
        open_run(a_config(f"runs_dir={tmp_path / 'file'}"), command=""),
    ):
        pass
    assert refusal.value.code == "E607"


def test_a_damaged_configuration_is_refused_and_kept(said, tmp_path):
    folder = tmp_path / "runs" / "it"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("- what: [")
    (folder / "events.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError) as refusal, open_run(a_config(*said), command=""):
        pass
    assert refusal.value.code == "E603"
    assert (folder / "config.yaml").read_text() == "- what: ["


def test_a_name_comes_from_the_configuration_when_none_is_given():
    name = run_name(a_config())
    assert name.startswith("gpt_tiny-local-")
    assert run_name(a_config("ui=plain", "budget.total_usd=9")) == name
    assert run_name(a_config("seed=1")) != name
    assert run_name(a_config("run.name=mine")) == "mine"


def test_the_digest_is_that_of_what_decides_the_result():
    assert config_digest(a_config()) == config_digest(a_config("output=json"))
    assert config_digest(a_config()) != config_digest(a_config("train.steps=201"))


def test_keys_that_came_with_a_later_version_do_not_stop_a_resume():
    now = flatten(a_config())
    before = {key: value for key, value in now.items() if key != "train.eval_every"}
    assert differences(before, now) == {}


def test_a_source_that_came_to_a_mixture_or_left_it_makes_another_configuration(said):
    two = ("run.name=mixed", "data=mixture", "data.mixture.web.path=/web",
           "data.mixture.code.name=stdlib")  # fmt: skip
    begun(*said, *two)
    for other, line in (
        ((*two, "data.mixture.books.path=/books"), "data.mixture.books: no source there, a source"),
        (two[:-1], "data.mixture.code: a source there, no source here"),
    ):
        with (
            pytest.raises(ConfigError) as caught,
            open_run(a_config(*said, *other), command="python run.py"),
        ):
            pass
        assert caught.value.code == "E603"
        assert line in caught.value.why
        assert "to resume the old one" not in caught.value.fix
    assert begun(*said, *two).resumed


def test_free_keys_are_keys():
    known = [*keys(), *groups()]
    for free in FREE_KEYS:
        assert any(key == free or key.startswith(f"{free}.") for key in known), free


@pytest.mark.parametrize("text", [None, "{", "[]", "{}"])
def test_a_summary_that_is_not_there_says_nothing(tmp_path, text):
    if text is not None:
        (tmp_path / "summary.json").write_text(text)
    assert read_summary(tmp_path) == {}
