"""An agent that is told to stop at any moment, and again while it stops: nothing is left."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sailor.checkpoint.arena import SHARED_MEMORY
from sailor.log import Stamp
from sailor.runtime.agent import Agent, AgentSettings
from sailor.runtime.identity import create_identity
from tests.helpers.mini_cluster import open_files
from tests.helpers.pretend_exchange import Exchange
from tests.helpers.pretend_workers import PretendNursery

NOBODY = ("127.0.0.1", 9)  # where no controller listens


@pytest.fixture(autouse=True)
def no_garbage_collected() -> Iterator[None]:
    """It would close sockets that were forgotten."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def an_agent(folder: Path) -> Agent:
    """One whose workers pretend."""
    settings = AgentSettings(
        node="node-1", zone="a", machine_type="local", slots=1, controller=NOBODY,
        identity=create_identity(folder / "identity", run=f"cut-{folder.name}"[-40:]),
        host="127.0.0.1", memory_bytes=8 << 20,
    )  # fmt: skip
    nursery: Any = partial(PretendNursery, exchange=Exchange(), chance=random.Random(1))
    return Agent(settings, stamp=Stamp(who="node-1"), workers=nursery)


@pytest.mark.parametrize("turns", [*range(12), 40, 400])
@pytest.mark.parametrize("again", range(4))
def test_nothing_is_left(tmp_path: Path, turns: int, again: int) -> None:
    async def life() -> None:
        agent = an_agent(tmp_path)
        task = asyncio.ensure_future(agent.serve())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        for _ in range(again):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})

    before = sorted(open_files())
    asyncio.run(life())
    assert not list(SHARED_MEMORY.glob("sailor-cut-*"))
    assert [f for f in open_files() if f.startswith("socket:") and f not in before] == []
    gc.collect()  # a mapping may hang on a cancelled task's way out
    assert sorted(open_files()) == before
