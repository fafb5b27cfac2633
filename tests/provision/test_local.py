"""Local machines: started, preempted, killed and released for certain, with real processes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from provision.local import RECORD, LocalProvisioner, end_leftovers, zone_of
from provision.machines import Machine, MachineRecord
from provision.processes import MARK, ProcessId, boot_id, identify, living_members
from sailor.cluster.provisioner import NodeRequest, Notice, Provisioner
from sailor.errors import CloudError

AGENT = Path(__file__).with_name("pose_as_agent.py")
WAIT_S = 20.0  # a new interpreter on a busy computer; nothing waits this long when all is well


def request(node: str, **changes: Any) -> NodeRequest:
    fields = {"zone": "local-a", "machine_type": "cpu-1", "spot": True, **changes}
    return NodeRequest(node=node, **fields)


@asynccontextmanager
async def provisioner(folder: Path, *flags: str, **changes: Any) -> AsyncIterator[LocalProvisioner]:
    memory = folder / "shm"
    memory.mkdir(exist_ok=True)
    pose = (sys.executable, str(AGENT), "--memory-folder", str(memory), *flags)
    changes = {"grace_s": 1.0, "command": pose, **changes}
    local = LocalProvisioner(
        run="otter",
        folder=folder,
        controller=("127.0.0.1", 4242),
        identity=folder / "identity",
        slots={"cpu-1": 1, "cpu-4": 4},
        memory_root=memory,
        **changes,
    )
    try:
        yield local
    finally:
        await asyncio.wait_for(local.close(), WAIT_S)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for other processes: they have no clock that a test could move."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


async def said(local: LocalProvisioner, node: str) -> dict[str, Any]:
    """What the stand-in printed when it was ready."""
    path = local.log_path(node)
    await until(lambda: path.exists() and path.read_bytes().endswith(b"\n"))
    return json.loads(path.read_text())


def lives(pid: int) -> bool:
    process = identify(pid)
    return process is not None and process.alive


def test_it_is_a_provisioner(tmp_path: Path) -> None:
    def takes(provisioner: Provisioner) -> None: ...

    async def check() -> None:
        async with provisioner(tmp_path) as local:
            takes(local)

    asyncio.run(check())


def test_a_machine_gets_its_agents_arguments_and_a_group_of_its_own(tmp_path: Path) -> None:
    async def check() -> None:
        async with provisioner(tmp_path, memory_bytes=1 << 20) as local:
            await local.request(request("node-1", machine_type="cpu-4", zone="local-b"))
            await local.request(request("node-1"))  # the same wish again
            told = await said(local, "node-1")
            assert os.getpgid(told["pid"]) == told["pid"] == os.getsid(told["pid"])
            wanted = {
                "node": "node-1", "zone": "local-b", "machine_type": "cpu-4", "slots": "4",
                "controller": "127.0.0.1:4242", "host": "127.0.0.1",
                "identity": str(tmp_path / "identity"), "memory_bytes": str(1 << 20),
                "log": str(tmp_path / "logs" / "node-1.log"),
            }  # fmt: skip
            assert {key: told[key] for key in wanted} == wanted

    asyncio.run(check())


@pytest.mark.parametrize("flags", [(), ("--stubborn",), ("--stray",), ("--stubborn", "--stray")])
def test_a_release_ends_everything_and_proves_it(tmp_path: Path, flags: tuple[str, ...]) -> None:
    async def check() -> None:
        async with provisioner(tmp_path, *flags, grace_s=0.2) as local:
            await local.request(request("node-1"))
            told = await said(local, "node-1")
            released = await local.release("node-1")
            assert released.released
            assert not lives(told["pid"])
            assert not lives(told["child"])
            assert list((tmp_path / "shm").iterdir()) == []
            assert f"pid {told['pid']} is gone" in released.proof
            assert ("killed after 0.2 s" in released.proof) == ("--stubborn" in flags)
            assert await local.release("node-1") == released

    asyncio.run(check())


def test_killing_a_node_takes_its_children_and_its_memory_at_once(tmp_path: Path) -> None:
    async def check() -> None:
        async with provisioner(tmp_path, "--stubborn") as local:
            await local.request(request("node-1"))
            await local.request(request("node-2"))
            told, other = await said(local, "node-1"), await said(local, "node-2")
            local.kill("node-1")
            await until(lambda: not lives(told["pid"]) and not lives(told["child"]))
            assert "killed" in (await local.release("node-1")).proof
            assert [path.name.split("-")[3] for path in (tmp_path / "shm").iterdir()] == ["2"]
            assert lives(other["pid"])
            local.kill("node-1")  # dead already

    asyncio.run(check())


def test_a_preemption_is_announced_and_then_carried_out(tmp_path: Path) -> None:
    async def check() -> None:
        async with provisioner(tmp_path) as local:
            await local.request(request("node-1"))
            told = await said(local, "node-1")
            local.preempt("node-1", seconds=0.2)
            notice = await anext(local.notices())
            assert notice == Notice(node="node-1", seconds=0.2, source="local")
            assert lives(told["pid"])
            await until(lambda: not lives(told["pid"]))

    asyncio.run(check())


def test_a_node_released_before_its_deadline_is_not_killed_later(tmp_path: Path) -> None:
    async def check() -> None:
        async with provisioner(tmp_path) as local:
            await local.request(request("node-1"))
            await said(local, "node-1")
            local.preempt("node-1", seconds=30.0)
            assert "ended when asked" in (await local.release("node-1")).proof

    asyncio.run(check())


def test_notices_end_when_the_provisioner_closes(tmp_path: Path) -> None:
    async def check() -> None:
        async with provisioner(tmp_path) as local:
            await local.request(request("node-1"))
            local.preempt("node-1", seconds=60.0)
            await local.close()
            assert [notice.node async for notice in local.notices()] == ["node-1"]
            with pytest.raises(CloudError, match="too late"):
                await local.request(request("node-2"))

    asyncio.run(check())


def test_a_machine_that_boots_slowly_can_be_released_before_it_exists(tmp_path: Path) -> None:
    async def check() -> None:
        async with provisioner(tmp_path, boot_s=60.0) as local:
            await local.request(request("node-1"))
            assert not local.log_path("node-1").exists()
            released = await local.release("node-1")
            assert released.released
            assert released.proof == "its boot was cancelled"

    asyncio.run(check())


def test_a_boot_time_delays_the_start_only(tmp_path: Path) -> None:
    async def check() -> None:
        async with provisioner(tmp_path, boot_s=0.05) as local:
            await local.request(request("node-1"))
            assert (await said(local, "node-1"))["node"] == "node-1"

    asyncio.run(check())


@pytest.mark.parametrize("changes", [{"zone": "us-central1-a"}, {"machine_type": "a2-highgpu-8g"}])
def test_what_this_computer_does_not_offer_is_refused_by_name(
    tmp_path: Path, changes: dict[str, str]
) -> None:
    async def check() -> None:
        async with provisioner(tmp_path) as local:
            with pytest.raises(CloudError, match=next(iter(changes.values()))) as caught:
                await local.request(request("node-1", **changes))
            assert caught.value.code == "E404"
            assert "local" in caught.value.why

    asyncio.run(check())


def test_an_agent_that_cannot_be_started_is_a_refusal_and_leaves_no_record(tmp_path: Path) -> None:
    async def check() -> None:
        local = LocalProvisioner(
            run="otter", folder=tmp_path, controller=("127.0.0.1", 1), identity=tmp_path,
            slots={"cpu-1": 1}, command=(str(tmp_path / "no-such-program"),),
        )  # fmt: skip
        with pytest.raises(CloudError, match="node-1 cannot be started"):
            await local.request(request("node-1"))
        assert MachineRecord(tmp_path / RECORD).remaining() == ()
        assert await local.close() == ()

    asyncio.run(check())


def test_leftovers_of_a_killed_process_are_found_and_ended(tmp_path: Path) -> None:
    """A driver starts two machines and is killed; the next process ends both of them."""
    driver = f"""
