"""Who is stopped and who merely waits, by table; and the page both sides share."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from sailor.runtime.watchdog import (
    HUNG_MARGIN_S,
    HUNG_STEPS,
    KNOWN_STEPS,
    LEAST_EXCHANGE_S,
    SILENT_S,
    STALE_S,
    STOPPED_LOOKS,
    UNKNOWN_EXCHANGE_S,
    Doing,
    Look,
    Pace,
    Progress,
    ProgressPage,
    Starvation,
    Ticker,
    Watch,
    exchange_timeout_s,
    is_hung,
    is_stopped,
    kernel_state,
    peak_bytes,
    starved_seconds,
    stopped_looks,
)


@pytest.mark.parametrize(
    ("silent_s", "stopped", "watched_s", "verdict"),
    [
        (0.1, 0, 60.0, False),  # ticks: whatever it waits for, it is not to blame
        (STALE_S - 0.1, 0, 60.0, False),  # a thread may be late on a loaded machine
        (STALE_S + 0.1, 0, 60.0, True),  # its interpreter hangs
        (0.4, STOPPED_LOOKS - 1, 60.0, False),  # a pause as short as a debugger's
        (SILENT_S + 0.1, STOPPED_LOOKS, 60.0, True),  # SIGSTOP
        (SILENT_S - 0.1, STOPPED_LOOKS, 60.0, False),  # ticks in between: it is slowed down
        # The whole machine stood still for a minute, and the agent woke up first.
        (60.0, 0, 0.0, False),
        (60.3, STOPPED_LOOKS, 0.3, False),
        (60.3, 0, 0.3, False),
        (60.8, STOPPED_LOOKS, 0.8, True),  # it alone was not woken
        (63.1, 0, 3.1, True),
        (60.0, STOPPED_LOOKS, 60.0, True),
    ],
)
def test_the_judgement(silent_s, stopped, watched_s, verdict) -> None:
    now = 1000.0
    look = Look(ticked_at=now - silent_s, stopped_looks=stopped)
    assert is_stopped(look, now=now, watched_since=now - watched_s) is verdict


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


def test_memory_that_processes_share_is_nobodys_own() -> None:
    """100 MiB that could be anybody's, and 40 of its own, which it gives back again."""
    program = (
        "import mmap\n"
        "shared = mmap.mmap(-1, 100 << 20)\n"
        "for _ in range(100): shared.write(bytes(1 << 20))\n"
        "own = bytearray(b'x') * (40 << 20)\n"
        "del own\n"
        "print('there', flush=True)\n"
        "input()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"there\n"
        assert psutil.Process(child.pid).memory_info().rss > 100 << 20
        assert 40 << 20 < peak_bytes(child.pid) < 80 << 20
    finally:
        child.kill()
        child.communicate()


# A training thread that hangs while the others live


def seen(*, step=9, moved_at=100.0, waited_at=90.0, doing=Doing.training):
    return Progress(
        ticked_at=1000.0, moved_at=moved_at, moves=step, step=step, doing=doing, device_bytes=0,
        waited_at=waited_at,
    )  # fmt: skip


BOUND_S = HUNG_MARGIN_S + HUNG_STEPS * 2.0  # of steps that take 2 s
STEPS_OF_2S = (2.0, 1.0, 2.0, 5.0)


def hung(progress, *, after_s, steps=STEPS_OF_2S, watched_s=1000.0):
    now = progress.moved_at + after_s
    return is_hung(progress, steps, now=now, watched_since=now - watched_s)


def test_a_thread_that_neither_steps_nor_waits_for_much_longer_than_a_step_hangs():
    assert not hung(seen(), after_s=BOUND_S - 0.1)
    assert hung(seen(), after_s=BOUND_S + 0.1)


def test_time_in_which_a_thread_got_no_turn_is_not_its_fault():
    """Once a machine with 30 processes on 2 cores had its worker ended for this."""
    late = seen().moved_at + BOUND_S + 5.0
    judged = {"now": late, "watched_since": 0.0}
    assert is_hung(seen(), STEPS_OF_2S, **judged, starved_s=4.9)
    assert not is_hung(seen(), STEPS_OF_2S, **judged, starved_s=5.1)
    tick = {"ticked_at": late - STALE_S - 1.0, "stopped_looks": 0}
    assert is_stopped(Look(**tick), **judged)
    assert not is_stopped(Look(**tick, starved_s=1.1), **judged)


def test_starvation_is_counted_from_the_last_sign_of_life():
    starvation = Starvation()
    assert starvation.since(1.0, delay_s=50.0) == 0.0
    assert starvation.since(1.0, delay_s=53.0) == 3.0
    assert starvation.since(2.0, delay_s=53.5) == 0.0


def test_the_kernel_counts_the_time_for_which_a_process_gets_no_turn():
    before = starved_seconds(os.getpid())
    assert before >= 0.0
    assert starved_seconds(os.getpid()) >= before
    assert starved_seconds(-1) == 0.0


def test_a_thread_that_waits_for_a_peer_is_not_to_blame():
    assert not hung(seen(waited_at=100.0 + 500.0), after_s=500.1)


@pytest.mark.parametrize("doing", [d for d in Doing if d is not Doing.training])
def test_what_is_no_step_may_take_its_time(doing):
    assert not hung(seen(doing=doing), after_s=1e6)


def test_before_it_is_known_how_long_a_step_takes_nobody_is_blamed():
    assert not hung(seen(), after_s=1e6, steps=STEPS_OF_2S[: KNOWN_STEPS - 1])


def test_time_in_which_nobody_looked_is_not_held_against_a_worker():
    assert not hung(seen(), after_s=1e6, watched_s=BOUND_S - 0.1)
    assert hung(seen(), after_s=1e6, watched_s=BOUND_S + 0.1)


def test_a_watch_begins_anew_after_a_lapse():
    watch = Watch(100.0)
    watch.look(100.3)
    watch.look(100.6)
    assert watch.since == 100.0
    watch.look(108.6)  # stopped with all its machine
    watch.look(108.9)
    assert watch.since == 108.6


def test_a_pace_is_that_of_one_generation():
    pace = Pace()
    for step, at in ((3, 10.0), (4, 12.0), (6, 16.0)):
        pace.look(seen(step=step, moved_at=at), generation=2)
    assert list(pace.step_seconds) == [2.0, 2.0, 2.0]  # three steps, of two of them at one look
    pace.look(seen(step=6, moved_at=30.0), generation=3)
    assert list(pace.step_seconds) == []


def _ticks_until(path: Path, end: float) -> None:
    ticker = Ticker(ProgressPage.attach(path), 0)
    while time.monotonic() < end:
        ticker.tick()
        ticker.waits()
        ticker.move(step=1 << 40, doing=Doing.training, busy_s=0.5)


def test_a_word_is_never_seen_half_written(tmp_path):
    """Written by struct.pack_into, one look in six at a pen in motion finds zero: a worker that has
    never ticked. At ten ticks a second that ended one of a thousand workers every few minutes."""
    page = ProgressPage.create(tmp_path / "page", slots=1)
    page.reset(0)
    began = time.monotonic()
    writer = multiprocessing.get_context("spawn").Process(
        target=_ticks_until, args=(tmp_path / "page", began + 120.0)
    )
    writer.start()
    try:
        while page.read(0).moves == 0:
            assert time.monotonic() < began + 60.0
        looks, end = 0, time.monotonic() + 1.0
        while time.monotonic() < end:
            seen = page.read(0)
            assert min(seen.ticked_at, seen.moved_at, seen.waited_at) >= began
            assert (seen.step, seen.doing, seen.busy_s) == (1 << 40, Doing.training, 0.5)
            looks += 1
        assert looks > 1000
    finally:
        writer.kill()
        writer.join()


def test_a_page_carries_who_waits(tmp_path):
    page = ProgressPage.create(tmp_path / "page", slots=2)
    page.reset(1)
    before = page.read(1).waited_at
    ticker = Ticker(ProgressPage.attach(tmp_path / "page"), 1)
    ticker.waits()
    ticker.move(step=3, doing=Doing.training)
    assert page.read(1).waited_at > before
    assert (page.read(1).step, page.read(0).waited_at) == (3, 0.0)
