"""Where an action writes: text for people, and at most one JSON document for programs."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console as RichConsole

from sailor.config import Output

_PIPE_WIDTH = 160


class Console(RichConsole):
    """A rich console that keeps standard output clean when a program is reading it.

    With output=json, everything printed goes to standard error, and the document given to
    ``document`` is all that reaches standard output, once, when the command ends.
    """

    def __init__(self, *, output: Output = Output.text, command: str = "") -> None:
        stream = sys.stderr if output is Output.json else sys.stdout
        # A file or a pipe has no width of its own: tables are not squeezed into 80 columns there.
        width = None if stream.isatty() else _PIPE_WIDTH
        super().__init__(file=stream, highlight=False, width=width)
        self.output = output
        self.command = command  # as typed, for the record
        self.documents: list[Any] = []

    def document(self, value: Any) -> None:
        """The action's result in JSON types, for output=json. Ignored in text mode's output."""
        self.documents.append(value)
