"""Random events on a whole run in one process, by a seed. What fails is played again by the
command it prints.

    python -m tests.runtime.mini_chaos --seed 7 --events 200

Machines and workers die, alone and together, in the middle of recoveries; machines join, get
notices that come true or do not, lose their connection, rot in memory; workers cannot build or
take. After every event, and at the end, invariants I1 to I7 are asserted; the model that is left on
disk is the undisturbed one's, to the last bit.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from sailor.checkpoint.segment import Segment
from sailor.checkpoint.store import Reader, newest
from sailor.cluster.provisioner import is_anchor
from sailor.observe.events import contract_problems
from sailor.runtime import state as s
from tests.helpers import invariants as check
from tests.helpers.mini_cluster import ENOUGH, FEWEST, MiniCluster, open_files
from tests.helpers.pretend_exchange import state_after

SETTLE_S = 60.0  # for the run to train again once all is quiet; a loaded machine's patience
MOST_STEPS = 1_000_000  # never reached: the run is stopped
LOGGED_S = 120.0  # longest wait that may be in the log; all limits are far below
KINDS = {
    "kill_node": 5, "kill_worker": 6, "two_nodes": 1, "join": 7, "notice": 3, "false_alarm": 1,
    "cut_link": 2, "corrupt": 2, "fails_build": 1, "fails_take": 1, "all_gone": 0.15,
    "kill_anchor": 0.5,
}  # fmt: skip


def command(*, seed: int, events: int) -> str:
    """How to play it again."""
    return f"python -m tests.runtime.mini_chaos --seed {seed} --events {events}"


class Storm:
    """One seed's events on one cluster."""

    def __init__(self, cluster: MiniCluster) -> None:
        self.cluster = cluster
        self.chance = cluster.chance
        self.happened: Counter[str] = Counter()
        self._timers: list[asyncio.TimerHandle] = []
        self._seen = 0  # events of the log that were looked at

    @property
    def nodes(self) -> list[str]:
        """Machines that live and train, or could."""
        return [node for node in self.cluster.machines.living if not is_anchor(node)]

    async def strike(self) -> str:
        """One event. What it was, for people."""
        nodes, machines = self.nodes, self.cluster.machines
        kind = self.chance.choices(list(KINDS), weights=list(KINDS.values()))[0]
        if len(nodes) <= FEWEST and kind not in ("kill_worker", "cut_link", "all_gone"):
            kind = "join"
        if len(nodes) >= ENOUGH and kind == "join":
            kind = "kill_node"
        self.happened[kind] += 1
        if kind == "join" or not nodes:
            await self.cluster.join()
            return "join"
        node = self.chance.choice(nodes)
        match kind:
            case "kill_node":
                machines.kill(node)
            case "two_nodes":
                for gone in self.chance.sample(nodes, 2):
                    machines.kill(gone)
            case "all_gone":
                for gone in nodes:
                    machines.kill(gone)
            case "kill_anchor":
                for gone in machines.living:
                    if is_anchor(gone):
                        machines.kill(gone)
            case "kill_worker" | "fails_build" | "fails_take":
                workers = self.cluster.workers()
                if not workers:
                    return "nobody"
                nursery, worker = self.chance.choice(workers)
                node = str(worker)
                if kind == "kill_worker":
                    nursery.kill(worker)
                else:
                    nursery.children[worker].body.fails_next = kind.removeprefix("fails_")
            case "notice":
                seconds = self.chance.choice([0.2, 1.0, 3.0])
                machines.tell(node, seconds=seconds)
                loop = asyncio.get_running_loop()
                self._timers.append(loop.call_later(seconds, machines.kill, node))
            case "false_alarm":
                machines.tell(node, seconds=0.5)
            case "cut_link":
                self.cut_link(node)
            case "corrupt":
                self._rot(node)
        return f"{kind} {node}"

    def cut_link(self, node: str) -> None:
        """Its connection to the controller breaks; it dials in again."""
        link = self.cluster.machines.agent(node)._link
        if link is not None:
            link.abort()

    def _rot(self, node: str) -> None:
        """Flip a bit of one verified snapshot of a node."""
        keeper = self.cluster.machines.agent(node).keeper
        holdings = keeper.holdings()
        if not holdings:
            return
        holding = self.chance.choice(holdings)
        entry = keeper.held(holding.snapshot)
        assert entry is not None
        raw = Segment.attach(entry.segment.path).raw(self.chance.choice(holding.boxes))
        raw[self.chance.randrange(len(raw))] ^= 1 << self.chance.randrange(8)

    def look(self) -> None:
        """What must hold at every moment."""
        problems = self.cluster.exchange.problems + self.cluster.machines.problems
        assert not problems, problems
        for event in self.cluster.events[self._seen :]:
            assert not contract_problems(event.kind, event.fields)
            if event.kind == "replicas_differ":
                self._blame(event)
            if event.kind == "pause":  # I5, I7
                assert all(0 <= event[part] < LOGGED_S for part in check.PARTS), event.fields
        self._seen = len(self.cluster.events)
        for node in self.cluster.machines.living:  # bounded memory, whatever came
            agent = self.cluster.machines.agent(node)
            if hasattr(agent, "keeper"):
                versions = Counter(h.snapshot.worker for h in agent.keeper.holdings())
                assert all(number <= 8 for number in versions.values()), (node, versions)

    def _blame(self, event: Any) -> None:
        """Bits that we flipped between the copy and its seal are the only ones that may differ."""
        assert self.happened["corrupt"], event.fields

    def calm(self) -> None:
        """Nothing more comes."""
        for timer in self._timers:
            timer.cancel()


