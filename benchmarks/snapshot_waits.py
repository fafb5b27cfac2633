"""What training waits for each snapshot in memory, as a run's log tells it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sailor.observe.events import Event


def waited(events: Sequence[Event], steps: Collection[int]) -> dict[int, float]:
    """Step -> seconds: to begin copying its state (the slowest rank), and in the next step, before
    its update, until all was copied (rank 0)."""
    held = {e["step"]: e["phases"].get("snapshot", 0.0) for e in events if e.kind == "step"}
    begun = {e["step"]: e["stall_s"] for e in events if e.kind == "snapshot" if e["step"] in steps}
    return {step: seconds + held.get(step + 1, 0.0) for step, seconds in begun.items()}
