"""Configurations for tests, put together by Hydra exactly as the command does it, in process."""

from __future__ import annotations

from pathlib import Path

from hydra import compose, initialize_config_dir

import run
from actions.arguments import expand, refuse_unknown_keys
from sailor.config import Config

ROOT = Path(run.__file__).resolve().parent


def a_config(*arguments: str) -> Config:
    """The checked configuration for a command line. Raises ConfigError as the command would."""
    expanded = expand(arguments, root=ROOT)
    refuse_unknown_keys(expanded)
    name, overrides, folders = "config", [], []
    words = iter(expanded)
    for word in words:
        if word == "--config-name":
            name = next(words)
        elif word == "--config-dir":
            folders.append(f"file://{next(words)}")
        else:
            overrides.append(word)
    run.store_schema()
    folder = folders[0].removeprefix("file://") if folders else str(ROOT / "conf")
    if folders:
        overrides.append(f"hydra.searchpath=[file://{ROOT / 'conf'}]")
    with initialize_config_dir(version_base="1.3", config_dir=folder):
        return run.typed(compose(name, overrides=overrides), arguments=list(arguments))
