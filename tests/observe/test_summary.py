"""summary.json: its keys, their order, and that it is written whole or not at all."""

import json
from pathlib import Path

import pytest

from sailor.observe.history import replay
from sailor.observe.picture import CAUSES
from sailor.observe.summary import summarise, write_atomically, write_summary
from tests.observe.run_story import BATCH, SEQUENCE, Story, demo

PROMISED = {
    "status", "model", "parameters", "steps", "tokens", "loss_first", "loss_last", "eval_loss",
    "wall_s", "goodput", "badput", "committed_steps", "redone_steps", "lost_samples",
    "repeated_samples", "generations", "pauses", "snapshots", "cost_usd", "plan_vs_actual",
    "released",
}  # fmt: skip


def test_it_has_every_promised_key_for_any_log() -> None:
    whole = summarise(demo().events)
    assert set(whole) >= PROMISED
    for length in range(len(demo().events)):
        assert list(summarise(demo().events[:length])) == list(whole)


def test_the_demo_run_in_one_document() -> None:
    summary = summarise(demo().events)
    assert summary["status"] == "done"
    assert (summary["model"], summary["parameters"]) == ("gpt_tiny", 820_000)
    assert (summary["steps"], summary["tokens"]) == (20, 20 * BATCH * SEQUENCE)
    assert summary["eval_loss"] == 4.2
    assert (summary["lost_samples"], summary["repeated_samples"]) == (0, 0)
    assert (summary["redone_steps"], summary["generations"]) == (2, 4)
    assert [pause["cause"] for pause in summary["pauses"]] == [
        "node-2 leaves in 30 s", "node-3 lost: connection closed", "node-5 joined",
    ]  # fmt: skip
    assert summary["released"] is True
    assert len(summary["machines"]) == 5
    assert summary["good_s"] + sum(summary["badput"].values()) == pytest.approx(summary["wall_s"])


def test_every_pause_is_split() -> None:
    (first, *_) = summarise(demo().events)["pauses"]
    assert set(first) >= {
        "cause", "planned", "generation", "detect_s", "decide_s", "prepare_s", "copy_s",
        "switch_s", "first_step_s", "total_s", "steps_redone", "source",
    }  # fmt: skip


def test_a_machine_not_proven_gone_is_not_released() -> None:
    story = Story().start().nodes("node-1", "node-2")
    story.say("node_released", node="node-1", proof="gone").end()
    assert summarise(story.events)["released"] is False


def test_a_run_that_is_going_on_has_no_exit_code() -> None:
    story = Story().start().end("interrupted", 75).start("resumed")
    summary = summarise(story.events)
    assert (summary["status"], summary["exit_code"], summary["starts"]) == ("running", None, 2)


def test_it_is_valid_json_even_after_a_loss_that_is_not_a_number(tmp_path: Path) -> None:
    story = Story().start().steps(1, 1, generation=1, loss=None).end("diverged", 6)
    write_summary(tmp_path / "summary.json", summarise(story.events))
    document = json.loads((tmp_path / "summary.json").read_text())
    assert (document["status"], document["loss_last"], document["exit_code"]) == (
        "diverged", None, 6,
    )  # fmt: skip


def test_the_same_log_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_summary(tmp_path / name, summarise(demo().events))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "summary.json"
    write_summary(target, {"version": 1})
    before = target.read_bytes()
    target.chmod(0o600)
    with pytest.raises(TypeError):
        write_summary(target, {"version": object()})
    with pytest.raises(OSError, match="summary"):
        write_atomically(tmp_path / "missing" / "summary.json", b"x")
    assert target.read_bytes() == before
    assert list(tmp_path.iterdir()) == [target]


def test_the_documentation_explains_every_promised_key_and_cause() -> None:
    page = (Path(__file__).parents[2] / "docs" / "summary.md").read_text()
    for name in (*PROMISED - {"model", "parameters"}, *CAUSES):
        assert f"`{name}`" in page, name


def test_each_source_has_given_its_share_of_the_kept_steps():
    sources = [
        {"name": "code", "share": 1 << 18, "sequences": 10},
        {"name": "web", "share": 3 << 18, "sequences": 1000},
    ]
    story = Story().start(sources=sources).steps(1, 5, generation=1)
    assert [(s["name"], s["share"], s["samples"], s["epochs"])
            for s in summarise(story.events)["sources"]] == [
        ("code", 0.25, 10, 1.0), ("web", 0.75, 30, 0.03),
    ]  # fmt: skip
    assert summarise(Story().start().steps(1, 5, generation=1).events)["sources"] == []


def test_a_durable_step_that_only_the_next_controller_tells_of_counts_once() -> None:
    found = {"step": 5, "bytes": 9, "seconds": 0.0, "path": "x", "found": True}
    story = Story().start().nodes("node-1").generation(1, "node-1").steps(1, 6, generation=1)
    assert summarise(story.events)["committed_steps"] < 5
    story.start("resumed").say("persisted", **found)
    once = summarise(story.events)
    assert once["committed_steps"] == 5
    story.start("resumed").say("persisted", **found).say("save_asked", why="key s")
    story.say("persisted", **found)
    history = replay(story.events)
    assert [durable.step for durable in history.durable] == [5]
    assert history.save_asked, "an old step is no answer to a wish to save"
