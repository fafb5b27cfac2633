"""Pictures of where the time went: all of it, over the run, within each pause, and what was at risk
meanwhile."""

from __future__ import annotations

from collections import defaultdict

from markupsafe import Markup

from sailor.observe.charts import (
    Axis,
    Part,
    Point,
    chart,
    line,
    share_bar,
    stack,
    time_axis,
)
from sailor.observe.gantt import Bar, Row, gantt
from sailor.observe.history import RunHistory
from sailor.observe.metrics import Metrics, is_kept, kept_steps, thinned
from sailor.observe.picture import CAUSES, Picture, both, longest, running_time
from sailor.units import clock, duration

_NUM_WINDOWS = 120
_PARTS = (
    ("detect_s", "detect", "p-detect"), ("decide_s", "decide", "p-decide"),
    ("prepare_s", "prepare", "p-prepare"), ("copy_s", "copy state", "p-copy"),
    ("switch_s", "switch", "p-switch"), ("first_step_s", "first step", "p-first"),
    ("parked_s", "wait for machines", "p-parked"),
)  # fmt: skip


def goodput(figures: Metrics) -> Picture | None:
    """One bar of the whole time."""
    if figures.wall_s <= 0:
        return None
    parts = [Part(name="kept steps", amount=figures.good_s, colour="c-good")]
    for cause, (name, style) in CAUSES.items():
        if seconds := figures.badput_s.get(cause):
            parts.append(Part(name=name, amount=seconds, colour=style))
    label = f"Goodput {figures.goodput:.0%}: the share of the time spent on steps that were kept"
    return both(
        "Where the time went",
        f"Goodput {figures.goodput:.1%}: the share of the wall time spent on steps that were kept.",
        lambda width: share_bar(parts, width=width, label=label),
    )


def time_by_cause(history: RunHistory, figures: Metrics) -> Picture | None:
    """Shares of each stretch of the run, stacked: work that was kept, and everything else."""
    shrink = running_time(history)
    until = shrink(figures.wall_s)
    if until <= 0:
        return None
    width_s = until / _NUM_WINDOWS
    shares: dict[str, list[float]] = defaultdict(lambda: [0.0] * _NUM_WINDOWS)
    for span in history.accounts.spans:
        what = span.what
        if what == "stopped":
            continue  # its time is not on the axis
        if what == "step":
            what = "kept" if is_kept(history, span) else "redone"
        begin, end = shrink(span.begin), shrink(span.end)
        first = min(_NUM_WINDOWS - 1, int(begin / width_s))
        for window in range(first, min(_NUM_WINDOWS - 1, int(end / width_s)) + 1):
            overlap = min(end, (window + 1) * width_s) - max(begin, window * width_s)
            shares[what][window] += max(0.0, overlap) / width_s
    parts = [
        Part(name=name, colour=colour, amounts=shares[cause])
        for cause, (name, colour) in ({"kept": ("kept steps", "c-good")} | CAUSES).items()
        if cause in shares
    ]
    edges = [i * width_s for i in range(_NUM_WINDOWS + 1)]

    def draw(width: int) -> Markup:
        return chart(
            stack(edges, parts), x=time_axis(until), width=width, height=190,
            y=Axis(name="share of the time", limits=(0.0, 1.0), format=".0%"),
            label="Share of work that was kept, and of all else, over the run",
        )  # fmt: skip

    legend = [(part.colour, part.name) for part in parts]
    return both("Goodput over time", f"In stretches of {duration(width_s)}.", draw, legend)


def pause_parts(history: RunHistory) -> Picture | None:
    """Each pause as a bar of its parts."""
    pauses = [pause for pause in longest(history.pauses) if pause.total_s > 0]
    if not pauses:
        return None
    rows, used = [], set()
    for pause in pauses[:40]:
        at, bars = 0.0, []
        for field, name, colour in _PARTS:
            seconds = float(getattr(pause, field))
            if seconds > 0:
                used.add(colour)
                title = f"{name}: {seconds:.2f} s"
                bars.append(Bar(begin=at, end=at + seconds, colour=colour, title=title))
                at += seconds
        rows.append(Row(group="", name=f"at {clock(int(pause.t))}", bars=tuple(bars)))
    until = max(sum(bar.end - bar.begin for bar in row.bars) for row in rows)
    if until <= 0:
        return None

    def draw(width: int) -> Markup:
        return gantt(
            rows, x=Axis(name="", limits=(0.0, until), format=",~r", label="datum.label + ' s'"),
            width=width, label=f"{len(rows)} pauses, each split into what was done in it",
        )  # fmt: skip

    legend = [(colour, name) for _, name, colour in _PARTS if colour in used]
    return both("What pauses were made of", "From the last sign of life on.", draw, legend)


def at_risk(history: RunHistory, figures: Metrics) -> Picture | None:
    """How many steps would have to be done again, were a machine, or all, lost at that moment."""
    steps = kept_steps(history)
    if not steps or not (history.snapshots.safe or history.durable):
        return None
    shrink = running_time(history)
    until = shrink(figures.wall_s)
    marks = [(p.t, p.step) for p in steps]
    lines = [
        (name, colour, _lag(marks, saved))
        for name, colour, saved in (
            ("were one machine lost: since the newest step whose state is on two", "train",
             history.snapshots.safe),
            ("were all lost: since the newest durable checkpoint", "held",
             [(d.t, d.step) for d in history.durable]),
        )
        if saved
    ]  # fmt: skip
    top = max(y for _, _, points in lines for _, y in points)

    def draw(width: int) -> Markup:
        drawn = []
        for name, colour, points in lines:
            moved = [(shrink(t), y) for t, y in points]
            few = len(moved) < width
            moved = moved if few else thinned(moved, most=width // 2)
            drawn.append(line(moved, colour=colour, title=name, stairs=few))
        return chart(
            drawn, x=time_axis(until), width=width, height=170,
            y=Axis(name="steps at risk", limits=(0.0, top * 1.08 + 0.5), format=",.0f", whole=True),
            label="Steps that a loss would have set back, over time",
        )  # fmt: skip

    legend = [(colour, name) for name, colour, _ in lines]
    note = "Steps that are done and not yet safe: what a loss at that moment would have set back."
    return both("Snapshot and checkpoint lag", note, draw, legend)


def _lag(steps: list[tuple[float, int]], saved: list[tuple[float, int]]) -> list[Point]:
    """(t, steps since the newest saved one) at every step and every save, in order of time."""
    points, step, safe = [], 0, 0
    moments = sorted([(t, 0, s) for t, s in saved] + [(t, 1, s) for t, s in steps])
    for t, is_step, number in moments:
        if is_step:
            step = number
        else:
            safe = max(safe, number)
        points.append((t, float(max(0, step - safe))))
    return points
