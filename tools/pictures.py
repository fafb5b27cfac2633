"""Makes the pictures of the documentation, by doing what a new user does, and looks at them.

``python -m tools.pictures``            all of them, into docs/img/: about three minutes
``python -m tools.pictures --into DIR`` elsewhere, for a test
``... --project DIR --python FILE``     of another copy of the project, in its own environment

The README's command in a terminal of 80 x 24 and of 200 x 60, its page in a browser of 390 and 1280
pixels while a machine is gone, the report afterwards. Whatever is missing on a screen, sticks out
of it or cannot be read is told, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools import browser, terminal
from tools.browser import DESK, PHONE, a_browser

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "img"
MOST_BYTES = 300_000
SIZES = ((80, 24), (200, 60))
PATIENCE_S = 400.0  # for a computer under load
_HEIGHTS = {PHONE: 844, DESK: 1000}

# What must stand on a live screen, whatever its size, once a machine was lost.
ON_SCREEN = (
    r"continuing on \d nodes", r"step \d+ of 200", r"loss \d\.\d+", r"goodput \d+", r"node-\d\s",
    r"tok/s",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, default=IMAGES)
    parser.add_argument("--project", type=Path, default=ROOT)
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    missing = [why for why in (terminal.why_not(), browser.why_not()) if why]
    if missing:
        raise SystemExit("\n".join(missing))
    options.into.mkdir(parents=True, exist_ok=True)
    problems = make(options.into, User(project=options.project, python=options.python))
    for problem in problems:
        print(f"! {problem}")
    for path in sorted(options.into.iterdir()):
        print(f"{path.stat().st_size:>9,}  {path}")
    raise SystemExit(1 if problems else 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    """Whose copy of the project it is, and the Python it is installed in."""

    project: Path = ROOT
    python: str = sys.executable

    def command(self, runs: Path, *words: str) -> list[str]:
        """The command with these words."""
        return [self.python, "run.py", f"runs_dir={runs}", "run.name=swift-otter", *words]


def make(into: Path, user: User) -> list[str]:
    """Make all pictures; what is wrong with them, in words."""
    with tempfile.TemporaryDirectory(prefix="sailor-pictures-") as folder:
        runs = Path(folder) / "runs"
        problems = _live(into, runs, user)
        (run,) = (path.parent for path in runs.glob("*/report.html"))
        subprocess.run(
            user.command(runs, "action=eval", "eval.tokens=120"),
            cwd=user.project, check=True, capture_output=True, timeout=PATIENCE_S,
        )  # fmt: skip
        problems += _report(into, run)
    return problems + [
        f"{path.name} has {path.stat().st_size:,} bytes"
        for path in into.iterdir()
        if path.stat().st_size > MOST_BYTES
    ]


def _live(into: Path, runs: Path, user: User) -> list[str]:
    """A run from its first line to its last, in a terminal and in a browser."""
    problems = []
    with terminal.a_terminal(
        user.command(runs, "ui.web=true"), columns=80, lines=24, folder=user.project,
        environment={"TERM": "xterm-256color"},
    ) as window:  # fmt: skip
        said = window.until("web      http://", seconds=PATIENCE_S)
        found = re.search(r"web\s+(http://127\.0\.0\.1:\d+/[\w-]+/)", said)
        assert found is not None, said
        with a_browser() as driver:
            page = driver.new_page()
            complaints = browser.complaints_of(page)
            page.goto(found[1])
            _until(runs, lambda log: _num(log, "pause") >= 3, what="two machines lost")  # the first
            time.sleep(1.0)  # is the start's; the panel is drawn again
            for columns, lines in SIZES:
                window.resize(columns, lines)
                time.sleep(1.5)
                screen = window.screen(colours=True)
                problems += _look_at(window.screen(), columns=columns, lines=lines)
                title = f"python run.py, {columns} x {lines}"
                svg = terminal.as_svg(screen, columns=columns, title=title)
                (into / f"live-{columns}x{lines}.svg").write_text(svg)
            page.wait_for_selector("#machines li")
            for width in (PHONE, DESK):
                page.set_viewport_size({"width": width, "height": _HEIGHTS[width]})
                page.wait_for_timeout(300)
                problems += _look_at_page(page, f"the page at {width}")
                page.screenshot(path=str(into / f"web-{width}.png"))
            problems += [f"the browser complains: {said}" for said in complaints]
        last = window.until("report   ", seconds=PATIENCE_S)
        for word in ("200 of 200 steps", "lost samples 0", "repeated samples 0", "5 of 5 released"):
            if word not in last:
                problems.append(f"the run's last lines lack {word!r}")
    return problems


def _report(into: Path, run: Path) -> list[str]:
    problems = []
    with a_browser() as driver:
        page = driver.new_page()
        page.goto((run / "report.html").as_uri())
        for width in (PHONE, DESK):
            page.set_viewport_size({"width": width, "height": _HEIGHTS[width]})
            problems += _look_at_page(page, f"the report at {width}")
            page.screenshot(path=str(into / f"report-{width}.png"))
    return problems


def _look_at(screen: str, *, columns: int, lines: int) -> list[str]:
    """What a live screen lacks, and lines that are cut at its edge."""
    name = f"the screen of {columns} x {lines}"
    shown = screen.rstrip("\n").splitlines()
    problems = [f"{name} lacks {word}" for word in ON_SCREEN if not re.search(word, screen)]
    if len(shown) > lines or any(len(line) > columns for line in shown):
        problems.append(f"{name} does not hold its text")
    return problems


def _look_at_page(page: Any, name: str) -> list[str]:
    """What sticks out, has no name, or is too faint to be read."""
    return [
        *(f"{name}: sticks out: {what}" for what in browser.overflow(page)),
        *(f"{name}: no name: {what}" for what in browser.unlabelled(page)),
        *(f"{name}: faint: {what}" for what in browser.faint_texts(page)),
    ]


def _until(runs: Path, condition: Callable[[list[dict[str, Any]]], bool], *, what: str) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        logs = list(runs.glob("*/events.jsonl"))
        lines = logs[0].read_text().splitlines() if logs else []
        if condition([json.loads(line) for line in lines if line.endswith("}")]):
            return
        time.sleep(0.2)
    raise TimeoutError(what)


def _num(log: list[dict[str, Any]], kind: str) -> int:
    return sum(event["kind"] == kind for event in log)


if __name__ == "__main__":
    main()
