"""A controller's machine: what SkyPilot is asked for, and a process that outlives its starter."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tarfile
import time
from pathlib import Path

import pytest

from provision.hosts import controller_host
from provision.local import RECORD
from provision.lodging import end_here, lives_here, start_here
from provision.machines import MachineRecord
from provision.orders import ClusterOrder
from provision.payload import make_payload
from provision.placement import host_placement
from provision.sky_lodging import Lease, arguments
from provision.skypilot import Sky
from provision.tunnel import Route, tunnel
from sailor.cluster.pool import Zone
from sailor.errors import CloudError
from tests.helpers.pretend_sky import PretendSky

ORDER = ClusterOrder(
    cluster="sailor-controller-1", nodes=("controller",), zone="us-central1-a",
    machine_type="n2-highmem-2", spot=False, infra="gcp/us-central1/us-central1-a",
)  # fmt: skip
SLEEPER = (sys.executable, "-c", "import time; time.sleep(600)")


def a_lease(folder: Path, *, cloud: str = "gcp", **changes) -> Lease:
    (folder / "identity").mkdir(exist_ok=True)
    (folder / "identity" / "run.key").write_text("TOP-SECRET")
    zone = Zone(cloud=cloud, region="us-central1", name="us-central1-a")
    machine = controller_host(cloud)
    fields = {
        "cloud": cloud, "run": "Swift_Otter", "zone": zone.name, "machine_type": machine.name,
        "placement": host_placement(machine, zone=zone), "house": folder / "house", "port": 23456,
        "payload": make_payload(folder / "payload", rents="cloud"), "keeps_s": 3600.0,
        "identity": folder / "identity", "idle_minutes": 15,
    }  # fmt: skip
    return Lease(**(fields | changes))


def test_it_is_one_small_machine_on_demand_that_says_everything_but_secrets(tmp_path):
    pretend = PretendSky()
    Sky(pretend).launch(**arguments(ORDER, a_lease(tmp_path)))
    ((cluster, task),) = pretend.launched
    assert (cluster, task.num_nodes) == (ORDER.cluster, 1)
    asked = task.resources
    assert (asked["infra"], asked["instance_type"]) == (ORDER.infra, "n2-highmem-2")
    assert asked["use_spot"] is None
    assert asked["accelerators"] is None
    assert asked["autostop"] == {"idle_minutes": 15, "down": True}
    assert asked["labels"] == {"sailor-run": "swift-otter"}
    assert "ports" not in asked, "its door is reached by ssh, no port is opened to the world"
    assert task.run.endswith("bootstrap.sh controller")
    assert task.envs["SAILOR_DOOR"] == "23456"
    assert set(task.mounts) == {"~/.sailor/payload", "~/.sailor/identity", "~/.sailor/house"}
    assert "TOP-SECRET" not in json.dumps([task.envs, task.setup, task.run])
    assert Sky(pretend).address(ORDER.cluster) == "10.0.0.7"


def test_it_is_given_all_of_the_project_and_what_rents_machines(tmp_path):
    folder = make_payload(tmp_path, rents="cloud").folder
    with tarfile.open(folder / "code.tar.gz") as archive:
        names = set(archive.getnames())
    assert {"run.py", "pyproject.toml", "conf/config.yaml", "actions/hosted.py"} <= names
    assert "provision/bootstrap.sh" in names
    assert not any(name.startswith(("tests", ".")) for name in names)
    assert "skypilot[" in (folder / "requirements.txt").read_text()
    plain = make_payload(tmp_path)
    assert plain.folder != folder
    assert "skypilot" not in (plain.folder / "requirements.txt").read_text()


def test_on_slurm_it_is_asked_for_by_its_memory_and_ends_with_its_job(tmp_path):
    said = arguments(ORDER, a_lease(tmp_path, cloud="slurm"))
    assert said["placement"]["memory_gib"] == "6+"
    assert said["idle_minutes"] is None
    assert said["labels"] is None


def test_where_every_machine_has_gpus_a_controller_stays_at_home():
    with pytest.raises(CloudError) as raised:
        controller_host("lambda")
    assert raised.value.code == "E404"
    assert raised.value.fix == "cloud.controller=here"


def test_a_process_is_written_down_found_and_ended(tmp_path):
    start_here(tmp_path, run="otter", command=SLEEPER, log_path=tmp_path / "log")
    (machine,) = MachineRecord(tmp_path / RECORD).remaining()
    assert machine.leader is not None
    assert os.getsid(machine.leader.pid) == machine.leader.pid, "no terminal's end concerns it"
    assert lives_here(tmp_path)
    (proof,) = asyncio.run(end_here(tmp_path, run="otter"))
    assert (proof.node, proof.released) == ("controller", True)
    assert not lives_here(tmp_path)
    assert MachineRecord(tmp_path / RECORD).remaining() == ()


def test_one_that_cannot_be_started_is_no_leftover(tmp_path):
    with pytest.raises(CloudError) as raised:
        start_here(tmp_path, run="otter", command=("/no/such",), log_path=tmp_path / "log")
    assert raised.value.code == "E410"
    assert MachineRecord(tmp_path / RECORD).remaining() == ()


def pose_as_ssh(folder: Path, script: str, monkeypatch) -> None:
    ssh = folder / "ssh"
    ssh.write_text(f"#!/bin/sh\n{script}\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_what_goes_through_a_way_comes_out_at_its_end_and_ssh_ends_with_it(tmp_path, monkeypatch):
    pose_as_ssh(tmp_path, f'echo "$@" > {tmp_path}/words; exec cat', monkeypatch)
    route = Route(ssh=("-F", "/home/you/.slurm/config", "mine"), address="fd00::7")
    with tunnel(route, port=23456) as way:
        way.sendall(b"hello")
        assert way.recv(16) == b"hello"
    said = (tmp_path / "words").read_text().split()
    assert said[-5:] == ["-W", "[fd00::7]:23456", "-F", "/home/you/.slurm/config", "mine"]
    assert way.fileno() == -1


def test_a_way_that_does_not_open_is_said_in_sshs_words(tmp_path, monkeypatch):
    """It is not waited for when it has ended."""
    pose_as_ssh(tmp_path, "echo 'Permission denied (publickey).' >&2; exit 255", monkeypatch)
    began = time.monotonic()

    def go() -> None:
        with tunnel(Route(ssh=("sailor-otter-1",), address="10.0.0.7"), port=23456) as way:
            assert way.recv(16) == b""
            raise ConnectionError("the door was closed")

    with pytest.raises(OSError, match=r"ssh sailor-otter-1: Permission denied \(publickey\)"):
        go()
    assert time.monotonic() - began < 10.0
