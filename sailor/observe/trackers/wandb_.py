"""Weights & Biases, offline: files in ``trackers/wandb`` that ``wandb sync`` uploads when you want.

An offline run cannot be resumed, so a start of ours writes the whole log again under the same
identity and replaces the files of earlier starts. Steps taken back come again on the same axis.
"""

from __future__ import annotations

import hashlib
import shutil

import wandb
from wandb.sdk.wandb_run import Run

from sailor.observe.trackers.points import Point
from sailor.observe.trackers.tracker import Place


class WandbTracker:
    """One offline run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        run.define_metric("step")
        run.define_metric("*", step_metric="step")

    def point(self, point: Point) -> None:
        """Values on the axis of our steps; W&B's own counter only ever rises."""
        self._run.log({"step": point.step, "time": point.wall, **point.values})

    def rewind(self, step: int, *, wall: float) -> None:
        """Say on the series of generations' beginnings that steps come again."""
        self._run.log({"step": step, "time": wall, "run/went_back_to": step})

    def close(self, *, status: str) -> None:
        """Write what is left."""
        self._run.summary["status"] = status
        self._run.finish(exit_code=0 if status == "done" else 1)


def open_tracker(place: Place) -> WandbTracker:
    """The tracker of a run; its identity is that of the run folder."""
    folder = place.folder / "trackers"
    shutil.rmtree(folder / "wandb", ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    identity = hashlib.sha256(str(place.folder.resolve()).encode()).hexdigest()[:16]
    run = wandb.init(
        project=place.wandb_project, name=place.run, id=identity, dir=str(folder), mode="offline",
        config=dict(place.settings), settings=wandb.Settings(console="off", silent=True),
    )  # fmt: skip
    return WandbTracker(run)
