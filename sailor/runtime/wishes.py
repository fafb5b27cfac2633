"""A change that came to nothing is wished for again, later each time. Pure.

Machines that have joined are paid for: that somebody was lost, or failed, while they were being
taken in is no reason to leave them out until something else happens. Part of the life cycle.
"""

from __future__ import annotations

from dataclasses import replace

from sailor.runtime.state import Run

FIRST_WAIT_S = 5.0
LONGEST_WAIT_S = 300.0
PATIENT_WITH_ONE = (
    2  # changes in a row that may fail before one goes on without whom they failed at
)


def wished(run: Run, at: float, *, cause: str) -> Run:
    """With a wish to plan again, as soon as the present change is over."""
    return replace(run, reconsider=run.reconsider or cause, reconsider_at=at)


def wished_again(run: Run, at: float, *, cause: str) -> Run:
    """After a planned change came to nothing: the same wish, at once the first time, then after
    5 s, 10 s and so on up to five minutes."""
    wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (run.setbacks - 1)) if run.setbacks else 0.0
    cause = cause if cause.startswith("again: ") else f"again: {cause}"
    run = replace(run, setbacks=run.setbacks + 1)
    return replace(run, reconsider=run.reconsider or cause, reconsider_at=at + wait_s)


def due(run: Run, at: float) -> bool:
    """Whether there is a wish whose time has come."""
    return bool(run.reconsider) and at >= run.reconsider_at


def fulfilled(run: Run) -> Run:
    """A plan is asked for: nothing is left to wish for."""
    return replace(run, reconsider="", reconsider_at=0.0)
