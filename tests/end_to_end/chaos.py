"""Random faults on a real run, by a seed. What fails is played again by the command it prints.

    python -m tests.end_to_end.chaos --seed 7 --events 20 [--workers 2]

Trains four machines, of one or several workers, through the faults, holds the run to invariants I1
to I7 and compares its model with the undisturbed run's. Exit code 0 when all hold.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.helpers.running import Ended, Place

APART = 6  # steps between two faults
FEWEST = 2  # machines that can hold the model
# What is drawn how often. Losses need joins to go on from, so those come by themselves as well.
KINDS = {
    "kill_worker": 5, "stop_worker": 2, "kill_node": 3, "preempt": 3, "kill_agent": 1,
    "corrupt_snapshot": 2, "slow_node": 1, "join": 4,
}  # fmt: skip
LOSES_A_NODE = ("kill_node", "preempt", "kill_agent")


def command(*, seed: int, events: int, workers: int) -> str:
    """How to play it again."""
    return f"python -m tests.end_to_end.chaos --seed {seed} --events {events} --workers {workers}"


def a_script(*, seed: int, events: int, nodes: int = 4) -> list[dict[str, Any]]:
    """Faults in the order of their steps; the same for the same seed."""
    chance = random.Random(seed)
    script: list[dict[str, Any]] = []
    for number in range(events):
        kind = chance.choices(list(KINDS), weights=list(KINDS.values()))[0]
        if kind in LOSES_A_NODE and nodes <= FEWEST:
            kind = "join"
        nodes += (kind == "join") - (kind in LOSES_A_NODE)
        entry: dict[str, Any] = {"kind": kind, "at": 4 + APART * number + chance.randrange(APART)}
        if kind == "preempt":
            entry["notice"] = chance.choice(["0.05s", "1s", "30s"])
        if kind == "slow_node":
            entry |= {"factor": chance.choice([2, 4]), "lasts": "1s"}
        script.append(entry)
    return script


def steps_for(events: int) -> int:
    """Enough for the last fault to be recovered from."""
    return APART * (events + 3)


def alone(place: Place, *, steps: int, workers: int) -> Ended:
    """One worker, on a machine like those of the faults: parameters are cut for its workers alike,
    and a norm adds up over the same parts."""
    return place.train(
        "cloud.nodes=1", f"cloud.gpus_per_node={workers}", "cloud.memory_per_gpu=1GiB",
        "planner.tensor_parallel=1", "planner.pipeline_parallel=1", "planner.data_parallel=1",
        f"train.steps={steps}",
    )  # fmt: skip


def play(
    place: Place, undisturbed: Callable[[int], Ended], *, seed: int, events: int, workers: int = 1
) -> Ended:
    """Run it and hold it to the invariants. Raises AssertionError naming the command."""
    from tests.end_to_end.test_losses import hold_to_invariants

    steps = steps_for(events)
    script = a_script(seed=seed, events=events)
    try:
        ended = place.train(
            "cloud.nodes=4", f"cloud.gpus_per_node={workers}", "planner.tensor_parallel=1",
            f"train.steps={steps}", "checkpoint.persist_every=10", "checkpoint.keep=3",
            script=script,
        )  # fmt: skip
        assert ended.code == 0, ended.told()
        hold_to_invariants(ended, undisturbed(steps), steps=steps)
    except AssertionError as error:
        again = command(seed=seed, events=events, workers=workers)
        raise AssertionError(f"{again}\n{error}") from error
    return ended


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.end_to_end.chaos")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--events", type=int, default=20)
    parser.add_argument("--workers", type=int, default=1, help="of each machine")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sailor-chaos-") as folder:
        place = Place(Path(folder))

        def undisturbed(steps: int) -> Ended:
            return alone(place, steps=steps, workers=asked.workers)

        for entry in a_script(seed=asked.seed, events=asked.events):
            sys.stdout.write(f"{entry}\n")
        try:
            ended = play(
                place, undisturbed, seed=asked.seed, events=asked.events, workers=asked.workers
            )
        except AssertionError as error:
            sys.stdout.write(f"FAILED\n{error}\n")
            return 1
        sys.stdout.write(ended.out)
        return 0


if __name__ == "__main__":
    sys.exit(main())
