"""What agents say, as the life cycle hears it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from sailor.runtime import happenings as h
from sailor.runtime import messages as m
from sailor.runtime.hearing import Hearing


def a_record(*, generation: int, step: int) -> m.StepRecord:
    return m.StepRecord(
        step=step, generation=generation, loss=5.0, tokens=64, grad_norm=1.0, learning_rate=0.01,
        seconds=0.1, phases={}, first_sample=0, num_samples=8,
    )  # fmt: skip


def test_steps_that_only_a_halt_tells_of_are_steps_that_were_applied():
    """Their own words went with a connection; the pause before them is measured all the same."""
    heard: list[h.Event] = []
    written: list[m.StepRecord] = []
    parts: Any = SimpleNamespace(
        chronicle=SimpleNamespace(halted=lambda: None, step=written.append),
        roster=SimpleNamespace(agents={}), put=heard.append, now=lambda: 26.0,
        run=SimpleNamespace(active_generation=2),
    )  # fmt: skip
    records = tuple(a_record(generation=2, step=step) for step in (8, 9))
    halted = m.Halted(generation=2, node="n0", workers=(), holdings=(), records=records)
    nobody: Any = None
    asyncio.run(Hearing(parts, orders=nobody).hear("n0", nobody, halted))
    assert written == list(records)
    assert heard == [
        h.StepApplied(at=26.0, generation=2, step=8),
        h.StepApplied(at=26.0, generation=2, step=9),
        h.NodeHalted(at=26.0, generation=2, node="n0"),
    ]
