"""Why keys travel as files: what SkyPilot does with a task's ``secrets``, by SkyPilot's own code.

Nothing is launched. When one of these fails, SkyPilot has learned to keep a secret, and
docs/decisions/skypilot.md is to be thought over.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.conftest import has_skypilot

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not has_skypilot(), reason="SkyPilot is not installed"),
]

ASK = """
import base64, json, sky
from sky.server.requests import payloads
from sky.server.requests.serializers import encoders
from sky.skylet import log_lib
from sky.task import get_plaintext_envs_and_secrets
from sky.utils import dag_utils
with sky.Dag() as dag:
    task = sky.Task(name="agent", setup="true", run="true", secrets={"KEY": "TOP-SECRET"})
shown = task.to_yaml_config(use_user_specified_yaml=True)
body = payloads.LaunchBody(task=dag_utils.dump_chain_dag_to_yaml_str(dag), cluster_name="c")
row = base64.b64decode(encoders.pickle_and_encode(body))  # the column request_body
variables = get_plaintext_envs_and_secrets(task.envs_and_secrets)
print(json.dumps({
    "repr": "TOP-SECRET" in repr(task), "request": b"TOP-SECRET" in row,
    "script": "TOP-SECRET" in log_lib.make_task_bash_script("true", env_vars=variables),
}))
"""


def test_skypilots_secrets_are_kept_in_its_database_and_written_into_scripts(
    tmp_path: Path,
) -> None:
    asked = subprocess.run(
        [sys.executable, "-c", ASK], cwd=tmp_path, capture_output=True, text=True, timeout=500,
        env={**os.environ, "HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"},
    )  # fmt: skip
    assert asked.returncode == 0, asked.stderr[-2000:]
    told = json.loads(asked.stdout.splitlines()[-1])
    assert told == {"repr": False, "request": True, "script": True}
