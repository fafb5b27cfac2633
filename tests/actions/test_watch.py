"""action=watch: a run of another process, as it goes on and as it went."""

from __future__ import annotations

import io
import json
import threading
import time

import pytest

from actions import watch
from actions.console import Console
from actions.run_folder import hold
from sailor.errors import ConfigError
from sailor.observe.events import EventLog
from sailor.observe.tail import Tail
from tests.helpers.compose import a_config
from tests.observe.run_story import Story, demo


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "runs" / "otter"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("{}")
    return folder


def written(log: EventLog, story: Story) -> None:
    for event in story.events:
        log.write(event.kind, generation=event.generation, **event.fields)


def watching(folder, *arguments: str) -> tuple[int, str]:
    """The view of a run, to its end: exit code and what was printed."""
    console = Console()
    console.file = io.StringIO()
    code = watch.run(a_config(f"runs_dir={folder.parent}", "action=watch", *arguments), console)
    return code, console.file.getvalue()


def test_a_run_that_has_ended_is_shown_as_it_went(folder):
    with EventLog(folder / "events.jsonl", run="otter") as log:
        written(log, demo())
    code, text = watching(folder, "run=otter")
    lines = text.splitlines()
    assert code == 0
    assert lines[0].startswith('sailor   run "otter"')
    assert any("+ node-5 joined" in line for line in lines)
    assert [line for line in lines if line.startswith("done     20 of 20 steps")]
    assert "\x1b" not in text


def test_json_streams_every_event_from_the_first_on(folder):
    with EventLog(folder / "events.jsonl", run="otter") as log:
        written(log, demo())
    _, text = watching(folder, "run=otter", "ui=json")
    assert text == (folder / "events.jsonl").read_text()


def test_output_json_is_the_summary(folder):
    with EventLog(folder / "events.jsonl", run="otter") as log:
        written(log, demo())
    console = Console()
    watch.run(a_config(f"runs_dir={folder.parent}", "run=otter", "output=json"), console)
    assert console.documents[0]["status"] == "done"


def test_a_run_that_goes_on_is_followed_to_its_end_and_found_without_its_name(folder):
    story, out = demo(), io.StringIO()
    console, config = Console(), a_config(f"runs_dir={folder.parent}", "action=watch")
    console.file = out
    half = len(story.events) // 2
    first, rest = Story(), Story()
    first.events, rest.events = story.events[:half], story.events[half:]
    with hold(folder, name="otter"), EventLog(folder / "events.jsonl", run="otter") as log:
        written(log, first)
        looker = threading.Thread(target=watch.run, args=(config, console))
        looker.start()
        deadline = time.monotonic() + 60
        while "sailor   run" not in out.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)  # it has found the run, which is ours until then
        written(log, rest)
    looker.join(60)
    assert "done     20 of 20 steps" in out.getvalue()
    assert out.getvalue().count("+ node-5 joined") == 1


def test_a_run_that_was_killed_is_not_waited_for(folder):
    story = Story().start().nodes("node-1").generation(1, "node-1").steps(1, 3, generation=1)
    with EventLog(folder / "events.jsonl", run="otter") as log:
        written(log, story)
    _, text = watching(folder, "run=otter")
    assert "killed   3 of 20 steps" in text


def test_which_run_is_meant_must_be_said_where_none_goes_on(folder):
    with pytest.raises(ConfigError, match="which run") as caught:
        watching(folder)
    assert caught.value.code == "E608"
    assert "run=otter" in caught.value.fix
    with pytest.raises(ConfigError, match="no run heron"):
        watching(folder, "run=heron")


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path):
    path = tmp_path / "events.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    with EventLog(path, run="otter") as log:
        log.write("committed", step=1)
        log.write("committed", step=2)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert [event["step"] for event in tail.read()] == [1]
    path.write_bytes(whole)
    assert [event["step"] for event in tail.read()] == [2]
    assert tail.read() == []
    assert json.loads(whole.splitlines()[0])["step"] == 1
