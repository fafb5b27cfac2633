"""What Hydra does by itself that nobody would expect, and what ours does instead.

Other traps have their tests elsewhere: unknown keys, grammar, exit codes and secrets in
test_command.py, units in test_rules.py, signals and folders in use in end_to_end/test_stopping.py,
sweeps and their exit codes in end_to_end/test_sweeps.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.helpers.compose import ROOT

RUN = [sys.executable, str(ROOT / "run.py")]


def call(folder, *arguments, **more):
    environment = {**os.environ, "PYTHONWARNINGS": "default", **more}
    return subprocess.run(
        [*RUN, *arguments], cwd=folder, capture_output=True, text=True, timeout=120, env=environment
    )


@pytest.mark.parametrize(
    "arguments",
    [["-cd", "missing"], ["hydra.searchpath=[file:///nowhere/at/all]"]],
    ids=["config-dir", "searchpath"],
)
def test_a_folder_of_options_that_is_not_there_is_an_error_and_no_python_warning(
    tmp_path, arguments
):
    """Hydra prints a UserWarning, twice wrapped, and goes on without the folder."""
    ended = call(tmp_path, *arguments, "action=status")
    assert ended.returncode == 2
    assert ended.stderr.startswith("error[E103] ")
    assert "Warning" not in ended.stderr


def test_a_sweep_over_a_pattern_runs_what_it_matches(tmp_path):
    ended = call(tmp_path, "-m", "action=status", "model=glob(gpt_1*)", "output=json")
    assert ended.returncode == 0, ended.stderr
    assert len(json.loads(ended.stdout)) == 2


def test_a_pattern_that_matches_nothing_is_an_error(tmp_path):
    """Hydra runs no job and ends with 0."""
    ended = call(tmp_path, "-m", "action=status", "model=glob(nothing_like_it*)")
    assert ended.returncode == 2
    assert "error[E103] the sweep has no jobs" in ended.stderr


def test_two_starts_in_the_same_second_do_not_share_a_folder(tmp_path):
    """Hydra names its folder after the second: three starts once shared one."""
    words = ["-m", "action=status", "seed=1,2"]
    starts = [
        subprocess.Popen([*RUN, *words], cwd=tmp_path, stdout=subprocess.DEVNULL) for _ in range(3)
    ]
    assert [start.wait(120) for start in starts] == [0, 0, 0]
    assert len(list((tmp_path / "runs" / "sweeps").glob("*/summary.json"))) == 3


def test_the_resolved_configuration_needs_neither_torch_nor_a_cloud(tmp_path):
    code = (
        f"import sys, runpy; sys.argv = ['run.py', '--cfg', 'job', '--resolve']\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        f"try: runpy.run_path({str(ROOT / 'run.py')!r}, run_name='__main__')\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'sky', 'boto3', 'google.cloud'} & set(sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "${" not in ended.stdout.replace("${now", "")


@pytest.mark.parametrize("topic", ["defaults", "searchpath", "config", "all"])
def test_info_shows_what_is_read(tmp_path, topic):
    ended = call(tmp_path, "--info", topic, "model=gpt_1b")
    assert ended.returncode == 0, ended.stderr
    assert {"defaults": "gpt_1b", "searchpath": "conf", "config": "num_layers", "all": "Search"}[
        topic
    ] in ended.stdout


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("model=gpt_1", {"model=gpt_125m", "model=gpt_1b"}), ("budget.to", {"budget.total_usd="})],
)
def test_tab_completes_options_and_keys(tmp_path, typed, offered):
    """The words of the flag are no settings; they once were refused as unknown keys."""
    assert "complete" in call(tmp_path, "-sc", "install=bash").stdout
    line = f"python run.py {typed}"
    ended = call(
        tmp_path, "-sc", "query=bash", COMP_LINE=line, COMP_POINT=str(len(line)), COMP_CWORD="2"
    )
    assert ended.returncode == 0, ended.stderr
    assert set(ended.stdout.split()) == offered


def test_a_reader_that_goes_away_is_no_bug(tmp_path):
    """``run.py ... | head`` once ended as E901."""
    line = f"{sys.executable} {ROOT / 'run.py'} --cfg job | head -1; echo ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True)
    assert "E901" not in ended.stderr
    assert "Exception" not in ended.stderr
    assert ended.stdout.splitlines()[-1] in ("0", "141")
