"""Recipes: pipelines of actions kept in a file, and what becomes of them.

``book`` reads them, ``words`` puts a command line together from one; ``inputs`` says what a step is
made from, ``outputs`` what it has made, ``due`` whether it must be done, ``record`` keeps what was.
``pipeline`` runs the steps and ``status`` shows them; ``list``, ``copy`` and ``header`` are for the
files themselves, ``smoke`` is the small scale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actions.console import Console
    from sailor.config import Config

Compose = Callable[..., "Config"]
"""``compose(*words)``: the configuration of the command line as typed, but for these words."""


def run(config: Config, console: Console, *, compose: Compose) -> int:
    """action=recipe. Returns 0 or the exit code of the step that failed."""
    from actions.recipe.pipeline import run as run_steps  # --help passes here, too

    return run_steps(config, console, compose=compose)
