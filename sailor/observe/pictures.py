"""The pictures of a run's report: which figures go into which chart, and in which colours.

Each picture is drawn twice, for a desk and for a phone; the page shows the one that fits. Time axes
leave out the hours between two starts of a run, for nothing happened in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from sailor.observe.charts import Bar, Part, Plot, Row, clock, gantt, share_bar, thinned, time_ticks
from sailor.observe.goodput import cause_kind
from sailor.observe.history import PausePoint, RunHistory, StepPoint
from sailor.observe.ledger import NodeLife
from sailor.observe.metrics import Metrics, kept_steps, throughput
from sailor.units import count

WIDE, NARROW = 840, 340
_MOST_MARKS = 80  # of one kind in one chart; more would neither be seen nor keep the page small
_LEAVING = ("preempted", "node_lost", "worker_lost")

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
    """One chart in both widths. ``legend`` is (style, meaning) of each mark."""

    heading: str
    note: str
    wide: Markup
    narrow: Markup
    legend: tuple[tuple[str, str], ...] = ()


def pictures(history: RunHistory, figures: Metrics) -> list[Picture]:
    """All charts that this run has figures for."""
    return [
        picture
        for picture in (
            _loss(history),
            _throughput(history, figures),
            _world(history, figures),
            _goodput(figures),
            _machines(history, figures),
        )
        if picture is not None
    ]


def running_time(history: RunHistory) -> Callable[[float], float]:
    """The log's time with the stretches between two starts cut out."""
    gaps = [(s.begin, s.end) for s in history.accounts.spans if s.what == "stopped"]

    def shrink(t: float) -> float:
        return t - sum(min(t, end) - begin for begin, end in gaps if begin < t)

    return shrink


def _both(
    heading: str,
    note: str,
    draw: Callable[[int], Markup],
    legend: Sequence[tuple[str, str]] = (),
) -> Picture:
    return Picture(
        heading=heading, note=note, wide=draw(WIDE), narrow=draw(NARROW), legend=tuple(legend)
    )


