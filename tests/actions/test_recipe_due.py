"""When a step is done again: a rule over values, without a file."""

from __future__ import annotations

import pytest

from actions.recipe.due import earlier_results, why_due
from actions.recipe.inputs import inputs_of
from actions.recipe.outputs import Output
from actions.recipe.record import DONE, FAILED, RUNNING, SKIPPED, STOPPED, StepRecord
from tests.helpers.compose import a_config

MADE = (Output(kind="file", path="a", digest="1"),)


def a_record(state=DONE, **said):
    values = {"step": "eval", "since": 1.0, "inputs": {"k": 1}, "earlier": "e", "outputs": MADE}
    return StepRecord(state=state, **(values | said))


def due(record, *, step="eval", inputs=None, earlier="e", missing=""):
    return why_due(
        step, record, inputs={"k": 1} if inputs is None else inputs, earlier=earlier,
        missing=lambda outputs: missing,
    )  # fmt: skip


@pytest.mark.parametrize("state", [DONE, SKIPPED])
def test_what_was_done_and_is_unchanged_is_left_out(state):
    assert due(a_record(state)) == ""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"inputs": {"k": 2}}, "k was 1, is 2"),
        ({"earlier": "other"}, "a step before it made something else"),
        ({"missing": "a is gone"}, "a is gone"),
    ],
)
def test_a_changed_setting_result_or_output_is_a_reason(change, why):
    assert due(a_record(), **change) == why


def test_a_setting_that_came_with_a_version_is_no_reason():
    assert due(a_record(), inputs={"k": 1, "new": 5}) == ""


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (None, "not done yet"),
        (a_record(FAILED, exit_code=5, why="E501 none"), "failed before (exit 5): E501 none"),
        (a_record(STOPPED), "goes on where it stopped"),
        (a_record(RUNNING), "was ended by force"),
    ],
)
def test_what_was_never_finished_is_to_do(record, why):
    assert due(record) == why


def test_a_check_of_the_world_is_never_left_out():
    assert due(a_record(step="check"), step="check") != ""


def test_training_looks_at_tokens_only_and_the_rest_at_everything_before():
    tokens = {"prepare": MADE}
    planned = {**tokens, "plan": (Output(kind="file", path="p", digest="2"),)}
    assert earlier_results("train", tokens) == earlier_results("train", planned)
    assert earlier_results("eval", tokens) != earlier_results("eval", planned)


@pytest.mark.parametrize(
    ("word", "concerned"),
    [
        ("train.steps=9", {"plan", "train"}),
        ("eval.tokens=9", {"eval"}),
        ("export.dtype=bfloat16", {"export"}),
        ("budget.total_usd=9", {"plan"}),
        ("optim.learning_rate=9", {"train"}),
        ("ui=plain", set()),
        ("tracker=csv", {"report"}),
        ("cloud.standbys=1", {"plan"}),
        ("seed=5", {"train"}),
    ],
)
def test_a_setting_concerns_the_steps_that_look_at_it(word, concerned):
    key = word.partition("=")[0]
    steps = ("prepare", "plan", "train", "eval", "export", "report")
    before, now = a_config(), a_config(word)
    changed = {step for step in steps if inputs_of(step, before) != inputs_of(step, now)}
    assert changed == concerned, key


def test_text_of_one_source_of_a_mixture_that_changes_is_noticed(tmp_path):
    for name in ("web", "code"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(name * 100)
    config = a_config(
        "data=mixture", f"data.mixture.web.path={tmp_path}/web", "data.mixture.web.weight=3",
        f"data.mixture.code.path={tmp_path}/code",
    )  # fmt: skip
    before = inputs_of("prepare", config)
    (tmp_path / "code" / "a.txt").write_text("other" * 50)
    after = inputs_of("prepare", config)
    assert {key for key in after if before[key] != after[key]} == {"the text of code"}
