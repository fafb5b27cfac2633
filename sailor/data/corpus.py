"""Which text a run learns from: a list of files, read as documents. No tokens, no torch.

The default is the Python standard library's own source: real text that every machine has. A
document is a file, or a part of a large one, so that even one big file has some parts to hold out.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import xxhash

from sailor.errors import DataError

MAX_DOCUMENT_BYTES = 64 << 10
MIN_DOCUMENT_BYTES = 1 << 10
_PARTS = 200  # a small text is cut at least this fine, where its lines allow

# Tests repeat themselves, and site-packages is whatever else is installed.
_NOT_LIBRARY = {"test", "tests", "idlelib", "site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Some files under one folder, in a fixed order. ``name`` is for people and for logs."""

    name: str
    root: Path
    files: tuple[Path, ...]  # relative to root

    def fingerprint(self) -> str:
        """Changes when a file is added, removed, resized or touched. Reads no contents.

        Raises DataError E502.
        """
        digest = xxhash.xxh3_128()
        for file in self.files:
            with self._reading(file) as path:
                stat = path.stat()
            digest.update(f"{file.as_posix()}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
        return digest.hexdigest()

    def documents(self) -> Iterator[bytes]:
        """The text, document by document. A file with a NUL byte is not text and is left out.

        Raises DataError E502 for a file that cannot be read.
        """
        total = 0
        for file in self.files:
            with self._reading(file) as path:
                total += path.stat().st_size
        size = min(max(total // _PARTS, MIN_DOCUMENT_BYTES), MAX_DOCUMENT_BYTES)
        for file in self.files:
            with self._reading(file) as path:
                text = path.read_bytes()
            if b"\0" not in text:
                yield from _parts(text, size)

    @contextmanager
    def _reading(self, file: Path) -> Iterator[Path]:
        """Raises DataError E502 in the name of the file."""
        try:
            yield self.root / file
        except OSError as error:
            raise DataError(
                f"cannot read {file}", code="E502", where=str(self.root), why=str(error),
                fix="make the file readable or leave it out of data.path",
            ) from error  # fmt: skip


def _parts(text: bytes, size: int) -> Iterator[bytes]:
    """The text in parts of about ``size`` bytes, cut after a line end where there is one."""
    start = 0
    while start < len(text):
        stop = min(start + size, len(text))
        if stop < len(text):
            line_end = text.rfind(b"\n", start, stop)
            stop = line_end + 1 if line_end > start else stop
        yield text[start:stop]
        start = stop


def standard_library() -> Corpus:
    """The .py files of this Python's standard library, about 11 MB."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(
        path.relative_to(root)
        for path in root.rglob("*.py")
        if not _NOT_LIBRARY & set(path.relative_to(root).parts[:-1])
    )
    if not files:
        raise DataError(
            "this Python carries no standard library sources", code="E501", where=str(root),
            fix="set data.path to a folder or file with text",
        )  # fmt: skip
    return Corpus(name="python standard library", root=root, files=tuple(files))


def text_at(path: Path) -> Corpus:
    """The file, or all files of the folder (hidden ones aside), at ``path``.

    Raises DataError E501 when there is nothing to read.
    """
    if path.is_file():
        found = [path]
        root = path.parent
    else:
        root = path
        found = sorted(
            file
            for file in path.rglob("*")
            if file.is_file()
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
        )
    files = tuple(file.relative_to(root) for file in found if file.stat().st_size > 0)
    if not files:
        why = "there is no such file or folder" if not path.exists() else "it holds no text"
        raise DataError(
            f"nothing to train on at {path}", code="E501", where="data.path", why=why,
            fix="point data.path at a text file or a folder of text files, or leave it out to "
            "train on the Python standard library",
        )  # fmt: skip
    return Corpus(name=str(path), root=root, files=files)
