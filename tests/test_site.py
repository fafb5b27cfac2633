"""The documentation as a site: every page has its place, links lead somewhere, and nothing is
fetched from elsewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sailor.profile.stacks.priors import STEP
from tests.helpers.browser import PHONE, a_browser, needs_browser, overflow
from tests.helpers.compose import ROOT
from tests.helpers.documented import PAGES

needs_mkdocs = pytest.mark.skipif(
    importlib.util.find_spec("material") is None,
    reason="mkdocs-material is not installed: pip install -e '.[docs]'",
)
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with every warning an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=280,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@needs_mkdocs
@pytest.mark.timeout(400)
def test_the_site_is_built_and_asks_for_nothing_from_elsewhere(site: Path):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(PAGES) - 5
    fetched = re.compile(
        r"<(?:script|img|iframe)[^>]*\bsrc=\"?(?:https?:)?//[^\s\">]+"
        r"|<link[^>]*rel=\"?(?:stylesheet|preconnect|preload)\"?[^>]*href=\"?(?:https?:)?//[^\s\">]+"
    )
    for page in pages:
        assert fetched.findall(page.read_text()) == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"@import|url\(\"?(?:https?:)?//", sheet.read_text()), sheet


@needs_mkdocs
@pytest.mark.timeout(400)
def test_every_page_of_the_documents_is_on_the_site(site: Path):
    for page in (ROOT / "docs").rglob("*.md"):
        inside = page.relative_to(ROOT / "docs").with_suffix("")
        there = inside.parent if inside.name in ("README", "index") else inside
        assert (site / there / "index.html").exists(), page
    for name in ("index.html", "contributing/index.html", "recipes/index.html"):
        assert (site / name).exists()
    assert (site / "recipes" / "gpt_1b_gcp_spot.yaml").exists()


@needs_mkdocs
@needs_browser
@pytest.mark.timeout(400)
def test_its_pages_fit_a_phone(site: Path):
    with a_browser() as browser:
        page = browser.new_page()
        page.set_viewport_size({"width": PHONE, "height": 844})
        for name in ("", "tour", "cost-model", "how-to/watch", "errors"):
            page.goto((site / name / "index.html").as_uri())
            assert overflow(page) == [], name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_picture_is_there_and_says_what_it_shows(page: Path):
    for words, target in IMAGE.findall(page.read_text()):
        assert len(words) > 10, target
        assert (page.parent / target).exists(), target


def test_the_numbers_of_the_cost_model_are_those_that_plans_are_made_with():
    text = (ROOT / "docs" / "cost-model.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", text, re.M))
    assert len(rows) > 20
    assert {name: float(value) for name, value in rows.items()} == {
        name: STEP[name].fitted for name in rows
    }
