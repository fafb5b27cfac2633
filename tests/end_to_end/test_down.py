"""run.py is killed at any moment of its life; action=down then leaves nothing of it."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

import psutil
import pytest

from provision.local import RECORD
from provision.machines import MachineRecord
from provision.processes import kill_machine
from tests.helpers.compose import ROOT
from tests.helpers.running import PATIENCE_S, Place, Running, leftovers

CHANCE = random.Random(7)
DELAYS_S = [CHANCE.uniform(0.5, 14.0) for _ in range(20)]
WORDS = ("cloud.nodes=3", "train.steps=100000")


def moments(always: int) -> list[Any]:
    """All of them in the matrix, the first few always."""
    return [
        pytest.param(
            delay_s, id=f"after {delay_s:.1f} s", marks=[pytest.mark.matrix] if i >= always else []
        )
        for i, delay_s in enumerate(DELAYS_S)
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("delay_s", moments(4))
def test_whatever_a_killed_run_leaves_down_ends(place: Place, delay_s: float) -> None:
    assert_down_ends_what_is_left(place, *WORDS, delay_s=delay_s)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("delay_s", moments(0))
def test_so_it_does_where_the_controller_has_a_machine_of_its_own(
    place: Place, delay_s: float
) -> None:
    """Only the command is killed: what it had sent off goes on until it is ended."""
    assert_down_ends_what_is_left(place, *WORDS, "cloud.controller=cluster", delay_s=delay_s)


@pytest.mark.matrix
@pytest.mark.timeout(400)
@pytest.mark.parametrize("victim", ["controller", "machine"])
@pytest.mark.parametrize("delay_s", moments(0))
def test_so_it_does_where_that_machine_or_its_controller_is_killed_with_the_command(
    place: Place, delay_s: float, victim: str
) -> None:
    """A controller is started again by its door, and may be told to end before it can hear; with
    the machine goes whoever knew what was rented."""
    assert_down_ends_what_is_left(
        place, *WORDS, "cloud.controller=cluster", delay_s=delay_s, victim=victim
    )


def kill_there(running: Running, victim: str) -> None:
    """The controller on its machine, or all of that machine; nothing where it is not there yet."""
    for machine in MachineRecord(running.folder / ".controller" / RECORD).remaining():
        if machine.leader is None or not machine.leader.alive:
            continue
        if victim == "machine":
            kill_machine(mark=machine.mark, leader=machine.leader)
            continue
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(machine.leader.pid).children():
                if "train" in child.cmdline():
                    child.kill()


def assert_down_ends_what_is_left(
    place: Place, *words: str, delay_s: float, victim: str = ""
) -> None:
    with place.start(*words) as running:
        time.sleep(delay_s)  # a random moment of another process's life: no clock of ours moves it
        running.signal(signal.SIGKILL)
        if victim:
            kill_there(running, victim)
        running.process.wait()
        if not (running.folder / "config.yaml").exists():
            assert leftovers(running.name) == []  # it had not begun
            return
        done = subprocess.run(
            [sys.executable, str(ROOT / "run.py"), "action=down", f"runs_dir={place.runs}",
             f"run.name={running.name}", "output=json"],
            cwd=place.root, env=place.environment(), capture_output=True, text=True,
            timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert all(proof["released"] for proof in json.loads(done.stdout))
        assert leftovers(running.name) == []
