"""One Slurm cluster on this machine for all tests here, and runs that find it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.one_machine_slurm import Slurm, a_slurm, missing
from tests.helpers.running import Place

ZONES = {"zonea": (2, "l4"), "zoneb": (2, "a100")}


def has_skypilot() -> bool:
    """Whether SkyPilot is installed."""
    return importlib.util.find_spec("sky") is not None


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    why = missing()
    if not why and not has_skypilot():
        why = "SkyPilot is not installed: tests/slurm/install.sh"
    if why:
        pytest.skip(why)
    with a_slurm(ZONES) as cluster:
        yield cluster


class SlurmPlace(Place):
    """Where runs on the cluster happen: its user reads the text and writes checkpoints."""

    def __init__(self, root: Path, slurm: Slurm) -> None:
        self.slurm = slurm
        super().__init__(root)

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self.slurm.environment}

    def checkpoints(self, name: str) -> Path:
        """A folder for durable checkpoints that machines and controller share."""
        path = self.root / f"checkpoints-{name}"
        path.mkdir()
        path.chmod(0o777)
        return path


@pytest.fixture(scope="session")
def place(slurm: Slurm) -> SlurmPlace:
    root = slurm.root / "place"
    root.mkdir()
    os.chmod(root, 0o755)
    return SlurmPlace(root, slurm)