async def _weather(cluster: MiniCluster, *, events: int) -> Storm:
    storm = Storm(cluster)
    async with cluster.running() as run:
        await _until(lambda: _steps(cluster) > 2, run, what="the first steps")
        for number in range(events):
            said = await storm.strike()
            logging.getLogger(__name__).info("event %d: %s", number, said)
            await asyncio.sleep(cluster.chance.choice([0.0, 0.01, 0.03, 0.1, 0.3]))
            assert not run.done(), f"ended at event {number}, {said}: {run}"
            storm.look()
        storm.calm()
        while len(storm.nodes) < FEWEST + 1:
            await cluster.join()
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.3)
        before = _steps(cluster)
        await _until(lambda: _steps(cluster) > before + 5, run, what="training after the storm")
        storm.look()
        cluster.controller.ask_stop(s.End.interrupted, "enough")
        await asyncio.sleep(cluster.chance.uniform(0.0, 0.02))
        if storm.nodes:  # else it is over already
            storm.cut_link(cluster.chance.choice(storm.nodes))
        outcome = await asyncio.wait_for(run, SETTLE_S)
        assert outcome.end is s.End.interrupted, outcome
        assert all(proof.released for proof in outcome.released)
    storm.look()
    return storm


def _steps(cluster: MiniCluster) -> int:
    """Executions of steps in the log: grows while anything trains."""
    return sum(1 for event in cluster.events if event.kind == "step")


async def _until(condition: Any, run: asyncio.Task[Any], *, what: str) -> None:
    async with asyncio.timeout(SETTLE_S):
        while not condition():
            assert not run.done(), f"the run ended before: {what}: {run}"
            await asyncio.sleep(0.01)


def _hold(cluster: MiniCluster) -> int:
    """The invariants of the whole log, and the model that is left. Returns its step."""
    log, settings = cluster.events, cluster.settings
    check.check_one_owner(log)  # I1
    check.check_samples(log, batch=settings.train.global_batch_size)  # I3, I4
    check.check_pauses(log)  # I7
    check.check_waits(log, longest_s=LOGGED_S)  # I5
    kept = check.kept(log).steps
    checkpoint = newest(Path(settings.checkpoint_directory))
    assert checkpoint is not None, "nothing durable was left"
    losses, state = state_after(settings, checkpoint.step)
    for step, event in kept.items():  # by their effect: each sample once, in order
        if step <= checkpoint.step:
            assert event["loss"] == losses[step], f"step {step}"
    reader = Reader(checkpoint.path)
    assert set(checkpoint.boxes) == state.keys()
    for name, words in state.items():  # I2
        read = np.concatenate([np.ascontiguousarray(a).reshape(-1) for a in reader.read(name)])
        assert np.array_equal(read.view(np.uint32), words), f"{name} at step {checkpoint.step}"
    assert checkpoint.step >= max(kept, default=0), "a committed step is not in the last save"
    return checkpoint.step


def play(folder: Path, *, seed: int, events: int) -> tuple[dict[str, int], int]:
    """Run it and hold it to the invariants: what happened how often, and the last step.

    Raises AssertionError naming the command.
    """
    gc.collect()
    before = Counter(open_files())
    try:
        happened, step, run = _played(folder, seed=seed, events=events)
        left = list(Path("/dev/shm").glob(f"sailor-{run}-*"))  # I6
        assert not left, left
        gc.collect()  # mappings of machines that are gone, as far as tasks in cycles hold them
        more = Counter(open_files()) - before
        assert more.total() <= 2, f"descriptors are left: {dict(more)}"  # I6
    except (AssertionError, TimeoutError) as error:
        raise AssertionError(f"{command(seed=seed, events=events)}\n{error!r}") from error
    return happened, step


def _played(folder: Path, *, seed: int, events: int) -> tuple[dict[str, int], int, str]:
    cluster = MiniCluster(
        folder, seed=seed, nodes=3 + seed % 3, total_steps=MOST_STEPS, anchored=seed % 2 == 0,
        persist_every=(0, 25, 100)[seed % 3],
    )  # fmt: skip
    storm = asyncio.run(_weather(cluster, events=events))
    return dict(storm.happened), _hold(cluster), cluster.run_name


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.runtime.mini_chaos")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=1, help="so many, one after the other")
    parser.add_argument("--log", action="store_true", help="say what happens")
    asked = parser.parse_args()
    if asked.log:
        logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(name)s %(message)s")
    else:
        logging.disable(logging.CRITICAL)  # what is broken on purpose is no news
    for seed in range(asked.seed, asked.seed + asked.seeds):
        with tempfile.TemporaryDirectory(prefix="sailor-mini-") as folder:
            try:
                happened, step = play(Path(folder), seed=seed, events=asked.events)
            except AssertionError as error:
                sys.stdout.write(f"FAILED\n{error}\n")
                if asked.log:
                    traceback.print_exception(error)
                return 1
        sys.stdout.write(f"seed {seed}: {step} steps through {happened}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
