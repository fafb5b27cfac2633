"""A plan as one offline page: cost against time, who sits where, memory, one step on a clock.

Self-contained HTML with inline SVG, no script and no file beside it. Only draws: every figure comes
from the search's result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from sailor.observe.charts import Axis, Marks, chart, css, dots, flags, level, line
from sailor.observe.gantt import Bar, Row, gantt
from sailor.planner.explain import layout, machines, zones
from sailor.planner.outlook import front
from sailor.planner.question import Candidate, Limits, SearchResult
from sailor.planner.timeline import timeline
from sailor.units import GIB, duration, gib

_STYLE = """
:root { color-scheme: light dark; --ink: #1b2127; --soft: #545d68; --grid: #dde2e8; --bg: #fff;
  --axis: #8b949e; --line: #0a5fb4; --bad: #b42318; --idle: #dde2e8; --onbar: #fff;
  --s0: #1f6fbf; --s1: #a84e00; --s2: #12807a; --s3: #7a4fb5; --s4: #5b7c1a; --s5: #b0305f;
  --s6: #57606a; --s7: #8a6d00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8edf2; --soft: #a3adb8; --grid: #2b343e;
  --bg: #11161c; --axis: #6b7683; --line: #6db3ff; --bad: #ff8b80; --idle: #2b343e; } }
body { margin: 0 auto; max-width: 900px; padding: 20px 24px 48px; background: var(--bg);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 32px 0 4px; }
p { max-width: 76ch; margin: 4px 0; } .soft { color: var(--soft); font-size: .875rem; }
svg { display: block; max-width: 100%; height: auto; margin: 6px 0; }
svg text { font-family: inherit; }
table { border-collapse: collapse; font-size: .875rem; width: 100%; }
th, td { padding: 4px 14px 4px 0; border-bottom: 1px solid var(--grid); text-align: left; }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
"""
_COLOURS = 8
_WIDTH = 860
_NAMES = 190  # pixels for what a row is called
_MOST_MACHINES = 48
_MOST_BARS = 16
_MOST_MICROBATCHES = 24


def page(
    *, title: str, words: Sequence[str], result: SearchResult, limits: Limits,
    gpus_per_machine: dict[str, int], others: Sequence[tuple[Candidate, str]],
) -> str:  # fmt: skip
    """The whole page. ``others`` are runners-up, each with why it lost."""
    parts = [Markup(f"<h1>{escape(title)}</h1>")]
    parts += [Markup(f"<p>{escape(line)}</p>") for line in words]
    parts += [
        _figure("Cost against time", trade_off(result, limits),
                "Every plan that was priced. The line joins those that nothing beats in both; the "
                "large dot is the chosen one; hollow ones break a limit, drawn dashed."),
        _figure("Who sits where", seats(result.best, gpus_per_machine),
                "A row is a machine, a cell a GPU: replica.stage, the colour is the stage; GPUs "
                "without a gap between them are one tensor-parallel group."),
        _figure("Memory of a GPU of each stage", memory(result.best),
                "The bound on the peak, part by part; the mark is what the GPU has."),
        _figure("One step of the first replica", step(result.best),
                "Forward passes are solid, backward passes pale; what is empty is the bubble. "
                "Forward is taken as a third of a stage's time, a quarter with recompute."),
        Markup("<h2>Why the others lost</h2>"), _table(others),
    ]  # fmt: skip
    body = Markup("").join(parts)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _figure(heading: str, drawing: Markup, note: str) -> Markup:
    return Markup(
        f"<h2>{escape(heading)}</h2><figure style='margin:0'>{drawing}"
        f"<figcaption class='soft'>{escape(note)}</figcaption></figure>"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Point:
    """A candidate on the chart: hours and dollars of the job, or seconds and cents of a step."""

    x: float
    y: float


def _point(candidate: Candidate) -> _Point:
    if candidate.hours is not None and candidate.dollars is not None:
        return _Point(x=candidate.hours, y=candidate.dollars)
    value = candidate.estimate
    return _Point(x=value.step_seconds, y=100 * value.dollars_per_step)


def trade_off(result: SearchResult, limits: Limits) -> Markup:
    """All candidates, the front, the limits."""
    whole = result.best.hours is not None
    points = [_point(c) for c in result.candidates]
    best = _point(result.best)
    # A few plans are hopelessly slow: the picture is about those near the front.
    edge = [_point(c) for c in front([c for c in result.candidates if c.feasible])]
    right = max([best.x * 2.5, *(p.x * 1.15 for p in edge)])
    top = max([best.y * 3, *(p.y * 1.15 for p in edge), (limits.total_dollars or 0.0) * 1.1])
    marks: list[Marks] = []
    if whole and limits.total_dollars is not None:
        title = f"budget ${limits.total_dollars:,.2f}"
        marks.append(level(limits.total_dollars, colour="bad", title=title))
    if whole and limits.deadline_seconds is not None:
        hours = limits.deadline_seconds / 3600
        if hours <= right:
            title = f"deadline {hours:,.1f} h"
            marks += flags([(hours, title)], colour="bad", strokeDash=[5, 3])
    near = [
        (candidate.feasible, (point.x, point.y, _says(candidate)))
        for candidate, point in zip(result.candidates, points, strict=True)
        if point.x <= right and point.y <= top
    ]
    marks += [
        dots([dot for feasible, dot in near if feasible], colour="soft", opacity=0.45),
        dots([dot for feasible, dot in near if not feasible], colour="bg", stroke=css("bad"),
             opacity=0.6),
        line([(p.x, p.y) for p in edge], colour="line", title="nothing beats these", stairs=True),
        dots([(best.x, best.y, f"chosen: {_says(result.best)}")], colour="line", size=110,
             stroke=css("ink")),
    ]  # fmt: skip
    return chart(
        marks, width=_WIDTH, height=300,
        x=Axis(name="hours to finish" if whole else "seconds a step", limits=(0.0, right),
               format=",~r"),
        y=Axis(name="US dollars" if whole else "cents a step", limits=(0.0, top or 1.0),
               format="~s" if top >= 1e4 else ",~r"),
        label=f"{len(points)} plans by cost and time, {len(edge)} of them on the front",
    )  # fmt: skip


def _says(candidate: Candidate) -> str:
    time = f"{candidate.estimate.step_seconds:.3g} s a step"
    if candidate.hours is not None:
        time = duration(candidate.hours * 3600)
    money = "" if candidate.dollars is None else f", ${candidate.dollars:,.2f}"
    reasons = f" ({'; '.join(candidate.reasons)})" if candidate.reasons else ""
    return (
        f"{machines(candidate)} in {zones(candidate)}: {layout(candidate)}, {time}{money}{reasons}"
    )


def seats(candidate: Candidate, gpus_per_machine: dict[str, int]) -> Markup:
    """Machine x GPU. Replicas fill machines one after another, as the evaluator assumes."""
    rows: dict[tuple[str, str, int], list[tuple[int, int, int, int]]] = {}
    taken: dict[tuple[str, str], int] = {}
    for replica, stage, value in candidate.plan.stages():
        pool = (value.zone, value.machine_type)
        size = gpus_per_machine[value.machine_type]
        at = taken.get(pool, 0)
        if at % size + value.tensor_parallel > size:
            at += size - at % size
        taken[pool] = at + value.tensor_parallel
        seat = (at % size, value.tensor_parallel, replica, stage)
        rows.setdefault((*pool, at // size), []).append(seat)
    shown = sorted(rows)[:_MOST_MACHINES]
    most = max(gpus_per_machine[kind] for _, kind, _ in shown)
    lines = [
        Row(
            group=zone, name=f"{kind} {number + 1}",
            bars=tuple(
                Bar(begin=gpu + 0.03, end=gpu + 0.97, colour="idle", title=f"GPU {gpu + 1}")
                for gpu in range(gpus_per_machine[kind])
            ) + tuple(
                Bar(begin=at + 0.03, end=at + width - 0.03, colour=f"s{stage % _COLOURS}",
                    text=f"{replica + 1}.{stage + 1}",
                    title=f"replica {replica + 1}, stage {stage + 1}, tensor parallel {width}")
                for at, width, replica, stage in rows[zone, kind, number]
            ),
        )
        for zone, kind, number in shown
    ]  # fmt: skip
    drawing = gantt(
        lines, x=Axis(name="", limits=(0.0, float(most))), bare=True, left=_NAMES,
        width=min(_WIDTH, _NAMES + 44 * most),
        label=f"{len(rows)} machines and the stages on them",
    )  # fmt: skip
    if len(rows) > len(shown):
        drawing += Markup(f"<p class='soft'>and {len(rows) - len(shown)} more machines</p>")
    return drawing


def memory(candidate: Candidate) -> Markup:
    """A bar for each stage of each different replica, against the GPU's memory."""
    stages = candidate.estimate.stages[:_MOST_BARS]
    names = list(dict.fromkeys(term.name for stage in stages for term in stage.memory))
    most = max(max(stage.capacity_bytes, stage.peak_bytes) for stage in stages)
    rows = []
    for stage in stages:
        bars, at = [], 0.0
        for term in stage.memory:
            colour = f"s{names.index(term.name) % _COLOURS}"
            title = f"{term.name}: {gib(term.value)}"
            end = at + term.value / GIB
            bars.append(Bar(begin=at, end=end, colour=colour, title=title))
            at = end
        share = stage.peak_bytes / stage.capacity_bytes
        has = f"{share:.0%} of the {gib(stage.capacity_bytes)} of a {stage.gpu}"
        rows.append(Row(
            group="", name=f"replica {stage.replica + 1}, stage {stage.stage + 1}: {share:.0%}",
            bars=tuple(bars), marks=((stage.capacity_bytes / GIB, "bad", has),),
        ))  # fmt: skip
    drawing = gantt(
        rows, x=Axis(name="GiB", limits=(0.0, most / GIB * 1.02), format=",~r"), width=_WIDTH,
        left=_NAMES, label="peak memory by stage and part",
    )  # fmt: skip
    legend = Markup(", ").join(escape(name) for name in names)
    return drawing + Markup(f"<p class='soft'>From left to right: {legend}</p>")


def step(candidate: Candidate) -> Markup:
    """One step of the first replica on a clock; a long one is cut after some microbatches."""
    replica = candidate.plan.replicas[0]
    busy = [s.busy_seconds for s in candidate.estimate.stages if s.replica == 0]
    # A backward is two forwards; with recompute it repeats the forward first.
    shares = [1 / 4 if stage.recompute else 1 / 3 for stage in replica.stages]
    number = min(replica.num_microbatches, _MOST_MICROBATCHES)
    slots = timeline(
        forward=[b * f for b, f in zip(busy, shares, strict=True)],
        backward=[b * (1 - f) for b, f in zip(busy, shares, strict=True)],
        num_microbatches=number,
    )
    end = max(slot.end for slot in slots)
    rows = []
    for stage in range(replica.num_stages):
        bars = tuple(
            Bar(
                begin=slot.begin, end=slot.end, colour=f"s{stage % _COLOURS}",
                pale=not slot.forward,
                title=f"{'forward' if slot.forward else 'backward'} of microbatch "
                f"{slot.microbatch + 1}, {duration(slot.end - slot.begin)}",
            )
            for slot in slots
            if slot.stage == stage
        )  # fmt: skip
        gpus = replica.stages[stage]
        name = f"{stage + 1}: {gpus.tensor_parallel} x {gpus.gpu}"
        rows.append(Row(group="stage", name=name, bars=bars))
    cut = f", of {replica.num_microbatches}" if number < replica.num_microbatches else ""
    return gantt(
        rows, x=Axis(name="", limits=(0.0, end), format="~s", label="datum.label + 's'"),
        width=_WIDTH, left=_NAMES,
        label=f"{number} microbatches{cut} through {replica.num_stages} stages",
    )  # fmt: skip


def _table(others: Sequence[tuple[Candidate, str]]) -> Markup:
    lines = [
        Markup(
            f"<tr><td>{escape(machines(candidate))}</td><td>{escape(zones(candidate))}</td>"
            f"<td>{escape(layout(candidate))}</td><td>{escape(why)}</td></tr>"
        )
        for candidate, why in others
    ]
    head = "<tr><th>machines</th><th>zone</th><th>layout</th><th>why not</th></tr>"
    return Markup(f"<table>{head}{Markup('').join(lines)}</table>")
