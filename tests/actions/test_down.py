"""action=down: what a killed run left behind is ended, and said to be."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from actions import down
from actions.console import Console
from actions.run_folder import hold
from provision.local import RECORD
from provision.machines import MachineRecord
from provision.processes import living_members
from sailor.config import Output
from sailor.errors import ConfigError
from sailor.observe.events import EventLog, read_events
from tests.helpers.compose import ROOT, a_config
from tests.helpers.rigs import make


def a_killed_run(folder: Path) -> None:
    """A process that had three machines here and was killed."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("seed: 0\n")
    killed = subprocess.run(
        [sys.executable, "-m", "tests.helpers.rigs", "local", str(folder), ""], cwd=ROOT, timeout=60
    )
    assert killed.returncode == -signal.SIGKILL


def alive(folder: Path) -> list[str]:
    remaining = MachineRecord(folder / RECORD).remaining()
    return [m.node for m in remaining if living_members(mark=m.mark, leader=m.leader)]


def take_down(*words: str) -> list[dict[str, object]]:
    console = Console(output=Output.json)
    assert down.run(a_config("action=down", *words), console) == 0
    return console.documents[-1]


def test_machines_of_a_killed_run_are_ended_and_the_log_says_so(tmp_path):
    folder = tmp_path / "runs" / "otter"
    a_killed_run(folder)
    with EventLog(folder / "events.jsonl", run="otter") as events:
        events.write(
            "node_requested", node="node-1", zone="a", machine_type="m", spot=False,
            price_per_hour=0.0,
        )  # fmt: skip
    assert len(alive(folder)) == 3
    proofs = take_down(f"runs_dir={tmp_path / 'runs'}", "run.name=otter")
    assert {proof["node"] for proof in proofs} == {"node-1", "node-2", "node-3"}
    assert all(proof["released"] for proof in proofs)
    assert alive(folder) == []
    told = [event["node"] for event in read_events(folder / "events.jsonl")][1:]
    assert sorted(told) == ["node-1", "node-2", "node-3"]
    assert json.loads((folder / "summary.json").read_text())["released"] is True
    assert take_down(f"runs_dir={tmp_path / 'runs'}", "run.name=otter") == []


def test_all_takes_down_every_run_but_one_that_goes_on(tmp_path):
    runs = tmp_path / "runs"
    for name in ("heron", "otter"):
        a_killed_run(runs / name)
    with hold(runs / "heron", name="heron"):
        # A lock is a process's own: another one looks.
        code = (
            "from actions import down\nfrom actions.console import Console\n"
            "from tests.helpers.compose import a_config\n"
            f"config = a_config('action=down', 'runs_dir={runs}', 'run.all=true')\n"
            "raise SystemExit(down.run(config, Console()))"
        )
        ended = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
    assert ended.returncode == 0, ended.stderr
    assert "heron goes on" in ended.stdout
    assert (len(alive(runs / "heron")), alive(runs / "otter")) == (3, [])
    take_down(f"runs_dir={runs}", "run.name=heron")
    assert alive(runs / "heron") == []


@pytest.mark.parametrize(
    ("words", "why"), [((), "run.all=false"), (("run.name=nobody",), "nobody")]
)
def test_a_run_must_be_named_and_exist(tmp_path, words, why):
    with pytest.raises(ConfigError) as refusal:
        take_down(f"runs_dir={tmp_path}", *words)
    assert refusal.value.code == "E608"
    assert why in refusal.value.render()


def test_clusters_of_a_killed_run_are_ended_through_its_launcher(tmp_path):
    folder = tmp_path / "run"
    killed = subprocess.run(
        [sys.executable, "-m", "tests.helpers.rigs", "clusters", str(tmp_path), ""],
        cwd=ROOT, timeout=60,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL

    async def check() -> None:
        rig = make("clusters", tmp_path, broken=False, slow=False)
        assert len(rig.machines()) == 3
        cloud = rig.provisioner.launcher
        proofs = await down.end_run(folder, launcher=cloud)
        assert len(proofs) == 3
        assert rig.machines() == set()

    asyncio.run(check())
