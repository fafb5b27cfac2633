"""What pretended workers compute and how they meet, without torch: see ``pretend_workers``.

A chain of integers: after step s every number of every box depends on all steps before it, so one
that is left out, done twice or mixed with another history shows in all bits of the state.
``state_after`` says what must come out.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sailor.parallel.boxes import Box, all_boxes
from sailor.parallel.layout import Layout, WorkerId
from sailor.runtime import messages as m


def first_state(box: Box) -> np.ndarray:
    """Weight and both moments of a box before any step, as bare 32-bit words."""
    words = np.arange(box.num_bytes // 4, dtype=np.uint32)
    return words * np.uint32(2654435761) + np.uint32(zlib.crc32(box.name.encode()))


def advance(words: np.ndarray, *, step: int) -> None:
    """One step: no two steps do the same, and none can be undone by another."""
    words *= np.uint32(1664525)
    words += np.uint32((1013904223 + step * 2246822519) & 0xFFFFFFFF)


def loss_of(firsts: Mapping[str, int]) -> float:
    """A number that depends on every box: the first word of each, added up exactly."""
    return float(sum(firsts.values()) % (1 << 52))


def state_after(settings: m.RunSettings, steps: int) -> tuple[list[float], dict[str, np.ndarray]]:
    """The undisturbed run: the loss of each step from 0 on, and every box at the end."""
    state = {box.name: first_state(box) for box in _boxes(settings)}
    losses = [loss_of({name: int(words[0]) for name, words in state.items()})]
    for step in range(1, steps + 1):
        for words in state.values():
            advance(words, step=step)
        losses.append(loss_of({name: int(words[0]) for name, words in state.items()}))
    return losses, state


def _boxes(settings: m.RunSettings) -> tuple[Box, ...]:
    return all_boxes(settings.spec, pieces=settings.pieces)


class Left(Exception):
    """A step cannot be finished: somebody is gone, or we were told to leave it."""


@dataclass(kw_only=True, eq=False)
class _Meeting:
    """One step's last collective."""

    came: dict[int, tuple[WorkerId, bool, bool, dict[str, int]]] = field(default_factory=dict)
    result: asyncio.Future[tuple[bool, bool, float]]


class Exchange:
    """The collectives of all workers. A step is over for all at once, or for nobody.

    Holds invariants I1 and I2 where they would be broken: steps of a generation follow one another,
    none of an older one ends after one of a newer, and whoever owns a box brings the same number.
    """

    def __init__(self) -> None:
        self._meetings: dict[tuple[int, int], _Meeting] = {}
        self._over = (0, 0)  # generation and step of the newest that ended
        self._dead: set[WorkerId] = set()
        self.problems: list[str] = []

    async def meet(
        self, layout: Layout, generation: int, step: int, rank: int, *, stop: bool, room: bool,
        firsts: dict[str, int], abort: asyncio.Event, timeout_s: float,
    ) -> tuple[bool, bool, float]:  # fmt: skip
        """(whether somebody wants to stop, whether all have room, loss). Raises Left."""
        loop = asyncio.get_running_loop()
        meeting = self._meetings.setdefault(
            (generation, step), _Meeting(result=loop.create_future())
        )
        if any(worker in self._dead for worker in layout.workers):
            self._break(generation, step)
        elif not meeting.result.done():
            meeting.came[rank] = (layout.workers[rank], stop, room, firsts)
            if len(meeting.came) == layout.world_size:
                self._end(generation, step, meeting)
        aborted = asyncio.ensure_future(abort.wait())
        try:
            await asyncio.wait(
                {meeting.result, aborted}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            aborted.cancel()
        if meeting.result.done() and not meeting.result.cancelled():
            return meeting.result.result()
        meeting.came.pop(rank, None)
        raise Left("told to" if abort.is_set() else "a peer is gone")

    def died(self, worker: WorkerId) -> None:
        """Whoever waits for it sees its end, as on a socket."""
        self._dead.add(worker)
        for (generation, step), meeting in list(self._meetings.items()):
            if any(came[0] == worker for came in meeting.came.values()):
                self._break(generation, step)

    def _break(self, generation: int, step: int) -> None:
        meeting = self._meetings[generation, step]
        if not meeting.result.done():
            meeting.result.cancel()

    def _end(self, generation: int, step: int, meeting: _Meeting) -> None:
        if (generation, step) <= self._over:
            self.problems.append(f"I1: {generation}/{step} ended after {self._over}")
        if generation == self._over[0] and step != self._over[1] + 1:
            self.problems.append(f"I1: {generation}/{step} follows {self._over}")
        self._over = (generation, step)
        firsts: dict[str, int] = {}
        for _, _, _, mine in meeting.came.values():
            for name, word in mine.items():
                if firsts.setdefault(name, word) != word:
                    self.problems.append(f"I2: owners of {name} differ at {generation}/{step}")
        stop = any(came[1] for came in meeting.came.values())
        room = all(came[2] for came in meeting.came.values())
        meeting.result.set_result((stop, room, loss_of(firsts)))
        for old in [key for key in self._meetings if key[0] < generation or key[1] < step - 2]:
            del self._meetings[old]
