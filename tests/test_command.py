"""The command as people call it: a process, its exit code, and who reads which stream."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

import run
from actions import ACTIONS
from sailor.errors import (
    CloudError,
    ConfigError,
    DataError,
    Diverged,
    Interrupted,
    LimitReached,
    NoFeasiblePlan,
    SailorError,
)
from tests.helpers.compose import ROOT


@pytest.fixture
def call(tmp_path):
    """Run the command in an empty folder; what it printed and how it ended."""

    def run_it(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(ROOT / "run.py"), *arguments],
            cwd=tmp_path, capture_output=True, text=True, timeout=60,
            env={**os.environ, "PYTHONWARNINGS": "error"},
        )  # fmt: skip

    return run_it


def leftovers(tmp_path):
    return [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")]


def test_help_names_every_action_and_group_and_needs_neither_hydra_nor_torch(call):
    code = "import sys, runpy; sys.argv = ['run.py', '--help']\n"
    code += f"try: runpy.run_path({str(ROOT / 'run.py')!r}, run_name='__main__')\n"
    code += "except SystemExit as end: assert end.code == 0\n"
    code += "assert not {'hydra', 'torch', 'numpy', 'rich'} & set(sys.modules)"
    page = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert page.returncode == 0, page.stderr
    for action in ACTIONS:
        assert action in page.stdout
    for path in (ROOT / "conf").glob("*/*.yaml"):
        assert path.parent.name in page.stdout
        assert path.stem in page.stdout


def test_the_configuration_can_be_printed_and_nothing_is_written(call, tmp_path):
    shown = call("--cfg", "job", "model=gpt_1b")
    assert shown.returncode == 0
    assert "name: gpt_1b" in shown.stdout
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["modle=gpt_1b", "+optim.lr=1"], "E101", ["did you mean model?", "fix"]),
        (["model=gpt_2b"], "E102", ["nearest first: gpt_", "python run.py model=gpt_"]),
        (["budget=300"], "E102", ["python run.py budget.total_usd=300"]),
        (["optim=gpt_1"], "E102", ["python run.py optim=gpt_1b"]),
        (["model=[gpt_1b,nothing]"], "E102", ["'nothing'"]),
        (["data=some/text"], "E102", ["python run.py data=text data.path=some/text"]),
        (["action=trian"], "E102", ["python run.py action=train"]),
        (["model=", "gpt_1b"], "E103", ["space after", "python run.py model=gpt_1b"]),
        (["train"], "E103", ["python run.py action=train"]),
        (["seed=1,2"], "E103", ["python run.py -m seed=1,2", "seed=[1,2]"]),
        (["run.name=a=b"], "E103", ["quotes", "run.name='a=b'"]),
        (["+model=gpt_1b"], "E103", ["python run.py model=gpt_1b"]),
        (["-cn", "nothing"], "E103", ["nothing"]),
        (["runs_dir=${oc.env:NO_SUCH_VARIABLE}"], "E103", ["NO_SUCH_VARIABLE"]),
        (["budget.deadline=24"], "E104", ["python run.py budget.deadline=24h"]),
        (["recipe=spot_chaos_dmo"], "E102", ["python run.py recipe=spot_chaos_demo"]),
        (["recipe=a,b"], "E103", ["one recipe at a time", "-m"]),
        (["action=recipe"], "E104", ["recipe=NAME", "action=recipe.list"]),
        (["action=recipe.copy"], "E104", ["name=NAME"]),
        (["recipe.smoke=true"], "E104", ["recipe=NAME"]),
        (["recipe.smok=true"], "E101", ["recipe.smoke=true"]),
        (["data.cache=hf_abcdefghijklmnopqrstuvwxyz0123"], "E107", ["data.cache"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value,
)
def test_a_slip_gets_one_message_with_a_way_out_and_exit_2(call, tmp_path, arguments, code, words):
    ended = call(*arguments)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"error[{code}] ")
    assert ended.stderr.count("error[") == 1
    assert "Traceback" not in ended.stderr
    for word in words:
        assert word in ended.stderr
    assert "hf_abcdef" not in ended.stderr
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (["model=gpt_1b"], 3, ["error[E301]", "memory_per_gpu"]),
        (["planner.tensor_parallel=3"], 3, ["error[E304]", "num_heads 4"]),
        (["budget.deadline=1s"], 3, ["error[E303]", "budget.deadline="]),
        (["cloud=gcp"], 4, ["error[E406]", "action=plan"]),
        (["data=text", "data.path=nowhere"], 5, ["error[E501]", "data.path"]),
        (["model.vocab_size=100"], 5, ["error[E505]", "model.vocab_size=256"]),
        (["faults=nothing.yaml"], 2, ["error[E105]", "nothing.yaml"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else str(value),
)
def test_what_cannot_be_trained_is_refused_before_it_starts(
    call, tmp_path, arguments, exit_code, words
):
    ended = call(*arguments)
    assert ended.returncode == exit_code, ended.stderr
    assert ended.stderr.count("error[") == 1
    for word in words:
        assert word in ended.stderr
    assert [path for path in leftovers(tmp_path) if "events" in path or "checkpoints" in path] == []


def test_a_port_that_is_taken_is_refused_before_it_starts(call):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        ended = call(f"runtime.port={port}")
    assert ended.returncode == 2
    assert "error[E602]" in ended.stderr


def test_a_path_without_text_is_exit_5(call, tmp_path):
    (tmp_path / "empty").mkdir()
    ended = call("action=prepare", "data=text", "data.path=empty", "data.cache=cache")
    assert ended.returncode == 5
    assert "error[E501]" in ended.stderr
    assert leftovers(tmp_path) == ["empty"]


def test_json_output_is_one_document_whatever_happens(call):
    fine = call("action=status", "output=json")
    assert (fine.returncode, json.loads(fine.stdout)) == (0, [])
    wrong = call("action=status", "output=json", "sed=1")
    document = json.loads(wrong.stdout)
    assert (wrong.returncode, document["exit_code"]) == (2, 2)
    assert document["error"]["code"] == "E101"
    assert set(document["error"]) == {"code", "what", "why", "where", "fix"}


def test_actions_run_in_order_until_one_fails(call):
    ended = call("action=[status,prepare,status]", "data=text", "data.path=nowhere", "output=json")
    assert ended.returncode == 5
    assert "E501" in ended.stderr


def test_flags_may_stand_between_overrides(call):
    shown = call("model=gpt_1b", "--cfg", "job", "-p", "model", "model.num_layers=3")
    assert "num_layers: 3" in shown.stdout, shown.stderr


def test_the_configuration_of_a_recipe_can_be_printed(call):
    shown = call("recipe=spot_chaos_demo", "--cfg", "job", "-p", "run")
    assert "name: spot_chaos_demo" in shown.stdout, shown.stderr


def test_a_model_of_ones_own_says_what_it_is_trained_with(call, tmp_path):
    (tmp_path / "own" / "model").mkdir(parents=True)
    text = (ROOT / "conf" / "model" / "gpt_tiny.yaml").read_text()
    (tmp_path / "own" / "model" / "mine.yaml").write_text(text.replace("gpt_tiny", "mine"))
    bare = call("-cd", "own", "model=mine", "action=status")
    assert bare.returncode == 2
    assert "a model of your own needs" in bare.stderr
    full = call("-cd", "own", "model=mine", "train=gpt_tiny", "optim=adamw", "action=status")
    assert full.returncode == 0, full.stderr


def test_a_bug_is_told_as_ours_with_its_traceback_in_a_file(capsys):
    session = run.Session(arguments=[])
    run.apologise(ZeroDivisionError("division by zero"), session)
    printed = capsys.readouterr().err
    assert session.exit_code == 1
    assert "error[E901]" in printed
    assert "Traceback" not in printed
    path = next(line.split()[1] for line in printed.splitlines() if "where" in line)
    with open(path) as file:
        assert "ZeroDivisionError" in file.read()
    os.unlink(path)


def test_a_missing_library_is_not_called_a_bug(capsys):
    error = ModuleNotFoundError("No module named 'hydra.core'", name="hydra.core")
    run.apologise(error, session := run.Session(arguments=[]))
    assert session.exit_code == 2
    printed = capsys.readouterr().err
    assert "error[E605]" in printed
    assert "pip install -e ." in printed


@pytest.mark.parametrize(
    ("kind", "code"),
    [(ConfigError, 2), (NoFeasiblePlan, 3), (CloudError, 4), (DataError, 5), (Diverged, 6),
     (LimitReached, 7), (Interrupted, 75), (SailorError, 1)],
)  # fmt: skip
def test_each_kind_of_error_has_its_exit_code(kind, code, capsys):
    run.fail(kind("it", code="E000"), session := run.Session(arguments=[]))
    assert session.exit_code == code
    assert capsys.readouterr().err == f"error[E000] it   (exit {code})\n"
