"""Where a key is that should not be: in the arguments of any process, in files besides its own."""

from __future__ import annotations

import threading
from pathlib import Path


class Spy:
    """Looks at the arguments of every process on this machine, all the time, for some words."""

    def __init__(self, words: list[str]) -> None:
        self._words = [word.encode() for word in words]
        self.seen: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Spy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.2):
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    try:
                        line = (entry / "cmdline").read_bytes()
                    except OSError:
                        continue
                    if any(word in line for word in self._words):
                        self.seen.add(line[:200].decode(errors="replace"))


def secret_words(identity: Path) -> list[str]:
    """Lines of a private key, of the run or of its door, that would give it away."""
    text = (identity / "run.key").read_text()
    return [line for line in text.splitlines() if line and not line.startswith("-----")]


def files_with(words: list[str], *roots: Path) -> list[str]:
    """Files below these folders that hold one of the words, databases included; the key files
    themselves are meant to."""
    found = []
    for root in roots:
        for path in root.rglob("*"):
            if path.is_file() and path.name not in ("run.key",):
                data = path.read_bytes()
                if any(word.encode() in data for word in words):
                    found.append(str(path))
    return found
