"""The shell blocks of the documents, and a desk on which their commands are carried out.

A comment above a block says what a reader's computer may lack: ``<!-- not run: WHY -->`` leaves it
out, ``<!-- ends with 4: WHY -->`` allows that exit code. Commands are carried out as they stand but
for what takes long or is a reader's own: training is three small steps, recipes are tried at their
smallest scale, and texts, models and runs that a page takes for granted are made first.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.compose import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"(?:<!-- ([^>]*) -->\n)?```(?:sh|console)\n(.*?)```", re.S)
_SHORT = (
    "train.steps=3", "train.sequence_length=32", "train.global_batch_size=4",
    "train.eval_samples=4", "train.eval_every=0",
)  # fmt: skip
# A run that a page takes for granted: on one machine, for it is only looked at.
_MADE = ("faults=none", "cloud.nodes=1", "cloud.memory_per_gpu=1GiB", *_SHORT)
_QUICK = {"plan", "status", "recipe.list"}
_LONG = {"train", "prepare", "profile", "recipe", "recipe.header"}
_LOOKING = {
    "eval",
    "export",
    "report",
    "check",
    "down",
    "web",
    "migrate",
    "watch",
    "debug.bundle",
}  # at a run there is
PATIENCE_S = 600.0  # for a computer under load


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One shell block. ``mark`` is the comment above it."""

    page: Path
    number: int
    mark: str
    commands: tuple[str, ...]

    @property
    def name(self) -> str:
        """For a test's name."""
        return f"{self.page.relative_to(ROOT)}:{self.number}"

    @property
    def why_not(self) -> str:
        """The reason the page gives for not carrying it out; empty where it gives none."""
        return self.mark.removeprefix("not run: ") if self.mark.startswith("not run: ") else ""

    @property
    def is_quick(self) -> bool:
        """Whether it only plans and looks."""
        return all(
            command.startswith("python run.py") and _action(shlex.split(command)[2:]) in _QUICK
            for command in self.commands
        )

    def allows(self, code: int) -> bool:
        """Whether the page says that a command may end so."""
        return code == 0 or self.mark.startswith(f"ends with {code}: ")


def blocks(page: Path) -> list[Block]:
    """The shell blocks of a page."""
    return [
        Block(page=page, number=number, mark=(mark or "").strip(), commands=tuple(_lines(text)))
        for number, (mark, text) in enumerate(_BLOCK.findall(page.read_text()), start=1)
    ]


def _lines(text: str) -> list[str]:
    lines = (line.removeprefix("$ ").partition("   #")[0].strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


class Desk:
    """A folder in which commands are typed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text = folder / "text"
        self.text.mkdir(parents=True)
        words = " ".join(f"word{i % 97} and {i % 89} more." for i in range(6000))
        for name in "abc":
            (self.text / f"{name}.txt").write_text(f"{name}\n{words}\n")
        own = folder / "conf" / "model"
        own.mkdir(parents=True)
        tiny = (ROOT / "conf" / "model" / "gpt_tiny.yaml").read_text()
        (own / "mine.yaml").write_text(tiny.replace("name: gpt_tiny", "name: mine"))
        (folder / "my_faults.yaml").write_text("- {kind: kill_worker, at: 2, target: node-1/0}\n")

    def carry_out(self, block: Block) -> None:
        """All commands of a block, in order. Raises AssertionError with what one of them said."""
        for name in _runs_named(block.commands):
            self._run([*_MADE, *([f"run.name={name}"] if name else [])])
        for command in block.commands:
            words = shlex.split(command)
            assert words[:2] == ["python", "run.py"], f"how is this carried out? {command}"
            typed = [self._own(word) for word in words[2:]]
            if _action(typed) == "web":
                self._watch(typed)
                continue
            if _action(typed) in _LONG or "-m" in typed:
                typed = _shortened(typed)
            elif not _is_named(typed) and _action(typed) in _LOOKING:
                typed = [*typed, *_MADE]  # the run that was made for it
            self._run(typed, block=block)

    def _own(self, word: str) -> str:
        """A word with the desk's own texts and checkpoints in place of a reader's."""
        word = re.sub(r"=/(?:folder/with/text|my/(?:texts|web))$", f"={self.text}", word)
        word = re.sub(r"^/my/conf$", str(self.folder / "conf"), word)
        found = sorted(self.folder.glob("runs/mine/checkpoints/step-*"))
        if found:
            newest = found[-1].relative_to(self.folder)
            word = re.sub(r"runs/mine/checkpoints/step-\d+", str(newest), word)
        return word

    def _run(self, words: Sequence[str], *, block: Block | None = None) -> None:
        done = subprocess.run(
            [sys.executable, str(ROOT / "run.py"), *words],
            cwd=self.folder, env=self._environment(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
        fine = block.allows(done.returncode) if block else done.returncode == 0
        assert fine, f"{' '.join(words)}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"

    def _watch(self, words: Sequence[str]) -> None:
        """A page that is served until Ctrl-C."""
        with subprocess.Popen(
            [sys.executable, str(ROOT / "run.py"), *words],
            cwd=self.folder, env=self._environment(), stdout=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            try:
                assert process.stdout is not None
                assert process.stdout.readline().startswith("web      http://127.0.0.1:")
                process.send_signal(signal.SIGINT)
                assert process.wait(PATIENCE_S) == 0
            finally:
                process.kill()

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache")}


def _shortened(words: Sequence[str]) -> list[str]:
    """Three small steps in place of as many as a reader would take."""
    if any(word.startswith("recipe=") for word in words):
        return [*words, "recipe.smoke=true"] if "recipe.smoke=true" not in words else list(words)
    long = ("train.steps=", "train.tokens=")
    keys = {word.partition("=")[0] for word in words}
    short = [word for word in _SHORT if word.partition("=")[0] not in keys - {"train.steps"}]
    return [*(word for word in words if not word.startswith(long)), *short]


def _action(words: Sequence[str]) -> str:
    named = [word.partition("=")[2] for word in words if word.startswith("action=")]
    if named:
        return named[-1]
    return "recipe" if any(word.startswith("recipe=") for word in words) else "train"


def _is_named(words: Sequence[str]) -> bool:
    """Whether a command says what it looks at."""
    starts = ("run.name=", "run=", "checkpoint=", "model=", "cloud=", "run.all=", "recipe=")
    return any(word.startswith(starts) for word in words)


def _runs_named(commands: Sequence[str]) -> list[str]:
    """Runs that must be there before: named by a command that looks at one, and made by none
    before it. An empty name is the run that has none."""
    made, wanted = set(), []
    for command in commands:
        words = command.split()[2:]
        name = next((w.partition("=")[2] for w in words if w.startswith(("run.name=", "run="))), "")
        name = name or next(iter(re.findall(r"\bruns/(\w+)", command)), "")
        name = name or next((w.partition("=")[2] for w in words if "calibrate=" in w), "")
        action = _action(words)
        looks = action in _LOOKING and (name or not _is_named(words))
        if (looks or "calibrate=" in command or "costs=" in command) and name not in made:
            wanted.append(name)
            made.add(name)
        if action == "train":
            made.add(name)
    return wanted
