"""Agents, zygotes and workers as real processes, driven by a controller that decides nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path

import psutil
import pytest

from sailor.checkpoint.arena import SHARED_MEMORY, sweep
from sailor.checkpoint.segment import Segment, SegmentState
from sailor.checkpoint.store import complete, newest, verify
from sailor.parallel.layout import Layout
from sailor.runtime import messages as m
from tests.helpers.builders import a_plan
from tests.helpers.cluster import KEPT_LIVE, Cluster, a_cluster
from tests.helpers.delay import a_slow_line

pytestmark = pytest.mark.slow

REFERENCE_STEPS = 12


def story(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """An asyncio test."""

    @wraps(test)
    def run(**fixtures: object) -> None:
        asyncio.run(test(**fixtures))

    return run


def at_rest(seconds: float) -> float:
    """A time limit that holds on a quiet machine; a busy one gets longer by its load."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def at_step(halted: dict[str, m.Halted]) -> int:
    """The one step at which all workers with state stand."""
    (step,) = {w.step for h in halted.values() for w in h.workers if w.step >= 0}
    return step


def from_memory(
    layout: Layout, rank: int, halted: dict[str, m.Halted], step: int
) -> tuple[m.Source, ...]:
    """Sources of a rank's boxes in what the halted nodes hold; its own node's first."""
    node = layout.workers[rank].node
    wanted = {box.name for box in layout.boxes[rank]}
    holdings = [h for message in halted.values() for h in message.holdings]
    sources = []
    for holding in sorted(holdings, key=lambda h: h.node != node):
        boxes = tuple(sorted(wanted & set(holding.boxes)))
        if holding.snapshot.step == step and boxes:
            wanted -= set(boxes)
            sources.append(
                m.Source(tier="memory", boxes=boxes, node=holding.node, snapshot=holding.snapshot)
            )
    assert not wanted, f"nobody holds {wanted} of step {step}"
    return tuple(sources)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses of an undisturbed run of one worker: what every other story must repeat."""
    losses: dict[int, float] = {}

    async def run() -> None:
        path = tmp_path_factory.mktemp("reference")
        async with a_cluster(path, total_steps=REFERENCE_STEPS) as cluster:
            await cluster.begin(cluster.layout(a_plan([], microbatches=[4]), ["n0"]))
            await cluster.heard("n0", m.Finished)
            losses.update(cluster.losses("n0"))

    asyncio.run(run())
    assert sorted(losses) == list(range(REFERENCE_STEPS + 1))
    return losses


def assert_same(cluster: Cluster, reference: dict[int, float], *, nodes: list[str]) -> None:
    """Deterministic sums: a change of DP and PP alters no bit, so equality is exact."""
    for node in nodes:
        for step, loss in cluster.losses(node).items():
            if step in reference and step > 0:  # step 0 has the held-out loss
                assert loss == reference[step], f"step {step} of {node}"


@story
async def test_one_agent_and_one_worker_train_from_the_seed(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as cluster:
        layout = cluster.layout(a_plan([], microbatches=[4]), ["n0"])
        await cluster.begin(layout)
        first = await cluster.stepped("n0", 0, generation=1)
        assert first.eval_loss is not None
        await cluster.stepped("n0", 10, generation=1)
        halted = await cluster.halt(["n0"], 1, boundary=True)
        (status,) = halted["n0"].workers
        assert status.step >= 10
        assert status.step in {h.snapshot.step for h in halted["n0"].holdings}
        assert halted["n0"].records[-1].step == status.step
        assert status.peak_bytes > 0
        assert cluster.all_said("n0", m.Snapshotted)
        again = await cluster.halt(["n0"], 1, boundary=True)  # idempotent
        assert at_step(again) == status.step


@story
async def test_all_stop_after_the_same_step_and_go_on_in_another_layout_without_a_trace(
    tmp_path: Path, reference: dict[int, float]
) -> None:
    """PP2 on two nodes -> halt at a boundary -> DP2 with what each holds and fetches."""
    async with a_cluster(tmp_path, nodes=2, total_steps=REFERENCE_STEPS) as cluster:
        nodes = ["n0", "n1"]
        first = cluster.layout(a_plan([2], microbatches=[4]), nodes)
        await cluster.begin(first)
        await cluster.stepped("n0", 3, generation=1)
        second = cluster.layout(a_plan([], [], microbatches=[1, 3]), nodes)
        await cluster.prepare(2, second)  # in the background: generation 1 trains on
        halted = await cluster.halt(nodes, 1, boundary=True)
        step = at_step(halted)
        await cluster.switch(
            2, second, step=step,
            sources=lambda rank, _: from_memory(second, rank, halted, step),
        )  # fmt: skip
        await cluster.tell(second, m.Go(generation=2, step=step))
        await cluster.heard("n0", m.Finished)
        await cluster.heard("n1", m.Finished)
        assert_same(cluster, reference, nodes=nodes)
        assert cluster.losses(second.workers[0].node)[REFERENCE_STEPS] == reference[12]


@story
async def test_a_planned_change_builds_only_groups_whose_members_change(
    tmp_path: Path, reference: dict[int, float]
) -> None:
    """Two replicas share the batch 2:2, then 1:3: every group keeps its members."""
    async with a_cluster(tmp_path, nodes=2, total_steps=REFERENCE_STEPS) as cluster:
        nodes = ["n0", "n1"]
        first = cluster.layout(a_plan([], [], microbatches=[2, 2]), nodes)
        await cluster.begin(first)
        await cluster.stepped("n0", 3, generation=1)
        second = cluster.layout(a_plan([], [], microbatches=[1, 3]), nodes, first)
        assert second.workers == first.workers
        await cluster.prepare(2, second)
        await cluster.tell(second, m.Drop(generation=2))  # dropping must not hurt what was lent
        await cluster.prepare(3, second)
        step = at_step(await cluster.halt(nodes, 1, boundary=True))
        await cluster.switch(3, second, step=step, sources=lambda *_: (KEPT_LIVE,))
        await cluster.tell(second, m.Go(generation=3, step=step))
        for node in nodes:
            await cluster.heard(node, m.Finished)
        assert cluster.published[1] > 0
        assert cluster.published[2] == cluster.published[3] == 0
        assert_same(cluster, reference, nodes=nodes)


def open_segments(process: psutil.Process) -> list[str]:
    """The snapshot segments that a process holds open, removed ones too."""
    folder = Path(f"/proc/{process.pid}/fd")
    targets = [os.readlink(path) for path in folder.iterdir()]
    return [target for target in targets if "/segment-" in target]


@story
async def test_many_generations_leave_nothing_behind(tmp_path: Path) -> None:
    """Descriptors, threads and memory after ten generations are those after three; a worker has two
    segments and, where a halt came while both were needed, a third."""
    async with a_cluster(tmp_path, slots=2) as cluster:
        plans = [a_plan([], [], microbatches=counts) for counts in ([2, 2], [1, 3])]
        layout = cluster.layout(plans[0], ["n0"])
        await cluster.begin(layout)
        seen = {}
        for generation in range(2, 11):
            layout = cluster.layout(plans[generation % 2], ["n0"], layout)
            await cluster.prepare(generation, layout)
            step = at_step(await cluster.halt(["n0"], generation - 1, boundary=True))
            await cluster.switch(
                generation, layout, step=step,
                sources=lambda *_: (KEPT_LIVE,),
            )  # fmt: skip
            await cluster.tell(layout, m.Go(generation=generation, step=step))
            await cluster.stepped("n0", step + 3, generation=generation)
            if generation in (3, 10):
                processes = cluster.agents["n0"].members()
                segments = list(SHARED_MEMORY.glob(f"sailor-{cluster.run}-n0-*/segment-*"))
                assert 4 <= len(segments) <= 6
                mapped = [open_segments(p) for p in processes]
                for of_process in mapped:
                    assert len(of_process) == len(set(of_process)) <= len(segments)
                seen[generation] = {
                    "descriptors": [
                        p.num_fds() - len(of_process)
                        for p, of_process in zip(processes, mapped, strict=True)
                    ],
                    "threads": [p.num_threads() for p in processes[1:]],  # the agent has a pool
                    "memory": sum(p.memory_info().rss for p in processes),
                }
        memory = [seen[generation].pop("memory") for generation in (3, 10)]
        assert seen[3] == seen[10]
        assert memory[1] < 1.1 * memory[0]  # allocators breathe; a leak of a trainer would show


@story
async def test_groups_that_were_left_are_not_taken_over(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, nodes=2) as cluster:
        nodes = ["n0", "n1"]
        layout = cluster.layout(a_plan([], [], microbatches=[2, 2]), nodes)
        await cluster.begin(layout)
        await cluster.stepped("n0", 2, generation=1)
        await cluster.prepare(2, layout)
        halted = await cluster.halt(nodes, 1, boundary=False)  # something went wrong meanwhile
        step = common_step(halted)
        sources = {str(layout.workers[0]): from_memory(layout, 0, halted, step)}
        await cluster.say("n0", m.Switch(generation=2, step=step, sources=sources))
        failed = await cluster.heard("n0", m.TransitionFailed)
        assert "were left" in failed.reason
        await cluster.prepare(3, layout)
        await cluster.switch(
            3, layout, step=step,
            sources=lambda rank, _: from_memory(layout, rank, halted, step),
        )  # fmt: skip
        await cluster.tell(layout, m.Go(generation=3, step=step))
        await cluster.stepped("n0", step + 3, generation=3)


@story
async def test_a_controller_that_knows_no_generation_can_halt_and_refuse(tmp_path: Path) -> None:
    """What a restarted one says: stand still, whatever you are at; and, to a zombie, go."""
    async with a_cluster(tmp_path) as cluster:
        layout = cluster.layout(a_plan([], microbatches=[4]), ["n0"])
        await cluster.begin(layout)
        await cluster.stepped("n0", 2, generation=1)
        halted = await cluster.halt(["n0"], 0, boundary=False)
        assert 2 <= at_step(halted) < cluster.settings.train.total_steps
        await cluster.say("n0", m.Refused(reason="a zombie"))
        assert await asyncio.to_thread(cluster.agents["n0"].process.wait, 20.0) == 0


@story
async def test_a_worker_killed_while_it_writes_leaves_its_older_snapshot(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, nodes=1) as cluster:
        layout = cluster.layout(a_plan([], microbatches=[4]), ["n0"])
        await cluster.begin(layout)
        await cluster.stepped("n0", 3, generation=1)
        step = at_step(await cluster.halt(["n0"], 1, boundary=True))
        (pid,) = cluster.workers("n0").values()
        granted = next(
            segment
            for path in SHARED_MEMORY.glob(f"sailor-{cluster.run}-n0-*/segment-*")
            if (segment := Segment.attach(path)).snapshot.step != step
        )
        granted.begin(generation=1, step=step + 1)  # as if it were in the middle of the next copy
        os.kill(pid, signal.SIGKILL)
        await cluster.heard("n0", m.WorkerUp)
        halted = await cluster.halt(["n0"], 1, boundary=False)
        held = {h.snapshot.step for h in halted["n0"].holdings}
        assert step in held  # with a third segment the one before it, too
        assert step + 1 not in held
        second = cluster.layout(a_plan([], microbatches=[4]), ["n0"])
        await cluster.prepare(2, second)
        await cluster.switch(
            2, second, step=step,
            sources=lambda rank, _: from_memory(second, rank, halted, step),
        )  # fmt: skip


@story
async def test_a_dead_zygote_is_replaced_with_all_its_workers(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, slots=2) as cluster:
        agent = cluster.agents["n0"]
        zygote = psutil.Process(agent.process.pid).children()[0]
        zygote.kill()
        for slot in range(2):
            up = await cluster.heard("n0", m.WorkerUp, where=lambda u, s=slot: u.worker.slot == s)
            assert up.worker.incarnation == 2
        layout = cluster.layout(a_plan([], [], microbatches=[2, 2]), ["n0"])
        await cluster.begin(layout)
        await cluster.stepped("n0", 2, generation=1)


@story
async def test_a_killed_worker_is_known_at_once_and_its_node_goes_on_from_memory(
    tmp_path: Path, reference: dict[int, float]
) -> None:
    """Two ranks; one is killed mid-step; the other is halted while its peer is dead; both restore
    the newest common step, the dead one's node from what the dead one wrote."""
    async with a_cluster(tmp_path, nodes=2, total_steps=REFERENCE_STEPS) as cluster:
        nodes = ["n0", "n1"]
        first = cluster.layout(a_plan([], [], microbatches=[2, 2]), nodes)
        await cluster.begin(first)
        for node in nodes:
            await cluster.heard(node, m.Snapshotted)
        await cluster.stepped(first.workers[0].node, 4, generation=1)
        ((victim, pid),) = cluster.workers("n1").items()
        killed_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        lost = await cluster.heard("n1", m.WorkerLost)
        detect_s = time.monotonic() - killed_at
        assert lost.worker == victim
        assert lost.cause == "killed by SIGKILL"
        halt_at = time.monotonic()
        halted = await cluster.halt(nodes, 1, boundary=False)
        halt_s = time.monotonic() - halt_at
        up = await cluster.heard("n1", m.WorkerUp)
        assert up.worker.incarnation == victim.incarnation + 1
        assert detect_s < at_rest(0.5)
        assert halt_s < at_rest(0.5)
        step = common_step(halted)
        second = cluster.layout(a_plan([2], microbatches=[4]), nodes)
        await cluster.prepare(2, second)
        await cluster.switch(
            2, second, step=step,
            sources=lambda rank, _: from_memory(second, rank, halted, step),
        )  # fmt: skip
        await cluster.tell(second, m.Go(generation=2, step=step))
        await cluster.heard("n0", m.Finished)
        await cluster.heard("n1", m.Finished)
        assert_same(cluster, reference, nodes=nodes)