def _loss(history: RunHistory) -> Picture | None:
    steps = [(float(p.step), p.loss) for p in kept_steps(history) if p.loss is not None]
    evals = [(float(e.step), e.loss) for _, e in sorted(history.evals.items())]
    values = [loss for _, loss in steps + evals]
    if not steps:
        return None
    margin = (max(values) - min(values)) * 0.05

    def draw(width: int) -> Markup:
        plot = Plot(
            width=width, height=260,
            x=(min(x for x, _ in steps + evals), max(x for x, _ in steps + evals)),
            y=(min(values) - margin, max(values) + margin),
            x_label="step", y_label="loss", x_format=lambda x: f"{x:,.0f}",
            y_format=lambda y: f"{y:.3g}",
        )  # fmt: skip
        for i, generation in enumerate(history.generations[:_MOST_MARKS]):
            later = history.generations[i + 1 :]
            end = later[0].step if later else int(steps[-1][0])
            if end > generation.step and i % 2:
                title = f"generation {generation.generation}: {generation.layout}"
                plot.band(generation.step, end, style="gen", title=title)
        plot.line(steps, style="train")
        if len(evals) > 1:
            plot.line(evals, style="held")
        for x, loss in thinned(evals, most=_MOST_MARKS // 2):
            plot.dot(x, loss, style="held", title=f"held-out loss after step {x:,.0f}: {loss:.4f}")
        for pause in _longest(history.pauses):
            at = next(
                (g.step for g in history.generations if g.generation == pause.generation), None
            )
            if at is not None:
                leaving = cause_kind(pause.cause) in _LEAVING
                title = f"step {at:,}: {pause.cause}, pause {pause.total_s:.2f} s"
                plot.flag(at, style="lost" if leaving else "came", title=title)
        return plot.svg(f"Loss over {len(steps):,} kept steps, with every change of layout")

    legend = [("k-train", "training"), ("k-lost", "a machine or worker lost, or preempted"),
              ("k-came", "a machine joined"), ("k-gen", "every second generation")]  # fmt: skip
    if evals:
        legend.insert(1, ("k-held", "held-out"))
    note = "Kept steps only. The batch is the same whatever the number of machines."
    return _both("Loss", note, draw, legend)


def _throughput(history: RunHistory, figures: Metrics) -> Picture | None:
    shrink = running_time(history)
    until = shrink(figures.wall_s)
    if not history.kept or until <= 0:
        return None

    def draw(width: int) -> Markup:
        moved = [_at(shrink, point) for point in kept_steps(history)]
        points = throughput(moved, until=until, num_windows=min(160, max(24, width // 6)))
        plot = Plot(
            width=width, height=190, x=(0.0, until), y=(0.0, max(y for _, y in points) * 1.08),
            x_label="time", y_label="tokens per second", x_format=clock, y_format=count,
            x_ticks=time_ticks,
        )  # fmt: skip
        _pauses(plot, history, shrink)
        plot.area(points, style="fillarea")
        plot.line(points, style="train")
        return plot.svg(f"Tokens per second, on average {figures.tokens_per_second:.0f}")

    note = f"Kept tokens only; {count(figures.tokens_per_second)} a second over the whole time."
    return _both("Throughput", note, draw, [("k-pause", "training paused")])


def _world(history: RunHistory, figures: Metrics) -> Picture | None:
    if not history.world:
        return None
    shrink = running_time(history)
    until = shrink(figures.wall_s)
    points = [(0.0, 0.0), *((shrink(t), float(size)) for t, size in history.world)]
    points.append((until, points[-1][1]))

    def draw(width: int) -> Markup:
        plot = Plot(
            width=width, height=170, x=(0.0, until), y=(0.0, max(y for _, y in points) + 0.4),
            x_label="time", y_label="GPUs in the layout", x_format=clock,
            y_format=lambda y: f"{y:.0f}", whole_y=True, x_ticks=time_ticks,
        )  # fmt: skip
        _pauses(plot, history, shrink)
        plot.line(points, style="world", stairs=True)
        return plot.svg("Number of GPUs that train, over time")

    note = "Each step of the line is a change of layout while the run goes on."
    return _both("World size and pauses", note, draw, [("k-pause", "training paused")])


def _goodput(figures: Metrics) -> Picture | None:
    if figures.wall_s <= 0:
        return None
    parts = [Part(name="kept steps", amount=figures.good_s, style="c-good")]
    for cause, (name, style) in CAUSES.items():
        if seconds := figures.badput_s.get(cause):
            parts.append(Part(name=name, amount=seconds, style=style))
    label = f"Goodput {figures.goodput:.0%}: the share of the time spent on steps that were kept"
    return _both(
        "Where the time went",
        f"Goodput {figures.goodput:.1%}: the share of the wall time spent on steps that were kept.",
        lambda width: share_bar(parts, width=width, label=label),
    )


def _machines(history: RunHistory, figures: Metrics) -> Picture | None:
    lives = sorted(history.ledger.lives, key=lambda life: (life.zone, life.requested_at))
    if not lives:
        return None
    shrink = running_time(history)
    until = shrink(figures.wall_s)
    rows = [_row(life, shrink, until) for life in lives[:_MOST_MARKS]]

    def draw(width: int) -> Markup:
        return gantt(
            rows, width=width, until=until, x_format=clock, x_ticks=time_ticks,
            label=f"{len(rows)} machines by zone, each from request to its end",
        )  # fmt: skip

    legend = [("k-boot", "asked for, starting"), ("k-up", "in the run"),
              ("k-notice", "notice"), ("k-gone", "lost")]  # fmt: skip
    return _both("Machines", "By zone, from request to end.", draw, legend)


def _row(life: NodeLife, shrink: Callable[[float], float], until: float) -> Row:
    end = until if life.gone_at is None else shrink(life.gone_at)
    joined = end if life.joined_at is None else shrink(life.joined_at)
    bars = [
        Bar(begin=shrink(life.requested_at), end=min(joined, end), style="boot",
            title=f"{life.node} asked for"),
    ]  # fmt: skip
    if life.joined_at is not None:
        title = f"{life.node}, {life.machine_type}, in the run for {end - joined:.1f} s"
        bars.append(Bar(begin=joined, end=end, style="up", title=title))
    marks = []
    if life.noticed_at is not None:
        marks.append((shrink(life.noticed_at), "notice", f"{life.node}: notice"))
    if life.lost_at is not None:
        marks.append((shrink(life.lost_at), "gone", f"{life.node} lost: {life.lost_cause}"))
    return Row(group=life.zone, name=life.node, bars=tuple(bars), marks=tuple(marks))


def _pauses(plot: Plot, history: RunHistory, shrink: Callable[[float], float]) -> None:
    for pause in _longest(history.pauses):
        end = shrink(pause.t)
        title = f"pause of {pause.total_s:.2f} s: {pause.cause}"
        plot.band(max(0.0, end - pause.total_s), end, style="paused", title=title)


def _longest(pauses: Sequence[PausePoint]) -> Sequence[PausePoint]:
    """The pauses to draw, in order of time: all, or the longest when they are too many."""
    if len(pauses) <= _MOST_MARKS:
        return pauses
    chosen = sorted(pauses, key=lambda pause: -pause.total_s)[:_MOST_MARKS]
    return sorted(chosen, key=lambda pause: pause.t)


def _at(shrink: Callable[[float], float], point: StepPoint) -> StepPoint:
    return replace(point, t=shrink(point.t))
