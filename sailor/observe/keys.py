"""Single keys of a terminal while something is shown on it, and its mode put back on every way out.

The terminal stays in the hands of whoever is in its foreground: with the run sent to the background
nothing is read and nothing set. Ctrl-C and Ctrl-Z do what they always do.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import select
import termios
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

_LOOK_S = 0.5  # how soon being sent to the background, or fetched back, is noticed


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """What a key does. ``label`` is how it is offered: "[s]ave now"."""

    label: str
    press: Callable[[], object]


class Keys:
    """Reads keys in a thread of its own between ``start`` and ``stop``.

    ``away`` is called once when the process is found in the background.
    """

    def __init__(
        self, fd: int, keys: Mapping[str, Key], *, away: Callable[[], object] = lambda: None
    ) -> None:
        self._fd = fd
        self._keys = keys
        self._away = away
        self._saved: list[Any] | None = None
        self._wake = os.pipe()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keys", daemon=True)

    def start(self) -> None:
        """Take keys as they are pressed, unechoed. Raises termios.error where fd is no terminal."""
        self._saved = termios.tcgetattr(self._fd)
        atexit.register(self.stop)  # whatever ends the process, short of a signal nobody handles
        if in_foreground(self._fd):
            self._take()
        self._thread.start()

    def stop(self) -> None:
        """Put the terminal back as it was. Harmless when done already; any thread may call it."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        os.write(self._wake[1], b"x")
        if threading.current_thread() is not self._thread:
            self._thread.join()
        atexit.unregister(self.stop)
        if self._saved is not None and in_foreground(self._fd):
            with contextlib.suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._saved)

    def _take(self) -> None:
        """No echo, no waiting for Enter; signals by key as before, output as before."""
        mode = termios.tcgetattr(self._fd)
        mode[3] &= ~(termios.ECHO | termios.ICANON)
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._fd, termios.TCSADRAIN, mode)

    def _run(self) -> None:
        away = False
        while not self._stopping.is_set():
            try:
                ready, _, _ = select.select([self._fd, self._wake[0]], [], [], _LOOK_S)
                if not in_foreground(self._fd):
                    if not away:
                        away = True
                        self._away()
                    self._stopping.wait(_LOOK_S)  # what is typed now is not for us
                    continue
                if away or self._is_canonical():  # fetched back: the shell has set its own mode
                    away = False
                    self._take()
                if self._fd not in ready or self._stopping.is_set():
                    continue
                pressed = os.read(self._fd, 1)
            except (OSError, ValueError, termios.error):
                return  # the terminal is gone
            if not pressed:
                return
            key = self._keys.get(pressed.decode(errors="replace").lower())
            if key is not None:
                try:
                    key.press()
                except OSError as error:  # a request that could not be left in a full folder
                    log.warning("%s: %s", key.label, error)

    def _is_canonical(self) -> bool:
        return bool(termios.tcgetattr(self._fd)[3] & termios.ICANON)


def in_foreground(fd: int) -> bool:
    """Whether this process may read from the terminal and set its mode."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return False
