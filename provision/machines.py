"""The written record of local machines: what a later process needs to find and end leftovers.

``machines.jsonl`` in the run folder. The wish is written before a machine is started, so that even
one whose start was never confirmed can be found, by its mark.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from provision.processes import ProcessId


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A machine that was wished for. ``leader`` is None until its agent's process is known."""

    node: str
    mark: str
    leader: ProcessId | None = None


class MachineRecord:
    """Append-only. Every line is on disk before the call returns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def wish(self, machine: Machine) -> None:
        """About to start it."""
        self._append({"act": "wish", "node": machine.node, "mark": machine.mark})

    def started(self, machine: Machine) -> None:
        """Its process exists."""
        self._append({"act": "started", "mark": machine.mark, "leader": machine.leader})

    def gone(self, machine: Machine, *, proof: str) -> None:
        """It was seen to be gone."""
        self._append({"act": "gone", "mark": machine.mark, "proof": proof})

    def remaining(self) -> tuple[Machine, ...]:
        """Machines wished for and not seen to be gone, oldest first."""
        machines: dict[str, Machine] = {}
        for line in self._lines():
            mark = str(line.get("mark"))
            match line.get("act"):
                case "wish":
                    machines[mark] = Machine(node=str(line["node"]), mark=mark)
                case "started" if mark in machines:
                    leader = msgspec.convert(line["leader"], ProcessId)
                    machines[mark] = Machine(node=machines[mark].node, mark=mark, leader=leader)
                case "gone":
                    machines.pop(mark, None)
        return tuple(machines.values())

    def _lines(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        lines = []
        for line in self.path.read_bytes().splitlines():
            try:
                lines.append(msgspec.json.decode(line, type=dict[str, Any]))
            except msgspec.DecodeError:
                continue  # a line torn by a crash: its act had not begun
        return lines

    def _append(self, document: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            if file.tell() and not self._ends_whole():
                file.write(b"\n")
            file.write(msgspec.json.encode(document) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _ends_whole(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"
