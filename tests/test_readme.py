"""The README's two commands are the ones that are run, and they work from nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from tests.helpers.compose import ROOT
from tools import browser, terminal

README = (ROOT / "README.md").read_text()
RUN = "pip install -e . && python run.py"
TEST = "pip install -e '.[dev]' && python -m pytest -q -n 2"


def test_the_readme_prints_the_two_commands_each_in_a_block_of_its_own():
    blocks = re.findall(r"```sh\n(.*?)```", README, re.S)
    assert blocks[:2] == [f"{RUN}\n", f"{TEST}\n"]


def test_ci_runs_the_readmes_test_command():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    install, test = TEST.split(" && ")
    assert lines.index(install) < lines.index(test)
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_ci_checks_what_contributors_check():
    script = (ROOT / ".ci" / "run").read_text()
    for check in re.findall(r"^\t(.*)$", (ROOT / "Makefile").read_text(), re.M):
        assert check in script


@pytest.mark.slow
@pytest.mark.timeout(2700)
@pytest.mark.skipif("SAILOR_README" not in os.environ, reason="installs: set SAILOR_README=1")
def test_the_first_command_works_from_nothing(tmp_path):
    """A copy of the project, a new environment, the README's line: it trains and says so. Then the
    same in terminals of two sizes, with its page and its report in a browser, looked at."""
    project = tmp_path / "project"
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in filter(None, files):
        target = project / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    script = f'. "{tmp_path}/venv/bin/activate" && {RUN}'
    ended = subprocess.run(
        ["bash", "-c", script], cwd=project, capture_output=True, text=True, timeout=1700
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    (summary,) = (project / "runs").glob("*/summary.json")
    document = json.loads(summary.read_text())
    assert document["status"] == "done"
    assert document["eval_loss"] < document["eval_loss_first"] - 0.5
    if browser.why_not() or terminal.why_not():
        return  # the rest of the walk is looked at
    walked = subprocess.run(
        [sys.executable, "-m", "tools.pictures", "--into", tmp_path / "img", "--project", project,
         "--python", tmp_path / "venv" / "bin" / "python"],
        cwd=ROOT, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert walked.returncode == 0, walked.stdout + walked.stderr
