"""A real run tells its trackers what its log says, also over a loss, and can be asked again."""

import csv
import json
import subprocess
import sys

import pytest

from tests.helpers.compose import ROOT
from tests.helpers.running import PATIENT, Place

LENGTH = ("train.steps=12", "cloud.nodes=2", *PATIENT)


def losses(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["series"] == "loss/train"]
    return {int(row["step"]): float(row["value"]) for row in rows}, len(rows)


@pytest.mark.slow
def test_a_run_with_a_loss_is_tracked_as_its_log_tells_it(place: Place, tmp_path):
    faults = tmp_path / "faults.yaml"
    faults.write_text(json.dumps([{"kind": "kill_worker", "at": "5", "target": "node-1"}]))
    ended = place.train(*LENGTH, f"faults={faults}", "tracker=csv")
    kept = {e["step"]: e["loss"] for e in ended.events if e.kind == "step" and e["num_samples"]}
    tracked, rows = losses(ended.folder)
    assert tracked == kept
    assert rows == 12
    (ended.folder / "metrics.csv").unlink()
    again = subprocess.run(
        [sys.executable, str(ROOT / "run.py"), "action=report", "tracker=csv",
         f"run.name={ended.folder.name}", f"runs_dir={place.runs}"],
        cwd=place.root, env=place.environment(), capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert losses(ended.folder) == (tracked, rows)
