"""action=migrate: have a machine of a run that goes on hand its seats to another one.

    python run.py action=migrate run=NAME node=node-3

The machine that takes over is a standby, or a spare one; the run trains on meanwhile and pauses
between two steps. The request is left in the run folder (``sailor/runtime/requests.py``); this
waits for what the run's log says of it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from actions.away import ask_run
from actions.console import Console
from actions.following import Follower, follower
from actions.run_folder import said_of
from actions.status import no_such_run
from sailor.config import Config
from sailor.errors import ConfigError
from sailor.observe.events import Event
from sailor.runtime.requests import Migrate
from sailor.units import duration, parse_seconds

_LOOK_S = 0.2


def run(config: Config, console: Console) -> int:
    """Ask, wait, tell. Raises ConfigError: E608 no such run, E610 it does not go on, nobody can
    take over, or nothing came of it in time."""
    root = Path(config.runs_dir).expanduser()
    node = config.migrate.node
    if config.run.name is None or node is None:
        raise ConfigError(
            "which machine of which run?", code="E608", where="run.name, migrate.node",
            fix="python run.py action=migrate run=NAME node=node-1",
        )  # fmt: skip
    path = root / config.run.name
    if not (path / "config.yaml").exists():
        raise no_such_run(path, root=root)
    follow = follower(path)
    follow.read()  # what was before is no answer
    if not follow.lives():
        raise _refused(
            path.name, node, why="the run does not go on",
            fix=f"{said_of(path, 'status')}   shows how it ended",
        )  # fmt: skip
    take_back = ask_run(path, Migrate(node=node, why=config.migrate.why))
    console.print(f"asked run {path.name} to move {node}")
    try:
        outcome = _await(follow, node=node, wait_s=parse_seconds(config.migrate.wait))
    finally:
        take_back()
        follow.close()
    if isinstance(outcome, str):
        raise _refused(path.name, node, why=outcome)
    console.document(outcome)
    console.print(
        f"moved {node} -> {outcome['to']}: pause {duration(outcome['pause_s'])}, "
        f"{outcome['steps_redone']} steps redone"
    )
    return 0


def _await(follow: Follower, *, node: str, wait_s: float) -> dict[str, Any] | str:
    """What became of it: the figures of the move, or why it came to nothing."""
    deadline = time.monotonic() + wait_s
    log: list[Event] = []
    while time.monotonic() < deadline:
        log += follow.read()
        outcome = outcome_of(log, node=node)
        if outcome is not None:
            return outcome
        if not follow.lives():
            return "the run ended"
        time.sleep(_LOOK_S)
    return f"nothing came of it within {duration(wait_s)}"


def outcome_of(log: Sequence[Event], *, node: str) -> dict[str, Any] | str | None:
    """How a move went, by the log since it was asked for; None while it is under way."""
    to, generation = "", 0
    for event in log:
        match event.kind:
            case "move_refused" if event["node"] == node:
                return str(event["why"])
            case "standby" if event["state"] == "promoted" and event["why"].endswith(f" {node}"):
                to = str(event["node"])
            case "transition_dropped":
                to = ""
            case "generation_started" if to:
                generation = event.generation
                if node in event["nodes"]:
                    return "another change came in between, and it kept its seats"
            case "pause" if generation and event.generation == generation:
                return {
                    "node": node,
                    "to": to,
                    "generation": generation,
                    "pause_s": event["total_s"],
                    "steps_redone": event["steps_redone"],
                    "planned": event["planned"],
                }
    return None


def _refused(
    run: str, node: str, *, why: str, fix: str = "cloud.standbys=1   keeps a machine for it"
) -> ConfigError:
    return ConfigError(f"{node} of run {run} was not moved", code="E610", why=why, fix=fix)
