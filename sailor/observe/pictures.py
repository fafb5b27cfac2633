"""The pictures of a run's report: which figures go into which chart, and in which colours.

Those on where time and money went are in ``pictures_time`` and ``pictures_money``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from markupsafe import Markup

from sailor.observe.charts import (
    COUNT,
    Axis,
    area,
    bands,
    chart,
    css,
    dots,
    flags,
    line,
    time_axis,
)
from sailor.observe.gantt import Bar, Row, gantt
from sailor.observe.goodput import cause_kind
from sailor.observe.history import RunHistory, StepPoint
from sailor.observe.ledger import NodeLife
from sailor.observe.metrics import Metrics, kept_steps, thinned, throughput
from sailor.observe.picture import (
    MOST_MARKS,
    Picture,
    both,
    longest,
    paused,
    running_time,
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
        marks = [
            bands(_every_second(history, per_step=per_step, last=kept[-1].step), colour="gen"),
            line(thinned(steps, most=width // 2), colour="train", title="training loss"),
        ]
        if len(evals) > 1:
            marks.append(
                line(thinned(evals, most=width // 2), colour="held", title="held-out loss",
                     strokeWidth=1.2, strokeDash=[4, 3])
            )  # fmt: skip
        marks.append(
            dots(
                [
                    (x, loss, f"held-out loss after {count(x)} tokens: {loss:.4f}")
                    for x, loss in thinned(evals, most=MOST_MARKS // 2)
                ],
                colour="bg", stroke=css("held"), strokeWidth=2,
            )
        )  # fmt: skip
        left, came = _changes(history, per_step=per_step)
        xs = [x for x, _ in steps + evals]
        return chart(
            [*marks, *flags(left, colour="lost"), *flags(came, colour="came", strokeDash=[3, 2])],
            x=Axis(name="tokens", limits=(min(xs), max(xs)), label=COUNT),
            y=Axis(name="loss", limits=(min(values) - margin, max(values) + margin),
                   format=",.3~r"),
            width=width, height=260,
            label=f"Loss over {count(steps[-1][0])} tokens of {len(steps):,} kept steps, with "
            "every change of layout",
        )  # fmt: skip

    legend = [("train", "training"), ("lost", "a machine or worker lost, or preempted"),
              ("came", "a machine joined"), ("gen", "every second generation")]  # fmt: skip
    if evals:
        legend.insert(1, ("held", "held-out"))
    note = (
        f"Kept steps only, {count(per_step)} tokens each. The batch is the same whatever the "
        "number of machines."
    )
    return both("Loss", note, draw, legend)


def _every_second(
    history: RunHistory, *, per_step: int, last: int
) -> list[tuple[float, float, str]]:  # fmt: skip
    """(first token, last token, words) of generations 2, 4, 6, ..., as far as they trained."""
    found = []
    for i, generation in enumerate(history.generations[:MOST_MARKS]):
        later = history.generations[i + 1 :]
        end = later[0].step if later else last
        if end > generation.step and i % 2:
            title = f"generation {generation.generation}: {generation.layout}"
            found.append((float(generation.step * per_step), float(end * per_step), title))
    return found


def _changes(
    history: RunHistory, *, per_step: int
) -> tuple[list[tuple[float, str]], list[tuple[float, str]]]:
    """(token, words) of each change of layout: those that somebody left, and the others."""
    left: list[tuple[float, str]] = []
    came: list[tuple[float, str]] = []
    steps = {generation.generation: generation.step for generation in history.generations}
    for pause in longest(history.pauses):
        if (step := steps.get(pause.generation)) is not None:
            title = f"step {step:,}: {pause.cause}, pause {pause.total_s:.2f} s"
            side = left if cause_kind(pause.cause) in _LEAVING else came
            side.append((float(step * per_step), title))
    return left, came


def _throughput(history: RunHistory, figures: Metrics) -> Picture | None:
    shrink = running_time(history)
    until = shrink(figures.wall_s)
    if not history.kept or until <= 0:
        return None

    def draw(width: int) -> Markup:
        moved = [_at(shrink, point) for point in kept_steps(history)]
        points = throughput(moved, until=until, num_windows=min(160, max(24, width // 6)))
        marks = [
            paused(history, shrink),
            area(points, colour="fill"),
            line(points, colour="train", title="tokens per second"),
        ]
        return chart(
            marks, x=time_axis(until), width=width, height=190,
            y=Axis(name="tokens per second", limits=(0.0, max(y for _, y in points) * 1.08),
                   label=COUNT),
            label=f"Tokens per second, on average {figures.tokens_per_second:.0f}",
        )  # fmt: skip

    note = f"Kept tokens only; {count(figures.tokens_per_second)} a second over the whole time."
    return both("Throughput", note, draw, [("paused", "training paused")])


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
        thin = thinned(points, most=width // 2)
        return chart(
            [paused(history, shrink), line(thin, colour="train", title="MFU of each step")],
            x=time_axis(until), width=width, height=150,
            y=Axis(name="MFU of each step", limits=(0.0, max(y for _, y in points) * 1.08),
                   format=".2~%"),
            label=f"Model FLOPs utilization of each step, on average {mfu:.1%}",
        )  # fmt: skip

    note = f"{mfu:.1%} of what the GPUs could have done in the time of kept steps."
    return both("MFU", note, draw, [("paused", "training paused")])


def _world(history: RunHistory, figures: Metrics) -> Picture | None:
    if not history.world:
        return None
    shrink = running_time(history)
    until = shrink(figures.wall_s)
    points = [(0.0, 0.0), *((shrink(t), float(size)) for t, size in history.world)]
    points.append((until, points[-1][1]))

    def draw(width: int) -> Markup:
        stairs = line(points, colour="train", title="GPUs", stairs=True, strokeWidth=2)
        return chart(
            [paused(history, shrink), stairs], x=time_axis(until), width=width, height=170,
            y=Axis(name="GPUs in the layout", limits=(0.0, max(y for _, y in points) + 0.4),
                   format=",.0f", whole=True),
            label="Number of GPUs that train, over time",
        )  # fmt: skip

    note = "Each step of the line is a change of layout while the run goes on."
    return both("World size and pauses", note, draw, [("paused", "training paused")])


def _machines(history: RunHistory, figures: Metrics) -> Picture | None:
    lives = sorted(history.ledger.lives, key=lambda life: (life.zone, life.requested_at))
    if not lives:
        return None
    shrink = running_time(history)
    until = shrink(figures.wall_s)
    rows = [_row(life, shrink, until) for life in lives[:MOST_MARKS]]

    def draw(width: int) -> Markup:
        return gantt(
            rows, x=time_axis(until), width=width,
            label=f"{len(rows)} machines by zone, each from request to its end",
        )  # fmt: skip

    legend = [("boot", "asked for, starting"), ("c-good", "in the run"),
              ("notice", "notice"), ("lost", "lost")]  # fmt: skip
    return both("Machines", "By zone, from request to end.", draw, legend)


def _row(life: NodeLife, shrink: Callable[[float], float], until: float) -> Row:
    end = until if life.gone_at is None else min(until, shrink(life.gone_at))
    joined = end if life.serves_from is None else shrink(life.serves_from)
    bars = [
        Bar(begin=shrink(life.requested_at), end=min(joined, end), colour="boot",
            title=f"{life.node} asked for"),
    ]  # fmt: skip
    if life.serves_from is not None:
        title = f"{life.node}, {life.machine_type}, in the run for {end - joined:.1f} s"
        bars.append(Bar(begin=joined, end=end, colour="c-good", title=title))
    marks = []
    if life.noticed_at is not None:
        marks.append((shrink(life.noticed_at), "notice", f"{life.node}: notice"))
    if life.lost_at is not None:
        marks.append((shrink(life.lost_at), "lost", f"{life.node} lost: {life.lost_cause}"))
    return Row(group=life.zone, name=life.node, bars=tuple(bars), marks=tuple(marks))


def _at(shrink: Callable[[float], float], point: StepPoint) -> StepPoint:
    return replace(point, t=shrink(point.t))
