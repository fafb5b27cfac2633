"""What every provisioner owes: one list of sentences, run against all of them.

The same checks run through the real SkyPilot on a Slurm cluster in tests/slurm.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sailor.cluster.provisioner import Provisioner, Refused, Released
from sailor.errors import CloudError
from tests.helpers.compose import ROOT
from tests.helpers.rigs import KINDS, Rig, a_rig

every_kind = pytest.mark.parametrize("kind", KINDS)


def on(kind: str, folder: Path, check: Callable[[Rig], Awaitable[None]], **how: bool) -> None:
    async def run() -> None:
        async with a_rig(kind, folder, **how) as rig:
            await check(rig)

    asyncio.run(run())


async def asking_twice_rents_once(rig: Rig) -> None:
    await rig.provisioner.request(rig.order("node-1"), rig.order("node-2"))
    await rig.provisioner.request(rig.order("node-1"))
    await rig.until(lambda: rig.machines() == {"node-1", "node-2"})


async def a_release_is_proven_and_true(rig: Rig) -> None:
    await rig.provisioner.request(rig.order("node-1"))
    await rig.provisioner.request(rig.order("node-2"))
    await rig.until(lambda: rig.machines() == {"node-1", "node-2"})
    released = await rig.provisioner.release("node-1")
    assert released.released
    assert released.proof
    assert rig.machines() == {"node-2"}
    assert (await rig.provisioner.release("node-1")).released


async def closing_releases_all_and_ends_the_news(rig: Rig) -> None:
    await rig.provisioner.request(rig.order("node-2"), rig.order("node-3"))
    await rig.until(lambda: rig.machines() == {"node-2", "node-3"})
    listening = asyncio.ensure_future(_all_news(rig.provisioner))
    await asyncio.sleep(0)
    released = await rig.provisioner.close()
    assert {proof.node for proof in released if proof.released} >= {"node-2", "node-3"}
    assert rig.machines() == set()
    await asyncio.wait_for(listening, 5.0)
    with pytest.raises(CloudError, match="too late"):
        await rig.provisioner.request(rig.order("node-4"))


async def _all_news(provisioner: Provisioner) -> list[object]:
    return [news async for news in provisioner.notices()]


@every_kind
def test_asking_twice_for_a_machine_rents_one(kind: str, tmp_path: Path) -> None:
    on(kind, tmp_path, asking_twice_rents_once)


@every_kind
def test_a_release_is_proven_and_true_and_touches_nobody_else(kind: str, tmp_path: Path) -> None:
    on(kind, tmp_path, a_release_is_proven_and_true)


@every_kind
def test_closing_releases_all_and_ends_the_news(kind: str, tmp_path: Path) -> None:
    on(kind, tmp_path, closing_releases_all_and_ends_the_news)


@every_kind
def test_a_machine_that_nobody_asked_for_is_gone_already(kind: str, tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        assert (await rig.provisioner.release("nobody")).released

    on(kind, tmp_path, check)


@every_kind
def test_a_machine_can_be_given_back_before_it_has_come(kind: str, tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        await rig.provisioner.request(rig.order("node-1"))
        released = await rig.provisioner.release("node-1")
        assert released == Released(node="node-1", released=True, proof=released.proof)
        assert rig.machines() == set()

    on(kind, tmp_path, check, slow=True)


@every_kind
def test_an_order_that_comes_to_nothing_is_told(kind: str, tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        news = rig.provisioner.notices()
        await rig.provisioner.request(rig.order("node-1"))
        told = await asyncio.wait_for(anext(news), 20.0)
        assert isinstance(told, Refused)
        assert (told.node, told.error.code) == ("node-1", "E405")
        assert rig.machines() == set()
        await rig.provisioner.request(rig.order("node-1"))  # the name may be asked for again
        assert isinstance(await asyncio.wait_for(anext(news), 20.0), Refused)

    on(kind, tmp_path, check, broken=True)


@every_kind
def test_a_place_that_does_not_exist_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    async def check(rig: Rig) -> None:
        with pytest.raises(CloudError) as refusal:
            await rig.provisioner.request(rig.order("node-1", zone="atlantis"))
        assert (refusal.value.code, refusal.value.exit_code) == ("E404", 4)
        assert {proof.node for proof in await rig.provisioner.close()} == set()

    on(kind, tmp_path, check)


@every_kind
@pytest.mark.parametrize("after", ["", "0", "0.02"])
def test_whatever_a_killed_process_had_rented_the_next_one_releases(
    kind: str, after: str, tmp_path: Path
) -> None:
    """Killed when all machines are there, at once, and in between."""
    killed = subprocess.run(
        [sys.executable, "-m", "tests.helpers.rigs", kind, str(tmp_path), after],
        cwd=ROOT, timeout=60,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL

    async def check(rig: Rig) -> None:
        left = rig.machines()
        assert len(left) == 3 or after
        proofs = await rig.provisioner.close()
        assert {proof.node for proof in proofs if proof.released} >= left
        assert all(proof.released for proof in proofs)
        assert rig.machines() == set()

    on(kind, tmp_path, check)
