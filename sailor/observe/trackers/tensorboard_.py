"""TensorBoard event files in ``trackers/tensorboard`` of the run folder.

``tensorboard --logdir runs`` shows all runs side by side. Steps taken back are purged by the marker
TensorBoard has for it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from tensorboardX import SummaryWriter

from sailor.observe.trackers.points import Point
from sailor.observe.trackers.tracker import Place


class TensorBoardTracker:
    """Writes one folder of event files. Files that were there are replaced."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self._folder = folder
        self._writer = SummaryWriter(logdir=str(folder), flush_secs=5)
        self._writer.add_text("run", f"```\n{json.dumps(dict(settings), indent=2)}\n```", 0)

    def point(self, point: Point) -> None:
        """One scalar per value, at the time the step was applied."""
        for series, value in point.values.items():
            self._writer.add_scalar(series, value, point.step, walltime=point.wall)

    def rewind(self, step: int, *, wall: float) -> None:
        """Go on in a new file, which tells TensorBoard to drop later steps of the older ones."""
        self._writer.close()
        self._writer = SummaryWriter(
            logdir=str(self._folder), flush_secs=5, purge_step=step + 1,
            filename_suffix=f".from-{step}",
        )  # fmt: skip

    def close(self, *, status: str) -> None:
        """Write what is left."""
        self._writer.close()


def open_tracker(place: Place) -> TensorBoardTracker:
    """The tracker of a run."""
    return TensorBoardTracker(place.folder / "trackers" / "tensorboard", place.settings)
