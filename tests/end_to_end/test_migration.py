"""A machine takes another one's seats: the layout is kept, and the model is the undisturbed one.

Bit for bit, as in test_losses, with real processes and real signals; invariants I1 to I7 each time.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

import pytest

from sailor.observe.events import Event
from sailor.runtime.requests import Migrate, ask
from tests.end_to_end.test_losses import STEPS, hold_to_invariants, layouts, of_kind
from tests.helpers import invariants as check
from tests.helpers.running import Ended, Place, Running, steps_done

Undisturbed = Callable[[int], Ended]

# Machines that share cores with strangers are slow at times, and nobody's fault.
CREW = (
    "cloud.nodes=4", "cloud.standbys=1", f"train.steps={STEPS}", "runtime.straggler=null",
    "runtime.assemble=10min",
)  # fmt: skip
KEPT = ["pp2 x dp2 x tp1", "pp2 x dp2 x tp1"]


def seats(log: Sequence[Event]) -> list[set[str]]:
    """The machines of each generation."""
    return [set(event["nodes"]) for event in log if event.kind == "generation_started"]


def promoted(log: Sequence[Event]) -> list[str]:
    return [e["node"] for e in of_kind(log, "standby") if e["state"] == "promoted"]


def later_pauses(log: Sequence[Event]) -> list[Event]:
    return [pause for pause in of_kind(log, "pause") if pause["cause"] != "start"]


def is_warm(log: Sequence[Event]) -> bool:
    """Whether a standby has rehearsed both roles of two stages with two replicas."""
    return [e["state"] for e in of_kind(log, "standby")].count("warm") >= 2


def test_a_standby_rehearses_its_roles_while_the_others_train(
    place: Place, undisturbed: Undisturbed
):
    steps = 80
    with place.start(*CREW, f"train.steps={steps}") as run:
        run.until(is_warm, what="the standby is warm")
        rehearsed = len(layouts(run.events))
        run.kill_node("node-1")
        ended = run.wait()
    assert ended.code == 0, ended.told()
    log = ended.events
    hold_to_invariants(ended, undisturbed(steps), steps=steps)
    assert rehearsed == 1
    assert layouts(log) == KEPT
    states = [(e["node"], e["state"]) for e in of_kind(log, "standby")]
    assert ("node-5", "cold") not in states
    assert states[-1] == ("node-5", "promoted")
    recordings = list((ended.folder / "recordings").iterdir())
    assert len(recordings) == 2
    assert all(path.stat().st_size < 1 << 20 for path in recordings)


def test_a_standby_takes_a_dead_machines_place_and_the_layout_is_kept(
    place: Place, undisturbed: Undisturbed
):
    ended = place.train(*CREW, script=[{"kind": "kill_node", "at": 12, "target": "node-2"}])
    assert ended.code == 0, ended.told()
    log = ended.events
    hold_to_invariants(ended, undisturbed(STEPS), steps=STEPS)
    assert layouts(log) == KEPT
    assert seats(log) == [
        {"node-1", "node-2", "node-3", "node-4"}, {"node-1", "node-5", "node-3", "node-4"},
    ]  # fmt: skip
    assert promoted(log) == ["node-5"]
    assert check.redone(log) <= 1


def test_with_a_notice_the_standby_takes_over_between_two_steps(
    place: Place, undisturbed: Undisturbed
):
    fault = {"kind": "preempt", "at": 12, "notice": "60s", "target": "node-3"}
    ended = place.train(*CREW, script=[fault])
    assert ended.code == 0, ended.told()
    log = ended.events
    hold_to_invariants(ended, undisturbed(STEPS), steps=STEPS)
    assert layouts(log) == KEPT
    assert promoted(log) == ["node-5"]
    assert check.redone(log) == 0
    (pause,) = later_pauses(log)
    assert pause["planned"]
    last = of_kind(log, "generation_started")[-1]
    assert last["kept_groups"] > 0


def ask_for_a_move(run: Running, node: str) -> None:
    ask(run.folder, Migrate(node=node, why="a test"))


def moved_from(log: Sequence[Event], node: str) -> bool:
    """Whether a generation without the node has stepped."""
    started = of_kind(log, "generation_started")
    return bool(started) and node not in started[-1]["nodes"] and log[-1].kind == "step"


@pytest.mark.matrix
def test_two_leavers_move_together_in_one_change(place: Place, undisturbed: Undisturbed):
    steps = 4 * STEPS  # two machines are made ready at once meanwhile
    with place.start(*CREW, f"train.steps={steps}", "cloud.standbys=2") as run:
        run.until_step(8)
        ask_for_a_move(run, "node-2")
        ask_for_a_move(run, "node-3")
        run.until(lambda log: moved_from(log, "node-3"), what="node-3 is moved")
        ended = run.wait()
    assert ended.code == 0, ended.told()
    log = ended.events
    hold_to_invariants(ended, undisturbed(steps), steps=steps)
    assert layouts(log) == KEPT
    assert seats(log)[-1] == {"node-1", "node-4", "node-5", "node-6"}
    assert check.redone(log) == 0
    (pause,) = later_pauses(log)
    assert pause["planned"]
    assert pause["bytes_moved"] > 0


@pytest.mark.matrix
def test_two_leavers_and_one_standby_are_planned_for_again_with_it(
    place: Place, undisturbed: Undisturbed
):
    with place.start(*CREW) as run:
        run.until_step(12)
        run.kill_node("node-2")
        run.kill_node("node-3")
        ended = run.wait()
    assert ended.code == 0, ended.told()
    log = ended.events
    hold_to_invariants(ended, undisturbed(STEPS), steps=STEPS)
    assert layouts(log)[0] == "pp2 x dp2 x tp1"
    assert layouts(log)[-1] == "pp3 x dp1 x tp1"
    assert seats(log)[-1] == {"node-1", "node-4", "node-5"}


@pytest.mark.matrix
def test_a_standby_that_dies_while_it_rehearses_disturbs_nobody(
    place: Place, undisturbed: Undisturbed
):
    """And whoever is lost then is done without."""
    with place.start(*CREW) as run:
        run.until_step(3)  # the second step was recorded: it is at it, or about to be
        run.kill_node("node-5")
        run.until(
            lambda log: "node-5" in [e["node"] for e in of_kind(log, "node_lost")], what="its loss"
        )
        run.until_step(steps_done(run.events) + 3)
        assert len(layouts(run.events)) == 1
        run.kill_node("node-2")
        ended = run.wait()
    assert ended.code == 0, ended.told()
    hold_to_invariants(ended, undisturbed(STEPS), steps=STEPS)
    assert layouts(ended.events) == ["pp2 x dp2 x tp1", "pp3 x dp1 x tp1"]


@pytest.mark.matrix
@pytest.mark.parametrize("victim", ["standby", "leaver"])
def test_whoever_dies_during_a_hand_over_the_next_standby_or_the_same_one_takes_the_seats(
    place: Place, undisturbed: Undisturbed, victim: str
):
    with place.start(*CREW, "cloud.standbys=2") as run:
        run.until_step(8)
        ask_for_a_move(run, "node-3")
        run.until(lambda log: promoted(log), what="a standby is promoted")
        run.kill_node(promoted(run.events)[0] if victim == "standby" else "node-3")
        run.until(
            lambda log: len(promoted(log)) > 1 or moved_from(log, "node-3"), what="it is moved"
        )
        ended = run.wait()
    assert ended.code == 0, ended.told()
    log = ended.events
    hold_to_invariants(ended, undisturbed(STEPS), steps=STEPS)
    assert set(layouts(log)) == {"pp2 x dp2 x tp1"}
    if victim == "leaver":
        assert "node-3" not in seats(log)[-1]
    assert check.redone(log) <= 1


@pytest.mark.matrix
def test_a_spoilt_recording_is_found_out_and_the_cold_way_taken(
    place: Place, undisturbed: Undisturbed
):
    """A later start finds recordings in the run folder: of these nothing may be believed."""
    steps = 80
    name = place.named("spoilt")
    with place.start(*CREW, f"train.steps={steps}", name=name) as run:
        run.until(is_warm, what="the standby is warm")
        run.signal(signal.SIGTERM)
        assert run.wait().code == 75
    for path in (run.folder / "recordings").iterdir():
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
    begun = len(run.events)
    with place.start(*CREW, f"train.steps={steps}", name=name) as again:
        again.until(
            lambda log: "cold" in [e["state"] for e in of_kind(log[begun:], "standby")],
            what="a recording is refused",
        )
        again.kill_node("node-2")
        ended = again.wait()
    assert ended.code == 0, ended.told()
    hold_to_invariants(ended, undisturbed(steps), steps=steps)
    assert promoted(ended.events) == ["node-5"]


@pytest.mark.matrix
@pytest.mark.parametrize("phase", ["move_asked", "standby", "restored", "generation_started"])
def test_a_controller_killed_in_any_phase_of_a_move_is_followed_by_one_that_goes_on(
    place: Place, undisturbed: Undisturbed, phase: str
):
    steps = 80
    name = place.named(f"killed-{phase.replace('_', '-')}")
    with place.start(*CREW, f"train.steps={steps}", name=name) as run:
        run.until_step(8)
        before = len(run.events)
        ask_for_a_move(run, "node-3")
        run.until(
            lambda log: any(e.kind == phase and e.get("state") != "warm" for e in log[before:]),
            what=phase,
        )
        run.signal(signal.SIGKILL)
        run.process.wait()
        with place.start(*CREW, f"train.steps={steps}", name=name) as again:
            ended = again.wait()
    assert ended.code == 0, ended.told()
    log = ended.events
    check.check_one_owner(log)
    check.check_samples(log, batch=8)
    check.check_same_training(log, undisturbed(steps).events)
    assert list(check.kept(log).steps) == list(range(1, steps + 1))
    assert check.weights(ended.folder, step=steps) == check.weights(undisturbed(steps).folder)


def test_moves_during_durable_checkpoints_and_evaluations_change_nothing(
    place: Place, undisturbed: Undisturbed
):
    """Both happen after every other step: whenever the move comes, it comes upon one of them."""
    steps = 80
    arguments = ("checkpoint.persist_every=2", "train.eval_every=2", f"train.steps={steps}")
    with place.start(*CREW, *arguments) as run:
        for step, node in ((6, "node-2"), (20, "node-3"), (35, "node-1")):
            run.until_step(step)
            ask_for_a_move(run, node)
            run.until(lambda log, node=node: moved_from(log, node), what=f"move of {node}")
        ended = run.wait()
    assert ended.code == 0, ended.told()
    log = ended.events
    hold_to_invariants(ended, undisturbed(steps), steps=steps)
    assert set(layouts(log)) == {"pp2 x dp2 x tp1"}
    assert len(layouts(log)) == 4
    assert check.redone(log) == 0
    assert of_kind(log, "persist_failed") == []
    assert all(pause["planned"] for pause in later_pauses(log))


def slow_node_2_left(
    place: Place, undisturbed: Undisturbed, *words: str, at: int, steps: int
) -> tuple[Event, ...]:
    """The log of a run in which node-2 has a sixth of its time from a step on, and is left."""
    fault = {"kind": "slow_node", "at": at, "target": "node-2", "factor": 6}
    with place.start(*words, f"train.steps={steps}", script=[fault]) as run:
        run.until(lambda log: moved_from(log, "node-2"), what="node-2 is moved away from")
        ended = run.wait()
    assert ended.code == 0, ended.told()
    hold_to_invariants(ended, undisturbed(steps), steps=steps)
    return ended.events


@pytest.mark.matrix
def test_a_machine_that_gets_slow_is_moved_away_from_once(place: Place, undisturbed: Undisturbed):
    """It gets a sixth of its time from some step on: the others wait for it, and are not blamed."""
    words = ("cloud.nodes=4", "cloud.standbys=1", "runtime.straggler=2.5")
    log = slow_node_2_left(place, undisturbed, *words, at=60, steps=400)
    asked = [event["node"] for event in of_kind(log, "move_asked")]
    assert asked == ["node-2"]
    assert check.redone(log) == 0
    assert "node-2" not in seats(log)[-1]


@pytest.mark.matrix
def test_a_machine_that_was_always_slow_is_found_by_rebalancing_and_moved_once(
    place: Place, undisturbed: Undisturbed
):
    """It never did better, so nobody suspects it; the same seats elsewhere take a sixth of it."""
    words = (*CREW, "runtime.rebalance_every=5s")
    log = slow_node_2_left(place, undisturbed, *words, at=1, steps=200)
    looks = of_kind(log, "rebalancing")
    (move,) = [look for look in looks if look["decision"] == "move" and look["node"] == "node-2"]
    assert move["to"] == "node-5"
    assert move["gained_s_per_step"] > 0
    assert of_kind(log, "move_refused") == []
    assert check.redone(log) == 0
    assert "node-2" not in seats(log)[-1]


@pytest.mark.matrix
def test_a_storm_of_moves_changes_no_bit(place: Place, undisturbed: Undisturbed):
    """A move every five steps for 200 steps, round and round through all machines."""
    steps = 200
    with place.start(*CREW, f"train.steps={steps}") as run:
        for number in range(steps // 5 - 2):
            run.until_step(5 * (number + 1))
            there = of_kind(run.events, "generation_started")[-1]["nodes"]
            node = there[number % len(there)]
            ask_for_a_move(run, node)
            run.until(
                lambda log, node=node: moved_from(log, node) or steps_done(log) >= steps,
                what=f"move {number} of {node}",
            )
        ended = run.wait()
    assert ended.code == 0, ended.told()
    log = ended.events
    hold_to_invariants(ended, undisturbed(steps), steps=steps)
    # Where strangers share the cores, preparing lasts longer than five of these small steps.
    assert len(layouts(log)) > 20
    assert set(layouts(log)) == {"pp2 x dp2 x tp1"}
    assert check.redone(log) == 0