def common_step(halted: dict[str, m.Halted]) -> int:
    """The newest step every node holds a snapshot of."""
    steps = [{h.snapshot.step for h in message.holdings} for message in halted.values()]
    return max(set.intersection(*steps))


@story
async def test_a_lost_nodes_state_is_fetched_from_its_peers_copy(
    tmp_path: Path, reference: dict[int, float]
) -> None:
    """PP2: each node alone has its boxes. n1 vanishes whole; n0 goes on alone with n1's copy."""
    async with a_cluster(tmp_path, nodes=2, total_steps=REFERENCE_STEPS) as cluster:
        nodes = ["n0", "n1"]
        first = cluster.layout(a_plan([2], microbatches=[4]), nodes)
        await cluster.begin(first, copies={"n0": ("n1",), "n1": ("n0",)})
        await cluster.heard("n1", m.Snapshotted, where=lambda s: s.peer == "n0")
        await cluster.stepped(first.workers[0].node, 5, generation=1)
        os.killpg(cluster.agents["n1"].process.pid, signal.SIGKILL)
        own = [
            {s.snapshot.step for s in cluster.all_said(n, m.Snapshotted) if not s.peer}
            for n in nodes
        ]
        # By vote: both or none. The last one may be verified on one node and not on the other.
        assert own[0] ^ own[1] <= {max(own[0] | own[1])}
        halted = await cluster.halt(["n0"], 1, boundary=False)
        boxes: dict[int, set[str]] = {}
        for holding in halted["n0"].holdings:
            boxes.setdefault(holding.snapshot.step, set()).update(holding.boxes)
        wanted = {box.name for box in first.owners}
        step = max(s for s, names in boxes.items() if names >= wanted)
        second = cluster.layout(a_plan([], microbatches=[4]), ["n0"])
        await cluster.prepare(2, second)
        await cluster.switch(
            2, second, step=step,
            sources=lambda rank, _: from_memory(second, rank, halted, step),
        )  # fmt: skip
        await cluster.tell(second, m.Go(generation=2, step=step))
        await cluster.heard("n0", m.Finished)
        assert_same(cluster, reference, nodes=nodes)


