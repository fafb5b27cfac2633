"""Seeded random events on a whole run in one process: real controller and agents, workers that
pretend. ``python -m tests.runtime.mini_chaos --seed N --events K`` plays one again; the order in
which answers come is the event loop's, so a seed may have to be played more than once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.mini_chaos import play


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What is broken on purpose is no news."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.matrix  # its waits are real: on a loaded computer the last save may be late
@pytest.mark.parametrize("seed", [2])
def test_a_small_storm_changes_nothing(tmp_path: Path, seed: int) -> None:
    happened, step = play(tmp_path, seed=seed, events=40)
    assert sum(happened.values()) == 40
    assert step > 0


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(1, 13))
def test_two_hundred_events_change_nothing(tmp_path: Path, seed: int) -> None:
    happened, _ = play(tmp_path, seed=seed, events=200)
    assert sum(happened.values()) == 200
