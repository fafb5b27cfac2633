"""What a person asks of a run that goes on: one small file each, in its folder.

Whoever may write into the run folder already owns the run: the keys of its machines lie there. So a
file counts when it belongs to the user the controller runs as and nobody else may write to it or to
its folder; anything else is set aside unread. No port, no secret, and a request that comes while
the controller is away is found when it is back.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
from pathlib import Path

import msgspec

log = logging.getLogger(__name__)

FOLDER = "requests"
_SUFFIX = ".json"
_MOST_BYTES = 4096
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Migrate(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag="migrate"):
    """Give a machine's seats to another one."""

    node: str
    why: str


class Save(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag="save"):
    """Make the next snapshot durable."""

    why: str


class Replan(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag="replan"):
    """Plan again with the machines that are there."""

    why: str


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag="stop"):
    """Finish the step, save, end: what Ctrl-C does."""

    why: str


Request = Migrate | Save | Replan | Stop


def ask(run_folder: Path, request: Request) -> Path:
    """Leave a request for the controller of a run. Returns its file, which is gone once read."""
    folder = run_folder / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{secrets.token_hex(8)}{_SUFFIX}"
    hidden = path.with_suffix(".tmp")
    descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(request))
    hidden.rename(path)  # the controller sees whole files only
    return path


def take(run_folder: Path) -> list[Request]:
    """The requests that are there, oldest first; their files are removed, used or not."""
    folder = run_folder / FOLDER
    try:
        paths = sorted(folder.glob(f"*{_SUFFIX}"), key=lambda path: path.lstat().st_mtime)
        trusted = _is_ours(folder.lstat())
    except OSError:
        return []
    found = []
    for path in paths:
        request = _read(path) if trusted else None
        if request is None:
            log.warning("%s is not a request of this run's owner and was set aside", path.name)
        else:
            found.append(request)
        path.unlink(missing_ok=True)
    return found


def _read(path: Path) -> Request | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not (stat.S_ISREG(state.st_mode) and _is_ours(state)):
            return None
        try:
            return msgspec.json.decode(file.read(_MOST_BYTES), type=Request)
        except msgspec.MsgspecError:
            return None


def _is_ours(state: os.stat_result) -> bool:
    return state.st_uid == os.geteuid() and not state.st_mode & _OTHERS_WRITE
