"""The rest of the faults a serious user injects, one by one.

    python -m pytest tests/end_to_end -m matrix

Each run is held to invariants I1 to I7 and ends with the undisturbed run's model.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.end_to_end.test_losses import BATCH, hold_to_invariants, joined, layouts, of_kind
from tests.helpers import invariants as check
from tests.helpers.mounts import small_disk
from tests.helpers.running import PATIENCE_S, Ended, Place, leftovers

pytestmark = pytest.mark.matrix

STEPS = 40
Undisturbed = Callable[[int], Ended]


def trained(place: Place, undisturbed: Undisturbed, *arguments: str, script, steps=STEPS) -> Ended:
    """A run through a script of faults that ended well and with the same model."""
    ended = place.train(*arguments, f"train.steps={steps}", script=script)
    assert ended.code == 0, ended.told()
    hold_to_invariants(ended, undisturbed(steps), steps=steps)
    return ended


def test_a_worker_that_hangs_is_found_though_all_else_of_it_lives(place, undisturbed):
    """Its control thread ticks and its peers wait for it: what tells is that it does neither step
    nor wait."""
    script = [{"kind": "hang_worker", "at": 12, "target": "node-2/0"}]
    ended = trained(place, undisturbed, "cloud.nodes=4", script=script)
    (lost,) = of_kind(ended.events, "worker_lost")
    assert lost["worker"] == "node-2/0.1"  # the waiting peers are not blamed
    assert lost["cause"].startswith("its training thread hangs")
    assert of_kind(ended.events, "node_lost") == []
    told = (ended.folder / "logs" / "node-2.log").read_text()
    assert "worker.py" in told.partition("most recent call first")[2], "where it hung is in the log"


def test_a_killed_agent_takes_its_worker_with_it_and_the_node_is_lost(place, undisturbed):
    script = [{"kind": "kill_agent", "at": 12, "target": "node-2"}]
    ended = trained(place, undisturbed, "cloud.nodes=3", script=script)
    assert [e["node"] for e in of_kind(ended.events, "node_lost")] == ["node-2"]
    assert of_kind(ended.events, "worker_lost") == []


def test_a_zone_that_is_lost_whole_is_restored_from_the_memory_of_the_other(place, undisturbed):
    """Copies lie in the other zone, so no disk is read; and none was written before the end."""
    path = place.root / "zones-of-two.csv"
    path.write_text("t_s,zone,delta,notice_s\n0,east,2,\n0,west,2,\n3600,east,1,\n")
    words = ("cloud=trace", f"cloud.trace.paths=[{path}]", "cloud.trace.faster=1")
    words += ("cloud.nodes=4", "cloud.replace=false", "checkpoint.persist_every=0")
    words += ("planner.pipeline_parallel=4",)
    with place.start(*words, f"train.steps={STEPS}") as run:
        run.until_step(10)
        zones = {e["node"]: e["zone"] for e in of_kind(run.events, "node_joined")}
        before = run.events
        for node in [node for node, zone in zones.items() if zone == "west"]:
            run.kill_node(node)
        ended = run.wait()
    assert ended.code == 0, ended.told()
    log = ended.events
    check.check_one_owner(log)
    check.check_samples(log, batch=BATCH)
    check.check_same_training(log, undisturbed(STEPS).events)
    assert layouts(before) == ["pp4 x dp1 x tp1"], "nobody else had the lost boxes live"
    sources = {e["source"] for e in of_kind(log, "pause") if e["cause"] != "start"}
    assert sources <= {"live", "memory", "peer"}
    assert of_kind(log, "generation_started")[-1]["step"] >= check.safe_step(before) > 0


def test_a_node_and_the_keeper_of_its_copies_lost_at_once_go_back_to_the_durable_step(
    place, undisturbed
):
    """Three of four machines go at one instant: what they held is on disk only."""
    script = [{"kind": "kill_node", "at": 25, "target": f"node-{i}"} for i in (2, 3)]
    ended = trained(
        place, undisturbed, "cloud.nodes=4", "checkpoint.persist_every=10", script=script
    )
    log = ended.events
    assert layouts(log)[-1] == "pp2 x dp1 x tp1"


def test_a_flipped_bit_in_memory_is_found_and_another_copy_taken(place, undisturbed):
    """The worker dies as its own node's snapshots rot: its peer's copy must serve. They were sealed
    some steps before; what rots between the copy and the seal nobody can tell."""
    script = [
        {"kind": "corrupt_snapshot", "at": 17, "target": "node-2"},
        {"kind": "kill_worker", "at": 17, "target": "node-2/0"},
    ]
    words = ("cloud.nodes=3", "checkpoint.snapshot_every=6", f"train.steps={STEPS}")
    ended = place.train(*words, script=script)
    assert ended.code == 0, ended.told()
    hold_to_invariants(ended, undisturbed(STEPS), steps=STEPS, snapshot_every=6)
    log = ended.events
    (refused,) = of_kind(log, "copy_refused")
    assert refused["copy"] == "node-2/0.1@12 on node-2"
    assert of_kind(log, "generation_started")[-1]["step"] == 12
    (pause,) = [event for event in of_kind(log, "pause") if event["cause"] != "start"]
    assert pause["source"] == "peer"


def test_a_flipped_bit_on_disk_is_found_and_an_older_checkpoint_taken(place, undisturbed):
    name = place.named("rotten-disk")
    words = ("cloud.nodes=2", f"train.steps={STEPS}", "checkpoint.persist_every=5")
    words += ("checkpoint.keep=4",)
    with place.start(*words, name=name) as run:
        run.until(lambda log: len(of_kind(log, "persisted")) >= 2, what="two durable steps")
        run.signal(signal.SIGKILL)
        run.wait(leaves_nothing=False)
        for node in ("node-1", "node-2"):  # else they would simply be found training
            run.kill_node(node)
        folder = max((run.folder / "checkpoints").glob("step-*/COMPLETE")).parent
        for path in folder.glob("*.safetensors"):
            data = bytearray(path.read_bytes())
            data[-100] ^= 1
            path.write_bytes(data)
        newest = int(folder.name.removeprefix("step-"))
        with place.start(*words, name=name) as again:
            ended = again.wait()
    assert ended.code == 0, ended.told()
    log = ended.events
    assert {event["copy"] for event in of_kind(log, "copy_refused")} == {str(folder)}
    resumed = of_kind(log, "generation_started")[-1]
    assert 0 < resumed["step"] < newest
    check.check_one_owner(log)
    check.check_same_training(log, undisturbed(STEPS).events)
    assert check.weights(ended.folder, step=STEPS) == check.weights(
        undisturbed(STEPS).folder, step=STEPS
    )


def test_a_false_alarm_costs_a_machine_and_no_step(place, undisturbed):
    """SIGTERM to an agent is what a cloud's warning looks like; then nothing happens."""
    with place.start("cloud.nodes=3", f"train.steps={STEPS}") as run:
        run.until_step(10)
        os.kill(run.pid_of("node-2"), signal.SIGTERM)
        ended = run.wait()
    assert ended.code == 0, ended.told()
    hold_to_invariants(ended, undisturbed(STEPS), steps=STEPS)
    (notice,) = of_kind(ended.events, "notice")
    assert (notice["node"], notice["source"]) == ("node-2", "SIGTERM")
    assert check.redone(ended.events) == 0


