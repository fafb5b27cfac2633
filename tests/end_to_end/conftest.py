"""One place for all runs of these tests, and the runs that nothing disturbed."""

from __future__ import annotations

import pytest
from filelock import FileLock

from tests.helpers.running import Ended, Place


@pytest.fixture(scope="session")
def place(tmp_path_factory, worker_id="main") -> Place:
    """Shared by all test processes of a session: tokens are made and cores measured once."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "gw" in base.name else base) / "end_to_end"
    root.mkdir(exist_ok=True)
    with FileLock(root.with_suffix(".lock")):
        return Place(root)


@pytest.fixture(scope="session")
def undisturbed(place):
    """``undisturbed(steps)``: the run to compare with, on one machine, made once per length."""

    def made(steps: int, *arguments: str) -> Ended:
        name = (
            f"undisturbed-{steps}-{abs(hash(arguments)):x}" if arguments else f"undisturbed-{steps}"
        )
        with FileLock(place.root / f"{name}.lock"):
            folder = place.runs / name
            if (folder / "summary.json").exists():
                return Ended(code=0, out="", err="", folder=folder)
            ended = place.train(
                "cloud.nodes=1", "cloud.memory_per_gpu=1GiB", f"train.steps={steps}", *arguments,
                name=name,
            )  # fmt: skip
            assert ended.code == 0, ended.told()
            return ended

    return made
