"""Agents, zygotes and workers as real processes, driven by a controller that decides nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sailor.runtime import messages as m
from tests.helpers.builders import a_plan
from tests.helpers.cluster import a_cluster


def test_one_agent_and_one_worker_train_from_the_seed(tmp_path: Path) -> None:
    async def story() -> None:
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

    asyncio.run(story())
