"""Tab completion in the shells themselves, set up by the lines of the how-to page."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.helpers.compose import ROOT
from tools import terminal

PAGE = ROOT / "docs" / "how-to" / "terminal.md"
SHELLS = {  # without the user's own files
    "bash": ("bash", "--norc", "-i"), "zsh": ("zsh", "-f", "-i"), "fish": ("fish", "-i"),
}  # fmt: skip
PATIENCE_S = 60.0  # for a computer under load; a completion takes about a second


def documented(shell: str) -> list[str]:
    """The lines of the page for this shell."""
    found = re.search(
        rf"```{shell}\n(.*?)```", PAGE.read_text().split("## Tab completion")[1], re.S
    )
    assert found is not None
    return found[1].splitlines()


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.skipif(bool(terminal.why_not()), reason=terminal.why_not() or "-")
def test_groups_and_keys_complete(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}: apt-get install {shell}")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with terminal.a_terminal(
        SHELLS[shell], columns=120, lines=24, folder=ROOT,
        environment={"TERM": "xterm-256color", "PATH": path, "HOME": str(tmp_path)},
    ) as window:  # fmt: skip
        for line in [*documented(shell), "echo all' 'set"]:
            window.type(line)
            window.keys("Enter")
        assert "all set" in window.until("all set", seconds=PATIENCE_S)
        window.type("python run.py action=plan model.num_la")
        window.keys("Tab")
        key = "action=plan model.num_layers="
        assert key in window.until(key, seconds=PATIENCE_S)
        window.keys("C-u")  # empties the line; C-c may fall to a completion that still runs
        window.type("python run.py model=gpt_1")
        window.keys("Tab", "Tab")
        for choice in ("=gpt_125m", "=gpt_1b"):
            assert choice in window.until(choice, seconds=PATIENCE_S)
        window.keys("C-u")
        window.type("exit")  # an interactive shell takes no SIGTERM
        window.keys("Enter")
