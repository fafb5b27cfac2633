"""A machine that keeps copies and trains nothing: what it is for, and that it disturbs nobody."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.end_to_end.test_losses import hold_to_invariants, joined, layouts, of_kind
from tests.helpers import invariants as check

STEPS = 60
# Nothing is durable before the end: what is not in memory somewhere is gone.
WORDS = (
    "checkpoint.anchor=true", "checkpoint.persist_every=0", "cloud.replace=true",
    f"train.steps={STEPS}",
)  # fmt: skip


def anchored(log, *, since: int = 0):
    return [event for event in of_kind(log, "anchored") if event.seq > since]


def tiers(event) -> set[str]:
    return {source["tier"] for source in event["sources"]}


def test_all_machines_that_train_die_at_once_and_the_anchor_has_everything(place, undisturbed):
    """Every process of both machines is killed; new machines take the state from the anchor."""
    with place.start("cloud.nodes=2", *WORDS) as run:
        run.until(anchored, what="the anchor has a step")
        run.until_step(12)
        before = run.events
        for pid in [run.pid_of(node) for node in ("node-1", "node-2")]:
            os.killpg(pid, signal.SIGKILL)
        ended = run.wait()
    assert ended.code == 0, ended.told()
    log = ended.events
    assert "anchor-1" in joined(log)
    assert {e["node"] for e in of_kind(log, "node_lost")} == {"node-1", "node-2"}
    (again,) = [event for event in of_kind(log, "restored") if event.seq > before[-1].seq]
    assert tiers(again) == {"anchor"}
    assert all("anchor-1" in source["from"] for source in again["sources"])
    assert again["step"] >= anchored(before)[-1]["step"] > 0
    (pause,) = [event for event in of_kind(log, "pause") if event["cause"] != "start"]
    assert pause["source"] == "anchor"
    check.check_one_owner(log)
    check.check_same_training(log, undisturbed(STEPS).events)
    assert check.weights(ended.folder, step=STEPS) == check.weights(
        undisturbed(STEPS).folder, step=STEPS
    )


@pytest.mark.matrix
def test_an_anchor_that_dies_is_replaced_and_gets_its_copies_again(place, undisturbed):
    """Nobody that trains notices, and the second anchor is as good as the first."""
    steps = 200
    words = (*WORDS, "cloud.nodes=2", f"train.steps={steps}")
    with place.start(*words) as run:
        run.until(anchored, what="the anchor has a step")
        run.kill_node("anchor-1")
        run.hold_until(lambda log: "anchor-2" in joined(log), what="another one")
        since = run.events[-1].seq
        run.until(lambda log: anchored(log, since=since), what="the second anchor has a step")
        for pid in [run.pid_of(node) for node in ("node-1", "node-2")]:
            os.killpg(pid, signal.SIGKILL)
        ended = run.wait()
    assert ended.code == 0, ended.told()
    log = ended.events
    assert len(set(layouts(log))) == 1
    assert of_kind(log, "node_lost")[0]["node"] == "anchor-1"
    assert tiers(of_kind(log, "restored")[-1]) == {"anchor"}
    check.check_one_owner(log)
    check.check_same_training(log, undisturbed(steps).events)


@pytest.mark.matrix
def test_an_anchor_that_hangs_stops_no_step(place, undisturbed):
    """SIGSTOP in the middle of its life: copies to it wait, snapshots and steps do not."""
    with place.start("cloud.nodes=3", *WORDS) as run:
        run.until(anchored, what="the anchor has a step")
        agent = run.pid_of("anchor-1")
        os.kill(agent, signal.SIGSTOP)
        run.until_step(STEPS - 5)
        os.kill(agent, signal.SIGCONT)
        ended = run.wait()
    assert ended.code == 0, ended.told()
    hold_to_invariants(ended, undisturbed(STEPS), steps=STEPS)
    assert len(layouts(ended.events)) == 1


@pytest.mark.matrix
def test_a_flipped_bit_in_the_anchor_is_found_and_not_trained_on(place, undisturbed):
    """All that trains is lost and the anchor's memory is rotten: nothing but the seed is left."""
    script = [{"kind": "corrupt_snapshot", "at": 20, "target": "anchor-1"}]
    with place.start("cloud.nodes=2", *WORDS, script=script) as run:
        run.until(anchored, what="the anchor has a step")
        os.kill(run.pid_of("anchor-1"), signal.SIGSTOP)  # what it has stays what it has
        run.until_step(21)
        os.kill(run.pid_of("anchor-1"), signal.SIGCONT)
        for pid in [run.pid_of(node) for node in ("node-1", "node-2")]:
            os.killpg(pid, signal.SIGKILL)
        ended = run.wait()
    assert ended.code == 0, ended.told()
    log = ended.events
    if not of_kind(log, "copy_refused"):  # a whole copy came in between: as good
        assert tiers(of_kind(log, "restored")[-1]) == {"anchor"}
    check.check_same_training(log, undisturbed(STEPS).events)


@pytest.mark.matrix
def test_the_controller_and_all_machines_die_and_the_next_start_finds_the_anchor(
    place, undisturbed
):
    name = place.named("anchor-alone")
    words = ("cloud.nodes=2", *WORDS)
    with place.start(*words, name=name) as run:
        run.until(anchored, what="the anchor has a step")
        run.until_step(10)
        run.signal(signal.SIGKILL)
        run.wait(leaves_nothing=False)
        for node in ("node-1", "node-2"):
            run.kill_node(node)
        kept = anchored(run.events)[-1]["step"]
        seen = run.events[-1].seq
        with place.start(*words, name=name) as again:
            ended = again.wait()
    assert ended.code == 0, ended.told()
    log = ended.events
    restored = next(event for event in of_kind(log, "restored") if event.seq > seen)
    assert tiers(restored) == {"anchor"}
    assert restored["step"] >= kept > 0
    check.check_one_owner(log)
    check.check_same_training(log, undisturbed(STEPS).events)


@pytest.mark.matrix
def test_what_an_anchor_costs_is_in_the_summary_and_it_is_no_standby(place):
    ended = place.train("cloud.nodes=2", *WORDS, "train.steps=40")
    assert ended.code == 0, ended.told()
    summary = ended.summary
    (machine,) = [m for m in summary["machines"] if m["node"] == "anchor-1"]
    assert machine["released"]
    assert not machine["spot"]
    assert summary["anchors"]["hours"] > 0
    assert summary["standbys"]["hours"] == 0
    plan = next(e for e in ended.events if e.kind == "plan_chosen" and e.get("anchor"))
    assert json.loads(json.dumps(plan["anchor"]))["needed_bytes"] > 0
