"""run.py is killed at any moment of its life; action=down then leaves nothing of it."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.helpers.compose import ROOT
from tests.helpers.running import Place, leftovers

DELAYS_S = sorted(random.Random(7).uniform(0.5, 14.0) for _ in range(4))


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("delay_s", DELAYS_S, ids=lambda delay_s: f"after {delay_s:.1f} s")
def test_whatever_a_killed_run_leaves_down_ends(place: Place, delay_s: float) -> None:
    with place.start("cloud.nodes=3", "train.steps=100000") as running:
        time.sleep(delay_s)  # a random moment of another process's life: no clock of ours moves it
        running.signal(signal.SIGKILL)
        running.process.wait()
        if not (running.folder / "config.yaml").exists():
            assert leftovers(running.name) == []  # it had not begun
            return
        done = subprocess.run(
            [sys.executable, str(ROOT / "run.py"), "action=down", f"runs_dir={place.runs}",
             f"run.name={running.name}", "output=json"],
            cwd=place.root, env=place.environment(), capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert all(proof["released"] for proof in json.loads(done.stdout))
        assert leftovers(running.name) == []
