"""Where an action writes: text for people, and at most one JSON document for programs."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console as RichConsole

from sailor.config import Output


class Console(RichConsole):
    """A rich console that keeps standard output clean when a program is reading it.

    With output=json, everything printed goes to standard error, and the document given to
    ``document`` is all that reaches standard output, once, when the command ends.
    """

    def __init__(self, *, output: Output = Output.text, command: str = "") -> None:
        super().__init__(file=sys.stderr if output is Output.json else sys.stdout, highlight=False)
        self.output = output
        self.command = command  # as typed, for the record
        self.documents: list[Any] = []

    def document(self, value: Any) -> None:
        """The action's result in JSON types, for output=json. Ignored in text mode's output."""
        self.documents.append(value)