import asyncio, os, signal, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.provision.test_local import provisioner, request, said
async def main():
    async with provisioner(Path({str(tmp_path)!r}), "--stubborn", "--stray") as local:
        for node in ("node-1", "node-2"):
            await local.request(request(node))
            await said(local, node)
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    killed = subprocess.run([sys.executable, "-c", driver], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    logs = [tmp_path / "logs" / f"node-{i}.log" for i in (1, 2)]
    pids = [json.loads(path.read_text())[key] for path in logs for key in ("pid", "child")]
    assert all(map(lives, pids))
    released = asyncio.run(end_leftovers(tmp_path, run="otter", memory_root=tmp_path / "shm"))
    assert [r.node for r in released] == ["node-1", "node-2"]
    assert all(r.released and "2 processes of an earlier start" in r.proof for r in released)
    assert not any(map(lives, pids))
    assert list((tmp_path / "shm").iterdir()) == []
    assert asyncio.run(end_leftovers(tmp_path, run="otter")) == ()


def test_a_start_that_was_never_confirmed_is_found_by_its_mark(tmp_path: Path) -> None:
    """So is its snapshot memory, whose name ends with the pid that nobody wrote down."""
    mark = "otter/node-1/feed"
    MachineRecord(tmp_path / RECORD).wish(Machine(node="node-1", mark=mark))
    orphan = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"],
        env={**os.environ, MARK: mark},
        start_new_session=True,
    )
    memory, *others = (tmp_path / f"sailor-otter-node-1{end}" for end in ("-42", "2-42", "-1-42"))
    for folder in (memory, *others):
        folder.mkdir()
    try:
        (released,) = asyncio.run(end_leftovers(tmp_path, run="otter", memory_root=tmp_path))
        assert released.released
        assert orphan.wait(timeout=WAIT_S) == -signal.SIGKILL
        assert not memory.exists()
        assert all(folder.exists() for folder in others), "those of node-12, and of otter-node-1"
    finally:
        orphan.kill()
        orphan.wait()


