"""A terminal of a given size with a command in it, and what stands on its screen: by tmux."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.terminal_theme import MONOKAI


class Terminal:
    """One window of a tmux server of its own."""

    def __init__(self, socket: str) -> None:
        self._socket = socket

    def tmux(self, *words: str) -> str:
        """What tmux answers. Raises CalledProcessError."""
        done = subprocess.run(
            ["tmux", "-L", self._socket, *words],
            capture_output=True, text=True, check=True, timeout=20,
        )  # fmt: skip
        return done.stdout

    def screen(self, *, colours: bool = False) -> str:
        """The lines on the screen, now."""
        return self.tmux("capture-pane", "-p", *(["-e"] if colours else []))

    def all_lines(self) -> str:
        """What scrolled away as well, with wrapped lines joined."""
        return self.tmux("capture-pane", "-p", "-J", "-S", "-")

    def resize(self, columns: int, lines: int) -> None:
        """Another size."""
        self.tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def type(self, text: str) -> None:
        """Type this, letter by letter."""
        self.tmux("send-keys", "-l", text)

    def keys(self, *names: str) -> None:
        """Press keys: C-c, q, Enter."""
        self.tmux("send-keys", *names)

    def until(self, word: str, *, seconds: float) -> str:
        """The screen once a word stands on it or above. Raises TimeoutError with all there is."""
        give_up = time.monotonic() + seconds
        while time.monotonic() < give_up:
            if word in (lines := self.all_lines()):
                return lines
            time.sleep(0.2)
        raise TimeoutError(f"no {word!r} within {seconds:.0f} s:\n{self.all_lines()[-3000:]}")


@contextmanager
def a_terminal(
    command: Sequence[str], *, columns: int, lines: int, folder: Path, environment: dict[str, str]
) -> Iterator[Terminal]:
    """The command in a terminal; what it left running is ended at the end of the block."""
    socket = f"sailor-{os.getpid()}-{time.monotonic_ns()}"
    terminal = Terminal(socket)
    told = [f"-e{name}={value}" for name, value in environment.items()]
    subprocess.run(
        [
            "tmux", "-L", socket, "-f", "/dev/null", "new-session", "-d", "-x", str(columns),
            "-y", str(lines), "-c", str(folder), *told, *command, ";",
            "set-option", "remain-on-exit", "on", ";", "set-option", "-g", "history-limit", "5000",
        ],
        check=True, timeout=20,
    )  # fmt: skip
    command_pid = int(terminal.tmux("display-message", "-p", "#{pane_pid}"))
    try:
        yield terminal
    finally:
        _end(command_pid)  # a run outlives its terminal
        subprocess.run(["tmux", "-L", socket, "kill-server"], capture_output=True, timeout=20)


def _end(pid: int) -> None:
    """Ask twice, which a run takes for at once, and insist after half a minute."""
    with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
        process = psutil.Process(pid)
        for _ in range(2):
            process.terminate()
            time.sleep(0.5)
        process.wait(30)
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).kill()


def why_not() -> str:
    """What is missing for a terminal here; empty where there is one."""
    return "" if shutil.which("tmux") else "there is no tmux: apt-get install tmux"


def as_svg(screen: str, *, columns: int, title: str) -> str:
    """A screen with its colours as a picture, without the fonts from elsewhere that rich names."""
    console = Console(width=columns, record=True, file=io.StringIO(), force_terminal=True)
    for line in AnsiDecoder().decode(screen.rstrip("\n")):  # which keeps a style over a line's end
        console.print(line, soft_wrap=True, end="\n")
    form = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.S)
    return console.export_svg(title=title, theme=MONOKAI, code_format=form)
