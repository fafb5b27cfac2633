"""Whatever vanishes, the model that comes out is the one that an undisturbed run makes."""

from __future__ import annotations

import pytest

from tests.helpers import invariants as check
from tests.helpers.running import Ended, Place

STEPS = 40


def layouts(ended: Ended) -> list[str]:
    return [e["layout"] for e in ended.events if e.kind == "generation_started"]


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "kill_worker", "at": 12},
        {"kind": "kill_node", "at": 12},
        {"kind": "stop_worker", "at": 12},
        {"kind": "preempt", "at": 12, "notice": "20s"},
    ],
    ids=lambda fault: fault["kind"],
)
def test_losses_and_weights_are_those_of_the_undisturbed_run(place: Place, undisturbed, fault):
    reference = undisturbed(STEPS)
    ended = place.train("cloud.nodes=4", f"train.steps={STEPS}", script=[fault])
    assert ended.code == 0, ended.told()
    log = ended.events
    check.check_one_owner(log)
    check.check_samples(log, batch=8)
    check.check_same_training(log, reference.events)
    check.check_waits(log, longest_s=60.0)
    check.check_pauses(log)
    assert len(check.kept(log).steps) == STEPS
    assert check.weights(ended.folder, step=STEPS) == check.weights(reference.folder, step=STEPS)
    assert ended.summary["redone_steps"] == check.redone(log)
