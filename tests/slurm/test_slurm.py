"""The whole way through the real SkyPilot, on a Slurm cluster whose partitions pose as zones.

    tests/slurm/install.sh && python -m pytest -m slurm tests/slurm

Nothing is pretended but the machines: SkyPilot's API server, its launch, its ssh and rsync, Slurm's
allocations and kills are real. Takes five minutes on two idle cores.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest

from sailor.observe.events import Event
from tests.end_to_end.test_losses import hold_to_invariants, joined, of_kind
from tests.helpers.compose import ROOT
from tests.helpers.one_machine_slurm import Slurm
from tests.helpers.running import Running, steps_done
from tests.helpers.secret_spy import Spy, files_with, secret_words
from tests.slurm.conftest import SlurmPlace

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1500)]

STEPS = 120
LAUNCHING_S = 600.0  # two clusters at once: 80 s on idle cores


def on_slurm(place: SlurmPlace, name: str) -> list[str]:
    return [
        "cloud=slurm", "cloud.cluster=vslurm", "cloud.max_nodes=4",
        "cloud.machine_types=[2*cpux1@zonea,2*cpux1@zoneb]", "cloud.shared_files=true",
        f"cloud.python={sys.executable}", "runtime.address=127.0.0.1",
        f"checkpoint.directory={place.checkpoints(name)}",
        # As on this computer: every machine is needed, and another split makes the same sums.
        "planner=fastest", "planner.recompute=false", "planner.optimizer_sharding=false",
    ]  # fmt: skip


def generations(log: tuple[Event, ...]) -> list[int]:
    """Machines of each layout that trained."""
    return [len(event["nodes"]) for event in of_kind(log, "generation_started")]


@contextmanager
def stopped(running: Running, node: str) -> Iterator[None]:
    """A machine that stands still, agent and all, so that nobody is blamed for it."""
    agent = psutil.Process(running.pid_of(node))
    processes = [agent, *agent.children(recursive=True)]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in reversed(processes):  # who watches comes last
            with suppress(psutil.NoSuchProcess):
                process.resume()


def hold_until(running: Running, node: str, condition, *, what: str, pause_s: float) -> None:
    """Keep training back, a step after each pause, until something slower has come about."""
    deadline = time.monotonic() + LAUNCHING_S
    while not condition(running.events):
        assert time.monotonic() < deadline, f"not in time: {what}\n{running.events[-20:]}"
        with stopped(running, node):
            time.sleep(pause_s)  # other processes' time: no clock of ours moves it
        running.until_step(steps_done(running.events) + 1)


def test_a_run_over_two_zones_loses_one_gets_it_again_and_finishes(
    slurm: Slurm, place: SlurmPlace
) -> None:
    reference = place.train(
        "cloud.nodes=1", "cloud.memory_per_gpu=1GiB", f"train.steps={STEPS}", name="reference"
    )
    assert reference.code == 0, reference.told()
    began = time.monotonic()
    times: dict[str, float] = {}

    def reached(what: str) -> None:
        times[what] = round(time.monotonic() - began, 1)

    name = "twozones"
    with place.start(*on_slurm(place, name), f"train.steps={STEPS}", name=name) as running:
        running.deadline = time.monotonic() + 1200.0
        running.until(lambda log: len(joined(log)) == 4, what="four machines report")
        words = secret_words(running.folder / ".identity")
        with Spy(words) as spy:
            reached("four machines report")
            assert {e["zone"] for e in of_kind(running.events, "node_joined")} == set(
                ("zonea", "zoneb")
            )
            assert len(slurm.jobs()) == 2  # one cluster a zone, of two machines each
            running.until(lambda log: generations(log) == [4], what="training on all four")
            reached("training on four")
            running.until_step(3)
            lost = next(job for job, name in slurm.jobs().items() if name.startswith("sailor-"))
            zone = slurm.run("squeue", "-h", "-j", lost, "-o", "%P").strip()
            slurm.cancel(lost)
            gone = [e["node"] for e in of_kind(running.events, "node_joined") if e["zone"] == zone]
            left = next(node for node in joined(running.events) if node not in gone)
            running.until(lambda log: 2 in generations(log), what="training on the other zone")
            reached("training on two")
            hold_until(
                running, left, lambda log: len(joined(log)) == 6, what="two machines come again",
                pause_s=8.0,
            )  # fmt: skip
            reached("two more report")
            hold_until(
                running, left, lambda log: generations(log)[-1] == 4, what="training on four again",
                pause_s=1.0,  # it has its own part in taking them in
            )  # fmt: skip
            reached("training on four again")
            running.deadline = time.monotonic() + 600.0
            ended = running.wait()
            reached("all released")
    assert ended.code == 0, ended.told()
    shared = place.root / f"checkpoints-{name}"
    (ended.folder / "checkpoints").symlink_to(shared)  # where the invariants look for weights
    hold_to_invariants(ended, reference, steps=STEPS)
    assert slurm.jobs() == {}
    asked = of_kind(ended.events, "recruiting")
    assert {(e["decision"], e["zone"]) for e in asked} == {("order", zone)}
    assert spy.seen == set(), "the run's key was in the arguments of a process"
    logs = files_with(words, ended.folder, slurm.home / ".sky", slurm.home / "sky_logs")
    assert logs == []
    sys.stdout.write(f"\nseconds after the start: {json.dumps(times)}\n")


def test_killed_in_the_middle_of_a_launch_a_run_leaves_nothing_that_down_does_not_end(
    slurm: Slurm, place: SlurmPlace
) -> None:
    name = "killed"
    with place.start(*on_slurm(place, name), f"train.steps={STEPS}", name=name) as running:
        deadline = time.monotonic() + LAUNCHING_S
        while not slurm.jobs():  # the allocation is there; SkyPilot still sets it up
            assert time.monotonic() < deadline, running.events
            time.sleep(0.5)
        running.signal(signal.SIGKILL)
        running.process.wait()
        assert slurm.jobs() != {}
        ended = subprocess.run(
            [sys.executable, str(ROOT / "run.py"), "action=down", f"runs_dir={place.runs}",
             f"run.name={name}", "output=json"],
            env=place.environment(), capture_output=True, text=True, timeout=LAUNCHING_S,
            cwd=place.root,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        proofs = json.loads(ended.stdout)
        assert {proof["node"] for proof in proofs} == {f"node-{i}" for i in range(1, 5)}
        assert all(proof["released"] for proof in proofs)
        assert slurm.jobs() == {}


def test_more_machines_than_a_partition_has_are_refused_and_waited_for(
    slurm: Slurm, place: SlurmPlace
) -> None:
    """SkyPilot asks, Slurm does not give, the place is closed for a while; patience ends: 75."""
    name = "toomany"
    words = [
        word.replace("[2*cpux1@zonea,2*cpux1@zoneb]", "[3*cpux1@zonea]")
        for word in on_slurm(place, name)
    ]
    with place.start(
        *words, f"train.steps={STEPS}", "planner.data_parallel=3", "planner.patience=1s",
        "cloud.memory_per_gpu=1GiB", name=name,
    ) as running:  # fmt: skip
        running.deadline = time.monotonic() + LAUNCHING_S
        ended = running.wait()
    assert ended.code == 75, ended.told()
    assert "error[E405] no cpux1 can be had in zonea now" in ended.err
    refused = of_kind(ended.events, "node_refused")
    assert {event["code"] for event in refused} == {"E405"}
    assert slurm.jobs() == {}
    assert os.listdir(place.runs / name)
