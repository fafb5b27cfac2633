"""planner.calibrate: one number from a run's steps, and what a run must be to give it."""

from __future__ import annotations

import pytest
import yaml

from actions.planning import question
from sailor.clock import HandClock
from sailor.config_keys import plain
from sailor.errors import ConfigError, DataError
from sailor.observe.events import EventLog
from sailor.profile.profile import Mark
from tests.helpers.compose import a_config

WORDS = ("cloud.memory_per_gpu=1GiB", "train.steps=100")
ALONE = ("cloud.nodes=1", "planner.data_parallel=1", "planner.pipeline_parallel=1")
BOTH = ("cloud.nodes=2", "planner.data_parallel=2", "planner.pipeline_parallel=1")


def a_run(folder, *words, slower, name="quiet", steps=8):
    """A finished run's folder: its steps took ``slower`` times what is predicted for its plan.
    Returns that plan's question."""
    config = a_config(f"runs_dir={folder}", *WORDS, *words)
    asked = question(config)
    plan = asked.answer().best.plan
    path = folder / name
    path.mkdir()
    (path / "config.yaml").write_text(yaml.safe_dump(plain(config)))
    (path / "plan.json").write_bytes(plan.to_json())
    with EventLog(path / "events.jsonl", run=name, clock=HandClock()) as log:
        log.write("generation_started", generation=1, step=0, layout=plan.describe(),
                  world_size=1, nodes=["n"])  # fmt: skip
        for step in range(1, steps + 1):
            log.write("step", generation=1, step=step, seconds=slower * asked.step_seconds(plan))
    return asked, plan


def calibrated(folder, *words, name="quiet"):
    return question(a_config(f"runs_dir={folder}", f"planner.calibrate={name}", *WORDS, *words))


@pytest.mark.parametrize("slower", [0.7, 1.0, 3.0])
def test_the_prediction_for_the_run_becomes_what_its_steps_took(tmp_path, slower):
    before, plan = a_run(tmp_path, *ALONE, slower=slower)
    after = calibrated(tmp_path, *ALONE)
    # The scale is found by halving a range sixty times: rounding alone is tolerated.
    assert after.step_seconds(plan) == pytest.approx(slower * before.step_seconds(plan), rel=1e-9)
    if slower != 1.0:
        assert {term.mark for term in after.estimate(plan).step_terms} >= {Mark.calibrated}


def test_a_run_on_one_worker_says_as_much_about_two(tmp_path):
    """The scale was sought for the run's plan on the machines that are asked for now. Two workers
    of one core each were planned with the scale of one worker on half a core."""
    a_run(tmp_path, *ALONE, slower=2.0)
    scale = calibrated(tmp_path, *ALONE).profile.scale
    assert calibrated(tmp_path, *BOTH).profile.scale == pytest.approx(scale, rel=1e-9)
    more = calibrated(tmp_path, "cloud.nodes=8", "cloud.max_nodes=8").profile.scale
    assert more == pytest.approx(scale, rel=1e-9)


def test_a_run_of_another_model_scales_data_sheets_too(tmp_path):
    a_run(tmp_path, *ALONE, "model.num_layers=2", slower=2.0)
    other = calibrated(tmp_path, *ALONE, "train.sequence_length=64")
    assert 1.5 < other.profile.scale < 3.0
    assert other.profile.sequence_length == 64


def test_steps_that_no_scale_explains_are_refused_with_the_figures(tmp_path):
    """It was bisected to the end of its range without a word."""
    a_run(tmp_path, *ALONE, slower=1e-4)
    with pytest.raises(DataError, match="cannot calibrate") as refused:
        calibrated(tmp_path, *ALONE)
    assert refused.value.code == "E520"
    assert "were predicted" in refused.value.why


def test_a_run_that_is_not_there_or_has_no_steps_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no run quiet") as refused:
        calibrated(tmp_path)
    assert refused.value.code == "E108"
    a_run(tmp_path, *ALONE, slower=1.0, steps=3, name="short")
    with pytest.raises(DataError, match="cannot calibrate") as refused:
        calibrated(tmp_path, name="short")
    assert "fewer than 5" in refused.value.why
    (tmp_path / "short" / "events.jsonl").unlink()
    with pytest.raises(DataError, match="cannot calibrate"):
        calibrated(tmp_path, name="short")
