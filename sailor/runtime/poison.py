"""A NaN among a worker's numbers: what a bit that flips does at its worst. For faults on purpose.

Where the wish comes from is in ``sailor/faults.py``. The place is a weight that every token passes
through, so that nothing can overlook it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sailor.parallel.boxes import Box

State = Mapping[Box, Any]  # boxes with their tensors; torch stays where it is


def strike(state: State) -> None:
    """One weight becomes NaN, for good."""
    _victim(state)[0] = math.nan


@contextmanager
def stricken(state: State, really: bool, *, changed: Callable[[], None]) -> Iterator[None]:
    """One weight is NaN meanwhile, if ``really``; afterwards it is what it was before.

    ``changed`` is told of both: in bf16 it is a copy of the state that is computed with.
    """
    if not really:
        yield
        return
    victim = _victim(state)
    before = float(victim[0])
    victim[0] = math.nan
    changed()
    try:
        yield
    finally:
        victim[0] = before
        changed()


def _victim(state: State) -> Any:
    """The weights of the smallest box, flat: a norm's, or a bias."""
    box = min(state, key=lambda box: (box.num_bytes, box.name))
    return state[box].weight.view(-1)
