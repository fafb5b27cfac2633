"""The report in a real browser: on a phone, on a desk, in the dark and on paper."""

from pathlib import Path

import pytest

from sailor.observe.report import render
from tests.helpers.browser import (
    DESK,
    PHONE,
    a_browser,
    complaints_of,
    faint_texts,
    needs_browser,
    overflow,
    unlabelled,
)
from tests.observe.run_story import demo
from tests.observe.test_report import a_paid_run

NEWS = {
    "step": 1200, "held_out_loss": 2.5, "bits_per_byte": 3.1, "held_out_tokens": 4096,
    "samples": [{"prompt": "def ", "text": "def " + "x" * 300}],
}  # fmt: skip


@needs_browser
@pytest.mark.timeout(300)
def test_the_report_fits_its_page_and_can_be_read(tmp_path: Path) -> None:
    pages = {
        "demo": render(demo().events, evaluation=NEWS),
        "paid": render(
            a_paid_run(changed={"data.path": "/a" * 200}, versions={"torch": "2.13"}).events,
            next_commands=["python run.py " + "x" * 300],
        ),
    }
    for dark in (False, True):
        with a_browser(dark=dark) as browser:
            page = browser.new_page()
            complaints = complaints_of(page)
            for name, text in pages.items():
                (tmp_path / f"{name}.html").write_text(text)
                page.goto((tmp_path / f"{name}.html").as_uri())
                for width in (PHONE, DESK):
                    page.set_viewport_size({"width": width, "height": 844})
                    assert overflow(page) == [], (name, width)
                assert faint_texts(page) == [], (name, dark)
                assert unlabelled(page) == []
                page.emulate_media(media="print")
                assert overflow(page) == []
                page.emulate_media(media="screen")
            assert complaints == []
