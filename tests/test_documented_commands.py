"""Every command of the documents is carried out, or the page says why not.

Those that only plan and look are part of the tests; ``-m matrix`` has the others: ten minutes.
"""

from __future__ import annotations

import pytest

from tests.helpers.compose import ROOT
from tests.helpers.documented import PAGES, Block, Desk, blocks

FIRST_READ = (ROOT / "README.md", ROOT / "docs" / "tour.md")


def marked(block: Block):
    """Which tests a block belongs to."""
    quick = block.is_quick and block.page in FIRST_READ
    marks = [] if quick or block.why_not else [pytest.mark.matrix]
    return pytest.param(block, id=block.name, marks=[*marks, pytest.mark.timeout(2400)])


BLOCKS = [marked(block) for page in PAGES for block in blocks(page) if block.commands]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_of_commands_works(block: Block, tmp_path):
    if block.why_not:
        pytest.skip(block.why_not)
    Desk(tmp_path / "desk").carry_out(block)


def test_marks_are_of_the_two_kinds_there_are():
    for page in PAGES:
        for block in blocks(page):
            kinds = ("", "not run: ", "ends with ")
            assert not block.mark or block.mark.startswith(kinds[1:]), block.name
