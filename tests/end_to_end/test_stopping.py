"""Stopping and going on: asked politely, rudely or not at all; nothing is left, nothing is lost."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sailor.checkpoint.store import steps
from tests.helpers import invariants as check
from tests.helpers.running import Ended, Place, Running, leftovers

STEPS = 40
TWO = ("cloud.nodes=2", f"train.steps={STEPS}")
# One machine holds everything and dials in before long: for what happens on the way.
ONE = ("cloud.nodes=1", "cloud.memory_per_gpu=1GiB", "train.steps=2000")

Undisturbed = Callable[[int], Ended]


def contents(folder: Path) -> dict[str, str]:
    """Every file of a folder with a digest of what it holds, locks left out."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (".lock", ".owner.json")
    }


def interrupt(run: Running, number: signal.Signals) -> Ended:
    """Ask a run to stop once, as a person or a batch system would, and see it end."""
    run.signal(number)
    ended = run.wait()
    assert ended.code == 75, ended.told()
    assert "Traceback" not in ended.err
    assert ended.summary["status"] == "interrupted"
    assert ended.summary["durable_step"] == ended.summary["steps"]
    return ended


def test_a_run_stopped_by_either_signal_goes_on_to_the_same_end(
    place: Place, undisturbed: Undisturbed
):
    name = place.named("stopped-and-resumed")
    with place.start(*TWO, name=name) as run:
        run.until_step(8)
        first = interrupt(run, signal.SIGINT)
    stopped_at = first.summary["steps"]
    assert check.weights(first.folder, step=stopped_at)  # it is durable, every byte of it
    with place.start(*TWO, name=name) as run:
        run.until_step(stopped_at + 6)
        second = interrupt(run, signal.SIGTERM)
    last = place.train(*TWO, name=name)
    assert last.code == 0, last.told()
    log, reference = last.events, undisturbed(STEPS)
    check.check_one_owner(log)
    check.check_samples(log, batch=8)
    check.check_same_training(log, reference.events)
    check.check_pauses(log)
    assert check.redone(log) == 0
    assert second.summary["steps"] > stopped_at
    assert check.weights(last.folder, step=STEPS) == check.weights(reference.folder, step=STEPS)
    assert [e["status"] for e in log if e.kind == "run_started"] == ["fresh", "resumed", "resumed"]
    assert last.summary["eval_loss"] == reference.summary["eval_loss"]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=lambda value: str(value)
)
def test_told_to_stop_again_and_again_it_stops_now_and_leaves_nothing(place: Place, number, code):
    """Its agent is stopped, so the first word alone would wait for a save that does not come. A
    third word in the middle of the release once left the machines behind."""
    with place.start(*ONE) as run:
        run.until_step(3)
        os.kill(run.pid_of("node-1"), signal.SIGSTOP)
        run.signal(number)
        run.until(lambda log: log[-1].kind == "stop_asked", what="it was heard")
        while run.process.poll() is None:
            run.signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.process.wait(0.1)  # as fast as a person presses Ctrl-C
        ended = run.wait()
    # One more word when all is done ends the interpreter itself; a shell calls both by one number.
    assert ended.code in (code, -number), ended.told()
    assert "Traceback" not in ended.err
    assert ended.summary["status"] == "killed"
    assert ended.summary["exit_code"] == code
    assert ended.summary["released"] is True


def test_machines_live_as_long_as_their_controller_answers(place: Place):
    """Nothing changes for many leases: what keeps them is the answer to each heartbeat, which once
    was given to no one but those whose lines were being measured."""
    lease_s = 2.0
    with place.start(*ONE, f"runtime.lease={lease_s}s") as run:
        run.until_step(1)
        since = time.monotonic()
        while time.monotonic() - since < 3 * lease_s:
            assert not [event for event in run.events if event.kind == "node_lost"]
            time.sleep(0.2)
        interrupt(run, signal.SIGINT)


def test_a_run_stopped_while_its_machines_boot_leaves_nothing(place: Place):
    with place.start(*TWO) as run:
        run.until(
            lambda log: any(e.kind == "node_requested" for e in log), what="machines are asked for"
        )
        run.signal(signal.SIGINT)
        ended = run.wait()
    assert ended.code == 75, ended.told()
    assert "Traceback" not in ended.err


def test_a_killed_command_whose_machines_die_too_goes_on_from_the_durable_step(
    place: Place, undisturbed: Undisturbed
):
    name = place.named("killed-and-resumed")
    words = (*TWO, "checkpoint.persist_every=10")
    with place.start(*words, name=name) as run:
        run.until(lambda log: any(e.kind == "persisted" for e in log), what="a durable step")
        run.until_step(14)
        run.signal(signal.SIGKILL)
        killed = run.wait(leaves_nothing=False)
        orphans = leftovers(run.name)
        assert killed.code == -signal.SIGKILL
        assert any("sailor.runtime.agent" in left for left in orphans)  # nobody released them
        for node in ("node-1", "node-2"):
            run.kill_node(node)
        durable = max(steps(run.folder / "checkpoints"))
        with place.start(*words, name=name) as again:
            ended = again.wait()
    assert ended.code == 0, ended.told()
    log, reference = ended.events, undisturbed(STEPS)
    assert [e["step"] for e in log if e.kind == "generation_started"] == [0, durable]
    check.check_one_owner(log)
    check.check_same_training(log, reference.events)
    assert check.weights(ended.folder, step=STEPS) == check.weights(reference.folder, step=STEPS)


def test_a_finished_run_is_left_as_it_is_and_another_configuration_refused(
    place: Place, undisturbed: Undisturbed
):
    name = place.named("finished")
    folder = place.runs / name
    shutil.copytree(undisturbed(STEPS).folder, folder)
    before = contents(folder)
    same = ("cloud.nodes=1", "cloud.memory_per_gpu=1GiB", f"train.steps={STEPS}")
    again = place.call(*same, name=name)
    assert again.code == 0
    assert "is done; nothing was changed" in again.out
    assert contents(folder) == before
    other = place.call(*same, "optim.learning_rate=0.5", name=name)
    assert other.code == 2
    assert other.err.startswith("error[E603] ")
    assert "optim.learning_rate: 0.003 there, 0.5 here" in other.err
    assert "Traceback" not in other.err
    assert contents(folder) == before


def test_what_is_in_use_is_refused_and_the_run_that_uses_it_goes_on(place: Place):
    """The run folder and the port; once the run has ended both are free again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with place.start(*ONE, f"runtime.port={port}", name=place.named("in-use")) as run:
        run.until_step(2)
        second = place.call(*ONE, f"runtime.port={port}", name=place.named("in-use"))
        third = place.call(*ONE, f"runtime.port={port}", name=place.named("another"))
        assert (second.code, third.code) == (2, 2)
        assert second.err.startswith(f"error[E606] run {run.name} is open in another process")
        assert f"kill -INT {run.process.pid}" in second.err
        assert third.err.startswith(f"error[E602] port {port}")
        assert f"process {run.process.pid}" in third.err
        run.until_step(run.events[-1].get("step", 2) + 5)
        interrupt(run, signal.SIGINT)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
