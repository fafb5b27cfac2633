"""A machine takes another one's seats: the layout is kept, and the model is the undisturbed one.

Bit for bit, as in test_losses, with real processes and real signals; invariants I1 to I7 each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sailor.observe.events import Event
from tests.end_to_end.test_losses import STEPS, hold_to_invariants, layouts, of_kind
from tests.helpers import invariants as check
from tests.helpers.running import Ended, Place

Undisturbed = Callable[[int], Ended]

CREW = ("cloud.nodes=4", "cloud.standbys=1", f"train.steps={STEPS}")
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
