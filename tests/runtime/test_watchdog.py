"""Who is stopped and who merely waits, by table; and the page both sides share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sailor.runtime.watchdog import (
    LEAST_EXCHANGE_S,
    LOOK_S,
    STALE_S,
    STOPPED_LOOKS,
    UNKNOWN_EXCHANGE_S,
    Doing,
    Look,
    ProgressPage,
    Ticker,
    exchange_timeout_s,
    is_stopped,
    kernel_state,
    peak_bytes,
    stopped_looks,
)


@pytest.mark.parametrize(
    ("silent_s", "stopped", "since_last_look_s", "verdict"),
    [
        (0.1, 0, LOOK_S, False),  # ticks: whatever it waits for, it is not to blame
        (STALE_S - 0.1, 0, LOOK_S, False),  # a thread may be late on a loaded machine
        (STALE_S + 0.1, 0, LOOK_S, True),  # its interpreter hangs
        (0.4, STOPPED_LOOKS - 1, LOOK_S, False),  # a pause as short as a debugger's
        (0.4, STOPPED_LOOKS, LOOK_S, True),  # SIGSTOP
        (0.2, STOPPED_LOOKS, LOOK_S, False),  # ticks between two looks: it is slowed down
        (60.0, 0, 60.0, False),  # the whole machine was paused: look again
        (60.0, STOPPED_LOOKS, 60.0, True),
    ],
)
def test_the_judgement(silent_s, stopped, since_last_look_s, verdict) -> None:
    now = 1000.0
    look = Look(ticked_at=now - silent_s, stopped_looks=stopped)
    assert is_stopped(look, now=now, previous_look_at=now - since_last_look_s) is verdict


@pytest.mark.parametrize(
    ("steps_took", "seconds"),
    [
        ([], UNKNOWN_EXCHANGE_S),  # the first step of all may be long: it warms everything up
        ([0.02] * 5, LEAST_EXCHANGE_S),
        ([60.0, 61.0, 600.0], 610.0),  # a large model: 20 s would break every step of it
    ],
)
def test_an_exchange_may_take_as_long_as_steps_let_expect(steps_took, seconds) -> None:
    assert exchange_timeout_s(steps_took) == seconds


@pytest.mark.parametrize(
    ("states", "count"), [("", 0), ("S", 0), ("T", 1), ("TT", 2), ("TST", 1), ("TTS", 0)]
)
def test_only_an_unbroken_run_of_stopped_counts(states, count) -> None:
    assert stopped_looks(states) == count


def test_each_slot_of_the_page_has_one_writer(tmp_path: Path) -> None:
    page = ProgressPage.create(tmp_path / "progress", slots=2)
    for slot in range(2):
        page.reset(slot)
    began = time.monotonic()
    theirs = ProgressPage.attach(page.path)
    ticker = Ticker(theirs, 1)
    ticker.move(step=7, doing=Doing.training, device_bytes=5)
    ticker.tick()
    seen = page.read(1)
    assert (seen.step, seen.doing, seen.moves, seen.device_bytes) == (7, Doing.training, 1, 5)
    assert seen.ticked_at >= began
    assert seen.moved_at >= began
    assert (page.read(0).step, page.read(0).doing) == (-1, Doing.idle)
    assert page.path.stat().st_mode & 0o777 == 0o600


def test_the_kernel_tells_a_stopped_process_from_a_sleeping_one() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        assert kernel_state(child.pid) == "T"
        os.kill(child.pid, signal.SIGCONT)
        os.waitid(os.P_PID, child.pid, os.WCONTINUED)
        assert kernel_state(child.pid) in ("R", "S", "D")
        assert peak_bytes(child.pid) > 0
    finally:
        child.kill()
        child.communicate()
    assert kernel_state(child.pid) == ""
    assert peak_bytes(child.pid) == 0
