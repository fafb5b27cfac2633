"""Trackers show what the log says: values, steps taken back, and the same over resumes."""

import csv
import logging
import stat
import struct
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sailor.errors import ConfigError
from sailor.observe.events import Event, EventLog
from sailor.observe.trackers.follow import Following, draw_again
from sailor.observe.trackers.points import Point, Points, Rewind
from sailor.observe.trackers.tracker import KINDS, Place, check, is_installed
from tests.observe.run_story import demo

BEGIN = datetime(2027, 1, 15, 8, tzinfo=UTC)


def timed(events):
    """The events with wall times that go with their t, as a real log has."""
    return [
        Event(
            seq=event.seq, t=event.t, run=event.run, generation=event.generation, kind=event.kind,
            fields=event.fields, time=(BEGIN + timedelta(seconds=event.t)).isoformat(),
        )
        for event in events
    ]  # fmt: skip


@pytest.fixture
def story():
    return timed(demo().events)


def place(folder: Path, **changes) -> Place:
    return Place(
        run="swift-otter", folder=folder, settings={"model": "gpt_tiny"},
        **{"mlflow_uri": f"sqlite:///{folder}/mlflow.db", **changes},
    )  # fmt: skip


def told(events):
    points = Points()
    return [one for event in events for one in points.take(event)]


def kept_losses(events):
    """What a projection of the points says at the end: step -> loss."""
    losses: dict[int, float] = {}
    for one in told(events):
        if isinstance(one, Rewind):
            losses = {step: loss for step, loss in losses.items() if step <= one.step}
        elif "loss/train" in one.values:
            losses[one.step] = one.values["loss/train"]
    return losses


def test_points_end_as_the_kept_steps_of_the_history(story):
    points = Points()
    for event in story:
        list(points.take(event))
    kept = {step: point.loss for step, point in points.history.kept.items()}
    assert kept_losses(story) == kept
    assert len(kept) == 20


def test_steps_that_are_set_back_are_taken_back_before_they_come_again(story):
    rewinds = [one for one in told(story) if isinstance(one, Rewind)]
    assert [one.step for one in rewinds] == [8]


def test_goodput_and_cost_are_told_at_the_end(story):
    last = [one for one in told(story) if isinstance(one, Point)][-1]
    assert {"run/goodput", "run/cost_usd"} <= set(last.values)
    assert 0 < last.values["run/goodput"] < 1


def test_csv_has_each_kept_step_once(story, tmp_path):
    draw_again(["csv"], place(tmp_path), story)
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    losses = {int(r["step"]): float(r["value"]) for r in rows if r["series"] == "loss/train"}
    assert losses == kept_losses(story)
    assert sum(r["series"] == "loss/train" for r in rows) == len(losses)


def test_a_log_drawn_twice_gives_the_same_file(story, tmp_path):
    draw_again(["csv"], place(tmp_path), story)
    first = (tmp_path / "metrics.csv").read_bytes()
    draw_again(["csv"], place(tmp_path), story)
    assert (tmp_path / "metrics.csv").read_bytes() == first


def records(path: Path):
    """The events of a TensorBoard file: length, its checksum, an Event message, its checksum."""
    from tensorboardX.proto.event_pb2 import Event as TensorBoardEvent

    data, at = path.read_bytes(), 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        yield TensorBoardEvent.FromString(data[at + 12 : at + 12 + length])
        at += 12 + length + 4


def board_losses(folder: Path):
    """step -> loss as TensorBoard shows it: a file that starts at a step purges from there on."""
    losses: dict[int, float] = {}
    files = sorted(folder.glob("events.*"), key=lambda path: path.stat().st_mtime_ns)
    for path in files:
        for event in records(path):
            if event.WhichOneof("what") == "session_log" and event.session_log.status == 1:  # START
                losses = {step: loss for step, loss in losses.items() if step < event.step}
            for value in event.summary.value:
                if value.tag == "loss/train":
                    losses[event.step] = value.simple_value
    return losses


def test_tensorboard_shows_the_kept_steps(story, tmp_path):
    pytest.importorskip("tensorboardX")
    draw_again(["tensorboard"], place(tmp_path), story)
    shown = board_losses(tmp_path / "trackers" / "tensorboard")
    assert shown == pytest.approx(kept_losses(story), rel=1e-6)  # its values are 32 bits wide


