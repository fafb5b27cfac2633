"""action=check: what is missing, with a command for each; and nobody outside is dialled for it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.compose import ROOT

# Every address that Python code of a process asks for, one a line, beside what it prints.
LISTENING = """
import sys
def see(event, args):
    if event in ("socket.connect", "socket.getaddrinfo"):
        print("DIALLED", args[-1] if event == "socket.connect" else args[0], file=sys.stderr)
sys.addaudithook(see)
sys.argv = ["run.py", *sys.argv[1:]]
sys.path.insert(0, {root!r})
import run
run.main()
"""


def check(home: Path, *words: str, **environment: str) -> tuple[int, list[dict], str]:
    """Exit code, findings and standard error of the command, by a user who has nothing."""
    kept = {k: v for k, v in os.environ.items()
            if not k.startswith(("AWS_", "GOOGLE_", "AZURE_", "CLOUDSDK_", "KUBE"))}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", LISTENING.format(root=str(ROOT)), "action=check", "output=json",
         *words],
        env={**kept, "HOME": str(home), **environment}, cwd=home, capture_output=True, text=True,
        timeout=100,
    )  # fmt: skip
    assert done.returncode in (0, 4), done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def of(findings: list[dict], what: str) -> dict:
    return next(finding for finding in findings if finding["what"] == what)


def test_this_computer_lacks_nothing(tmp_path):
    code, findings, _ = check(tmp_path)
    assert all(finding["fine"] for finding in findings)
    assert code == 0


@pytest.mark.parametrize("cloud", ["azure", "lambda", "runpod", "kubernetes", "slurm"])
def test_a_cloud_without_access_says_where_it_looked_and_what_to_do(tmp_path, cloud):
    code, findings, said = check(tmp_path, f"cloud={cloud}")
    assert code == 4
    access = of(findings, f"access to {cloud}")
    assert (access["fine"], access["code"]) == (False, "E401")
    assert access["fix"]
    assert "~/" in access["found"]
    assert "DIALLED" not in said


@pytest.mark.parametrize(
    ("cloud", "library", "fix"),
    [("gcp", "google.cloud.compute_v1", "gcloud auth application-default login"),
     ("aws", "boto3", "aws configure")],
)  # fmt: skip
def test_without_credentials_the_login_is_named_and_nobody_is_dialled(
    tmp_path, cloud, library, fix
):
    code, findings, said = check(tmp_path, f"cloud={cloud}")
    assert code == 4
    lack = of(findings, f"anything of {cloud}")
    try:  # others may have brought the package that it is in: then only the library is missing
        installed = importlib.util.find_spec(library) is not None
    except ModuleNotFoundError:
        installed = False
    if installed:
        assert (lack["code"], lack["fix"]) == ("E401", fix)
    else:
        assert lack["code"] == "E605"
        assert lack["fix"].startswith("pip install")
    assert "DIALLED" not in said


def test_an_address_and_a_folder_are_found_when_they_are_said(tmp_path):
    (tmp_path / ".slurm").mkdir()
    (tmp_path / ".slurm" / "config").write_text("Host mine\n")
    code, findings, _ = check(tmp_path, "cloud=slurm", "runtime.address=127.0.0.1")
    assert of(findings, "access to slurm")["fine"]
    if importlib.util.find_spec("sky") is not None:
        assert of(findings, "machines reach us, and a place for checkpoints")["fine"]
        assert code == 0
    else:
        assert of(findings, "SkyPilot")["code"] == "E406"
        assert code == 4


def test_a_plan_says_what_could_not_be_learnt_and_is_made_all_the_same(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "run.py"), "action=plan", "model=gpt_1b", "cloud=gcp",
         "cloud.live=true"],
        env={**os.environ, "HOME": str(tmp_path)}, cwd=tmp_path, capture_output=True, text=True,
        timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "not learnt: anything of gcp" in done.stdout
    assert "the built-in catalogue is used" in done.stdout
