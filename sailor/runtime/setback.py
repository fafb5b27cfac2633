"""After a step that is not fit to be applied: go back to a saved state, an older one the second
time, or end the run. Pure.

Part of the life cycle; ``lifecycle.advance`` says when. That a step is not fit is decided by
``sailor/training/guard.py``, alike on every rank.
"""

from __future__ import annotations

from dataclasses import replace

from sailor.runtime.change import Outcome, begin_unplanned, record
from sailor.runtime.ending import stop
from sailor.runtime.happenings import StepRefused
from sailor.runtime.state import End, Run, Stop

MOST_REFUSALS = 3  # of one step: as it was, from an older state, and then the recipe is at fault


def refused(run: Run, event: StepRefused) -> Outcome:
    """A worker says that the step was refused; the first one to say so counts."""
    if event.generation != run.active_generation or not run.training:
        return run, []
    again = run.refusals > 0 and event.step <= run.refused_step
    refusals = run.refusals + 1 if again else 1
    run = replace(run, refused_step=max(event.step, run.refused_step), refusals=refusals)
    goes_on = run.limits.roll_back and run.stop is None and refusals < MOST_REFUSALS
    refusal = record(
        "step_refused", generation=event.generation, step=event.step, why=event.why,
        action="rollback" if goes_on else "stop",
    )  # fmt: skip
    if not goes_on:
        times = f" {refusals} times" if refusals > 1 else ""
        why = f"step {event.step} was refused{times}: its {event.why}; step {run.step} is kept"
        run, commands = stop(run, event.at, Stop(end=End.diverged, why=why), boundary=False)
        return run, [refusal, *commands]
    # What workers hold is under suspicion: take what was sealed when it was last known to be good.
    run = replace(run, intact=False)
    commands = [refusal]
    if refusals > 1:
        run = replace(run, below=run.step)
        why = f"step {event.step} was refused {refusals} times after it"
        commands.append(record("quarantined", generation=event.generation, step=run.step, why=why))
    cause = f"step {event.step} was refused: its {event.why}"
    run, more = begin_unplanned(run, event.at, cause=cause)
    return run, commands + more


def outlived(run: Run, *, step: int) -> Run:
    """The run after a step was applied: what was refused before it is forgiven."""
    if run.refusals and step >= run.refused_step:
        return replace(run, refusals=0)
    return run
