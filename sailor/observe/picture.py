"""What the pictures of a report have in common: two widths, one time axis, one set of colours.

Each is drawn twice, for a desk and for a phone; the page shows the one that fits. Time axes leave
out the hours between two starts of a run, for nothing happened in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from sailor.observe.charts import Marks, bands
from sailor.observe.history import PausePoint, RunHistory

WIDE, NARROW = 840, 340
MOST_MARKS = 80  # of one kind in one chart; more would neither be seen nor keep the page small

CAUSES = {  # badput as the accounts name it -> its words and its colour, in the order of the bar
    "redone": ("work done again", "c-redone"),
    "transition_preempted": ("pauses: a machine preempted", "c-trans1"),
    "transition_node_lost": ("pauses: a machine lost", "c-trans2"),
    "transition_worker_lost": ("pauses: a worker lost", "c-trans3"),
    "transition_join": ("pauses: a machine joined", "c-trans4"),
    "transition_other": ("pauses: other changes of layout", "c-trans5"),
    "capacity": ("waiting for machines", "c-capacity"),
    "start_up": ("starting up", "c-start"),
    "evaluation": ("held-out evaluation", "c-eval"),
    "checkpoint": ("waiting for checkpoints", "c-check"),
    "other": ("between steps", "c-other"),
    "shut_down": ("saving and releasing at the end", "c-down"),
    "stopped": ("stopped between two starts", "c-stopped"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """One chart in both widths. ``legend`` is (colour, meaning) of each mark."""

    heading: str
    note: str
    wide: Markup
    narrow: Markup
    legend: tuple[tuple[str, str], ...] = ()


def running_time(history: RunHistory) -> Callable[[float], float]:
    """The log's time with the stretches between two starts cut out."""
    gaps = [(s.begin, s.end) for s in history.accounts.spans if s.what == "stopped"]

    def shrink(t: float) -> float:
        return t - sum(min(t, end) - begin for begin, end in gaps if begin < t)

    return shrink


def both(
    heading: str,
    note: str,
    draw: Callable[[int], Markup],
    legend: Sequence[tuple[str, str]] = (),
) -> Picture:
    return Picture(
        heading=heading, note=note, wide=draw(WIDE), narrow=draw(NARROW), legend=tuple(legend)
    )


def paused(history: RunHistory, shrink: Callable[[float], float]) -> Marks:
    """Shades over the pauses of a chart whose x axis is time."""
    return bands(
        [
            (shrink(pause.t) - pause.total_s, shrink(pause.t),
             f"pause of {pause.total_s:.2f} s: {pause.cause}")
            for pause in longest(history.pauses)
        ],
        colour="paused",
    )  # fmt: skip


def longest(pauses: Sequence[PausePoint]) -> Sequence[PausePoint]:
    """The pauses to draw, in order of time: all, or the longest when they are too many."""
    if len(pauses) <= MOST_MARKS:
        return pauses
    chosen = sorted(pauses, key=lambda pause: -pause.total_s)[:MOST_MARKS]
    return sorted(chosen, key=lambda pause: pause.t)