@story
async def test_a_stopped_worker_is_found_and_ended_while_its_waiting_peer_is_not_blamed(
    tmp_path: Path,
) -> None:
    async with a_cluster(tmp_path, nodes=2) as cluster:
        layout = cluster.layout(a_plan([], [], microbatches=[2, 2]), ["n0", "n1"])
        await cluster.begin(layout)
        await cluster.stepped(layout.workers[0].node, 2, generation=1)
        ((victim, pid),) = cluster.workers("n1").items()
        stopped_at = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        lost = await cluster.heard("n1", m.WorkerLost)
        assert time.monotonic() - stopped_at < at_rest(1.5)  # two looks, 0.25 s apart, find it
        assert (lost.worker, lost.cause) == (victim, "stopped")
        await cluster.heard("n1", m.WorkerUp)
        assert not cluster.all_said("n0", m.WorkerLost)


@story
async def test_a_killed_agent_leaves_no_process_and_its_memory_can_be_swept(
    tmp_path: Path,
) -> None:
    async with a_cluster(tmp_path, nodes=1, slots=2) as cluster:
        layout = cluster.layout(a_plan([], [], microbatches=[2, 2]), ["n0"])
        await cluster.begin(layout)
        await cluster.stepped("n0", 2, generation=1)
        agent = cluster.agents["n0"]
        members = agent.members()
        assert len(members) == 4  # agent, zygote, two workers
        os.kill(agent.process.pid, signal.SIGKILL)
        _, alive = await asyncio.to_thread(psutil.wait_procs, members[1:], 5.0)
        assert not alive
        agent.process.wait()
        assert sweep(cluster.run) == [f"sailor-{cluster.run}-n0-{agent.process.pid}"]


