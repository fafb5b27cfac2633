"""The browser of tools/browser.py for tests, which skip where there is none."""

from __future__ import annotations

import pytest

from tools.browser import (
    DESK,
    PHONE,
    a_browser,
    complaints_of,
    cut_off,
    faint_texts,
    overflow,
    unlabelled,
    why_not,
)

__all__ = [
    "DESK", "PHONE", "a_browser", "complaints_of", "cut_off", "faint_texts", "needs_browser",
    "overflow", "unlabelled",
]  # fmt: skip

needs_browser = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
