"""The end of a run that is hurt: it is over when what was done last, or all that is left of it, is
durable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from sailor.checkpoint.store import Reader, newest
from sailor.runtime import state as s
from tests.helpers import invariants as check
from tests.helpers.mini_cluster import MiniCluster
from tests.helpers.pretend_exchange import state_after

PATIENCE_S = 60.0  # a loaded machine's


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What is broken on purpose is no news."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_a_node_that_comes_back_with_an_old_save_does_not_end_the_run(tmp_path: Path) -> None:
    """Its word that step 10 was durable once ended runs before their last step was."""
    cluster = MiniCluster(
        tmp_path, seed=1, nodes=4, total_steps=1_000_000, anchored=False, persist_every=10
    )
    end = asyncio.run(_stop_while_a_node_is_away(cluster))
    assert end is s.End.interrupted
    done = max(check.kept(cluster.events).steps)
    saved = newest(Path(cluster.settings.checkpoint_directory))
    assert saved is not None
    assert saved.step == done


async def _stop_while_a_node_is_away(cluster: MiniCluster) -> s.End:
    async with cluster.running() as run, asyncio.timeout(PATIENCE_S):
        while not _between_saves(cluster):
            assert not run.done(), run
            await asyncio.sleep(0.001)
        link = cluster.machines.agent("node-1")._link
        assert link is not None
        link.abort()  # it does not hear of the stop before it is back
        cluster.controller.ask_stop(s.End.interrupted, "enough")
        return (await run).end


def _between_saves(cluster: MiniCluster) -> bool:
    """Whether a step is durable and newer ones, the next that will be not among them, are done."""
    saved = max((e["step"] for e in cluster.events if e.kind == "persisted"), default=0)
    done = max((e["step"] for e in cluster.events if e.kind == "step"), default=0)
    return saved > 0 and saved < done < saved + 5


def test_a_run_stopped_while_too_few_are_left_saves_what_they_have_copies_of(
    tmp_path: Path,
) -> None:
    """Two machines, each with half of the model and copies of the other's; one is lost."""
    cluster = MiniCluster(
        tmp_path, seed=1, nodes=2, total_steps=1_000_000, anchored=False, persist_every=0
    )
    end, safe = asyncio.run(
        _stop_while_parked(cluster, lambda: _count(cluster, "snapshot_copied") >= 5, "node-1")
    )
    assert end is s.End.interrupted
    assert _saved_as_undisturbed(cluster) >= safe > 0


def test_with_all_machines_gone_a_stop_saves_what_the_anchor_has(tmp_path: Path) -> None:
    """It is given back with the others: what it alone has must not go with it."""
    cluster = MiniCluster(
        tmp_path, seed=2, nodes=2, total_steps=1_000_000, anchored=True, persist_every=0
    )
    end, _ = asyncio.run(
        _stop_while_parked(cluster, lambda: _count(cluster, "anchored") > 0, "node-1", "node-2")
    )
    assert end is s.End.interrupted
    anchored = max(event["step"] for event in cluster.events if event.kind == "anchored")
    assert _saved_as_undisturbed(cluster) >= anchored > 0


async def _stop_while_parked(
    cluster: MiniCluster, enough: Callable[[], bool], *lost: str
) -> tuple[s.End, int]:
    """Lose machines once there is ``enough``, and stop. How it ended, and a step of which all
    copies at peers were made before."""
    async with cluster.running() as run, asyncio.timeout(PATIENCE_S):
        while not enough():
            assert not run.done(), run
            await asyncio.sleep(0.001)
        safe = check.safe_step(cluster.events)
        for node in lost:
            cluster.machines.kill(node)
        while not _count(cluster, "parked"):
            assert not run.done(), run
            await asyncio.sleep(0.001)
        cluster.controller.ask_stop(s.End.interrupted, "enough")
        return (await run).end, safe


def _saved_as_undisturbed(cluster: MiniCluster) -> int:
    """The step that is durable; its state is what an undisturbed run has then, to the last bit."""
    saved = newest(Path(cluster.settings.checkpoint_directory))
    assert saved is not None
    _, state = state_after(cluster.settings, saved.step)
    reader = Reader(saved.path)
    assert set(saved.boxes) == state.keys()
    for name, words in state.items():
        read = np.concatenate([np.ascontiguousarray(a).reshape(-1) for a in reader.read(name)])
        assert np.array_equal(read.view(np.uint32), words), name
    return saved.step


def _count(cluster: MiniCluster, kind: str) -> int:
    return sum(1 for event in cluster.events if event.kind == kind)
