"""The report in a real browser: on a phone, on a desk, in the dark and on paper."""

import re
import shutil
import subprocess
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
from tests.observe.test_report import a_paid_run, long_run

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


A4_PRINTABLE_PX = (297 - 2 * 14) / 25.4 * 96  # what the margins of the page leave of its height


@needs_browser
@pytest.mark.timeout(300)
def test_on_paper_nothing_is_cut_in_two_and_colours_are_those_of_the_light(tmp_path: Path) -> None:
    """Each picture is on one page with its heading, its axes and its legend."""
    for name, story in (("demo", demo()), ("long", long_run(400))):
        (tmp_path / f"{name}.html").write_text(render(story.events, evaluation=NEWS))
    with a_browser(dark=True) as browser:
        page = browser.new_page()
        page.emulate_media(media="print")
        page.goto((tmp_path / "long.html").as_uri())  # 80 machines in one chart
        tallest = page.evaluate(
            "Math.max(...[...document.querySelectorAll('section:has(figure)')]"
            ".map((one) => one.getBoundingClientRect().height))"
        )
        assert tallest < A4_PRINTABLE_PX
        page.goto((tmp_path / "demo.html").as_uri())
        colours = "getComputedStyle(document.documentElement).getPropertyValue"
        assert page.evaluate(f"{colours}('--bg') + {colours}('--train')") == "#ffffff#0a5fb4"
        headings = page.evaluate(
            "[...document.querySelectorAll('section:has(figure)')].map((one) => "
            "[one.querySelector('h2').textContent, one.querySelector('figcaption').textContent, "
            "...[...one.querySelectorAll('li')].map((item) => item.textContent)])"
        )
        page.pdf(path=str(tmp_path / "demo.pdf"), format="A4", prefer_css_page_size=True)
    if shutil.which("pdftotext") is None:
        pytest.skip("there is no pdftotext: apt-get install poppler-utils")
    told = subprocess.run(
        ["pdftotext", "-raw", str(tmp_path / "demo.pdf"), "-"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    pages = [re.sub(r"\s", "", page) for page in told.stdout.split("\f")]
    assert len(headings) == 9
    for words in headings:
        parts = [re.sub(r"\s", "", word) for word in words]
        assert any(all(part in page for part in parts) for page in pages), words
