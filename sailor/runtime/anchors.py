"""The anchor of a run: a machine without GPUs, not preemptible, that keeps a copy of all state.

Spot machines may all go at once, and their memory with them; the anchor's stays. It is no member of
any layout and the life cycle knows nothing of it. This file says when one is asked for, which step
it is given next and which step it has all of; the controller sends the words. No I/O, no torch.

One step is under way at a time and all nodes copy the same one, slowly, so that what the anchor has
is never a mixture of steps that no layout can resume from, and never more than two versions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from math import ceil

from sailor.cluster.provisioner import NodeRequest, anchor_name, is_anchor
from sailor.runtime.messages import CopiedOut, Holding

LEAD_S = 0.2  # for the word to reach everybody before the step does
LONGEST_COPY_S = 300.0  # a step not complete by then is given up
RETRY_S = 10.0  # between an anchor that is lost or refused and the next order
BACK_S = 10.0  # for one of an earlier controller to dial in
FAILED_S = 1.0  # between a step that could not be copied and the next


@dataclass(frozen=True, kw_only=True, slots=True)
class Copying:
    """A step on its way to the anchor: the first snapshot at or after ``step``."""

    generation: int
    step: int
    anchor: str
    began_at: float
    waiting: frozenset[str]  # nodes that have not answered
    steps: frozenset[int] = frozenset()  # that they have copied: one, if all is well
    bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Anchored:
    """A step the anchor has all of."""

    generation: int
    step: int
    bytes: int
    seconds: float


@dataclass(kw_only=True)
class Anchors:
    """One run's anchor, one after the other. ``like`` None: the run has none.

    ``join_s``: one that has not dialled in this long after it was asked for is given up.
    """

    like: NodeRequest | None
    join_s: float
    there: str = ""  # the one that is connected
    complete: Anchored | None = None
    copying: Copying | None = None
    _asked: str = ""  # the one that is to come
    _asked_at: float = 0.0
    _number: int = 0
    _not_before: float = 0.0  # no order
    _rest_until: float = 0.0  # no copy
    _barred: bool = False

    def expect(self, nodes: Collection[str], *, now: float) -> None:
        """An earlier controller's anchors live still; they will dial in."""
        for node in sorted(filter(is_anchor, nodes)):
            self._asked, self._asked_at = node, now - self.join_s + BACK_S
            self._number = int(node.partition("-")[2])

    def order(self, *, now: float) -> NodeRequest | None:
        """The machine to ask for now, if any. It counts as asked for."""
        if self.like is None or self.there or self._asked or self._barred:
            return None
        if now < self._not_before:
            return None
        self._number += 1
        self._asked, self._asked_at = anchor_name(self._number), now
        return replace(self.like, node=self._asked)

    def overdue(self, *, now: float) -> str:
        """One that was asked for long ago and has not come; "" if there is none."""
        return self._asked if self._asked and now - self._asked_at > self.join_s else ""

    def refused(self, node: str, *, now: float, retry_s: float | None, lasting: bool) -> None:
        """The order came to nothing. ``lasting``: there will be no anchor."""
        if node == self._asked:
            self._asked = ""
            self._not_before = now + (RETRY_S if retry_s is None else retry_s)
            self._barred = lasting

    def joined(self, node: str, holdings: Iterable[Holding], *, boxes: Collection[str]) -> None:
        """It dialled in, for the first time or to a new controller of the run.

        ``boxes``: all that there are of the model; what it has all of counts as complete.
        """
        self.there, self._asked = node, ""
        steps: dict[tuple[int, int], set[str]] = {}
        for holding in holdings:
            at = (holding.snapshot.generation, holding.snapshot.step)
            steps.setdefault(at, set()).update(holding.boxes)
        whole = [at for at, there in steps.items() if there >= set(boxes)]
        self.complete = None
        if whole:
            generation, step = max(whole)
            self.complete = Anchored(generation=generation, step=step, bytes=0, seconds=0.0)

    def lost(self, node: str, *, now: float) -> None:
        """It is gone, with all it had. The first loss is made good at once."""
        if node == self._asked:
            self._asked, self._not_before = "", now + RETRY_S
        if node == self.there:
            self.there, self.complete, self.copying = "", None, None

    def stands_still(self) -> None:
        """The generation is over: what is on its way will not be complete."""
        self.copying = None

    def next_copy(
        self, *, now: float, generation: int, step: int, last_step: int, step_s: float,
        nodes: Collection[str],
    ) -> Copying | None:  # fmt: skip
        """The step that everybody is to copy now; None while another is under way or none is due.

        ``step``: the newest applied, by ``nodes``, which take ``step_s`` for one.
        """
        under_way = self.copying
        if under_way is not None:
            if now - under_way.began_at <= LONGEST_COPY_S:
                return None
            self.copying = None
        if not self.there or now < self._rest_until:
            return None
        target = step + 1 + ceil(LEAD_S / max(step_s, 1e-3))
        if target > last_step:
            return None
        self.copying = Copying(
            generation=generation, step=target, anchor=self.there, began_at=now,
            waiting=frozenset(nodes),
        )  # fmt: skip
        return self.copying

    def heard(self, told: CopiedOut, *, now: float) -> Anchored | None:
        """A node has copied its share. With the last of them: what is complete now."""
        copying = self.copying
        if copying is None or told.generation != copying.generation:
            return None
        if told.node not in copying.waiting:
            return None
        if told.error:
            self.copying, self._rest_until = None, now + FAILED_S
            return None
        copying = replace(
            copying,
            waiting=copying.waiting - {told.node},
            steps=copying.steps | {told.step},
            bytes=copying.bytes + told.bytes,
        )
        self.copying = copying
        if copying.waiting:
            return None
        seconds = now - copying.began_at
        self.copying = None
        if len(copying.steps) > 1:  # a snapshot was refused somewhere: no step is complete
            self._rest_until = now + FAILED_S
            return None
        self._rest_until = now + seconds
        self.complete = Anchored(
            generation=copying.generation,
            step=told.step,
            bytes=copying.bytes,
            seconds=seconds,
        )
        return self.complete
