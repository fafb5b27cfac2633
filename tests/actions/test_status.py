"""What the run folders hold, told and drawn again from their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actions import report, status
from actions.console import Console
from actions.run_folder import RunFolder, open_run
from provision.machines import Machine, MachineRecord
from sailor.config import Output
from sailor.errors import ConfigError
from tests.helpers.compose import a_config
from tests.observe.run_story import Story, demo


@pytest.fixture
def said(tmp_path: Path) -> list[str]:
    return [f"runs_dir={tmp_path / 'runs'}", "run.name=it", "output=json"]


def a_run(said: list[str], story: Story) -> RunFolder:
    """A run folder whose log tells the story."""
    with open_run(a_config(*said), command="python run.py") as folder:
        folder.events.write_bytes(b"".join(e.to_json() + b"\n" for e in story.events))
    return folder


def document_of(action: Any, said: list[str]) -> Any:
    console = Console(output=Output.json)
    assert action.run(a_config(*said), console) == 0
    return console.documents[-1]


def test_no_runs_are_no_rows(tmp_path):
    assert document_of(status, [f"runs_dir={tmp_path}"]) == []


def test_a_run_is_told_from_its_log_when_nobody_summed_it_up(said):
    a_run(said, demo())
    (row,) = document_of(status, said)
    assert (row["run"], row["state"], row["steps"], row["total_steps"]) == ("it", "done", 20, 20)


def test_a_run_that_goes_on_shows_its_progress_and_its_process(said):
    a_run(said, Story().start().nodes("node-1").generation(1, "node-1").steps(1, 3, generation=1))
    (row,) = document_of(status, said)
    assert (row["state"], row["steps"]) == ("killed", 3)
    with open_run(a_config(*said), command=""):
        (row,) = document_of(status, said)
    assert row["state"].startswith("running (pid ")
    assert row["steps"] == 3


def test_what_goes_on_and_what_it_costs_is_told_with_how_to_stop_it(said):
    story = Story().start().nodes("node-1", "node-2", price_per_hour=2.5).generation(1, "node-1")
    story.say("node_lost", node="node-2", cause="preempted", silent_s=0.0)
    story.say("node_released", node="node-2", proof="gone")
    a_run(said, story)
    with open_run(a_config(*said), command=""):
        (row,) = document_of(status, said)
        lines = list(status.advice([row]))
    assert row["usd_per_hour"] == 2.5
    assert row["left_over"] == []
    assert lines[0] == "1 goes on, $2.50 an hour"
    assert f"kill -INT {row['pid']}" in lines[2]


def test_what_a_killed_run_may_have_left_is_told_with_how_to_end_it(said, tmp_path):
    folder = a_run(said, Story().start().nodes("node-1", "node-2", price_per_hour=2.5))
    MachineRecord(folder.path / "machines.jsonl").wish(Machine(node="node-3", mark="it/node-3"))
    (row,) = document_of(status, said)
    assert row["left_over"] == ["node-1", "node-2", "node-3"]
    assert row["usd_per_hour"] == 5.0
    first, second = status.advice([row])
    assert first == "it may have left node-1, node-2, node-3"
    assert f"action=down run=it runs_dir={tmp_path / 'runs'}" in second


def test_a_run_that_released_everything_has_nothing_left(said):
    a_run(said, demo())
    (row,) = document_of(status, said)
    assert (row["left_over"], row["usd_per_hour"]) == ([], 0)
    assert list(status.advice([row])) == []


def test_all_runs_are_listed_when_none_is_named(said):
    a_run(said, demo())
    with open_run(a_config(said[0], "run.name=other"), command=""):
        pass
    rows = document_of(status, [said[0]])
    assert {row["run"]: row["state"] for row in rows} == {"it": "done", "other": "never began"}


def test_a_report_is_drawn_again_from_the_log(said):
    folder = a_run(said, demo())
    summary = document_of(report, said)
    assert summary["status"] == "done"
    assert json.loads(folder.summary.read_text()) == summary
    assert folder.report.read_text().startswith("<!")


@pytest.mark.parametrize("action", [status, report])
def test_a_run_that_is_not_there_is_refused_with_those_that_are(said, action):
    a_run(said, demo())
    with pytest.raises(ConfigError) as refusal:
        action.run(a_config(said[0], "run.name=nobody"), Console())
    assert refusal.value.code == "E608"
    assert "it" in refusal.value.why
