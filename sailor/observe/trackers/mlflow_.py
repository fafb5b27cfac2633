"""MLflow: one MLflow run per run of ours, found again by its tag, in a SQLite file or on a server.

MLflow keeps every value it was told. Told twice, the same value of the same moment counts once;
steps that were taken back and done again have both values, at different moments.
"""

from __future__ import annotations

import math

from mlflow.entities import Metric, Run
from mlflow.tracking import MlflowClient

from sailor.observe.trackers.points import Point
from sailor.observe.trackers.tracker import Place

EXPERIMENT = "sailor"
_TAG = "sailor.run"
_AT_ONCE = 500  # MLflow takes at most 1,000 metrics a call

# How a run of ours ended, in MLflow's words.
_STATUS = {"done": "FINISHED", "interrupted": "KILLED", "limit": "KILLED", "killed": "KILLED"}


class MlflowTracker:
    """Sends values in batches."""

    def __init__(self, client: MlflowClient, run: Run) -> None:
        self._client = client
        self._id = run.info.run_id
        self._waiting: list[Metric] = []

    def point(self, point: Point) -> None:
        """Keep the values until a batch is full."""
        self._waiting += [
            Metric(series, value, int(point.wall * 1000), point.step)
            for series, value in point.values.items()
            if math.isfinite(value)
        ]
        if len(self._waiting) >= _AT_ONCE:
            self._send()

    def rewind(self, step: int, *, wall: float) -> None:
        """MLflow cannot forget; the steps come again at a later moment."""
        self._send()

    def close(self, *, status: str) -> None:
        """Send what is left and say how it ended."""
        self._send()
        if status != "running":
            self._client.set_terminated(self._id, status=_STATUS.get(status, "FAILED"))

    def _send(self) -> None:
        for first in range(0, len(self._waiting), _AT_ONCE):
            self._client.log_batch(self._id, metrics=self._waiting[first : first + _AT_ONCE])
        self._waiting.clear()


def open_tracker(place: Place) -> MlflowTracker:
    """The tracker of a run: the MLflow run with its tag, or a new one."""
    client = MlflowClient(tracking_uri=place.mlflow_uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    number = experiment.experiment_id if experiment else client.create_experiment(EXPERIMENT)
    key = str(place.folder.resolve())
    found = client.search_runs([number], filter_string=f"tags.`{_TAG}` = '{_quoted(key)}'")
    if found:
        client.update_run(found[0].info.run_id, status="RUNNING")
        return MlflowTracker(client, found[0])
    run = client.create_run(number, run_name=place.run, tags={_TAG: key})
    for name, value in place.settings.items():
        client.log_param(run.info.run_id, name, value)
    return MlflowTracker(client, run)


def _quoted(text: str) -> str:
    return text.replace("'", "''")
