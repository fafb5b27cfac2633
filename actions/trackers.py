"""Which trackers a configuration asks for, and where they write."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sailor.config import Config
from sailor.observe.events import Event, EventLog
from sailor.observe.trackers.follow import Following, draw_again
from sailor.observe.trackers.tracker import KINDS, Place, check, is_installed


def names_of(config: Config) -> tuple[str, ...]:
    """The trackers asked for. Raises ConfigError E605 when the library of one is missing."""
    tracker = config.tracker
    wished = {
        "tensorboard": tracker.tensorboard, "csv": tracker.csv, "mlflow": tracker.mlflow,
        "wandb": tracker.wandb, "prometheus": tracker.prometheus,
    }  # fmt: skip
    asked = tuple(name for name in KINDS if wished[name])
    check(asked)
    if config.tracker.auto and "tensorboard" not in asked and is_installed("tensorboard"):
        return (*asked, "tensorboard")
    return asked


def place_of(config: Config, folder: Path, *, command: str) -> Place:
    """Where the trackers of a run write."""
    database = (Path(config.runs_dir).expanduser() / "mlflow.db").resolve()
    return Place(
        run=folder.name,
        folder=folder,
        settings={
            "model": config.model.name,
            "cloud": config.cloud.name,
            "seed": str(config.seed),
            "global_batch_size": str(config.train.global_batch_size),
            "sequence_length": str(config.train.sequence_length),
            "command": command,
        },
        mlflow_uri=config.tracker.mlflow_uri or f"sqlite:///{database}",
        wandb_project=config.tracker.wandb_project,
        prometheus_port=config.tracker.prometheus_port,
    )


def follow(
    config: Config, folder: Path, *, command: str, events: EventLog, past: Iterable[Event]
) -> Following | None:
    """Trackers that follow a run from now on; None when none is asked for."""
    names = names_of(config)
    if not names:
        return None
    return Following(names, place_of(config, folder, command=command), events=events, past=past)


def again(
    config: Config, folder: Path, *, command: str, events: Iterable[Event]
) -> tuple[str, ...]:
    """Draw a finished run's trackers again from its log; their names. Prometheus shows the present
    only and is left out."""
    names = tuple(name for name in names_of(config) if name != "prometheus")
    draw_again(names, place_of(config, folder, command=command), events)
    return names