def test_a_notice_too_short_to_be_of_use_is_a_loss_like_any_other(place, undisturbed):
    script = [{"kind": "preempt", "at": 12, "notice": "0.02s", "target": "node-2"}]
    ended = trained(place, undisturbed, "cloud.nodes=3", script=script)
    assert "node-2" in [e["node"] for e in of_kind(ended.events, "node_lost")]


def test_a_newcomer_that_dies_while_it_is_taken_in_disturbs_nobody(place, undisturbed):
    steps = 80
    with place.start(
        "cloud.nodes=2", f"train.steps={steps}", script=[{"kind": "join", "at": 4}]
    ) as run:
        run.until_step(4)
        run.hold_until(lambda log: "node-3" in joined(log), what="the newcomer is there")
        run.kill_node("node-3")
        ended = run.wait()
    assert ended.code == 0, ended.told()
    hold_to_invariants(ended, undisturbed(steps), steps=steps)
    assert layouts(ended.events)[-1] == "pp2 x dp1 x tp1"


def test_a_machine_that_dies_before_its_notice_is_up_is_a_loss(place, undisturbed):
    """It was to hand over what it holds, and dies while it does."""
    script = [{"kind": "preempt", "at": 12, "notice": "60s", "target": "node-2"}]
    with place.start("cloud.nodes=3", f"train.steps={STEPS}", script=script) as run:
        run.until(  # in any line: others may follow before it is read
            lambda log: any("leaves in" in event.get("cause", "") for event in log),
            what="the hand-over begins",
        )
        run.kill_node("node-2")
        ended = run.wait()
    assert ended.code == 0, ended.told()
    hold_to_invariants(ended, undisturbed(STEPS), steps=STEPS)


