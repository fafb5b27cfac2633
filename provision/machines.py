"""The written record of local machines: what a later process needs to find and end leftovers.

``machines.jsonl`` in the run folder. The wish is written before a machine is started, so that even
one whose start was never confirmed can be found, by its mark.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from provision.lines import append_line, read_lines
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
        append_line(self.path, {"act": "wish", "node": machine.node, "mark": machine.mark})

    def started(self, machine: Machine) -> None:
        """Its process exists."""
        append_line(self.path, {"act": "started", "mark": machine.mark, "leader": machine.leader})

    def gone(self, machine: Machine, *, proof: str) -> None:
        """It was seen to be gone."""
        append_line(self.path, {"act": "gone", "mark": machine.mark, "proof": proof})

    def remaining(self) -> tuple[Machine, ...]:
        """Machines wished for and not seen to be gone, oldest first."""
        machines: dict[str, Machine] = {}
        for line in read_lines(self.path):
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
