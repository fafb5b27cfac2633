"""The pictures of a run's report: which figures go into which chart, and in which colours.

Those on where time and money went are in ``pictures_time`` and ``pictures_money``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from markupsafe import Markup

from sailor.observe.charts import Bar, Plot, Row, clock, gantt, thinned, time_ticks
from sailor.observe.goodput import cause_kind
from sailor.observe.history import RunHistory, StepPoint
from sailor.observe.ledger import NodeLife
from sailor.observe.metrics import Metrics, kept_steps, throughput
from sailor.observe.picture import (
    MOST_MARKS,
    Picture,
    both,
    longest,
    running_time,
    shade_pauses,
)
from sailor.observe.pictures_money import money
from sailor.observe.pictures_time import at_risk, goodput, pause_parts, time_by_cause
from sailor.units import count

_LEAVING = ("preempted", "node_lost", "worker_lost")


def pictures(history: RunHistory, figures: Metrics) -> list[Picture]:
    """All charts that this run has figures for."""
    return [
        picture
        for picture in (
            _loss(history),
            _throughput(history, figures),
            _flops(history, figures),
            _world(history, figures),
            goodput(figures),
            time_by_cause(history, figures),
            pause_parts(history),
            at_risk(history, figures),
            money(history, figures),
            _machines(history, figures),
        )
        if picture is not None
    ]


def _loss(history: RunHistory) -> Picture | None:
    kept = [p for p in kept_steps(history) if p.loss is not None]
    if not kept:
        return None
    per_step = kept[-1].tokens or 1  # every step has the same number of them
    steps = [(float(p.step * per_step), p.loss) for p in kept if p.loss is not None]
    evals = [(float(e.step * per_step), e.loss) for _, e in sorted(history.evals.items())]
    values = [loss for _, loss in steps + evals]
    margin = (max(values) - min(values)) * 0.05

    def draw(width: int) -> Markup:
        plot = Plot(
            width=width, height=260,
            x=(min(x for x, _ in steps + evals), max(x for x, _ in steps + evals)),
            y=(min(values) - margin, max(values) + margin),
            x_label="tokens", y_label="loss", x_format=count,
            y_format=lambda y: f"{y:.3g}",
        )  # fmt: skip
        for i, generation in enumerate(history.generations[:MOST_MARKS]):
            later = history.generations[i + 1 :]
            end = later[0].step if later else kept[-1].step
            if end > generation.step and i % 2:
                title = f"generation {generation.generation}: {generation.layout}"
                plot.band(generation.step * per_step, end * per_step, style="gen", title=title)
        plot.line(steps, style="train")
        if len(evals) > 1:
            plot.line(evals, style="held")
        for x, loss in thinned(evals, most=MOST_MARKS // 2):
            plot.dot(
                x, loss, style="held", title=f"held-out loss after {count(x)} tokens: {loss:.4f}"
            )
        for pause in longest(history.pauses):
            at = next(
                (g.step for g in history.generations if g.generation == pause.generation), None
            )
            if at is not None:
                leaving = cause_kind(pause.cause) in _LEAVING
                title = f"step {at:,}: {pause.cause}, pause {pause.total_s:.2f} s"
                plot.flag(at * per_step, style="lost" if leaving else "came", title=title)
        label = f"Loss over {count(steps[-1][0])} tokens of {len(steps):,} kept steps"
        return plot.svg(f"{label}, with every change of layout")

    legend = [("k-train", "training"), ("k-lost", "a machine or worker lost, or preempted"),
              ("k-came", "a machine joined"), ("k-gen", "every second generation")]  # fmt: skip
    if evals:
        legend.insert(1, ("k-held", "held-out"))
    note = (
        f"Kept steps only, {count(per_step)} tokens each. The batch is the same whatever the "
        "number of machines."
    )
    return both("Loss", note, draw, legend)


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
        shade_pauses(plot, history, shrink)
        plot.area(points, style="fillarea")
        plot.line(points, style="train")
        return plot.svg(f"Tokens per second, on average {figures.tokens_per_second:.0f}")

    note = f"Kept tokens only; {count(figures.tokens_per_second)} a second over the whole time."
    return both("Throughput", note, draw, [("k-pause", "training paused")])


def _flops(history: RunHistory, figures: Metrics) -> Picture | None:
    """MFU over time, where the peak of the devices is known."""
    per_token = history.start("flops_per_token")
    peaks = {plan.generation: plan.get("peak_flops") for plan in history.plans}
    mfu = figures.mfu
    if not per_token or mfu is None:
        return None
    shrink = running_time(history)
    until = shrink(figures.wall_s)
    points = [
        (shrink(p.t), per_token * p.tokens / (p.seconds * peak))
        for p in kept_steps(history)
        if p.seconds and (peak := peaks.get(p.generation))
    ]

    def draw(width: int) -> Markup:
        plot = Plot(
            width=width, height=150, x=(0.0, until), y=(0.0, max(y for _, y in points) * 1.08),
            x_label="time", y_label="MFU of each step", x_format=clock,
            y_format=lambda y: f"{y:.0%}", x_ticks=time_ticks,
        )  # fmt: skip
        shade_pauses(plot, history, shrink)
        plot.line(points, style="train")
        return plot.svg(f"Model FLOPs utilization of each step, on average {mfu:.1%}")

    note = f"{mfu:.1%} of what the GPUs could have done in the time of kept steps."
    return both("MFU", note, draw, [("k-pause", "training paused")])


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
        shade_pauses(plot, history, shrink)
        plot.line(points, style="world", stairs=True)
        return plot.svg("Number of GPUs that train, over time")

    note = "Each step of the line is a change of layout while the run goes on."
    return both("World size and pauses", note, draw, [("k-pause", "training paused")])


def _machines(history: RunHistory, figures: Metrics) -> Picture | None:
    lives = sorted(history.ledger.lives, key=lambda life: (life.zone, life.requested_at))
    if not lives:
        return None
    shrink = running_time(history)
    until = shrink(figures.wall_s)
    rows = [_row(life, shrink, until) for life in lives[:MOST_MARKS]]

    def draw(width: int) -> Markup:
        return gantt(
            rows, width=width, until=until, x_format=clock, x_ticks=time_ticks,
            label=f"{len(rows)} machines by zone, each from request to its end",
        )  # fmt: skip

    legend = [("k-boot", "asked for, starting"), ("k-up", "in the run"),
              ("k-notice", "notice"), ("k-gone", "lost")]  # fmt: skip
    return both("Machines", "By zone, from request to end.", draw, legend)


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


def _at(shrink: Callable[[float], float], point: StepPoint) -> StepPoint:
    return replace(point, t=shrink(point.t))
