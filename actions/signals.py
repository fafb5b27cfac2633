"""Ctrl-C and SIGTERM, said once: finish the step, save, end. Said twice: stop now."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_signals(
    *,
    ask: Callable[[str], None],
    now: Callable[[], object],
    unwatched: Callable[[], bool] = lambda: False,
) -> Iterator[list[int]]:
    """While the block runs in an event loop, signals call ``ask(reason)`` first and then ``now``.

    ``ask`` must start a clean stop and return at once. ``now`` must bring the run down without
    saving. Gives the exit codes that say what ended the process (130 for Ctrl-C, 143 for SIGTERM),
    one for each call of ``now``.
    A closed terminal (SIGHUP) counts as being asked, unless ``unwatched``, called then, says that
    the run goes on without one. Both are called inside the loop. After the
    block all of them are ignored, for the report is still to be written: see ``signals_restored``.
    """
    import asyncio  # not on the way to --help

    loop = asyncio.get_running_loop()
    asked = False
    codes: list[int] = []

    def handle(number: signal.Signals) -> None:
        nonlocal asked
        if number is signal.SIGHUP and unwatched():
            return
        if not asked:
            asked = True
            ask(f"{number.name} received")
        elif number is not signal.SIGHUP:
            codes.append(128 + number)
            now()

    for number in _SIGNALS:
        loop.add_signal_handler(number, handle, number)
    try:
        yield codes
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # none may find the default in between
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
        ignore()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def ignore() -> None:
    """From here on nothing is left to stop: one more word must not tear a report or an exit."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def signals_restored() -> Iterator[None]:
    """After the block signals do what they did before it, whatever was done to them inside."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
