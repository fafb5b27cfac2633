"""The one thing a tracker is, and the table of those we know."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sailor.errors import ConfigError
from sailor.observe.trackers.points import Point


class Tracker(Protocol):
    """Somewhere a run's series are shown. May raise anything: a broken tracker is left out."""

    def point(self, point: Point) -> None:
        """Take values of a step."""
        ...

    def rewind(self, step: int, *, wall: float) -> None:
        """Forget what was told of later steps, as far as the tracker can."""
        ...

    def close(self, *, status: str) -> None:
        """Write what is left. ``status`` as in RunHistory."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where and for which run a tracker writes.

    Opening one begins again: it is told the whole log, on a resume as well, and what it held of
    this run is replaced or found to be the same.
    """

    run: str
    folder: Path  # of the run
    settings: Mapping[str, str]
    """Facts about the run, for trackers that show them: model, cloud, command."""
    mlflow_uri: str | None = None
    wandb_project: str = "sailor"
    prometheus_port: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One tracker we know: the library it needs and the module that has its ``open_tracker``."""

    library: str | None
    install: str


KINDS: Mapping[str, Kind] = {
    "tensorboard": Kind(library="tensorboardX", install="'sailor-train[trackers]'"),
    "csv": Kind(library=None, install=""),
    "mlflow": Kind(library="mlflow", install="'sailor-train[mlflow]'"),
    "wandb": Kind(library="wandb", install="'sailor-train[wandb]'"),
    "prometheus": Kind(library="prometheus_client", install="'sailor-train[trackers]'"),
}


def is_installed(name: str) -> bool:
    """Whether the library of a tracker can be imported."""
    library = KINDS[name].library
    return library is None or importlib.util.find_spec(library) is not None


def check(names: tuple[str, ...]) -> None:
    """Raise ConfigError E605 for a tracker whose library is not installed."""
    for name in names:
        if not is_installed(name):
            raise ConfigError(
                f"tracker={name} needs {KINDS[name].library}, which is not installed",
                code="E605",
                where=f"tracker={name}",
                why="trackers' libraries are extras: a run needs none of them",
                fix=f"pip install {KINDS[name].install}",
            )


def opener(name: str) -> Callable[[Place], Tracker]:
    """``open_tracker`` of a tracker's module, imported now."""
    module = importlib.import_module(f"sailor.observe.trackers.{name}_")
    opened: Callable[[Place], Tracker] = module.open_tracker
    return opened
