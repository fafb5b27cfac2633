"""What people have reported of other systems, done to this one. docs/faults.md names each report.

python -m pytest tests/end_to_end/test_reports.py -m matrix
"""

from __future__ import annotations

import os
import signal

import pytest

from provision.machines import MachineRecord
from tests.end_to_end.test_losses import BATCH, hold_to_invariants, layouts, of_kind
from tests.end_to_end.test_matrix import trained
from tests.helpers import invariants as check
from tests.helpers.running import steps_done

pytestmark = pytest.mark.matrix

STEPS = 60
ROOMY = "cloud.memory_per_gpu=1GiB"  # one machine holds the model: replicas, no stages


def test_of_two_machines_one_goes_on_alone(place, undisturbed):
    """A job of two replicas loses one and must not end, nor stand still (pytorch 182221, horovod
    3264)."""
    script = [{"kind": "kill_node", "at": 15, "target": "node-2"}]
    ended = trained(place, undisturbed, "cloud.nodes=2", ROOMY, steps=STEPS, script=script)
    assert layouts(ended.events) == ["pp1 x dp2 x tp1", "pp1 x dp1 x tp1"]
    assert check.redone(ended.events) == 0


@pytest.mark.parametrize("layout", ["replicas", "stages"])
def test_the_machine_with_rank_0_is_a_machine_like_any_other(place, undisturbed, layout):
    """Where rank 0 hosts the rendezvous, its end is everybody's (pytorch 67742, 167302)."""
    words = ("cloud.nodes=3", ROOMY) if layout == "replicas" else ("cloud.nodes=3",)
    script = [{"kind": "kill_node", "at": 15, "target": "leader"}]
    ended = trained(place, undisturbed, *words, steps=STEPS, script=script)
    (lost,) = of_kind(ended.events, "node_lost")
    first = of_kind(ended.events, "generation_started")[0]["ranks"][0]["worker"]
    assert first.startswith(lost["node"])


def test_four_machines_become_six_and_then_three_with_all_moments(place, undisturbed):
    """The number of workers changes up and down; weights and both moments are compared to the bit
    (deepspeed 2898, 3810, lightning 16815, megatron 1517, areal 1468)."""
    steps = 200
    script = [{"kind": "join", "at": 2}, {"kind": "join", "at": 2}]
    with place.start("cloud.nodes=4", f"train.steps={steps}", script=script) as run:
        run.until_step(2)
        run.hold_until(
            lambda log: 6 in [e["world_size"] for e in of_kind(log, "generation_started")],
            what="both are taken in",
        )
        run.until_step(steps_done(run.events) + 10)
        for node in ("node-1", "node-3", "node-5"):
            os.killpg(run.pid_of(node), signal.SIGKILL)
        ended = run.wait()
    assert ended.code == 0, ended.told()
    hold_to_invariants(ended, undisturbed(steps), steps=steps)
    sizes = [event["world_size"] for event in of_kind(ended.events, "generation_started")]
    assert (sizes[0], max(sizes), sizes[-1]) == (4, 6, 3), layouts(ended.events)


def test_one_worker_becomes_two_and_every_sample_is_read_once(place, undisturbed):
    """Samples 4 to 7 of 8 were lost when a second worker came (transformers 40245)."""
    steps, two = 150, "pp1 x dp2 x tp1"
    script = [{"kind": "join", "at": 2}]
    with place.start("cloud.nodes=1", ROOMY, f"train.steps={steps}", script=script) as run:
        run.until_step(2)
        run.hold_until(lambda log: layouts(log)[-1] == two, what="the second is taken in")
        ended = run.wait()
    assert ended.code == 0, ended.told()
    hold_to_invariants(ended, undisturbed(steps), steps=steps, replicas=False)
    assert layouts(ended.events)[-1] == two
    check.check_samples(ended.events, batch=BATCH)


def test_with_nothing_left_anywhere_the_run_says_that_it_begins_again(place, undisturbed):
    """Copies in memory only, and all of it is gone: never silently from random weights (dlrover
    1065). What is redone is in the log and on the terminal."""
    words = ("cloud.nodes=2", "checkpoint.persist_every=0", "cloud.replace=true")
    with place.start(*words, f"train.steps={STEPS}") as run:
        run.until_step(15)
        for pid in [run.pid_of(node) for node in ("node-1", "node-2")]:
            os.killpg(pid, signal.SIGKILL)
        ended = run.wait()
    assert ended.code == 0, ended.told()
    log = ended.events
    (pause,) = [event for event in of_kind(log, "pause") if event["cause"] != "start"]
    assert pause["source"] == "init"
    assert pause["steps_redone"] >= 14
    assert f"{pause['steps_redone']} steps" in ended.out
    check.check_one_owner(log)
    check.check_same_training(log, undisturbed(STEPS).events)


@pytest.mark.parametrize("how", [signal.SIGHUP, signal.SIGKILL], ids=["hangs up", "is killed"])
def test_a_spare_takes_the_place_of_a_machine_however_that_ends(place, undisturbed, how):
    """A closed terminal and a SIGKILL are the same to the others (pytorch 114097); for SIGTERM see
    the false alarm."""
    steps = 100
    words = ("cloud.nodes=2", "cloud.standbys=1", f"train.steps={steps}")
    with place.start(*words) as run:
        run.until_step(10)
        os.kill(run.pid_of("node-2"), how)
        ended = run.wait()
    assert ended.code == 0, ended.told()
    hold_to_invariants(ended, undisturbed(steps), steps=steps)
    assert len(set(layouts(ended.events))) == 1
    promoted = [e for e in of_kind(ended.events, "standby") if e["state"] == "promoted"]
    assert [e["node"] for e in promoted] == ["node-3"]


def test_a_machine_that_takes_long_to_come_is_let_in_all_the_same(place, undisturbed):
    """It boots for longer than many steps take (torchft 75)."""
    steps, three = 200, "pp3 x dp1 x tp1"
    script = [{"kind": "join", "at": 2}]
    with place.start("cloud.nodes=2", f"train.steps={steps}", script=script) as run:

        def leader(_: object) -> int | None:
            machines = MachineRecord(run.folder / "machines.jsonl").remaining()
            return next((m.leader.pid for m in machines if m.node == "node-3" and m.leader), None)

        slow = run.until(leader, what="the newcomer boots")
        os.killpg(slow, signal.SIGSTOP)
        try:
            run.until_step(40)
        finally:
            os.killpg(slow, signal.SIGCONT)
        run.hold_until(lambda log: layouts(log)[-1] == three, what="it is taken in")
        ended = run.wait()
    assert ended.code == 0, ended.told()
    hold_to_invariants(ended, undisturbed(steps), steps=steps)
    assert layouts(ended.events)[-1] == three
    assert check.redone(ended.events) == 0
