"""Faults fire once, on time, on the right target, and are written down."""

import asyncio
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from provision.faults import FaultInjector
from provision.full_disk import MOST_BYTES, FullDisk
from sailor.checkpoint.segment import CorruptSnapshot, Manifest, Segment, file_bytes, place
from sailor.clock import HandClock
from sailor.faults import FaultKind, read_script
from sailor.observe.events import Event, EventLog, read_events
from sailor.parallel.layout import WorkerId

WAIT_S = 10.0


class Machines:
    """Writes down what it is asked to do, in the place of a provisioner."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[tuple[Any, ...]] = []

    def kill(self, node: str) -> None:
        self.asked.append(("kill", node))

    def preempt(self, node: str, *, seconds: float) -> None:
        self.asked.append(("preempt", node, seconds))

    def memory_folder(self, node: str) -> Path | None:
        return self.folder / node

    def set_cut(self, node: str, *, cut: bool) -> None:
        self.asked.append(("cut" if cut else "heal", node))


class Disk:
    """Writes down what it is asked to do, in the place of a file system."""

    def __init__(self, *, refusal: str = "") -> None:
        self.refusal = refusal
        self.asked: list[str] = []

    def why_not(self) -> str:
        return self.refusal

    def fill(self) -> None:
        self.asked.append("fill")

    def free(self) -> None:
        self.asked.append("free")


class Scene:
    """A log, machines that only listen, and an injector that follows the log."""

    def __init__(
        self, folder: Path, *entries: Any, past: Sequence[Event] = (), seed: int = 0,
        disk: Disk | None = None,
    ):  # fmt: skip
        self.path = folder / "events.jsonl"
        self.events = EventLog(self.path, run="otter", clock=HandClock())
        self.machines = Machines(folder)
        self.sent: list[tuple[int, int]] = []
        self.injector = FaultInjector(
            read_script(entries, total_steps=100),
            events=self.events,
            machines=self.machines,
            join=self._join,
            seed=seed,
            past=past,
            send=lambda pid, number: self.sent.append((pid, number)),
            disk=disk,
        )

    def _join(self) -> None:
        self.machines.asked.append(("join",))

    def four_nodes(self) -> None:
        for i in (1, 2, 3, 4):
            self.events.write(
                "node_joined", node=f"node-{i}", zone=f"local-{'ab'[i % 2]}", machine_type="cpu-2",
                pid=100 * i,
                workers=[{"worker": f"node-{i}/{s}.1", "pid": 100 * i + 1 + s} for s in (0, 1)],
            )  # fmt: skip
        self.events.write(
            "generation_started", generation=1, step=0, layout="", world_size=8, nodes=[],
            kept_groups=0, built_groups=0,
            ranks=[{"rank": r, "worker": f"node-{n}/{s}.1"}
                   for r, (n, s) in enumerate((n, s) for n in (3, 1, 2, 4) for s in (0, 1))],
        )  # fmt: skip

    def step(self, number: int) -> None:
        self.events.write(
            "step", generation=1, step=number, loss=1.0, tokens=1, grad_norm=1.0,
            learning_rate=0.1, seconds=1.0, phases={}, first_sample=0, num_samples=1,
        )  # fmt: skip

    def injected(self) -> list[Event]:
        return [event for event in read_events(self.path) if event.kind == "fault_injected"]


def play(scene: Scene, act: Callable[[], Any] | None = None) -> None:
    """Start, let four nodes come, act, stop."""

    async def run() -> None:
        scene.injector.start()
        scene.four_nodes()
        result = act() if act is not None else None
        if asyncio.iscoroutine(result):
            await asyncio.wait_for(result, WAIT_S)
        await scene.injector.stop()
        scene.events.close()

    asyncio.run(run())


def test_an_entry_fires_once_at_its_step_or_the_first_after_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"kind": "kill_node", "target": "node-2", "at": 5})

    def act() -> None:
        scene.step(4)
        assert scene.machines.asked == []
        scene.step(7)
        scene.step(5)  # done again after a loss
        scene.step(8)

    play(scene, act)
    assert scene.machines.asked == [("kill", "node-2")]
    (event,) = scene.injected()
    assert (event["fault"], event["target"], event["at"]) == ("kill_node", "node-2", "step 5")


@pytest.mark.parametrize(
    ("entry", "done"),
    [
        ({"kind": "kill_worker", "target": "node-2/1"}, (202, signal.SIGKILL)),
        ({"kind": "kill_worker", "target": "node-2/1.1"}, (202, signal.SIGKILL)),
        ({"kind": "stop_worker", "target": "node-2/0"}, (201, signal.SIGSTOP)),
        ({"kind": "kill_worker", "target": "leader"}, (301, signal.SIGKILL)),
        ({"kind": "kill_worker", "target": "last"}, (402, signal.SIGKILL)),
        ({"kind": "kill_agent", "target": "node-3"}, (300, signal.SIGKILL)),
        ({"kind": "kill_agent", "target": "newest"}, (400, signal.SIGKILL)),
        ({"kind": "kill_controller"}, (os.getpid(), signal.SIGKILL)),
        ({"kind": "preempt", "target": "leader"}, ("preempt", "node-3", 0.0)),
        ({"kind": "preempt", "target": "last", "notice": 2}, ("preempt", "node-4", 2.0)),
        ({"kind": "join"}, ("join",)),
    ],
)
def test_each_kind_hits_its_target(tmp_path: Path, entry: dict[str, Any], done: Any) -> None:
    scene = Scene(tmp_path, {**entry, "at": 1})
    play(scene, lambda: scene.step(1))
    assert [*scene.sent, *scene.machines.asked] == [done]
    assert len(scene.injected()) == 1


def test_a_zone_goes_as_a_whole(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"kind": "kill_node", "target": "zone:local-a", "at": 1})
    play(scene, lambda: scene.step(1))
    assert scene.machines.asked == [("kill", "node-2"), ("kill", "node-4")]
    assert [event["target"] for event in scene.injected()] == ["node-2", "node-4"]


def test_random_targets_follow_the_seed(tmp_path: Path) -> None:
    chosen = []
    for i, seed in enumerate([1, 1, 2, 3, 4, 5, 6]):
        folder = tmp_path / str(i)
        scene = Scene(folder, {"kind": "kill_node", "at": 1}, seed=seed)
        play(scene, lambda scene=scene: scene.step(1))
        chosen.append(scene.machines.asked[0][1])
    assert chosen[0] == chosen[1]
    assert len(set(chosen)) > 1


def test_a_random_fault_spares_nodes_that_leave_or_are_gone(tmp_path: Path) -> None:
    for seed in range(12):
        scene = Scene(tmp_path / str(seed), {"kind": "kill_node", "at": 1}, seed=seed)

        def act(scene: Scene = scene) -> None:
            scene.events.write("notice", node="node-1", seconds=30.0, source="local")
            scene.events.write("node_lost", node="node-2", cause="killed", silent_s=0.0)
            scene.step(1)

        play(scene, act)
        assert scene.machines.asked[0][1] in ("node-3", "node-4")


def test_the_newest_start_of_a_worker_is_hit(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"kind": "kill_worker", "target": "node-2/0", "at": 1})

    def act() -> None:
        scene.events.write("worker_lost", worker="node-2/0.1", cause="killed", silent_s=0.0)
        scene.events.write("worker_up", worker="node-2/0.2", pid=999)
        scene.step(1)

    play(scene, act)
    assert scene.sent == [(999, signal.SIGKILL)]


def test_a_target_that_does_not_exist_is_written_down_as_skipped(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"kind": "kill_node", "target": "node-7", "at": 1})
    play(scene, lambda: scene.step(1))
    (event,) = scene.injected()
    assert event["skipped"] == "nobody is there who fits node-7"
    assert scene.machines.asked == []


def test_an_entry_with_a_time_needs_no_event(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"kind": "join", "at": "0.01s"})

    async def act() -> None:
        while not scene.machines.asked:
            await asyncio.sleep(0.005)

    play(scene, act)
    assert scene.machines.asked == [("join",)]


def test_a_resumed_run_does_not_fire_again_what_the_log_says_was_fired(tmp_path: Path) -> None:
    entries = [{"kind": "join", "at": 2}, {"kind": "kill_node", "at": 4}]
    first = Scene(tmp_path, *entries)
    play(first, lambda: first.step(3))
    second = Scene(tmp_path, *entries, past=read_events(first.path))
    play(second, lambda: second.step(5))
    assert [action[0] for action in second.machines.asked] == ["kill"]
    assert [event["fault"] for event in second.injected()] == ["join", "kill_node"]


def test_seconds_count_the_time_the_run_was_training_in_earlier_starts(tmp_path: Path) -> None:
    def event(kind: str, t: float) -> Event:
        return Event(seq=1, t=t, time="", run="", generation=0, kind=kind, fields={})

    past = [
        event("run_started", 0.0), event("generation_started", 7.0), event("run_ended", 107.0),
        event("run_started", 5000.0), event("generation_started", 5100.0), event("step", 5160.0),
    ]  # fmt: skip
    scene = Scene(
        tmp_path, {"kind": "join", "at": "160.01s"}, {"kind": "join", "at": "200s"},
        past=past,
    )  # fmt: skip

    async def act() -> None:
        while not scene.machines.asked:
            await asyncio.sleep(0.005)

    play(scene, act)
    assert [event["at"] for event in scene.injected()] == ["160.01 s"]


def test_nothing_fires_after_stop(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"kind": "join", "at": "30.0s"}, {"kind": "join", "at": 1})
    play(scene)
    reopened = EventLog(scene.path, run="otter")
    reopened.close()
    assert scene.machines.asked == []


def test_a_stop_with_an_end_is_followed_by_a_continuation(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"kind": "stop_worker", "target": "node-1/0", "for": "10ms", "at": 1})

    async def act() -> None:
        scene.step(1)
        while len(scene.sent) < 2:
            await asyncio.sleep(0.005)

    play(scene, act)
    assert scene.sent == [(101, signal.SIGSTOP), (101, signal.SIGCONT)]


def test_a_slowed_node_is_never_left_stopped(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"kind": "slow_node", "target": "node-1", "factor": 3, "at": 1})

    async def act() -> None:
        scene.step(1)
        while len(scene.sent) < 6:
            await asyncio.sleep(0.005)

    play(scene, act)
    for pid in (101, 102):
        signals = [number for to, number in scene.sent if to == pid]
        assert signals[::2] == [signal.SIGSTOP] * len(signals[::2])
        assert signals[-1] == signal.SIGCONT
    assert {pid for pid, _ in scene.sent} == {101, 102}


def a_segment(path: Path, *, sealed: bool) -> Segment:
    """A snapshot of one box of zeros, as an agent and a worker make it."""
    writer = WorkerId(node=path.parent.name, slot=0, incarnation=1)
    manifest = Manifest(writer=writer, boxes=place([("weight", (1000,))]))
    path.write_bytes(bytes(file_bytes(manifest)))
    segment = Segment.write_header(path, manifest=manifest)
    segment.begin(generation=1, step=1)
    segment.finish()
    if sealed:
        segment.seal()
    return segment


def spoilt(segment: Segment) -> bool:
    """Whether it is not what was sealed."""
    try:
        segment.check_seal()
        segment.check("weight")
    except CorruptSnapshot:
        return True
    return False


def test_corrupting_spoils_every_snapshot_that_node_holds_and_no_other(tmp_path: Path) -> None:
    for node in ("node-1", "node-2"):
        (tmp_path / node).mkdir()
        (tmp_path / node / "owner").write_text("4242 17")
    held = [a_segment(tmp_path / "node-1" / name, sealed=True) for name in ("a", "b")]
    being_written = a_segment(tmp_path / "node-1" / "c", sealed=False)
    elsewhere = a_segment(tmp_path / "node-2" / "a", sealed=True)
    scene = Scene(tmp_path, {"kind": "corrupt_snapshot", "target": "node-1", "at": 1})
    play(scene, lambda: scene.step(1))
    for segment in held:
        assert spoilt(segment)
    being_written.seal()
    for segment in (being_written, elsewhere):
        assert not spoilt(segment)
        assert not any(map(np.any, segment.arrays("weight")))
    assert (tmp_path / "node-1" / "owner").read_text() == "4242 17"


def test_a_target_that_vanished_a_moment_ago_is_no_crash(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"kind": "corrupt_snapshot", "target": "node-1", "at": 1})
    play(scene, lambda: scene.step(1))
    assert len(scene.injected()) == 1


def test_two_equal_entries_are_two_faults(tmp_path: Path) -> None:
    scene = Scene(tmp_path, {"kind": "join", "at": 1}, {"kind": "join", "at": 1})
    play(scene, lambda: scene.step(1))
    assert scene.machines.asked == [("join",), ("join",)]
    assert len({event["entry"] for event in scene.injected()}) == 2


def test_every_kind_that_can_be_written_can_be_done(tmp_path: Path) -> None:
    for kind in FaultKind:
        scene = Scene(tmp_path / kind.value, {"kind": kind.value, "at": 1}, disk=Disk())
        play(scene, lambda scene=scene: scene.step(1))
        assert scene.injected()
        assert "skipped" not in scene.injected()[0].fields


def test_a_node_that_is_cut_off_gets_its_network_back_in_time_and_at_the_end(
    tmp_path: Path,
) -> None:
    entries = (
        {"kind": "cut_node", "at": 1, "target": "node-1", "lasts": "0.01s"},
        {"kind": "cut_node", "at": 1, "target": "node-2"},
    )
    scene = Scene(tmp_path, *entries)

    async def act() -> None:
        scene.step(1)
        async with asyncio.timeout(WAIT_S):
            while ("heal", "node-1") not in scene.machines.asked:
                await asyncio.sleep(0.001)

    play(scene, act)
    asked = scene.machines.asked
    assert asked[:2] == [("cut", "node-1"), ("cut", "node-2")]
    assert asked[-1] == ("heal", "node-2")  # as the injector stops


def test_a_disk_is_filled_and_emptied_and_a_large_one_left_alone(tmp_path: Path) -> None:
    disk = Disk()
    scene = Scene(tmp_path / "a", {"kind": "fill_disk", "at": 1}, disk=disk)
    play(scene, lambda: scene.step(1))
    assert disk.asked == ["fill", "free"]
    large = Disk(refusal="it is large")
    scene = Scene(tmp_path / "b", {"kind": "fill_disk", "at": 1}, disk=large)
    play(scene, lambda: scene.step(1))
    assert scene.injected()[0]["skipped"] == "it is large"
    assert "fill" not in large.asked


def test_a_full_disk_is_only_ever_a_small_one(tmp_path: Path) -> None:
    """Here the folder lies on the computer's own disk, unless that is nearly full."""
    disk = FullDisk(tmp_path / "not" / "there" / "yet")
    if shutil.disk_usage(tmp_path).free <= MOST_BYTES:
        pytest.skip("this disk is so small that it would be filled")
    assert "GiB are free" in disk.why_not()
    disk.free()  # nothing was taken


def test_how_long_and_how_much_can_be_said_in_a_script() -> None:
    (slow,) = read_script(
        [{"kind": "slow_node", "at": "50%", "for": "10s", "factor": 3}], total_steps=8
    )
    assert (slow.at_step, slow.lasts_seconds, slow.factor) == (4, 10.0, 3.0)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"kind": "cut_ndoe", "at": 1}, "is none of"),
        ({"kind": "join", "at": 9}, "never happen in 8 steps"),
        ({"kind": "slow_node", "at": 1, "factor": 0.5}, "faster"),
    ],
)
def test_what_could_never_do_anything_is_refused(entry: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_script([entry], total_steps=8)
