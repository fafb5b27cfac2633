"""Before anything is touched: ports and clouds that cannot be used."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import socket

import pytest

from actions.domain import HERE
from actions.preflight import check_checkpoints, check_cloud, check_port
from sailor.errors import CloudError, ConfigError, DataError
from tests.helpers.compose import a_config


@pytest.fixture
def taken():
    """A port this process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_that_is_taken_is_refused_with_who_has_it(taken):
    with pytest.raises(ConfigError) as refusal:
        check_port(a_config(f"runtime.port={taken}"))
    assert refusal.value.code == "E602"
    assert str(os.getpid()) in refusal.value.why
    assert "runtime.port=0" in refusal.value.fix


def test_a_free_port_and_no_port_pass(taken):
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    check_port(a_config(f"runtime.port={free}"))
    check_port(a_config())


def test_an_address_that_is_not_ours_is_refused():
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1 cannot be used"):
        check_port(a_config("runtime.host=192.0.2.1", "runtime.port=5000"))


@pytest.mark.parametrize("cloud", HERE)
def test_this_computer_can_be_trained_on(cloud):
    check_cloud(a_config(f"cloud={cloud}"))


def with_skypilot(monkeypatch, there: bool):
    """As if SkyPilot were installed here, or not: a module search path that says so."""
    spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: (
            (importlib.machinery.ModuleSpec("sky", None) if there else None)
            if name == "sky" else spec(name, *rest)
        ),
    )  # fmt: skip


REACHED = ("runtime.host=0.0.0.0", "runtime.address=198.51.100.7")


@pytest.mark.parametrize(
    ("words", "code", "fix"),
    [
        (["cloud=gcp"], "E407", "runtime.address=ADDRESS"),
        (["cloud=gcp", "runtime.address=198.51.100.7"], "E407", "runtime.host=0.0.0.0"),
        (["cloud=gcp", *REACHED], "E408", "checkpoint.directory=/SHARED/FOLDER"),
        (["cloud=slurm"], "E407", "runtime.address=ADDRESS"),
        (
            ["cloud=gcp", "runtime.host='[::1]'", "runtime.address=fd00::7"],
            "E407",
            "runtime.host=0.0.0.0",
        ),
    ],
    ids=["no address", "address of a loopback", "no shared folder", "slurm", "IPv6's loopback"],
)
def test_a_cloud_whose_machines_could_not_work_is_refused_before_any_is_rented(
    monkeypatch, words, code, fix
):
    with_skypilot(monkeypatch, True)
    with pytest.raises(ConfigError) as refusal:
        check_cloud(a_config(*words))
    assert refusal.value.code == code
    assert fix in refusal.value.fix


def test_a_cloud_with_an_address_and_a_folder_passes(monkeypatch):
    with_skypilot(monkeypatch, True)
    check_cloud(a_config("cloud=gcp", *REACHED, "checkpoint.directory=/mnt/shared"))
    check_cloud(a_config("cloud=slurm", "runtime.address=127.0.0.1"))


def test_without_skypilot_the_extra_is_named_and_that_planning_works(monkeypatch):
    with_skypilot(monkeypatch, False)
    with pytest.raises(CloudError) as refusal:
        check_cloud(a_config("cloud=gcp"))
    assert (refusal.value.code, refusal.value.exit_code) == ("E406", 4)
    assert "pip install 'sailor-train[cloud]'" in refusal.value.fix
    assert "action=plan" in refusal.value.fix


def test_a_store_that_nobody_knows_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="no store is called s4") as refusal:
        check_checkpoints(a_config("checkpoint.directory=s4://bucket/run"))
    assert "s3://" in refusal.value.fix


@pytest.mark.skipif(importlib.util.find_spec("gcsfs") is not None, reason="gcsfs is installed")
def test_a_store_whose_package_is_missing_says_what_to_install():
    with pytest.raises(ConfigError) as refusal:
        check_checkpoints(a_config("checkpoint.directory=gs://bucket/run"))
    assert refusal.value.code == "E605"
    assert refusal.value.fix == "pip install 'sailor-train[gs]'"


def test_a_store_that_does_not_answer_is_told_before_anything_is_rented():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/run"
    with pytest.raises((DataError, ConfigError)) as refusal:
        check_checkpoints(a_config(f"checkpoint.directory={address}"))
    # fsspec's http needs aiohttp, which is no requirement of ours.
    missing = importlib.util.find_spec("aiohttp") is None
    assert refusal.value.code == ("E605" if missing else "E611")


def test_stores_that_answer_and_folders_pass(tmp_path):
    check_checkpoints(a_config("checkpoint.directory=memory://a-run-of-nobody"))
    check_checkpoints(a_config(f"checkpoint.directory={tmp_path}"))
