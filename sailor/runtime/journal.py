"""What a run must not forget when its controller ends: who trains what, who was shut out, and where
each generation began.

A small file, replaced atomically after every change, read once at start. It is written before a
generation is told to go, so what it calls active is what agents were last told, or newer.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from sailor.parallel.layout import Layout, WorkerId
from sailor.plan import Plan, decode_hook, encode_hook


@dataclass(frozen=True, kw_only=True)
class Active:
    """The generation that was last told to go, and on whom it runs, in rank order."""

    generation: int
    plan: Plan
    workers: tuple[WorkerId, ...]


@dataclass(frozen=True, kw_only=True)
class Journal:
    """``starts``: generation -> step it resumed from. ``attempt`` counts controller starts.

    ``members``: node -> start of its agent, of all that are connected. ``fenced``: starts that were
    given up and must never be let in again. ``port`` is where agents dial.
    """

    generation: int = 0
    attempt: int = 0
    starts: dict[int, int] = field(default_factory=dict)
    active: Active | None = None
    members: dict[str, str] = field(default_factory=dict)
    fenced: tuple[str, ...] = ()
    port: int = 0

    def begun(self, generation: int, *, step: int, layout: Layout) -> Journal:
        """The journal after a generation was told to go."""
        return replace(
            self,
            generation=max(self.generation, generation),
            starts={**self.starts, generation: step},
            active=Active(generation=generation, plan=layout.plan, workers=layout.workers),
        )

    def joined(self, node: str, start: str) -> Journal:
        """With one more member."""
        return replace(self, members={**self.members, node: start})

    def left(self, node: str) -> Journal:
        """Without a member; its start is never let in again."""
        members = dict(self.members)
        start = members.pop(node, "")
        if not start:
            return self
        return replace(self, members=members, fenced=(*self.fenced, start))

    def started(self, *, port: int) -> Journal:
        """The journal of one more start of the controller."""
        return replace(self, attempt=self.attempt + 1, port=port)

    def alone(self, *, besides: Collection[str] = ()) -> Journal:
        """Nobody of an earlier start trains: members begin anew, all but those named."""
        kept = {node: start for node, start in self.members.items() if node in besides}
        ended = [start for node, start in self.members.items() if node not in besides]
        return replace(self, members=kept, active=None, fenced=(*self.fenced, *ended))


def read_journal(path: Path) -> Journal:
    """The journal at ``path``; an empty one if there is none. Raises ValueError if unreadable."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Journal()
    try:
        return msgspec.json.decode(data, type=Journal, dec_hook=decode_hook)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} is not a journal: {error}") from error


def write_journal(path: Path, journal: Journal) -> None:
    """Replace the journal, so that a crash leaves the old one or the new one."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        file.write(msgspec.json.encode(journal, enc_hook=encode_hook))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