@story
async def test_training_goes_on_while_the_controller_is_away(
    tmp_path: Path, reference: dict[int, float]
) -> None:
    async with a_cluster(tmp_path, nodes=1, total_steps=400) as cluster:
        layout = cluster.layout(a_plan([], microbatches=[4]), ["n0"])
        await cluster.begin(layout)
        await cluster.stepped("n0", 3, generation=1)
        await cluster.vanish()
        seen = max(cluster.losses("n0"))
        await asyncio.sleep(2.0)  # what is tested is that this time is used
        back_at = time.monotonic()
        await cluster.open()
        hello = await cluster.heard("n0", m.Hello, since=back_at)
        assert hello.generation == 1
        assert hello.workers[0].step > seen
        assert hello.holdings
        await cluster.stepped("n0", hello.workers[0].step + 1, generation=1)
        losses = cluster.losses("n0")
        assert sorted(losses) == list(range(len(losses)))  # what was applied meanwhile was kept
        assert_same(cluster, reference, nodes=["n0"])
        ((victim, pid),) = cluster.workers("n0").items()
        await cluster.vanish()
        os.kill(pid, signal.SIGKILL)
        await cluster.open()
        lost = await cluster.heard("n0", m.WorkerLost)  # what happened meanwhile is told
        assert lost.worker == victim
        await cluster.heard("n0", m.WorkerUp)


