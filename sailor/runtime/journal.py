"""What a run must not forget when its controller ends: generations used and where they began.

A small file, replaced atomically after every change, read once at start.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec


@dataclass(frozen=True, kw_only=True)
class Journal:
    """``starts``: generation -> step it resumed from. ``attempt`` counts controller starts."""

    generation: int = 0
    attempt: int = 0
    starts: dict[int, int] = field(default_factory=dict)
    next_node: int = 0

    def begun(self, generation: int, *, step: int) -> Journal:
        """The journal after a generation was told to go."""
        return replace(
            self,
            generation=max(self.generation, generation),
            starts={**self.starts, generation: step},
        )


def read_journal(path: Path) -> Journal:
    """The journal at ``path``; an empty one if there is none. Raises ValueError if unreadable."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Journal()
    try:
        return msgspec.json.decode(data, type=Journal)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} is not a journal: {error}") from error


def write_journal(path: Path, journal: Journal) -> None:
    """Replace the journal, so that a crash leaves the old one or the new one."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        file.write(msgspec.json.encode(journal))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
