"""What a user can ask for, one file an action: ``run(config, console) -> exit code``.

An action builds the frozen values it needs (domain.py), calls sailor and provision, and shows the
outcome. Actions are imported when asked for, so that one that needs torch costs the others nothing.
"""

from __future__ import annotations

ACTIONS: dict[str, str] = {
    "train": "actions.train",
    "plan": "actions.plan",
    "prepare": "actions.prepare",
    "status": "actions.status",
}
"""Name -> module with ``run(config: Config, console: Console) -> int``."""
