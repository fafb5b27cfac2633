"""Reads the event log of a run that another process writes, as it grows. Never writes."""

from __future__ import annotations

from pathlib import Path

from sailor.observe.events import Event, parse_event


class Tail:
    """The whole lines of a log, each once. A log that is not there yet has none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""  # of a line that is being written

    def read(self) -> list[Event]:
        """The events since the last call."""
        try:
            with self._path.open("rb") as file:
                if self._path.stat().st_size < self._offset:  # its last, torn line was cut off
                    self._offset, self._rest = self._offset - len(self._rest), b""
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [event for line in lines if (event := parse_event(line)) is not None]
