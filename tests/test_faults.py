"""A script of faults says what goes wrong, when and to whom, or why it cannot be read."""

from __future__ import annotations

import json

import pytest

from actions import domain
from sailor.errors import ConfigError
from sailor.faults import Fault, FaultKind, read_script
from tests.helpers.compose import a_config


def test_a_moment_is_a_step_a_share_of_all_steps_or_a_time():
    script = read_script(
        [
            {"kind": "join", "at": "20s"},
            {"kind": "kill_node", "at": 120},
            {"kind": "preempt", "at": "40%", "target": "node-1", "notice": "5s"},
        ],
        total_steps=200,
    )
    assert script == (
        Fault(kind=FaultKind.preempt, at_step=80, target="node-1", notice_seconds=5.0),
        Fault(kind=FaultKind.kill_node, at_step=120),
        Fault(kind=FaultKind.join, at_seconds=20.0),
    )


@pytest.mark.parametrize(
    ("entry", "same"),
    [
        ({"kind": "join", "step": 5}, {"kind": "join", "at": 5}),
        ({"kind": "join", "at_step": 5}, {"kind": "join", "at": "5"}),
        ({"kind": "join", "second": 5}, {"kind": "join", "at": "5s"}),
        ({"kind": "preempt", "at": 1, "notice": 30}, {"kind": "preempt", "at": 1, "notice": "30s"}),
        ({"kind": "join", "at": 1, "node": "n"}, {"kind": "join", "at": 1, "target": "n"}),
    ],
)  # fmt: skip
def test_other_words_for_the_same(entry, same):
    assert read_script([entry], total_steps=10) == read_script([same], total_steps=10)


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({"kind": "explode", "at": 1}, "explode"),
        ({"at": 1}, "kind"),
        ({"kind": "join"}, "say when"),
        ({"kind": "join", "at": 1, "second": 3}, "say when"),
        ({"kind": "join", "at": "140%"}, "140%"),
        ({"kind": "join", "at": "later"}, "later"),
        ({"kind": "join", "at": -1}, "duration|less than 0"),
        ({"kind": "join", "at": 1, "wen": 2}, "wen"),
        ("join", "mapping"),
    ],
)
def test_an_entry_that_cannot_be_read_is_named(entry, complaint):
    with pytest.raises(ValueError, match=complaint) as refusal:
        read_script([{"kind": "join", "at": 1}, entry], total_steps=10)
    assert "entry 2" in str(refusal.value)


def test_the_demonstration_preempts_kills_and_joins():
    kinds = [fault.kind for fault in domain.faults(a_config())]
    assert kinds == [FaultKind.preempt, FaultKind.kill_node, FaultKind.join]


def test_the_demonstration_harms_nothing_on_a_cloud_that_costs_money():
    assert domain.faults(a_config("cloud=gcp")) == ()


def test_a_script_of_ones_own_is_refused_where_machines_cost_money(tmp_path):
    path = tmp_path / "faults.yaml"
    path.write_text("[{kind: kill_node, at: 3}]")
    with pytest.raises(ConfigError, match="cannot be injected with cloud=gcp"):
        domain.faults(a_config("cloud=gcp", f"faults={path}"))


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_script_comes_from_a_file(tmp_path, suffix):
    path = tmp_path / f"my faults.{suffix}"
    entries = [{"kind": "kill_worker", "at": 3, "target": "node-0/0"}]
    path.write_text(json.dumps(entries if suffix == "yaml" else {"script": entries}))
    (fault,) = domain.faults(a_config(f"faults={path}"))
    assert fault == Fault(kind=FaultKind.kill_worker, at_step=3, target="node-0/0")


@pytest.mark.parametrize("text", ["", "kind: join", "{", "[1]", "[{kind: join, at: never}]"])
def test_a_file_that_is_no_script_is_refused(tmp_path, text):
    path = tmp_path / "faults.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refusal:
        domain.faults(a_config(f"faults={path}"))
    assert refusal.value.code == "E105"
    assert str(path) in refusal.value.what


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="No such file|cannot be used"):
        domain.faults(a_config(f"faults={tmp_path / 'nothing.yaml'}"))
