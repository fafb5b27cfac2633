"""SkyPilot's process and the talk with it: what is asked, what is answered, and how it ends."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from provision.clusters import LaunchRefused
from provision.orders import ClusterOrder
from provision.payload import make_payload
from provision.placement import Placement
from provision.sky_launcher import AgentOrder, SkyFailed, SkyLauncher, SkyProcess
from provision.skypilot import Sky, facts, serve
from sailor.errors import CloudError
from tests.helpers.pretend_sky import PretendSky, RequestCancelled, ResourcesUnavailableError

ORDER = ClusterOrder(
    cluster="sailor-otter-1", nodes=("node-1", "node-2"), zone="us-central1-a",
    machine_type="a2-highgpu-1g", spot=True,
)  # fmt: skip


def a_launcher(folder: Path, *, cloud: str = "gcp", command: Any = None) -> SkyLauncher:
    (folder / ".identity").mkdir(exist_ok=True)
    (folder / ".identity" / "run.key").write_text("TOP-SECRET")
    sky = SkyProcess(
        log_path=folder / "sky.log",
        command=command or (sys.executable, "-c", "raise SystemExit(7)"),
    )
    return SkyLauncher(
        cloud=cloud,
        run="Swift_Otter",
        sky=sky,
        place=lambda request: Placement(
            infra=f"{cloud}/r/{request.zone}", use_spot=request.spot, instance_type="m"
        ),
        agent=AgentOrder(
            controller=("198.51.100.7", 4242), identity=folder / ".identity",
            slots={"a2-highgpu-1g": 1},
        ),
        payload=make_payload(folder / "payload"),
    )  # fmt: skip


def arguments(folder: Path) -> dict[str, Any]:
    return a_launcher(folder).arguments(ORDER)


def test_a_launch_is_pinned_to_the_plan_and_says_everything_but_secrets(tmp_path):
    pretend = PretendSky()
    Sky(pretend).launch(**arguments(tmp_path))
    ((cluster, task),) = pretend.launched
    assert (cluster, task.num_nodes) == (ORDER.cluster, 2)
    resources = task.resources
    assert resources["infra"] == "gcp/r/us-central1-a"
    assert (resources["instance_type"], resources["use_spot"]) == ("m", True)
    assert resources["autostop"] == {"idle_minutes": 15, "down": True}
    assert resources["labels"] == {"sailor-run": "swift-otter"}
    assert task.envs["SAILOR_NODES"] == "node-1 node-2"
    assert task.envs["SAILOR_CONTROLLER"] == "198.51.100.7:4242"
    assert set(task.mounts) == {"~/.sailor/payload", "~/.sailor/identity"}
    assert "TOP-SECRET" not in json.dumps([task.envs, task.setup, task.run])


def test_what_a_cloud_cannot_do_is_not_asked_of_it(tmp_path):
    said = a_launcher(tmp_path, cloud="slurm").arguments(ORDER)
    assert said["idle_minutes"] is None
    assert said["labels"] is None


def test_a_clusters_end_is_checked_and_cancels_a_launch_of_it(tmp_path):
    pretend = PretendSky(hold=threading.Event())
    sky = Sky(pretend)
    launching = threading.Thread(target=_cancelled, args=(sky, arguments(tmp_path)))
    launching.start()
    while not pretend.launched:
        pass
    assert "1 requests for it cancelled" in sky.down(ORDER.cluster)
    launching.join(10)
    assert not launching.is_alive()
    assert pretend.clusters == set()
    assert "lists it no more" in sky.down(ORDER.cluster)  # again, and of one that never was
    assert "lists it no more" in sky.down("sailor-nobody-1")


def test_a_launch_after_the_end_is_not_made(tmp_path):
    """The order to end may overtake the order to begin: they come in threads of their own."""
    pretend = PretendSky()
    sky = Sky(pretend)
    sky.down(ORDER.cluster)
    with pytest.raises(RuntimeError, match="given up before"):
        sky.launch(**arguments(tmp_path))
    assert pretend.launched == []


def _cancelled(sky: Sky, arguments: dict[str, Any]) -> None:
    with pytest.raises(RequestCancelled):
        sky.launch(**arguments)


def test_an_exception_travels_with_its_history():
    inner = RuntimeError("ZONE_RESOURCE_POOL_EXHAUSTED")
    told = facts(ResourcesUnavailableError("tried all", failover_history=[inner]))
    assert told == {
        "kind": "ResourcesUnavailableError", "text": "tried all",
        "history": [
            {"kind": "RuntimeError", "text": "ZONE_RESOURCE_POOL_EXHAUSTED", "history": []}
        ],
    }  # fmt: skip


class Answers(io.StringIO):
    """Collects answers; ``wait`` returns when there are so many."""

    def __init__(self) -> None:
        super().__init__()
        self._more = threading.Condition()

    def flush(self) -> None:
        with self._more:
            self._more.notify_all()

    def wait(self, number: int) -> list[dict[str, Any]]:
        with self._more:
            assert self._more.wait_for(lambda: self.getvalue().count("\n") >= number, 20)
        return [json.loads(line) for line in self.getvalue().splitlines()]


def test_commands_are_answered_by_number_and_failures_are_answers():
    commands = [
        {"id": 1, "do": "living", "with": {}},
        {"id": 2, "do": "enabled", "with": {}},
        {"id": 3, "do": "sing", "with": {}},
    ]
    answers = Answers()
    lines = io.StringIO("".join(json.dumps(command) + "\n" for command in commands))
    serve(lines, answers, load=PretendSky)
    told = {answer["id"]: answer for answer in answers.wait(3)}
    assert told[1]["result"] == []
    assert told[2]["result"] == ["slurm", "gcp"]
    assert told[3]["error"]["kind"] == "AttributeError"


def test_a_missing_library_is_an_answer_too():
    answers = Answers()

    def load() -> Any:
        raise ModuleNotFoundError("No module named 'sky'")

    serve(io.StringIO('{"id": 1, "do": "living", "with": {}}\n'), answers, load=load)
    assert answers.wait(1)[0]["error"]["kind"] == "ModuleNotFoundError"


CHILD = """
import sys, json
from tests.helpers.pretend_sky import PretendSky, RequestCancelled, ResourcesUnavailableError
from provision.skypilot import serve
quota = RuntimeError("Quota 'PREEMPTIBLE_NVIDIA_A100_GPUS' exceeded.  Limit: 0.0 in region r.")
sky = PretendSky(refuse={"sailor-otter-2": ResourcesUnavailableError("all failed", [quota])})
print("noise", file=sys.stderr)
serve(sys.stdin, sys.stdout, load=lambda: sky)
"""


def test_the_two_sides_talk_and_the_process_ends_with_the_launcher(tmp_path):
    async def check() -> None:
        launcher = a_launcher(tmp_path, command=(sys.executable, "-c", CHILD))
        await launcher.launch(ORDER)
        assert await launcher.living() == [ORDER.cluster]
        assert await launcher.enabled() == ["slurm", "gcp"]
        refused = ClusterOrder(
            cluster="sailor-otter-2", nodes=("node-3",), zone="us-central1-a",
            machine_type="a2-highgpu-1g", spot=True,
        )  # fmt: skip
        with pytest.raises(LaunchRefused) as refusal:
            await launcher.launch(refused)
        assert refusal.value.error.code == "E403"
        assert "PREEMPTIBLE_NVIDIA_A100_GPUS in r" in refusal.value.error.what
        await launcher.down(ORDER.cluster)
        assert ORDER.cluster not in await launcher.living()
        await launcher.sky.close()
        assert "noise" in (tmp_path / "sky.log").read_text()

    asyncio.run(check())


def test_a_process_that_dies_answers_everybody_and_is_started_again(tmp_path):
    async def check() -> None:
        launcher = a_launcher(tmp_path)  # its command ends at once
        for _ in range(2):
            with pytest.raises(CloudError) as refusal:
                await launcher.living()
            assert refusal.value.code == "E405"
            assert "ended with 7" in refusal.value.why
        with pytest.raises(LaunchRefused, match="can be had"):
            await launcher.launch(ORDER)
        await launcher.sky.close()

    asyncio.run(check())


def test_what_was_asked_of_a_process_that_is_gone_is_a_failure(tmp_path):
    async def check() -> None:
        sky = SkyProcess(log_path=tmp_path / "log", command=("sleep", "60"))
        asking = asyncio.create_task(sky.ask("living"))
        await asyncio.sleep(0.1)  # a process's own time
        await sky.close()
        with pytest.raises(SkyFailed, match="ended with"):
            await asking

    asyncio.run(check())
