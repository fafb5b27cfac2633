"""Moves in runs larger than this computer holds: the same life cycle on a simulated clock.

Pauses are those a real run measured, whatever the size; bytes per machine and the line are the same
too. So this shows what the decisions make of a move among so many machines, and how much CPU time
they take; what it takes one controller to write to so many agents is not in it.
"""

from __future__ import annotations

import time
from typing import Any

from sailor.simulate.costs import Costs
from sailor.simulate.fleet import Change, Fleet, NodeEvent
from sailor.simulate.job import Job
from sailor.simulate.pace import StepTable
from sailor.simulate.world import simulate

SIZES = (1024, 65536)
TOGETHER = 16  # machines that leave at one moment
_DEPTH = 8  # stages of a pipeline
_NOTICE_S = 120.0
_TOLD_S, _END_S = 600.0, 1200.0
_PLACE = ("zone", "machine")


def beyond(
    costs: Costs, *, step_s: float, state_bytes_per_machine: float, sizes: tuple[int, ...] = SIZES
) -> dict[str, dict[str, Any]]:
    """Size -> pauses in steps for one machine and for ``TOGETHER`` that leave, each with another
    standing by."""
    return {
        f"{size} machines": {
            "one": _moved(costs, size, 1, step_s=step_s, per_machine=state_bytes_per_machine),
            f"{TOGETHER} at once": _moved(
                costs, size, TOGETHER, step_s=step_s, per_machine=state_bytes_per_machine
            ),
        }
        for size in sizes
    }


def _moved(
    costs: Costs, size: int, leavers: int, *, step_s: float, per_machine: float
) -> dict[str, Any]:
    names = [f"node-{number}" for number in range(size + leavers)]
    came = [NodeEvent(t=0.0, change=Change.came, node=name, place=_PLACE) for name in names]
    told = [
        NodeEvent(t=_TOLD_S, change=Change.told, node=name, place=_PLACE, seconds=_NOTICE_S)
        for name in names[:leavers]
    ]
    gone = [
        NodeEvent(t=_TOLD_S + _NOTICE_S, change=Change.gone, node=name, place=_PLACE)
        for name in names[:leavers]
    ]
    fleet = Fleet(
        events=(*came, *told, *gone), leases=(), seconds=_END_S, source="machines that are moved"
    )
    began = time.process_time()
    outcome = simulate(
        fleet, speeds=StepTable({size: step_s}, depth=_DEPTH), costs=costs,
        job=Job(samples_per_step=size, state_bytes=per_machine * _DEPTH, persist_every=0),
    )  # fmt: skip
    pauses = [pause for pause in outcome.pauses if pause["cause"] != "start"]
    if not pauses or outcome.redone_steps:
        raise RuntimeError(f"{size} machines: {len(pauses)} moves, {outcome.redone_steps} redone")
    held_up = sum(s for cause, s in outcome.seconds.items() if cause.startswith("transition"))
    return {
        "pauses": len(pauses), "pause_steps": held_up / step_s,
        "cpu_s_of_all_decisions": time.process_time() - began, "source": "simulated",
    }  # fmt: skip
