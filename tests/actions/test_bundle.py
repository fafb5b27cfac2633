"""action=debug.bundle: what is in it, and what never is."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from actions.console import Console
from actions.debug import bundle
from sailor.errors import ConfigError
from sailor.observe.events import EventLog
from tests.helpers.compose import a_config

SECRETS = (
    "AKIAIOSFODNN7EXAMPLE",
    "hf_abcdefghijklmnopqrstuvwxyz0123",
    "sk-abcdefghijklmnopqrstuvwxyz012345",
    "swordfish",
    "MIIEvQIBADANBgkqhkiG9w0BAQ",
)


@pytest.fixture
def folder(tmp_path):
    """A run folder with a secret in each of its files, as somebody careless may leave it."""
    folder = tmp_path / "runs" / "mine"
    (folder / "logs").mkdir(parents=True)
    (folder / ".identity").mkdir()
    (folder / "checkpoints").mkdir()
    key = f"-----BEGIN PRIVATE KEY-----\n{SECRETS[4]}\n-----END PRIVATE KEY-----\n"
    (folder / ".identity" / "key.pem").write_text(key)
    (folder / "checkpoints" / "weights.safetensors").write_text("weights")
    (folder / "config.yaml").write_text(f"data: {{cache: {SECRETS[1]}}}\n")
    (folder / "journal.json").write_text(json.dumps({"generation": 3, "password": "swordfish"}))
    (folder / "logs" / "agent.log").write_text(f"{key}token={SECRETS[2]}\n" + "line\n" * 100_000)
    with EventLog(folder / "events.jsonl", run="mine") as log:
        for step in range(bundle.LAST_EVENTS + 10):
            log.write("committed", step=step)
    with (folder / "events.jsonl").open("a") as file:
        file.write(f'{{"kind": "torn", "why": "{SECRETS[0]}')
    return folder


def unpacked(path):
    with tarfile.open(path) as archive:
        return {
            member.name.partition("/")[2]: archive.extractfile(member).read().decode()
            for member in archive.getmembers()
        }


def made(tmp_path, *arguments):
    console = Console(command="python run.py action=debug.bundle")
    assert bundle.run(a_config(f"runs_dir={tmp_path / 'runs'}", *arguments), console) == 0
    return unpacked(console.documents[0]["path"]), console.documents[0]


def test_a_bundle_has_what_explains_a_run_and_neither_keys_nor_weights(folder, tmp_path):
    members, _ = made(tmp_path, "run.name=mine")
    assert {"versions.txt", "config.yaml", "journal.json", "events.jsonl", "logs/agent.log"} <= set(
        members
    )
    assert not [name for name in members if "identity" in name or "checkpoint" in name]
    assert "torch==" in members["versions.txt"]


def test_no_secret_is_in_a_bundle(folder, tmp_path):
    members, document = made(tmp_path, "run.name=mine")
    everything = "\n".join(members.values())
    for secret in SECRETS:
        assert secret not in everything
    assert "[redacted]" in members["journal.json"]
    assert Path(document["path"]).stat().st_mode & 0o077 == 0


def test_logs_and_events_are_cut_to_their_ends(folder, tmp_path):
    members, _ = made(tmp_path, "run.name=mine")
    assert len(members["events.jsonl"].splitlines()) == bundle.LAST_EVENTS
    assert members["logs/agent.log"].startswith("(the last 262,144 of ")
    assert members["logs/agent.log"].endswith("line\n")


def test_the_newest_run_is_meant_where_none_is_named(folder, tmp_path):
    assert made(tmp_path)[1]["path"].endswith("sailor-bundle-mine.tar.gz")


def test_without_any_run_there_are_versions_and_tracebacks(tmp_path):
    members, document = made(tmp_path)
    assert "versions.txt" in members
    assert document["path"].endswith("sailor-bundle-no-run.tar.gz")


def test_a_run_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match="no run other") as caught:
        made(tmp_path, "run.name=other")
    assert caught.value.code == "E608"
