"""Reading a run's log while somebody else writes it: each call gives what came since the last.

For views of a run that another process, or another thread, has open. Only whole lines are events;
a line that is being written waits for the next call.
"""

from __future__ import annotations

from pathlib import Path

from sailor.observe.events import Event, parse

_CHUNK = 1 << 18  # bytes a call reads at most: a long log is taken in pieces, others get their turn


class Tail:
    """The reading end of one ``events.jsonl``, from its beginning. The file need not exist yet."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._offset = 0  # of the first byte that belongs to no event given out

    def read(self) -> list[Event]:
        """The next events, in order; empty when there are none yet.

        A whole line that is no event is passed over. Raises OSError other than FileNotFoundError.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(_CHUNK)
                if b"\n" not in data and len(data) == _CHUNK:  # one very long line
                    data += file.readline()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [event for line in whole.splitlines() if (event := parse(line)) is not None]
