"""Where an action writes: text for people, and at most one JSON document for programs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console as RichConsole

from sailor.config import Output

_PIPE_WIDTH = 160
PATIENCE_S = 2.0  # after which a wait is shown
Told = Callable[[int, int], None]  # done, of how many


class Console(RichConsole):
    """A rich console that keeps standard output clean when a program is reading it.

    With output=json, everything printed goes to standard error, and the document given to
    ``document`` is all that reaches standard output, once, when the command ends.
    """

    def __init__(self, *, output: Output = Output.text, command: str = "") -> None:
        stream = sys.stderr if output is Output.json else sys.stdout
        # A file or a pipe has no width of its own: tables are not squeezed into 80 columns there.
        width = None if stream.isatty() else _PIPE_WIDTH
        # What is printed comes from users and clouds: brackets in it are no markup.
        super().__init__(file=stream, highlight=False, markup=False, width=width)
        self.output = output
        self.command = command  # as typed, for the record
        self.documents: list[Any] = []

    def document(self, value: Any) -> None:
        """The action's result in JSON types, for output=json. Ignored in text mode's output."""
        self.documents.append(value)

    @contextmanager
    def waiting(self, what: str, *, patience_s: float = PATIENCE_S) -> Iterator[Told]:
        """While the block runs, and once it has taken two seconds: what it is at, and for how long.

        Gives ``tell(done, total)`` for blocks that know how far they are. On a terminal a line that
        goes away when the block ends; elsewhere one line, for a log must not fill up. Blocks do not
        nest.
        """
        wait = _Wait(self, what)
        timer = threading.Timer(patience_s, wait.show)
        timer.daemon = True
        timer.start()
        try:
            yield wait.tell
        finally:
            timer.cancel()
            wait.over()


class _Wait:
    """One wait. ``show`` is called by a timer's thread, the rest by that of the action."""

    def __init__(self, console: Console, what: str) -> None:
        self._console = console
        self._what = what
        self._lock = threading.Lock()
        self._over = False
        self._done, self._total = 0, 0
        self._bar: Any = None  # a rich Progress, which costs an import that most commands save

    def show(self) -> None:
        with self._lock:
            if self._over:
                return
            if not self._console.is_terminal:
                self._console.print(f"{self._what} ...", markup=False, soft_wrap=True)
                return
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

            self._bar = Progress(
                "{task.description}", BarColumn(bar_width=24), MofNCompleteColumn(),
                TimeElapsedColumn(), console=self._console, transient=True,
            )  # fmt: skip
            self._bar.add_task(self._what, total=self._total or None, completed=self._done)
            self._bar.start()

    def tell(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        with self._lock:
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], completed=done, total=total)

    def over(self) -> None:
        with self._lock:
            self._over = True
            if self._bar is not None:
                self._bar.stop()
