"""Run settings of a tiny model, of which a test changes what matters to it."""

from __future__ import annotations

from typing import Any

from sailor.runtime.messages import RunSettings
from sailor.training.settings import OptimizerSettings, TrainSettings
from tests.helpers.builders import a_spec


def some_settings(
    *, run: str = "test", checkpoint_directory: str = "", **train: Any
) -> RunSettings:
    fields: dict[str, Any] = {
        "seed": 1,
        "total_steps": 1000,
        "sequence_length": 16,
        "global_batch_size": 4,
        "optimizer": OptimizerSettings(
            learning_rate=1e-3, min_learning_rate=1e-4, schedule="constant", warmup_steps=2,
            decay_steps=0, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1, clip_norm=1.0,
        ),
        "tokens_path": "",
        "deterministic": True,
        "compute_dtype": "float32",
        "device": "cpu",
        "eval_every": 0,
        "eval_samples": 4,
        "snapshot_every": 1,
        "persist_every": 0,
    }  # fmt: skip
    return RunSettings(
        run=run,
        spec=a_spec(vocab_size=256),
        pieces=1,
        train=TrainSettings(**{**fields, **train}),
        checkpoint_directory=checkpoint_directory,
    )
