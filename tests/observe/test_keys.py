"""Keys on a real terminal, a pseudo one: read unechoed, and its mode put back on every way out."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time

import pytest

from tests.helpers.compose import ROOT

PROGRAM = """
import os, sys, threading, time
from sailor.observe.keys import Key, Keys
done = threading.Event()
keys = Keys(0, {"s": Key(label="[s]", press=lambda: print("saved", flush=True)),
                "x": Key(label="[x]", press=lambda: 1 / 0),
                "q": Key(label="[q]", press=done.set)})
keys.start()
print("ready", flush=True)
try:
    done.wait(60)
    if sys.argv[1] == "raise":
        raise RuntimeError("as if something broke")
    if sys.argv[1] == "exit":
        sys.exit(3)
finally:
    if sys.argv[1] == "stop":
        keys.stop()
print("over", flush=True)
"""


class Terminal:
    """A program on a pseudo terminal of its own."""

    def __init__(self, ending: str) -> None:
        self.parent, child = pty.openpty()
        self.before = termios.tcgetattr(child)
        self.program = subprocess.Popen(
            [sys.executable, "-c", f"import os; os.setsid(); import fcntl, termios; "
             f"fcntl.ioctl(0, termios.TIOCSCTTY, 0); exec({PROGRAM!r})", ending],
            stdin=child, stdout=child, stderr=child, cwd=ROOT,
        )  # fmt: skip
        self.child = child  # kept open, so that its mode can be looked at afterwards
        self.said = ""

    def until(self, word: str) -> str:
        deadline = time.monotonic() + 60
        while word not in self.said and time.monotonic() < deadline:
            if select.select([self.parent], [], [], 0.1)[0]:
                self.said += os.read(self.parent, 4096).decode()
        assert word in self.said
        return self.said

    def press(self, keys: str) -> None:
        os.write(self.parent, keys.encode())

    def close(self) -> None:
        self.program.kill()
        self.program.wait()
        os.close(self.parent)
        os.close(self.child)


@pytest.fixture
def on_terminal():
    opened = []

    def start(ending: str) -> Terminal:
        opened.append(Terminal(ending))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


@pytest.mark.parametrize("ending", ["stop", "exit", "raise"])
def test_a_key_does_what_it_says_and_the_terminal_is_as_before_afterwards(on_terminal, ending):
    terminal = on_terminal(ending)
    terminal.until("ready")
    assert not termios.tcgetattr(terminal.child)[3] & (termios.ICANON | termios.ECHO)
    assert termios.tcgetattr(terminal.child)[3] & termios.ISIG  # Ctrl-C is not ours
    terminal.press("zS")  # a key that nobody offers does nothing; capitals count
    said = terminal.until("saved")
    assert "zS" not in said
    terminal.press("q")
    terminal.program.wait(60)
    assert termios.tcgetattr(terminal.child) == terminal.before


def test_a_key_that_breaks_something_takes_the_terminal_along_with_nobody(on_terminal):
    terminal = on_terminal("stop")
    terminal.until("ready")
    terminal.press("x")
    terminal.until("ZeroDivisionError")
    terminal.program.send_signal(2)  # Ctrl-C, for the reading has ended
    terminal.program.wait(60)
    assert termios.tcgetattr(terminal.child) == terminal.before
