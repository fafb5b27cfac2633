"""One signal asks, a second one ends, and afterwards nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from actions.signals import signals_restored, stop_signals


@pytest.fixture(autouse=True)
def _as_before():
    with signals_restored():
        yield


async def _send(*numbers: int) -> tuple[list[str], list[int]]:
    asked: list[str] = []
    ends: list[str] = []
    with stop_signals(ask=asked.append, now=lambda: ends.append("now")) as ended:
        for number in numbers:
            os.kill(os.getpid(), number)
            for _ in range(3):  # the loop reads its wake-up pipe, then calls back
                await asyncio.sleep(0)
    assert len(ends) == len(ended)
    return asked, ended


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_asks(number):
    asked, ended = asyncio.run(_send(number))
    assert asked == [f"{number.name} received"]
    assert ended == []


@pytest.mark.parametrize(
    ("numbers", "code"),
    [
        ((signal.SIGINT, signal.SIGINT), 130),
        ((signal.SIGTERM, signal.SIGTERM), 143),
        ((signal.SIGINT, signal.SIGTERM), 143),
        ((signal.SIGHUP, signal.SIGINT), 130),
    ],
)
def test_the_second_signal_ends_at_once(numbers, code):
    asked, ended = asyncio.run(_send(*numbers))
    assert len(asked) == 1
    assert ended == [code]


def test_a_terminal_that_closes_twice_still_saves():
    asked, ended = asyncio.run(_send(signal.SIGHUP, signal.SIGHUP))
    assert len(asked) == 1
    assert ended == []


def test_a_run_that_nobody_watches_goes_on_without_its_terminal():
    """Detached with d: closing the terminal is no wish to stop, Ctrl-C still is one."""
    asked: list[str] = []

    async def close_and_stop() -> None:
        with stop_signals(ask=asked.append, now=lambda: None, unwatched=lambda: True):
            for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGINT):
                os.kill(os.getpid(), number)
                for _ in range(3):
                    await asyncio.sleep(0)

    asyncio.run(close_and_stop())
    assert asked == ["SIGINT received"]


def test_while_the_report_is_written_signals_are_ignored_and_then_as_before():
    """One in that moment once ended a run that was saved with the code of one that was not."""
    before = signal.getsignal(signal.SIGTERM)
    with signals_restored():
        asyncio.run(_send(signal.SIGTERM))
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
