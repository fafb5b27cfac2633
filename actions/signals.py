"""Ctrl-C and SIGTERM, said once: finish the step, save, end. Said twice: stop now."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_signals(*, ask: Callable[[str], None], now: Callable[[int], None]) -> Iterator[None]:
    """While the block runs in an event loop, signals call ``ask(reason)`` first and then ``now``.

    ``ask`` must start a clean stop and return at once. ``now`` gets the exit code that says what
    ended the process (130 for Ctrl-C, 143 for SIGTERM) and must bring the run down without saving.
    A closed terminal (SIGHUP) counts as being asked. Both are called inside the loop. After the
    block all of them are ignored, for the report is still to be written: see ``signals_restored``.
    """
    loop = asyncio.get_running_loop()
    asked = False

    def handle(number: signal.Signals) -> None:
        nonlocal asked
        if not asked:
            asked = True
            ask(f"{number.name} received")
        elif number is not signal.SIGHUP:
            now(128 + number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, handle, number)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # none may find the default in between
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


@contextmanager
def signals_restored() -> Iterator[None]:
    """After the block signals do what they did before it, whatever was done to them inside."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
