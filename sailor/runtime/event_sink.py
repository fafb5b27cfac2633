"""Where a run's events go, as those see it who only write them."""

from __future__ import annotations

from typing import Any, Protocol


class EventSink(Protocol):
    """sailor.observe.events.EventLog in real life."""

    def write(self, kind: str, *, generation: int = 0, **fields: Any) -> object: ...