def test_a_worker_that_dies_while_a_step_is_made_durable_costs_nothing_durable(place, undisturbed):
    script = [{"kind": "kill_worker", "at": at} for at in (10, 20)]
    ended = trained(
        place, undisturbed, "cloud.nodes=2", "checkpoint.persist_every=10", script=script
    )
    assert {30, 40} <= {e["step"] for e in of_kind(ended.events, "persisted")}


def test_machines_that_join_and_leave_in_the_same_moment_are_taken_together(place, undisturbed):
    script = [
        {"kind": "join", "at": 2},
        {"kind": "preempt", "at": 120, "notice": "60s", "target": "node-1"},
        {"kind": "kill_worker", "at": 125},
    ]
    ended = trained(place, undisturbed, "cloud.nodes=3", script=script, steps=300)
    assert "node-1" not in of_kind(ended.events, "generation_started")[-1]["nodes"]
    assert "node-4" in joined(ended.events)


def test_a_slow_machine_is_not_taken_for_a_dead_one(place, undisturbed):
    script = [{"kind": "slow_node", "at": 5, "target": "node-2", "factor": 3, "lasts": "4s"}]
    ended = trained(place, undisturbed, "cloud.nodes=2", script=script, steps=100)
    assert of_kind(ended.events, "worker_lost") == []
    assert len(layouts(ended.events)) == 1


def test_a_silent_node_is_shut_out_and_refused_when_it_wakes(place, undisturbed):
    """A zombie: its agent is stopped, given up, and goes on as if nothing had happened."""
    with place.start("cloud.nodes=3", "runtime.silence=2s", f"train.steps={STEPS}") as run:
        run.until_step(8)
        agent = run.pid_of("node-2")
        os.kill(agent, signal.SIGSTOP)
        lost = run.until(lambda log: of_kind(log, "node_lost"), what="the silent node is given up")
        assert lost[0]["node"] == "node-2"
        ended = run.wait()
    assert ended.code == 0, ended.told()
    hold_to_invariants(ended, undisturbed(STEPS), steps=STEPS)


def test_when_all_machines_are_gone_the_run_waits_and_goes_on_with_new_ones(place, undisturbed):
    """Nobody is left to remember anything: the durable step is where it goes on from."""
    script = [
        {"kind": "kill_node", "at": 15, "target": "node-1"},
        {"kind": "kill_node", "at": 15, "target": "node-2"},
        {"kind": "join", "at": 15},
        {"kind": "join", "at": 15},
    ]
    ended = trained(
        place, undisturbed, "cloud.nodes=2", "checkpoint.persist_every=5", script=script
    )
    log = ended.events
    assert of_kind(log, "parked")
    resumed = of_kind(log, "generation_started")[-1]
    assert resumed["nodes"] == ["node-3", "node-4"]
    assert resumed["step"] >= 10


def test_a_run_all_of_whose_machines_and_whose_controller_vanish_goes_on_from_a_store(
    place, undisturbed
):
    """Nothing is left but what fsspec has; the same command finds it."""
    name = place.named("all-gone")
    store = f"file://{place.root}/{name}-store"
    words = ("cloud.nodes=2", f"train.steps={STEPS}", "checkpoint.persist_every=5")
    words += (f"checkpoint.directory={store}",)
    with place.start(*words, name=name) as run:
        run.until(lambda log: len(of_kind(log, "persisted")) >= 2, what="two durable steps")
        run.signal(signal.SIGKILL)
        run.wait(leaves_nothing=False)
        for node in ("node-1", "node-2"):
            run.kill_node(node)
        durable = max(e["step"] for e in of_kind(run.events, "persisted"))
        with place.start(*words, name=name) as again:
            ended = again.wait()
    assert ended.code == 0, ended.told()
    log = ended.events
    assert of_kind(log, "adopted") == []
    assert of_kind(log, "generation_started")[-1]["step"] >= durable
    check.check_one_owner(log)
    check.check_same_training(log, undisturbed(STEPS).events)
    assert check.weights(ended.folder, step=STEPS) == check.weights(
        undisturbed(STEPS).folder, step=STEPS
    )
    assert {event["path"] for event in of_kind(log, "persisted")} == {store}


