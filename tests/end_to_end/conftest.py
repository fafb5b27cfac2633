"""One place for all runs of these tests, and the runs that nothing disturbed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from tests.helpers.running import Ended, Place

TIMEOUT_S = 900  # of one test; its runs have deadlines of their own below that


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Shared by all test processes of a session: tokens are made and cores measured once."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if base.name.startswith("popen-") else base) / "end_to_end"
    root.mkdir(exist_ok=True)
    with FileLock(root.with_suffix(".lock")):
        return Place(root)


@pytest.fixture(scope="session")
def undisturbed(place: Place) -> Callable[[int], Ended]:
    """``undisturbed(steps)``: the run to compare with, on one machine, made once per length."""

    def made(steps: int) -> Ended:
        name = place.named(f"undisturbed-{steps}")
        with FileLock(place.root / f"{name}.lock"):
            folder = place.runs / name
            if (folder / "summary.json").exists():
                return Ended(code=0, out="", err="", folder=folder)
            ended = place.train(
                "cloud.nodes=1", "cloud.memory_per_gpu=1GiB", f"train.steps={steps}", name=name
            )
            assert ended.code == 0, ended.told()
            return ended

    return made
