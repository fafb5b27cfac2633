"""A run's folder with a checkpoint, as training leaves it, without training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from actions import domain
from actions.begin import begin
from actions.console import Console
from sailor.parallel.boxes import Box
from sailor.training.initial import initial_weights
from tests.helpers.checkpoints import a_checkpoint_of
from tests.helpers.compose import a_config

TINY = (
    "model.num_layers=2", "model.hidden_size=32", "model.num_heads=4", "model.num_kv_heads=4",
    "model.head_size=8", "model.ffn_hidden_size=64", "model.max_positions=32",
    "train.sequence_length=32", "train.eval_samples=6", "train.steps=5",
)  # fmt: skip


def some_text(folder: Path) -> Path:
    """Enough of it that some is held out."""
    folder.mkdir(parents=True)
    for number in range(60):
        (folder / f"{number}.txt").write_text(f"file {number}: " + "ahoy there " * (100 + number))
    return folder


def a_run_folder(
    root: Path, *arguments: str, step: int = 5, read: Callable[[Box], np.ndarray] | None = None
) -> list[str]:
    """The command line of a run in ``root`` that has a checkpoint of one step.

    Its weights are those of its step 0, or from ``read``.
    """
    said = [
        f"runs_dir={root / 'runs'}", "run.name=it", "data=text",
        f"data.path={some_text(root / 'text')}", f"data.cache={root / 'cache'}", *arguments,
    ]  # fmt: skip
    config = a_config(*said)
    with begin(config, Console()) as beginning:
        spec, settings = domain.model_spec(config), beginning.settings
        weights = initial_weights(spec, seed=settings.seed, folder=settings.init_from)
        a_checkpoint_of(
            spec, read or weights, directory=beginning.folder.checkpoints, memory=root / "shm",
            step=step,
        )  # fmt: skip
    return said
