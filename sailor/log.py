"""Log lines for the person at three in the morning: stamped with who speaks and the generation."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path


@dataclass(kw_only=True, slots=True)
class Stamp:
    """What every line of a process carries. ``generation`` changes as the process lives."""

    who: str
    generation: int = 0


class _Stamped(logging.Filter):
    def __init__(self, stamp: Stamp) -> None:
        super().__init__()
        self._stamp = stamp

    def filter(self, record: logging.LogRecord) -> bool:
        record.who = self._stamp.who
        record.generation = self._stamp.generation
        return True


def configure_log(stamp: Stamp, *, file: Path | None = None, level: int = logging.INFO) -> None:
    """Send this process's log to a file, or to standard error. Replaces an earlier set-up."""
    handler: logging.Handler = (
        logging.FileHandler(file) if file is not None else logging.StreamHandler()
    )
    handler.addFilter(_Stamped(stamp))
    handler.setFormatter(
        logging.Formatter(
            "%(asctime)s %(levelname)-7s %(who)s g%(generation)d %(name)s: %(message)s"
        )
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
