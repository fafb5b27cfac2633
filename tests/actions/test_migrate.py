"""action=migrate: what the command says of a move, by the run's log."""

import pytest

from actions import migrate
from actions.arguments import expand
from actions.console import Console
from sailor.errors import ConfigError
from sailor.observe.events import Event
from tests.helpers.compose import ROOT, a_config


def an_event(kind, generation=0, **fields):
    return Event(seq=1, t=0.0, time="", run="r", generation=generation, kind=kind, fields=fields)


PROMOTED = an_event("standby", node="node-5", state="promoted", why="takes the seats of node-3")
STARTED = an_event("generation_started", 2, nodes=["node-1", "node-5"])
PAUSE = an_event("pause", 2, total_s=0.5, steps_redone=0, planned=True)


def test_a_move_is_told_when_its_first_step_is_in():
    assert migrate.outcome_of([PROMOTED, STARTED], node="node-3") is None
    assert migrate.outcome_of([PROMOTED, STARTED, PAUSE], node="node-3") == {
        "node": "node-3", "to": "node-5", "generation": 2, "pause_s": 0.5, "steps_redone": 0,
        "planned": True,
    }  # fmt: skip


def test_a_refusal_is_told_and_that_of_another_machine_is_not():
    refused = an_event("move_refused", node="node-3", why="it has no seat")
    assert migrate.outcome_of([refused], node="node-3") == "it has no seat"
    assert migrate.outcome_of([refused], node="node-4") is None


def test_a_move_that_was_dropped_waits_for_the_next_try():
    dropped = an_event("transition_dropped", why="node-5 lost")
    again = an_event("standby", node="node-6", state="promoted", why="takes the seats of node-3")
    log = [PROMOTED, dropped, STARTED, PAUSE]
    assert migrate.outcome_of(log, node="node-3") is None
    assert migrate.outcome_of([*log[:2], again, STARTED, PAUSE], node="node-3")["to"] == "node-6"


def test_run_and_node_may_be_said_in_short():
    assert expand(["action=migrate", "run=otter", "node=node-2"], root=ROOT) == [
        "action=migrate", "run.name=otter", "migrate.node=node-2",
    ]  # fmt: skip


def test_a_run_that_does_not_go_on_moves_nothing(tmp_path):
    folder = tmp_path / "otter"
    folder.mkdir()
    words = [f"runs_dir={tmp_path}", "run.name=otter", "migrate.node=node-2"]
    with pytest.raises(ConfigError, match="no run otter"):
        migrate.run(a_config("action=migrate", *words), Console())
    (folder / "config.yaml").write_text("")
    with pytest.raises(ConfigError, match="was not moved") as refused:
        migrate.run(a_config("action=migrate", *words), Console())
    assert refused.value.code == "E610"
    assert list(folder.iterdir()) == [folder / "config.yaml"]