def test_a_checkpoint_that_cannot_be_written_disturbs_nothing(place, undisturbed):
    """Something else lies where step 10 would be kept; step 20 and the end are durable."""
    name = place.named("no-room")
    words = ("cloud.nodes=2", f"train.steps={STEPS}", "checkpoint.persist_every=10")
    checkpoints = place.runs / name / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "step-00000010").write_text("not a folder")
    ended = place.train(*words, name=name)
    assert ended.code == 0, ended.told()
    hold_to_invariants(ended, undisturbed(STEPS), steps=STEPS)
    log = ended.events
    assert {e["step"] for e in of_kind(log, "persist_failed")} == {10}
    assert {20, 30, 40} <= {e["step"] for e in of_kind(log, "persisted")}


def test_a_disk_that_is_full_for_a_while_costs_checkpoints_and_no_step(place, undisturbed):
    """The file system of the checkpoints is filled to its last byte and emptied later: what was
    durable stays whole, what comes due meanwhile is left out, then they are written again."""
    steps = 200
    with small_disk(place.root / place.named("disk"), size="16m") as disk:
        script = [{"kind": "fill_disk", "at": 25, "lasts": "3s"}]
        words = ("cloud.nodes=2", "checkpoint.persist_every=10", f"train.steps={steps}")
        words += (f"checkpoint.directory={disk}/checkpoints", "checkpoint.keep=100")
        with place.start(*words, script=script) as run:
            run.until(lambda log: of_kind(log, "persist_failed"), what="no room is noticed")
            ended = run.wait()
        assert ended.code == 0, ended.told()
        hold_to_invariants(ended, undisturbed(steps), steps=steps)
        log = ended.events
        failed = {e["step"] for e in of_kind(log, "persist_failed")}
        durable = {e["step"] for e in of_kind(log, "persisted")}
        assert failed
        assert {10, 20, steps} <= durable
        assert not failed & durable
        assert [e for e in of_kind(log, "node_lost") + of_kind(log, "worker_lost")] == []
        whole = {int(p.parent.name[5:]) for p in (disk / "checkpoints").glob("step-*/COMPLETE")}
        assert whole == durable


def test_a_node_that_dies_while_it_boots_is_done_without(place, undisturbed):
    with place.start("cloud.nodes=3", f"train.steps={STEPS}") as run:
        run.until(lambda log: len(of_kind(log, "node_requested")) == 3, what="all are asked for")
        run.kill_machine("node-2")
        ended = run.wait()
    assert ended.code == 0, ended.told()
    hold_to_invariants(ended, undisturbed(STEPS), steps=STEPS)
    assert layouts(ended.events) == ["pp2 x dp1 x tp1"]


def test_machines_whose_run_was_killed_end_themselves(place):
    """Nobody comes back for them: without a word for the length of the lease they leave."""
    with place.start("cloud.nodes=2", "runtime.lease=3s", "train.steps=100000") as run:
        run.until_step(3)
        run.signal(signal.SIGKILL)
        run.wait(leaves_nothing=False)
        assert leftovers(run.name) != []
        give_up = time.monotonic() + PATIENCE_S
        while leftovers(run.name) and time.monotonic() < give_up:
            time.sleep(0.2)  # other processes, which have no clock to move
        assert leftovers(run.name) == []


def test_two_hundred_steps_through_ten_faults(place, undisturbed):
    kinds = ["kill_worker", "stop_worker", "kill_agent", "join", "kill_worker"] * 2
    script = [{"kind": kind, "at": 15 + 18 * i} for i, kind in enumerate(kinds)]
    ended = trained(place, undisturbed, "cloud.nodes=4", script=script, steps=200)
    assert len(of_kind(ended.events, "fault_injected")) == len(kinds)
    check.check_samples(ended.events, batch=BATCH)
