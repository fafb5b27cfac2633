"""Filling the disk that durable checkpoints go to, on purpose, and emptying it again.

What is written is one file that takes all that is free. Only a small file system is ever filled:
one made for the purpose, not the disk that everything else on a computer lives on.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MOST_BYTES = 1 << 30
_NAME = ".sailor-fills-this-disk"
_CHUNK = 1 << 20


class FullDisk:
    """The file system of a folder, which need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ballast: Path | None = None

    def why_not(self) -> str:
        """Why it will not be filled; "" when it may."""
        try:
            free = shutil.disk_usage(self._there()).free
        except OSError as error:
            return str(error)
        if free <= MOST_BYTES:
            return ""
        return (
            f"{free / 2**30:.1f} GiB are free where checkpoints go; no more than "
            f"{MOST_BYTES / 2**30:.0f} GiB are filled on purpose"
        )

    def fill(self) -> None:
        """Leave no room. Raises OSError."""
        self._ballast = self._there() / _NAME
        descriptor = os.open(self._ballast, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            for size in (_CHUNK, 4096, 1):  # the last bytes as well
                block = bytes(size)
                while True:
                    try:
                        if os.write(descriptor, block) < size:
                            break
                    except OSError:
                        break
        finally:
            os.close(descriptor)

    def free(self) -> None:
        """Give the room back; harmless when none was taken."""
        if self._ballast is not None:
            self._ballast.unlink(missing_ok=True)
            self._ballast = None

    def _there(self) -> Path:
        """The nearest folder that exists."""
        return next(p for p in (self._folder, *self._folder.absolute().parents) if p.is_dir())
