"""A configuration as the command composes it, for benchmarks that call actions directly."""

from __future__ import annotations

from pathlib import Path

from hydra import compose, initialize_config_dir

import run
from actions.arguments import expand, refuse_unknown_keys
from sailor.config import Config

ROOT = Path(__file__).resolve().parent.parent


def configured(*arguments: str) -> Config:
    """The checked configuration of a command line without options of Hydra."""
    expanded = expand(arguments, root=ROOT)
    refuse_unknown_keys(expanded)
    run.store_schema()
    with initialize_config_dir(version_base="1.3", config_dir=str(ROOT / "conf")):
        composed = compose("config", overrides=list(expanded))
    return run.typed(composed, arguments=list(arguments))
