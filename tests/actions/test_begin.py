"""Before the first machine: refusals leave nothing behind, and what is done stays done."""

from __future__ import annotations

import json

import pytest

from actions.begin import begin
from actions.console import Console
from actions.run_folder import open_run
from sailor.config import Output
from sailor.errors import CloudError, DataError
from sailor.faults import FaultKind
from tests.helpers.compose import a_config


@pytest.fixture
def said(tmp_path):
    """A run on a little text of its own."""
    text = tmp_path / "text"
    text.mkdir()
    for number in range(60):
        (text / f"{number}.txt").write_text(f"file {number}: " + "ahoy " * (400 + number))
    return [f"runs_dir={tmp_path / 'runs'}", "run.name=it", "data=text", f"data.path={text}",
            f"data.cache={tmp_path / 'cache'}"]  # fmt: skip


def test_a_run_begins_with_tokens_settings_and_its_script(said, tmp_path):
    with begin(a_config(*said), Console()) as beginning:
        assert not beginning.folder.resumed
        assert beginning.settings.total_steps == 200
        assert beginning.settings.tokens_path.startswith(str(tmp_path / "cache"))
        assert beginning.faults[0].kind is FaultKind.preempt
        assert beginning.checkpoint_directory == str(tmp_path / "runs" / "it" / "checkpoints")


def test_a_run_that_is_done_is_left_alone(said):
    console = Console(output=Output.json)
    with open_run(a_config(*said), command="") as folder:
        folder.events.write_text("{}\n")
        folder.summary.write_text(json.dumps({"status": "done", "steps": 200}))
    before = {path.name: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}
    with begin(a_config(*said), console) as beginning:
        assert beginning is None
    after = {path.name: path.read_bytes() for path in folder.path.iterdir() if path.is_file()}
    assert after == before
    assert console.documents == [{"status": "done", "steps": 200}]


def test_a_cloud_that_cannot_be_rented_leaves_no_folder(said, tmp_path):
    with pytest.raises(CloudError), begin(a_config(*said, "cloud=gcp"), Console()):
        pass
    assert not (tmp_path / "runs").exists()


def test_a_wrong_path_can_be_put_right_under_the_same_name(said):
    with (
        pytest.raises(DataError, match="nothing to train on"),
        begin(a_config(*said[:2], "data=text", "data.path=/nowhere"), Console()),
    ):
        pass
    with begin(a_config(*said), Console()) as beginning:
        assert not beginning.folder.resumed


def test_a_tokenizer_with_more_tokens_than_the_model_has_rows_is_refused(said):
    with (
        pytest.raises(DataError) as refusal,
        begin(a_config(*said, "model.vocab_size=128"), Console()),
    ):
        pass
    assert refusal.value.code == "E505"
    assert "model.vocab_size=256" in refusal.value.fix
