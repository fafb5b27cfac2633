"""The controller is killed while training runs, and started again by the same command.

Training does not stop for it: the machines keep stepping, the new controller finds them by the
journal, and everything that is logged is what an undisturbed run would have logged.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

import psutil
import pytest

from sailor.runtime.journal import read_journal
from tests.end_to_end.test_losses import hold_to_invariants, joined, layouts, of_kind
from tests.helpers import invariants as check
from tests.helpers.compose import ROOT
from tests.helpers.running import Ended, Place, Running, steps_done

STEPS = 120  # whether or not the next controller is there before the last of them
WORDS = ("cloud.nodes=3", f"train.steps={STEPS}", "checkpoint.persist_every=50")

Undisturbed = Callable[[int], Ended]


def killed(run: Running) -> None:
    """SIGKILL to run.py, and to nobody else."""
    run.signal(signal.SIGKILL)
    run.process.wait()


def workers_of(run: Running) -> dict[str, int]:
    """Pid of each worker as the log has it."""
    ranks = of_kind(run.events, "generation_started")[-1]["ranks"]
    names = {entry["worker"].rpartition(".")[0] for entry in ranks}
    return {name: run.pid_of_worker(name) for name in names}


def requested(ended: Ended) -> list[str]:
    return [event["node"] for event in of_kind(ended.events, "node_requested")]


def test_a_killed_controller_finds_its_run_which_never_stopped(
    place: Place, undisturbed: Undisturbed
):
    name = place.named("controller-killed")
    with place.start(*WORDS, name=name) as run:
        run.until_step(20)
        killed(run)
        known = steps_done(run.events)
        before = workers_of(run)
        with place.start(*WORDS, name=name) as again:
            (found,) = again.until(lambda log: of_kind(log, "adopted"), what="the run is found")
            assert all(psutil.pid_exists(pid) for pid in before.values())
            ended = again.wait()
    assert ended.code == 0, ended.told()
    log = ended.events
    hold_to_invariants(ended, undisturbed(STEPS), steps=STEPS)
    assert found["trains"]
    assert found["step"] > known + 1, "training went on while there was no controller"
    assert check.redone(log) == 0
    assert layouts(log) == ["pp3 x dp1 x tp1"], "no change of layout, no worker started again"
    assert of_kind(log, "worker_lost") == of_kind(log, "worker_up") == []
    assert requested(ended) == ["node-1", "node-2", "node-3"], "no machine was asked for twice"
    released = [event["node"] for event in of_kind(log, "node_released")]
    assert sorted(released) == ["node-1", "node-2", "node-3"]


def test_what_died_while_there_was_no_controller_is_recovered_from_by_the_next(
    place: Place, undisturbed: Undisturbed
):
    name = place.named("controller-and-node-killed")
    with place.start(*WORDS, name=name) as run:
        run.until_step(20)
        killed(run)
        run.kill_node("node-2")
        with place.start(*WORDS, name=name) as again:
            ended = again.wait()
    assert ended.code == 0, ended.told()
    log = ended.events
    hold_to_invariants(ended, undisturbed(STEPS), steps=STEPS)
    assert layouts(log) == ["pp3 x dp1 x tp1", "pp2 x dp1 x tp1"]
    resumed = of_kind(log, "generation_started")[-1]
    assert resumed["step"] >= 10, "from memory: nothing was durable yet"
    assert requested(ended) == ["node-1", "node-2", "node-3"]


@pytest.mark.matrix
def test_a_controller_killed_in_the_middle_of_a_recovery_is_followed_by_one_that_ends_it(
    place: Place, undisturbed: Undisturbed
):
    name = place.named("controller-killed-recovering")
    with place.start(*WORDS, name=name) as run:
        run.until_step(20)
        run.kill_node("node-3")
        run.until(lambda log: "node-3 lost" in log[-1].get("cause", ""), what="a recovery begins")
        killed(run)
        with place.start(*WORDS, name=name) as again:
            ended = again.wait()
    assert ended.code == 0, ended.told()
    hold_to_invariants(ended, undisturbed(STEPS), steps=STEPS)
    assert layouts(ended.events)[-1] == "pp2 x dp1 x tp1"


@pytest.mark.matrix
def test_a_controller_that_is_killed_again_and_again_loses_nothing(
    place: Place, undisturbed: Undisturbed
):
    name = place.named("controllers-killed")
    with ExitStack() as until_all_is_over:  # the end of a start's block ends the run's machines

        def start() -> Running:
            return until_all_is_over.enter_context(place.start(*WORDS, name=name))

        run = start()
        run.until_step(10)
        killed(run)
        for _ in range(3):
            again = start()
            count = len(of_kind(again.events, "adopted"))
            again.until(lambda log, n=count: len(of_kind(log, "adopted")) > n, what="adoption")
            killed(again)
        ended = start().wait()
    assert ended.code == 0, ended.told()
    # Most steps end while no controller listens, and what nobody hears of nobody compares.
    hold_to_invariants(ended, undisturbed(STEPS), steps=STEPS, replicas=False)
    check.check_replicas(ended.events, at_least=1)
    assert layouts(ended.events) == ["pp3 x dp1 x tp1"]
    assert requested(ended) == ["node-1", "node-2", "node-3"]


@pytest.mark.matrix
def test_an_impostor_of_a_member_is_refused_by_the_new_controller(
    place: Place, undisturbed: Undisturbed
):
    """Another start of node-2's agent, with the run's keys, as after a machine was cloned."""
    name, steps = place.named("impostor"), 4 * STEPS  # it must be there before the last of them
    words = (*WORDS, f"train.steps={steps}")
    with place.start(*words, name=name) as run:
        run.until_step(10)
        killed(run)
        with place.start(*words, name=name) as again:
            again.until(lambda log: of_kind(log, "adopted"), what="the run is found")
            port = read_journal(run.folder / "journal.json").port
            log_file = place.root / "impostor.log"
            impostor = subprocess.Popen(
                [
                    sys.executable, "-m", "sailor.runtime.agent", "--node", "node-2", "--zone",
                    "local-a", "--machine-type", "cpu", "--slots", "1", "--controller",
                    f"127.0.0.1:{port}", "--identity", str(run.folder / ".identity"), "--log",
                    str(log_file),
                ],
                cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
            try:
                assert impostor.wait(120) == 0
            finally:
                impostor.kill()
            ended = again.wait()
    assert "node-2 is a member already, with another agent" in log_file.read_text()
    assert ended.code == 0, ended.told()
    hold_to_invariants(ended, undisturbed(steps), steps=steps)
    assert joined(ended.events).count("node-2") == 2  # once for each controller


@pytest.mark.matrix
def test_machines_whose_controller_does_not_come_back_in_time_are_not_waited_for(
    place: Place, undisturbed: Undisturbed
):
    """Their lease is over: they have ended themselves, and the run begins from what is durable."""
    name = place.named("lease-over")
    words = (*WORDS, "runtime.lease=2s", "checkpoint.persist_every=10")
    with place.start(*words, name=name) as run:
        run.until(lambda log: of_kind(log, "persisted"), what="a durable step")
        pids = [run.pid_of(node) for node in ("node-1", "node-2", "node-3")]
        killed(run)
        give_up = time.monotonic() + 60
        while any(map(_alive, pids)) and time.monotonic() < give_up:
            time.sleep(0.1)  # other processes, which have no clock to move
        assert not any(map(_alive, pids))
        with place.start(*words, name=name) as again:
            ended = again.wait()
    assert ended.code == 0, ended.told()
    log = ended.events
    assert of_kind(log, "adopted") == []
    assert of_kind(log, "generation_started")[-1]["step"] >= 10
    check.check_same_training(log, undisturbed(STEPS).events)
    assert check.weights(ended.folder, step=STEPS) == check.weights(
        undisturbed(STEPS).folder, step=STEPS
    )


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