def test_a_recycled_pid_is_left_alone(tmp_path: Path) -> None:
    """The record names a pid that belongs to somebody else by now, or to an earlier boot."""
    bystander = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True
    )
    try:
        now = identify(bystander.pid)
        assert now is not None
        record = MachineRecord(tmp_path / RECORD)
        for i, then in enumerate(
            (
                ProcessId(pid=now.pid, start_tick=now.start_tick - 1, boot=now.boot),
                ProcessId(pid=now.pid, start_tick=now.start_tick, boot="another boot"),
            )
        ):
            machine = Machine(node=f"node-{i}", mark=f"otter/node-{i}/beef", leader=then)
            record.wish(machine)
            record.started(machine)
        released = asyncio.run(end_leftovers(tmp_path, run="otter", memory_root=tmp_path))
        assert [r.released for r in released] == [True, True]
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_torn_record_loses_only_the_act_that_had_not_begun(tmp_path: Path) -> None:
    record = MachineRecord(tmp_path / RECORD)
    first, second = (Machine(node=f"node-{i}", mark=f"m{i}") for i in (1, 2))
    record.wish(first)
    record.path.write_bytes(record.path.read_bytes() + b'{"act":"wish","no')
    record.wish(second)
    assert record.remaining() == (first, second)
    record.gone(first, proof="seen")
    assert record.remaining() == (second,)


def test_a_process_is_known_by_more_than_its_pid() -> None:
    own = identify(os.getpid())
    assert own is not None
    assert own.alive
    assert own.boot == boot_id()
    assert living_members(mark="no such mark", leader=own) == ()  # never oneself
    assert identify(2**22 + 1) is None  # above the kernel's highest pid


def test_machines_are_spread_over_the_zones() -> None:
    assert [zone_of(i) for i in range(4)] == ["local-a", "local-b", "local-a", "local-b"]


def test_an_agent_that_ends_by_itself_is_told_of_but_not_one_that_was_released(
    tmp_path: Path,
) -> None:
    async def body() -> list[Notice]:
        async with provisioner(tmp_path) as local:
            await local.request(request("node-1"))
            await local.request(request("node-2"))
            ended = await said(local, "node-1")
            await said(local, "node-2")
            await local.release("node-2")
            os.kill(ended["pid"], signal.SIGKILL)
            async with asyncio.timeout(WAIT_S):
                first = await anext(local.notices())
            await local.close()
            return [first, *[notice async for notice in local.notices()]]

    (notice,) = asyncio.run(body())
    assert (notice.node, notice.seconds) == ("node-1", 0.0)
    assert str(tmp_path / "logs" / "node-1.log") in notice.source


def test_an_agent_finds_our_code_wherever_the_command_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run started from another folder, without an installation, had agents that found nothing."""
    monkeypatch.chdir(tmp_path)

    async def body() -> str:
        command = (sys.executable, "-c", "import sailor; print(sailor.__file__)")
        async with provisioner(tmp_path, command=command) as local:
            await local.request(request("node-1"))
            async with asyncio.timeout(WAIT_S):
                await anext(local.notices())
            return local.log_path("node-1").read_text()

    assert asyncio.run(body()).strip().endswith("sailor/__init__.py")


def test_a_later_process_takes_over_machines_that_live_and_ends_the_rest(tmp_path: Path) -> None:
    """The first process was killed: it closed nothing. Its machines are no children of the next."""

    async def check() -> None:
        first = LocalProvisioner(
            run="otter", folder=tmp_path, controller=("127.0.0.1", 4242),
            identity=tmp_path / "identity", slots={"cpu-1": 1}, memory_root=tmp_path / "shm",
            command=(sys.executable, str(AGENT), "--memory-folder", str(tmp_path / "shm")),
        )  # fmt: skip
        (tmp_path / "shm").mkdir()
        await first.request(request("node-1"), request("node-2"), request("node-3"))
        pids = {node: (await said(first, node))["pid"] for node in ("node-1", "node-2", "node-3")}
        os.killpg(pids["node-3"], signal.SIGKILL)
        await until(lambda: not lives(pids["node-3"]))
        async with provisioner(tmp_path) as second:
            assert second.adopt("node-1", "node-3", "nobody") == ("node-1",)
            ended = await end_leftovers(
                tmp_path, run="otter", besides=("node-1",), memory_root=tmp_path / "shm"
            )
            assert {proof.node for proof in ended} == {"node-2", "node-3"}
            assert lives(pids["node-1"])
            assert not lives(pids["node-2"])
            await second.request(request("node-1"))  # it is there: no other is started
            assert second.memory_folder("node-1") is not None
            os.kill(pids["node-1"], signal.SIGKILL)  # its end is news, though it is no child
            news = await anext(second.notices())
            assert isinstance(news, Notice)
            assert (news.node, news.seconds) == ("node-1", 0.0)
            assert (await second.release("node-1")).released
        await first.close()  # a killed process would not; this one has children to reap

    asyncio.run(check())
