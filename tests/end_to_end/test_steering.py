"""Steering a run that goes on: by requests in its folder, by keys, and watching it from outside."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time

import pytest

from sailor.checkpoint.store import steps
from sailor.runtime.requests import Replan, Save, Stop, ask
from tests.helpers.compose import ROOT
from tests.helpers.running import MODEL, PATIENCE_S, PATIENT, Place, Running

# One machine holds everything; nothing is made durable before the end but what is asked for.
ONE = (
    "cloud.nodes=1", "cloud.memory_per_gpu=1GiB", "train.steps=4000", "checkpoint.persist_every=0",
)  # fmt: skip


def kinds(log, *wanted):
    return [event for event in log if event.kind in wanted]


def test_a_run_that_goes_on_saves_plans_again_and_stops_when_asked_and_can_be_watched(place: Place):
    with place.start(*ONE) as run:
        run.until_step(3)
        watcher = subprocess.Popen(
            [sys.executable, str(ROOT / "run.py"), "action=watch", f"run={run.name}",
             f"runs_dir={place.runs}", "ui=json"],
            stdout=subprocess.PIPE, text=True, env=place.environment(),
        )  # fmt: skip
        ask(run.folder, Save(why="a test"))
        durable = run.until(lambda log: kinds(log, "persisted"), what="a durable step")[0]["step"]
        assert durable in steps(run.folder / "checkpoints")
        ask(run.folder, Replan(why="a test"))
        run.until(lambda log: kinds(log, "transition_dropped"), what="a plan that changes nothing")
        run.until_step(run.events[-1].get("step", durable) + 2)  # it trains on
        ask(run.folder, Stop(why="a test"))
        ended = run.wait()
        watched, _ = watcher.communicate(timeout=PATIENCE_S)
    assert ended.code == 75, ended.told()
    assert ended.summary["why"] == "a test"
    assert ended.summary["pauses"] == []
    assert ended.summary["durable_step"] == ended.summary["steps"] > durable
    assert len(kinds(ended.events, "persisted")) == 2  # what was asked for, and the end
    told = [json.loads(line) for line in watched.splitlines()]
    assert [event["seq"] for event in told] == [event.seq for event in ended.events]
    assert watcher.returncode == 0


@pytest.mark.matrix
def test_a_run_whose_view_was_closed_goes_on_when_its_terminal_is_closed(place: Place):
    name = place.named("closed-terminal")
    words = place._command(name, *MODEL, *PATIENT, *ONE, "train.steps=400", "ui.mode=live")
    keys, terminal = pty.openpty()
    program = subprocess.Popen(
        words, stdin=terminal, stdout=terminal, stderr=terminal, cwd=place.root,
        env={**place.environment(), "TERM": "xterm"}, start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # it becomes its terminal
    )  # fmt: skip
    os.close(terminal)
    run = Running(
        name=name, folder=place.runs / name, process=program, printed=place.root / "closed.out"
    )
    shown = ""

    def until(word: str) -> None:
        nonlocal shown
        while word not in shown and time.monotonic() < run.deadline:
            shown += os.read(keys, 65536).decode(errors="replace")
        assert word in shown

    try:
        until("[d]etach")
        os.write(keys, b"d")
        until(f"action=watch run={name}")
        os.close(keys)  # as if the window was closed: SIGHUP
        assert program.wait(PATIENCE_S) == 0
    finally:
        run.end()
    summary = json.loads((run.folder / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("done", 400)
