"""What training waits for while its layout changes: what is at work, and on how many machines.

A change of under two seconds is not told: it would be over before it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sailor.observe.history import RunHistory

PATIENCE_S = 2.0
_TIERS = {  # from the slowest on; what a worker has itself is no wait
    "disk": "a durable checkpoint", "anchor": "the anchor", "peer": "another machine's memory",
    "memory": "memory", "live": "another replica",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """``done`` of ``total`` machines are through with it."""

    what: str
    done: int
    total: int

    def __str__(self) -> str:
        return f"{self.what}, {self.done} of {self.total} machines are ready"


def waiting_for(history: RunHistory, *, now: float) -> Wait | None:
    """What keeps training from going on; None while it trains, or has not stood still for long.

    A planned change is prepared while training goes on: of it, only the restoring is a wait.
    """
    change, sources, progress = history.changing, history.restoring, history.progress
    if change is None or (change.get("planned") and sources is None):
        return None
    since = sources.t if sources is not None else change.t
    if now - since < PATIENCE_S:
        return None
    what, stage, total = "preparing the layout", "prepare", len(history.ledger.present())
    if sources is not None:
        origins = sources.get("sources", ())
        what, stage = restoring(int(sources.get("step", 0)), origins), "switch"
        total = len({str(one.get("worker", "")).partition("/")[0] for one in origins})
    if progress is None or progress.get("stage") != stage:
        return Wait(what=what, done=0, total=total)
    return Wait(what=what, done=int(progress["done"]), total=int(progress["total"]))


def restoring(step: int, sources: Iterable[Mapping[str, Any]]) -> str:
    """'restoring step 1,200 from a durable checkpoint': the slowest of its sources is named."""
    tier = slowest(sources)
    return f"restoring step {step:,} from {_TIERS[tier]}" if tier else "making the first weights"


def slowest(sources: Iterable[Mapping[str, Any]]) -> str:
    """The slowest tier of a ``restored`` event's sources; "" where nothing is restored."""
    there = {str(one.get("tier")) for one in sources}
    return next((tier for tier in _TIERS if tier in there), "")
