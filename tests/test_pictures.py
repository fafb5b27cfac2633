"""The pictures of the documents: small, of the right size, complete; and made by one command."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.browser import DESK, PHONE, needs_browser
from tests.helpers.compose import ROOT
from tools import terminal
from tools.pictures import IMAGES, MOST_BYTES, ON_SCREEN, SIZES

WIDTHS = (PHONE, DESK)
NAMES = {f"{of}-{width}.png" for of in ("web", "report") for width in WIDTHS} | {
    f"live-{columns}x{lines}.svg" for columns, lines in SIZES
}


def text_of(svg: Path) -> str:
    """What a recorded screen says. The recorder keeps spaces as entities."""
    found = re.findall(r"<text[^>]*>([^<]*)</text>", svg.read_text())
    return "".join(found).replace("&#160;", " ")


def test_all_pictures_are_there_and_small():
    assert {path.name for path in IMAGES.iterdir()} == NAMES
    for path in IMAGES.iterdir():
        assert 2_000 < path.stat().st_size <= MOST_BYTES, path


@pytest.mark.parametrize("of", ["web", "report"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_screenshot_is_as_wide_as_its_name_says(of, width):
    head = (IMAGES / f"{of}-{width}.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">I", head[16:20]) == (width,)


@pytest.mark.parametrize(("columns", "lines"), SIZES)
def test_a_recorded_screen_shows_a_run_that_lost_a_machine(columns, lines):
    path = IMAGES / f"live-{columns}x{lines}.svg"
    for word in ON_SCREEN:
        assert re.search(word, text_of(path)), word
    outside = re.findall(r"(?:href|src|url)\W{1,3}https?://[^\"') ]+|@font-face", path.read_text())
    assert outside == []


@pytest.mark.matrix
@needs_browser
@pytest.mark.skipif(bool(terminal.why_not()), reason=terminal.why_not() or "-")
@pytest.mark.timeout(1200)
def test_one_command_makes_them_all_and_finds_nothing_amiss(tmp_path):
    """What a new user does: a run in a terminal, its page, its report; looked at on every size."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.pictures", "--into", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=1100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in tmp_path.iterdir()} == NAMES
