"""A controller on a node of its own, through the real SkyPilot on both sides of the way.

The command here rents one node through SkyPilot and vanishes; the controller there rents the others
through the SkyPilot of that node's user, whose way to the login node is that user's own.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.test_losses import joined, of_kind
from tests.helpers.one_machine_slurm import USER, Slurm, give, seed_catalogue
from tests.helpers.running import steps_done
from tests.helpers.secret_spy import Spy, files_with, secret_words
from tests.slurm.conftest import SlurmPlace

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(3600)]

LAUNCHING_S = 2400.0  # three launches, and SkyPilot's server started twice; minutes if all is idle
ENDING_S = 900.0


def on_slurm(place: SlurmPlace, name: str) -> list[str]:
    return [
        "cloud=slurm", "cloud.cluster=vslurm", "cloud.max_nodes=2", "cloud.controller=cluster",
        "cloud.machine_types=[2*cpux1@zonea]", "cloud.shared_files=true",
        f"cloud.python={sys.executable}", f"checkpoint.directory={place.checkpoints(name)}",
        "planner=fastest", "planner.recompute=false", "planner.optimizer_sharding=false",
    ]  # fmt: skip


@pytest.fixture
def a_way_of_its_own(slurm: Slurm) -> Iterator[None]:
    """What the user of a node needs to rent from there: the login node's address, and a key."""
    home, ours = slurm.root / "user", slurm.home
    (home / ".slurm").mkdir(exist_ok=True)
    key = home / ".slurm" / "key"
    shutil.copy(slurm.root / "etc" / "client", key)
    config = (ours / ".slurm" / "config").read_text()
    (home / ".slurm" / "config").write_text(
        config.replace(str(slurm.root / "etc" / "client"), str(key))
    )
    (home / ".sky").mkdir(exist_ok=True)
    # Busy cores take their time over an allocation that is there.
    text = (ours / ".sky" / "config.yaml").read_text()
    patient = text.replace("provision_timeout: 60", "provision_timeout: 600")
    for where in (ours, home):
        (where / ".sky" / "config.yaml").write_text(patient)
    if not (home / ".sky" / "catalogs").exists():
        seed_catalogue(home / ".sky" / "catalogs" / "v8")
    for path in (home / ".slurm", home / ".sky"):
        give(path, USER)
    key.chmod(0o600)
    yield
    (ours / ".sky" / "config.yaml").write_text(text)  # others' refusals are to come soon


def test_a_controller_on_a_node_of_its_own_outlives_the_command_and_gives_everything_back(
    slurm: Slurm, place: SlurmPlace, a_way_of_its_own: None
) -> None:
    began, times = time.monotonic(), {}

    def reached(what: str) -> None:
        times[what] = round(time.monotonic() - began, 1)
        sys.stdout.write(f"{times[what]:.0f} s: {what}\n")  # shown where it fails

    name = "ownnode"
    words = [*on_slurm(place, name), "train.steps=100000", "cloud.join=25min"]
    with place.start(*words, name=name) as running:
        running.deadline = time.monotonic() + LAUNCHING_S
        room = running.folder / ".controller"
        try:
            while not (room / "route.json").exists():
                assert running.process.poll() is None, running.wait(leaves_nothing=False).told()
                assert time.monotonic() < running.deadline, "the controller's node was not had"
                time.sleep(0.5)
            reached("the controller's node is there")
            with Spy(secret_words(room / "identity")) as spy:
                running.until(lambda log: len(of_kind(log, "run_started")) == 1, what="it starts")
                reached("the run has started there")
                running.until(lambda log: len(joined(log)) == 2, what="two machines report")
                reached("two machines report")
                assert len(slurm.jobs()) == 2, "the controller's node and the machines that train"
                running.until_step(5)
                running.signal(signal.SIGKILL)
                running.process.wait()
                known = steps_done(running.events)
                reached("the command is killed")
                until_steps(place, name, known + 5, deadline=running.deadline)
                reached("five steps later")
                ended = place.call("action=down", "output=json", name=name, seconds=ENDING_S)
                reached("everything is ended")
        except BaseException:
            tell(slurm, running.folder)
            raise
    assert ended.code == 0, ended.told()
    proofs = json.loads(ended.out)
    assert {proof["node"] for proof in proofs} == {"node-1", "node-2", "controller"}
    assert all(proof["released"] for proof in proofs)
    assert slurm.jobs() == {}
    assert of_kind(ended.events, "run_ended")[-1]["end"] == "interrupted"
    assert (ended.folder / "report.html").exists()
    asked, gone = ended.events[0], ended.events[-1]
    assert (asked.kind, asked["node"], asked["price_per_hour"]) == (
        "node_requested", "controller", 0.0,
    )  # fmt: skip
    assert (gone.kind, gone["node"], gone["released"]) == ("node_released", "controller", True)
    assert json.loads((ended.folder / "summary.json").read_text())["released"] is True
    assert spy.seen == set(), "the door's key was in the arguments of a process"
    words = secret_words(ended.folder / ".controller" / "identity")
    theirs = slurm.root / "user"
    skys = [home / name for home in (slurm.home, theirs) for name in (".sky", "sky_logs")]
    assert files_with(words, ended.folder, *skys) == []
    sys.stdout.write(f"\nseconds after the start: {json.dumps(times)}\n")


def until_steps(place: SlurmPlace, name: str, steps: int, *, deadline: float) -> None:
    """As action=status tells it: nobody brings the log home any more."""
    while True:
        found = place.call("action=status", "output=json", name=name, seconds=ENDING_S)
        (row,) = json.loads(found.out)
        if row["state"] == "running (own machine)" and (row["steps"] or 0) >= steps:
            return
        # A visit that takes too long on busy cores finds nobody; the next one may.
        assert row["state"] in ("running (own machine)", "out of reach"), row
        assert time.monotonic() < deadline, f"step {steps} was not reached: {row}"


def tell(slurm: Slurm, folder: Path) -> None:
    """Everything that may say why it went wrong, before it is all deleted."""
    logs = [
        *folder.glob("*.log"), *folder.glob("logs/*"), *folder.glob(".controller/*.log"),
        *(slurm.root / "user").rglob("*.log"), *slurm.home.rglob("server.log"),
    ]  # fmt: skip
    for path in logs:
        if path.is_file() and path.stat().st_size:
            text = path.read_text(errors="replace")[-3000:]
            sys.stdout.write(f"\n===== {path.relative_to(slurm.root)}\n{text}\n")
