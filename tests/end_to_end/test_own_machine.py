"""A run whose controller has a machine of its own (cloud.controller=cluster), here a process.

The command that started it may vanish: nothing that trains is its child. Everything is looked at by
what the run folder here shows, as a person has it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from actions.away import Away
from actions.away import Place as ThePlace
from actions.prepare import prepare_tokens
from actions.sending import sent, stage
from provision.local import RECORD
from provision.machines import MachineRecord
from provision.payload import make_payload
from provision.processes import MARK, identify, kill_machine
from provision.sky_lodging import ROUTE
from provision.tunnel import Route
from sailor.observe.events import Event, read_events
from sailor.runtime.identity import create_identity
from tests.end_to_end.test_losses import hold_to_invariants, of_kind
from tests.helpers.compose import a_config
from tests.helpers.running import (
    MODEL,
    PATIENCE_S,
    PATIENT,
    Ended,
    Place,
    Running,
    leftovers,
    steps_done,
)

WORDS = ("cloud.controller=cluster", "cloud.nodes=3", "checkpoint.persist_every=50")
LONG = (*WORDS, "train.steps=100000")


def there(run: Running) -> Path:
    """The run's folder on the controller's machine."""
    return run.folder / ".controller" / "house" / "runs" / run.name


def log_of(folder: Path) -> tuple[Event, ...]:
    path = folder / "events.jsonl"
    return read_events(path) if path.exists() else ()


def log_there(run: Running) -> tuple[Event, ...]:
    return log_of(there(run))


def until(run: Running, condition: Callable[[tuple[Event, ...]], object], *, what: str) -> None:
    """Of the log there: nobody brings it home any more."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition(log_there(run)):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def command(place: Place, run: Running, *words: str, code: int | None = 0) -> Ended:
    """An action on the run, to its end."""
    ended = place.call(*words, name=run.name)
    assert ended.code == code, ended.told()
    return ended


@contextmanager
def started(place: Place, *words: str) -> Iterator[Running]:
    with place.start(*words) as run:
        try:
            yield run
        finally:
            for folder in (run.folder / ".controller", there(run)):
                for machine in MachineRecord(folder / RECORD).remaining():
                    kill_machine(mark=machine.mark, leader=machine.leader)
            for path in Path("/dev/shm").glob(f"sailor-{run.name}-*"):
                for file in path.iterdir():
                    file.unlink(missing_ok=True)
                path.rmdir()