@story
async def test_an_agent_far_away_trains_and_its_silences_are_no_longer_than_others(
    tmp_path: Path,
) -> None:
    """200 ms each way on its control link: late, and as regular as ever. What makes a node count as
    lost is silence, and that does not grow with the distance."""
    async with (
        a_cluster(tmp_path, nodes=0) as cluster,
        a_slow_line(cluster.port, seconds=0.2) as port,
    ):
        cluster.boot("n0", "--controller", f"127.0.0.1:{port}")
        await cluster.heard("n0", m.Hello)
        layout = cluster.layout(a_plan([], microbatches=[4]), ["n0"])
        await cluster.begin(layout)
        await cluster.stepped("n0", 5, generation=1)
        seen = len(cluster.all_said("n0", m.Heartbeat))
        await cluster.until(
            lambda: len(cluster.all_said("n0", m.Heartbeat)) > seen + 20, what="heartbeats"
        )
        times = [at for at, said in cluster.agents["n0"].said if isinstance(said, m.Heartbeat)]
        gaps = sorted(b - a for a, b in zip(times, times[1:], strict=False))
        assert gaps[len(gaps) // 2] < 0.2, "every 0.1 s, wherever it is"


@story
async def test_an_agent_whose_lease_ends_is_gone_with_everything(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, nodes=1, lease_s=1.0) as cluster:
        layout = cluster.layout(a_plan([], microbatches=[4]), ["n0"])
        await cluster.begin(layout)
        await cluster.stepped("n0", 1, generation=1)
        agent = cluster.agents["n0"]
        members = agent.members()
        await cluster.vanish()
        assert await asyncio.to_thread(agent.process.wait, 20.0) == 0
        _, alive = await asyncio.to_thread(psutil.wait_procs, members[1:], 5.0)
        assert not alive
        assert list(SHARED_MEMORY.glob(f"sailor-{cluster.run}-*")) == []
        assert "no word from the controller" in cluster.log_of("n0").read_text()


@story
async def test_a_sigterm_is_passed_on_as_a_notice_and_a_second_ends_the_agent(
    tmp_path: Path,
) -> None:
    async with a_cluster(tmp_path) as cluster:
        layout = cluster.layout(a_plan([], microbatches=[4]), ["n0"])
        await cluster.begin(layout)
        agent = cluster.agents["n0"]
        os.kill(agent.process.pid, signal.SIGTERM)
        notice = await cluster.heard("n0", m.NoticeSeen)
        assert notice.seconds == 30.0
        seen = max(cluster.losses("n0"), default=0)
        await cluster.stepped("n0", seen + 2, generation=1)
        os.kill(agent.process.pid, signal.SIGTERM)
        assert await asyncio.to_thread(agent.process.wait, 20.0) == 0


@story
async def test_a_persisted_checkpoint_verifies_and_training_resumes_from_it(
    tmp_path: Path, reference: dict[int, float]
) -> None:
    async with a_cluster(tmp_path, nodes=2, total_steps=REFERENCE_STEPS) as cluster:
        nodes = ["n0", "n1"]
        first = cluster.layout(a_plan([2], microbatches=[4]), nodes)
        await cluster.begin(first)
        await cluster.stepped(first.workers[0].node, 4, generation=1)
        halted = await cluster.halt(nodes, 1, boundary=True, persist=True)
        step = at_step(halted)
        parts = [await cluster.heard(n, m.Persisted, where=lambda p: p.step == step) for n in nodes]
        assert not any(part.error for part in parts)
        directory = Path(cluster.settings.checkpoint_directory)
        complete(directory, step, parts, settings=cluster.settings, keep=2)
        assert verify(directory, step) == []
        found = newest(directory)
        assert found is not None
        second = cluster.layout(a_plan([], microbatches=[4]), ["n1"])
        await cluster.prepare(2, second)
        source = m.Source(tier="disk", boxes=tuple(found.boxes), path=str(found.path))
        await cluster.switch(2, second, step=step, sources=lambda *_: (source,))
        await cluster.tell(second, m.Go(generation=2, step=step))
        await cluster.heard("n1", m.Finished)
        last = await cluster.heard("n1", m.Persisted, where=lambda p: p.step == REFERENCE_STEPS)
        assert sorted(last.boxes) == sorted(found.boxes)
        assert_same(cluster, reference, nodes=nodes)


@story
async def test_a_flipped_byte_in_memory_is_refused_and_named(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, nodes=2) as cluster:
        nodes = ["n0", "n1"]
        first = cluster.layout(a_plan([], microbatches=[4]), ["n0"])
        await cluster.begin(first)
        await cluster.stepped("n0", 2, generation=1)
        halted = await cluster.halt(["n0"], 1, boundary=True)
        step = at_step(halted)
        box = first.boxes[0][3].name
        for path in SHARED_MEMORY.glob(f"sailor-{cluster.run}-n0-*/segment-*"):
            segment = Segment.attach(path)
            if segment.state is SegmentState.verified and segment.snapshot.step == step:
                segment.raw(box)[0] ^= 1
        for generation, node in ((2, "n0"), (3, "n1")):  # read in place, and sent to a peer
            layout = cluster.layout(a_plan([], microbatches=[4]), [node])
            await cluster.prepare(generation, layout)
            sources = {str(layout.workers[0]): from_memory(layout, 0, halted, step)}
            await cluster.say(node, m.Switch(generation=generation, step=step, sources=sources))
            failed = await cluster.heard(
                node, m.TransitionFailed, where=lambda f, g=generation: f.generation == g
            )
            assert box in failed.reason
        assert not any(cluster.all_said(node, m.Finished) for node in nodes)


@story
async def test_a_prepared_generation_can_be_dropped_and_another_prepared(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, nodes=2) as cluster:
        nodes = ["n0", "n1"]
        alone = cluster.layout(a_plan([], microbatches=[4]), ["n0"])
        await cluster.begin(alone)
        before = cluster.workers("n0")
        both = cluster.layout(a_plan([], [], microbatches=[2, 2]), nodes)
        await cluster.prepare(2, both)
        await cluster.tell(both, m.Drop(generation=2))
        # One that waits for a member that never comes is dropped as well.
        members = m.Prepare(
            generation=3, plan=both.plan, members=(), workers=both.workers, peers={}, copies={}
        )
        await cluster.say("n0", members)
        await cluster.say("n0", m.Drop(generation=3))
        await cluster.prepare(4, both)
        seen = max(cluster.losses("n0"))
        await cluster.stepped("n0", seen + 2, generation=1)
        assert cluster.workers("n0") == before
        for node in nodes:
            assert not cluster.all_said(node, m.WorkerLost)


@story
async def test_a_node_too_small_for_its_snapshots_says_so(tmp_path: Path) -> None:
    async with a_cluster(tmp_path, nodes=0) as cluster:
        cluster.boot("n0", memory_bytes=100_000)
        await cluster.heard("n0", m.Hello)
        layout = cluster.layout(a_plan([], microbatches=[4]), ["n0"])
        await cluster.say(
            "n0",
            m.Prepare(
                generation=1, plan=layout.plan, members=(), workers=layout.workers, peers={},
                copies={},
            ),
        )  # fmt: skip
        failed = await cluster.heard("n0", m.TransitionFailed)
        assert "does not fit" in failed.reason
