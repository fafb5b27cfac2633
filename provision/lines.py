"""A small append-only file of JSON lines, each on disk before the call returns.

For what must be known after a crash: what was about to be rented, and what was seen to be gone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec


def append_line(path: Path, document: dict[str, Any]) -> None:
    """Add one line, durably; a line torn by an earlier crash is fenced off first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        if file.tell() and not _ends_whole(path):
            file.write(b"\n")
        file.write(msgspec.json.encode(document) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All whole lines, oldest first; none when there is no file."""
    if not path.exists():
        return []
    lines = []
    for line in path.read_bytes().splitlines():
        try:
            lines.append(msgspec.json.decode(line, type=dict[str, Any]))
        except msgspec.DecodeError:
            continue  # torn by a crash: its act had not begun
    return lines


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
