"""What mkdocs is told about this project: pages that lie outside of docs/, and folders of pages.

The README is the site's first page, CONTRIBUTING and the list of recipes are pages too. An entry of
``nav`` that ends in a slash stands for all pages of that folder, and for the page of its name, so
that a new page of errors or decisions needs no entry of its own. A page without an entry is put at
the end of the section that its folder belongs to.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "recipes.md": "recipes/README.md",
}
"""Page of the site -> file of the project."""
RECIPES = sorted((_ROOT / "recipes").glob("*.yaml"))
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_TITLE = re.compile(r"^# (.+)$", re.M)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Open the folders of the navigation."""
    docs = Path(config.docs_dir)
    nav = [_opened(entry, docs) for entry in config.nav or []]
    named = set(_pages(nav)) | set(OUTSIDE)
    for page in sorted(docs.rglob("*.md")):
        name = page.relative_to(docs).as_posix()
        if name not in named:
            section = "How to" if name.startswith("how-to/") else "Reference"
            next(entry[section] for entry in nav if section in entry).append({_title(page): name})
    config.nav = nav
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Take in the pages from outside."""
    for page, source in OUTSIDE.items():
        text = (_ROOT / source).read_text()
        files.append(File.generated(config, page, content=text))
    for recipe in RECIPES:
        name = f"recipes/{recipe.name}"
        files.append(File.generated(config, name, content=recipe.read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Links between files of the project become links between pages of the site."""
    here = page.file.src_uri
    folder = posixpath.dirname(OUTSIDE.get(here, f"docs/{here}"))
    pages = {source: name for name, source in OUTSIDE.items()}
    pages |= {f"recipes/{recipe.name}": f"recipes/{recipe.name}" for recipe in RECIPES}

    def moved(match: re.Match[str]) -> str:
        target = match[2]
        if "://" in target or target.startswith(("/", "mailto:")):
            return match[0]
        source = posixpath.normpath(posixpath.join(folder, target))
        if source not in pages and not source.startswith("docs/"):
            return match[0]  # to nowhere on the site: mkdocs says so
        name = pages.get(source) or source.removeprefix("docs/")
        return f"{match[1]}{posixpath.relpath(name, posixpath.dirname(here) or '.')}{match[3]}"

    return _LINK.sub(moved, markdown)


def _pages(entry: Any) -> Iterator[str]:
    """The pages that a navigation names."""
    if isinstance(entry, str):
        yield entry
    else:
        for each in entry.values() if isinstance(entry, dict) else entry:
            yield from _pages(each)


def _opened(entry: Any, docs: Path) -> Any:
    if not isinstance(entry, dict):
        return entry
    ((title, value),) = entry.items()
    if isinstance(value, list):
        return {title: [_opened(each, docs) for each in value]}
    if not value.endswith("/"):
        return entry
    pages = [docs / f"{value.rstrip('/')}.md", *sorted((docs / value).glob("*.md"))]
    pages = [page for page in pages if page.exists()]
    pages.sort(key=lambda page: page.stem.lower() not in ("readme", "index", value.rstrip("/")))
    return {title: [{_title(page): page.relative_to(docs).as_posix()} for page in pages]}


def _title(page: Path) -> str:
    found = _TITLE.search(page.read_text())
    return found[1] if found else page.stem
