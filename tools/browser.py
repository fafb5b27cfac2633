"""Debian's Chromium, driven by playwright: pages as people see them. Nothing is ever downloaded."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PHONE, DESK = 390, 1280
_ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def why_not() -> str:
    """What is missing for a browser here; empty where there is one."""
    try:
        import playwright.sync_api  # noqa: F401
    except ModuleNotFoundError:
        return "playwright is not installed: pip install -e '.[dev]'"
    return "" if shutil.which("chromium") else "there is no chromium: apt-get install chromium"


@contextmanager
def a_browser(*, dark: bool = False) -> Iterator[Any]:
    """A browser with an empty profile; ``new_page()`` opens pages."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver, tempfile.TemporaryDirectory(prefix="sailor-") as profile:
        browser = driver.chromium.launch_persistent_context(
            profile, executable_path=shutil.which("chromium"), headless=True,
            args=list(_ARGUMENTS), viewport={"width": PHONE, "height": 844},
            color_scheme="dark" if dark else "light",
        )  # fmt: skip
        browser.set_default_timeout(60_000)
        try:
            yield browser
        finally:
            browser.close()


def complaints_of(page: Any) -> list[str]:
    """A list that fills with what the browser complains of: errors of scripts and of the policy."""
    found: list[str] = []
    page.on("console", lambda said: said.type in ("error", "warning") and found.append(said.text))
    page.on("pageerror", lambda error: found.append(str(error)))
    return found


def overflow(page: Any) -> list[str]:
    """What sticks out of the page to the right: empty, or the widest elements in words.

    What scrolls within a box of its own does not count.
    """
    return page.evaluate(
        """() => {
          const wide = document.documentElement.clientWidth;
          if (document.documentElement.scrollWidth <= wide) return [];
          return [...document.body.querySelectorAll('*')]
            .filter((one) => one.getBoundingClientRect().right > wide + 1)
            .map((one) => `${one.tagName}.${one.className} ${one.textContent.slice(0, 40)}`)
            .slice(0, 10);
        }"""
    )


def cut_off(page: Any, selector: str) -> list[str]:
    """Texts that are wider than the box they stand in."""
    return page.evaluate(
        """(selector) => [...document.querySelectorAll(selector)]
          .filter((one) => one.scrollWidth > one.clientWidth + 1)
          .map((one) => one.textContent)""",
        selector,
    )


def unlabelled(page: Any) -> list[str]:
    """Buttons, inputs and pictures that have no name for those who do not see them."""
    return page.evaluate(
        """() => [...document.querySelectorAll(
          'button, input, progress, [role=img], [role=graphics-document]')]
          .filter((one) => !one.getAttribute('aria-label') && !one.closest('label')
                           && !(one.textContent.trim() && !one.matches('svg')))
          .map((one) => one.outerHTML.slice(0, 80))"""
    )


def faint_texts(page: Any) -> list[str]:
    """Texts with less contrast to what is behind them than WCAG 2.2 AA asks for: 4.5 to 1."""
    return page.evaluate(_FAINT)


_FAINT = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const [r, g, b, a = 1] = parse(getComputedStyle(at).backgroundColor);
      if (a === 1) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const one = walk.currentNode.parentElement;
    const text = walk.currentNode.data.trim().slice(0, 40);
    if (!text || one.closest('svg, style, script, noscript, :disabled')) continue;
    if (!one.getClientRects().length) continue;
    const [ink, paper] = [light(parse(getComputedStyle(one).color)), light(behind(one))];
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)} ${one.className} ${text}`);
  }
  return [...new Set(found)].slice(0, 20);
}"""
