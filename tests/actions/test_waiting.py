"""A wait of more than two seconds says what it is at; a shorter one says nothing."""

from __future__ import annotations

import io
import threading

from actions.console import Console


def a_console(*, terminal: bool) -> tuple[Console, io.StringIO, threading.Event]:
    """A console, what it prints, and an event for when it prints anything."""
    written = threading.Event()

    class Out(io.StringIO):
        def write(self, text: str) -> int:
            written.set()
            return super().write(text)

        def isatty(self) -> bool:
            return terminal

    console, out = Console(), Out()
    console.file = out
    console._force_terminal = console.is_interactive = terminal
    return console, out, written


def test_a_short_wait_says_nothing():
    console, out, _ = a_console(terminal=True)
    with console.waiting("searching") as tell:
        tell(1, 2)
    assert out.getvalue() == ""


def test_a_long_wait_says_once_in_a_log_what_it_is():
    console, out, written = a_console(terminal=False)
    with console.waiting("searching", patience_s=0.0) as tell:
        assert written.wait(60)
        tell(1, 2)
    assert out.getvalue() == "searching ...\n"


def test_a_long_wait_shows_on_a_terminal_how_far_it_is(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    console, out, written = a_console(terminal=True)
    with console.waiting("searching", patience_s=0.0) as tell:
        assert written.wait(60)
        tell(3, 7)
    text = out.getvalue()
    assert "searching" in text
    assert "3/7" in text
    assert "\x1b[2K" in text  # and is taken away
