"""What one's own runs have seen of places where spot machines are rented, read from their folders.

A run that is gone on with, or whose name is given, tells all its log knows. Other runs of the same
folder tell what their summaries say, if they ended not long ago: places change. Machines that are
processes of this computer tell of their own run alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actions.domain import HERE
from actions.run_folder import read_summary, run_name
from sailor.config import Config
from sailor.observe.events import parse_event
from sailor.observe.ledger import Ledger
from sailor.planner.evidence import NOTHING, Evidence, Place, Stay, lived

DAYS = 30.0  # a run that ended longer ago says nothing
_TELLS = (b'"kind":"node_', b'"kind":"notice"', b'"kind":"fenced"', b'"kind":"fault_injected"')


@dataclass(frozen=True, kw_only=True, slots=True)
class Experience:
    """``evidence`` by place; ``runs`` that it comes from."""

    evidence: dict[Place, Evidence]
    runs: tuple[str, ...]


def experience(config: Config) -> Experience:
    """What has been lived through on a configuration's cloud. A folder that cannot be read tells
    nothing, and raises nothing."""
    own = run_name(config)
    runs_dir = Path(config.runs_dir).expanduser()
    found: dict[Place, Evidence] = {}
    runs = []
    for folder in sorted(path for path in _below(runs_dir) if path.is_dir()):
        if folder.name == own:
            told = _of_log(folder / "events.jsonl")
        elif config.cloud.name in HERE:
            continue
        else:
            told = _of_summary(folder, cloud=config.cloud.name)
        if told:
            runs.append(folder.name)
        for place, evidence in told.items():
            found[place] = found.get(place, NOTHING) + evidence
    return Experience(evidence=found, runs=tuple(runs))


def _below(folder: Path) -> Iterable[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return ()


def _of_log(path: Path) -> dict[Place, Evidence]:
    """Lines about machines are decoded, and the last whole one: a log has thousands of steps."""
    ledger = Ledger()
    newest: deque[bytes] = deque(maxlen=2)  # the very last may be torn
    try:
        with path.open("rb") as lines:
            for line in lines:
                newest.append(line)
                if any(word in line for word in _TELLS) and (event := parse_event(line)):
                    ledger.apply(event)
    except OSError:
        return {}
    now = max((event.t for line in newest if (event := parse_event(line))), default=0.0)
    stays = [
        Stay(place=(x.zone, x.machine_type), since=x.came_at, until=x.gone_at, taken=x.taken)
        for x in ledger.lives
        if x.spot and x.came_at is not None and not x.role
    ]
    return lived(stays, seconds=now)


def _of_summary(folder: Path, *, cloud: str) -> dict[Place, Evidence]:
    summary = read_summary(folder)
    if summary.get("cloud") != cloud or summary.get("wall_s") is None:
        return {}
    age_s = time.time() - (folder / "summary.json").stat().st_mtime
    if age_s > DAYS * 86400:
        return {}
    stays = [stay for machine in summary["machines"] if (stay := _stay(machine)) is not None]
    return lived(stays, seconds=summary["wall_s"])


def _stay(machine: dict[str, Any]) -> Stay | None:
    came = machine.get("came_t")
    if came is None or not machine["spot"]:
        return None
    return Stay(
        place=(machine["zone"], machine["machine_type"]), since=came, until=machine["gone_t"],
        taken=machine["taken"],
    )  # fmt: skip