def test_a_run_outlives_the_command_that_started_it_is_found_again_and_ended(place: Place) -> None:
    with started(place, *LONG) as run:
        run.until_step(5)
        run.signal(signal.SIGKILL)
        run.process.wait()
        known = steps_done(log_there(run))
        until(run, lambda log: steps_done(log) >= known + 20, what="training goes on")
        assert steps_done(run.events) < steps_done(log_there(run)), "nobody carried anything home"

        (row,) = json.loads(command(place, run, "action=status", "output=json").out)
        assert (row["state"], row["goes_on"]) == ("running (own machine)", True)
        assert row["steps"] >= known + 20

        watcher = subprocess.Popen(
            place._command(run.name, "action=watch", "ui.mode=json"), cwd=place.root,
            env=place.environment(), stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert watcher.stdout is not None
        seen = [json.loads(watcher.stdout.readline())["seq"] for _ in range(known)]
        watcher.send_signal(signal.SIGINT)
        watcher.communicate(timeout=PATIENCE_S)
        assert watcher.returncode == 0
        assert seen == list(range(seen[0], seen[0] + known))

        refused = command(place, run, "action=migrate", "node=node-9", code=2)
        assert "error[E610]" in refused.err

        proofs = json.loads(command(place, run, "action=down", "output=json").out)
        assert {proof["node"] for proof in proofs} == {"node-1", "node-2", "node-3", "controller"}
        assert all(proof["released"] for proof in proofs)
        assert leftovers(run.name) == []
        summary = json.loads((run.folder / "summary.json").read_text())
        assert (summary["status"], summary["released"]) == ("interrupted", True)
        assert summary["durable_step"] == summary["steps"] > known
        assert (run.folder / "report.html").exists()
        first, *_, last = run.events
        assert (first.kind, first["node"], first["role"]) == (
            "node_requested", "controller", "controller"
        )  # fmt: skip
        assert (last.kind, last["node"], last["released"]) == ("node_released", "controller", True)
        assert first["price_per_hour"] == 0.0, "a process of this computer is free"
        assert summary["controllers"]["hours"] > 0
        assert summary["missing_events"] == 0
        assert "Not proven gone" not in (run.folder / "report.html").read_text()
        told_there = (there(run) / "events.jsonl").read_bytes()
        assert (run.folder / "events.jsonl").read_bytes() == told_there + last.to_json() + b"\n"


@pytest.mark.matrix
def test_a_controller_that_is_killed_on_its_machine_is_started_again_and_the_run_comes_home_whole(
    place: Place, undisturbed: Callable[[int], Ended]
) -> None:
    steps = 120
    with started(place, *WORDS, f"train.steps={steps}") as run:
        run.until_step(10)
        (door,) = (m.leader for m in MachineRecord(run.folder / ".controller" / RECORD).remaining())
        assert door is not None
        (controller,) = (
            child for child in psutil.Process(door.pid).children() if "train" in child.cmdline()
        )
        controller.kill()
        ended = run.wait()
        assert ended.code == 0, ended.told()
        assert leftovers(run.name) == []
    (found,) = of_kind(ended.events, "adopted")
    assert found["trains"]
    hold_to_invariants(ended, undisturbed(steps), steps=steps)
    assert not (run.folder / ".controller" / "place.json.partial").exists()
    again = place.call(*WORDS, f"train.steps={steps}", name=run.name)
    assert again.code == 0
    assert "is done; nothing was changed" in again.out


@pytest.mark.matrix
def test_closing_the_view_stops_nothing_and_the_same_command_looks_again_and_a_stopped_run_goes_on(
    place: Place,
) -> None:
    with started(place, *LONG) as run:
        run.until_step(3)
        run.signal(signal.SIGINT)
        assert run.process.wait(PATIENCE_S) == 75
        known = steps_done(log_there(run))
        until(run, lambda log: steps_done(log) > known, what="training goes on")
        other = place.call(*LONG, "optim.learning_rate=0.5", name=run.name)
        assert (other.code, "error[E603]" in other.err) == (2, True)
        fresh = place.call(*LONG, "run.fresh=true", name=run.name)
        assert (fresh.code, "error[E606]" in fresh.err) == (2, True)
        with place.start(*LONG, name=run.name) as again:
            while "this looks at it" not in again.printed.read_text():
                assert time.monotonic() < again.deadline
                time.sleep(0.05)
            again.until_step(steps_done(again.events) + 5)
            again.signal(signal.SIGINT)
            assert again.process.wait(PATIENCE_S) == 75
            command(place, run, "action=down")
            first = steps_done(run.events)
        with place.start(*LONG, name=run.name) as last:
            last.until_step(first + 5)
            command(place, run, "action=down")
            last.process.wait(PATIENCE_S)
        assert len(of_kind(run.events, "run_started")) == 2
        assert of_kind(run.events, "run_started")[-1]["status"] == "resumed"
        assert leftovers(run.name) == []


@pytest.mark.matrix
def test_a_machine_that_vanishes_with_its_controller_is_said_and_down_ends_what_it_had_rented(
    place: Place,
) -> None:
    with started(place, *LONG) as run:
        run.until_step(3)
        run.signal(signal.SIGKILL)
        run.process.wait()
        (machine,) = MachineRecord(run.folder / ".controller" / RECORD).remaining()
        assert machine.leader is not None
        os.killpg(machine.leader.pid, signal.SIGKILL)
        (row,) = json.loads(command(place, run, "action=status", "output=json").out)
        assert row["state"] == "out of reach"
        assert "controller" in row["left_over"]
        proofs = json.loads(command(place, run, "action=down", "output=json").out)
        assert {proof["node"] for proof in proofs} == {"node-1", "node-2", "node-3", "controller"}
        assert all(proof["released"] for proof in proofs)
        assert leftovers(run.name) == []


SSH = """import os, socket, sys, threading
host, _, port = sys.argv[sys.argv.index("-W") + 1].rpartition(":")
there = socket.create_connection((host, int(port)))
def back():
    while data := there.recv(65536):
        os.write(1, data)
threading.Thread(target=back, daemon=True).start()
while data := os.read(0, 65536):
    there.sendall(data)
"""  # what ssh -W does, without the way


@pytest.mark.matrix
def test_what_a_rented_machine_is_told_to_do_starts_the_run_and_its_door_is_reached_by_ssh(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of the way through a cloud but the cloud: the payload, its script, the house, and ssh,
    which poses. What it rents there are processes again."""
    name = place.named("rented")
    words = [
        word
        for word in place._command(name, *MODEL, *PATIENT, *LONG)[2:]
        if not word.startswith("ui")
    ]
    config = a_config(*words)
    there = Away(path=tmp_path / name)
    there.room.mkdir(parents=True)
    machine, port = tmp_path / "machine" / ".sailor", free_port()
    shutil.copytree(make_payload(tmp_path / "made", rents="cloud").folder, machine / "payload")
    create_identity(there.identity, run="door")
    shutil.copytree(there.identity, machine / "identity")
    stage(sent(config, run=name, tokens=None), there.path, into=machine / "house", command="")
    (machine / "house" / "tokens").symlink_to(prepare_tokens(config).path)
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "getent").write_text(f"#!/bin/sh\necho you:x:0:0::{tmp_path / 'machine'}:/bin/sh\n")
    (bin_ / "ssh").write_text(f"#!{sys.executable}\n{SSH}")
    for path in bin_.iterdir():
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    told = {
        "SAILOR_DIGEST": "d1", "SAILOR_RUN": name, "SAILOR_DOOR": str(port), "SAILOR_KEEPS_S": "60",
        "SAILOR_PYTHON": sys.executable, "SKYPILOT_NODE_IPS": "127.0.0.1",
        MARK: f"{name}/controller/test",
    }  # fmt: skip
    environment = {**place.environment(), **told, "PATH": os.environ["PATH"]}
    script = ["bash", str(machine / "payload" / "bootstrap.sh")]
    subprocess.run([*script, "install"], env=environment, check=True, timeout=PATIENCE_S)
    there.note(ThePlace(cloud="gcp", port=port))
    route = Route(ssh=("rented",), address="127.0.0.1")
    (there.room / ROUTE).write_bytes(msgspec.json.encode(route))
    job = subprocess.Popen(
        [*script, "controller"], env=environment, start_new_session=True, cwd=tmp_path,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + PATIENCE_S
        while (seen := there.look()) is None or steps_done(log_of(there.path)) < 5:
            assert time.monotonic() < deadline, seen
            assert job.poll() is None
            time.sleep(0.2)
        with there.visit() as visit:
            visit.stop()
            while (seen := visit.look()).exit_code is None:
                assert time.monotonic() < deadline
                time.sleep(0.2)
            assert seen.exit_code == 75, seen.told
            visit.bring(there.path)
            visit.leave()
        assert job.wait(PATIENCE_S) == 0
    finally:
        kill_machine(mark=told[MARK], leader=identify(job.pid))
        job.wait()
        rented = machine / "house" / "runs" / name
        for left in MachineRecord(rented / RECORD).remaining():
            kill_machine(mark=left.mark, leader=left.leader)
    assert of_kind(log_of(there.path), "run_ended")[-1]["end"] == "interrupted"
    assert (there.path / "report.html").exists()
    assert leftovers(name) == []


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
