"""Write the examples of tests/errors/examples.py into the pages: ``python -m tests.errors.pages``.

All else on a page is written by hand.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from sailor.observe.redact import redact
from tests.errors.examples import EXAMPLES, printed
from tests.helpers.compose import ROOT

PAGES = ROOT / "docs" / "errors"
EXAMPLE = re.compile(r"(?<=## As printed\n\n```text\n).*?(?=```\n)", re.S)


def example(code: str, folder: Path) -> str:
    """The text of a page's example: the command, where there is one, and what it prints."""
    typed = EXAMPLES[code].command
    return (f"$ {redact(typed)}\n" if typed else "") + printed(code, folder)


def shown(page: str) -> str:
    """The example as it stands on a page."""
    found = EXAMPLE.search(page)
    assert found is not None, "the page has no example"
    return found[0]


def main(codes: list[str]) -> None:
    """Bring the examples of these codes up to date, or of all."""
    for code in codes or EXAMPLES:
        path = PAGES / f"{code}.md"
        page = path.read_text()
        with tempfile.TemporaryDirectory() as folder:
            text = example(code, Path(folder))
        before, after = EXAMPLE.split(page)  # replaced, not substituted: an example may hold a \\
        path.write_text(before + text + after)


if __name__ == "__main__":
    main(sys.argv[1:])