def test_tensorboard_is_drawn_afresh_and_not_twice(story, tmp_path):
    pytest.importorskip("tensorboardX")
    for _ in range(2):
        draw_again(["tensorboard"], place(tmp_path), story)
    files = list((tmp_path / "trackers" / "tensorboard").glob("events.*"))
    assert len(files) == 2  # one before and one after the steps that were taken back


@pytest.mark.filterwarnings("ignore:The ``noload`` loader")  # of MLflow, by SQLAlchemy
def test_mlflow_keeps_one_run_over_resumes_and_each_value_once(story, tmp_path):
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    half = len(story) // 2
    draw_again(["mlflow"], place(tmp_path), story[:half])
    draw_again(["mlflow"], place(tmp_path), story)
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("sailor")
    runs = client.search_runs([experiment.experiment_id])
    assert [run.info.status for run in runs] == ["FINISHED"]
    history = client.get_metric_history(runs[0].info.run_id, "loss/train")
    told_losses = [p for p in told(story) if isinstance(p, Point) and "loss/train" in p.values]
    assert len(history) == len(told_losses)
    newest = {m.step: m.value for m in sorted(history, key=lambda m: m.timestamp)}
    assert newest == pytest.approx(kept_losses(story))


def test_wandb_writes_offline_under_one_identity(story, tmp_path):
    pytest.importorskip("wandb")
    for _ in range(2):
        draw_again(["wandb"], place(tmp_path), story)
    runs = [path for path in (tmp_path / "trackers" / "wandb").glob("offline-run-*")]
    assert len(runs) == 1
    assert list(runs[0].glob("run-*.wandb"))


def get(url: str, token: str | None) -> str:
    request = urllib.request.Request(url)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode()


def test_prometheus_tells_the_newest_values_to_those_with_the_token(story, tmp_path):
    pytest.importorskip("prometheus_client")
    from sailor.observe.trackers.prometheus_ import open_tracker

    tracker = open_tracker(place(tmp_path))
    try:
        for one in told(story):
            if isinstance(one, Point):
                tracker.point(one)
        url = (tmp_path / "trackers" / "prometheus.url").read_text().strip()
        secret = tmp_path / "trackers" / "prometheus.token"
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        text = get(url, secret.read_text())
        assert 'sailor_loss_train{run="swift-otter"} 4.0' in text
        assert 'sailor_step{run="swift-otter"} 20.0' in text
        for wrong in (None, "guess"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                get(url, wrong)
    finally:
        tracker.close(status="done")
    assert not (tmp_path / "trackers" / "prometheus.url").exists()


def test_a_tracker_that_cannot_write_is_left_out_and_the_others_go_on(story, tmp_path, caplog):
    pytest.importorskip("tensorboardX")
    (tmp_path / "trackers").write_text("a file where a folder has to be")
    with caplog.at_level(logging.WARNING):
        draw_again(["tensorboard", "csv"], place(tmp_path), story)
    assert "tracker tensorboard" in caplog.text
    assert (tmp_path / "metrics.csv").stat().st_size > 1000


def test_trackers_beside_a_run_hear_past_and_present(tmp_path):
    past = timed(demo().events)
    with EventLog(tmp_path / "events.jsonl", run="swift-otter") as events:
        following = Following(("csv",), place(tmp_path), events=events, past=past)
        events.write(
            "step", generation=max(e.generation for e in past), step=21, loss=1.0, tokens=128,
            grad_norm=1.0, learning_rate=1e-3, seconds=1.0, phases={},
            first_sample=160, num_samples=8,
        )  # fmt: skip
        following.close()
    with (tmp_path / "metrics.csv").open(newline="") as file:
        losses = [r for r in csv.DictReader(file) if r["series"] == "loss/train"]
    assert [int(row["step"]) for row in losses] == list(range(1, 22))


def test_a_tracker_whose_library_is_missing_is_refused_with_the_command_that_brings_it():
    missing = [name for name in KINDS if not is_installed(name)]
    if not missing:
        pytest.skip("all trackers' libraries are installed")
    with pytest.raises(ConfigError) as refusal:
        check((missing[0],))
    assert refusal.value.code == "E605"
    assert "pip install" in refusal.value.fix
