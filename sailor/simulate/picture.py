"""A simulation as one page: the fan of futures, the policies against the bound, the machines.

Self-contained HTML with inline SVG, no script and no file beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

from sailor.observe.charts import Part, Plot, nice_ticks, share_bar
from sailor.planner.futures import Futures
from sailor.simulate.fleet import Fleet
from sailor.simulate.goodput import Result

_STYLE = """
:root { color-scheme: light dark; --ink: #1b2127; --soft: #545d68; --grid: #dde2e8; --bg: #fff;
  --fan: #0a5fb4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8edf2; --soft: #a3adb8; --grid: #2b343e;
  --bg: #11161c; --fan: #6db3ff; } }
body { margin: 0 auto; max-width: 900px; padding: 20px 24px 48px; background: var(--bg);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 32px 0 4px; }
p, figcaption { color: var(--soft); font-size: .875rem; max-width: 72ch; }
svg { display: block; max-width: 100%; height: auto; margin-top: 6px; }
svg text { fill: var(--soft); font-size: 12px; } svg .grid { stroke: var(--grid); }
svg .axis { stroke: var(--soft); }
.fan { fill: none; stroke: var(--fan); } .outer { opacity: .35; } .inner { opacity: .6; }
.middle { stroke-width: 2.5; } .level { fill: none; stroke: var(--fan); stroke-width: 1.2; }
.good { fill: #1f6fbf; } .lost { fill: #b42318; } .wait { fill: #8b949e; } .cost { fill: #d9822b; }
svg text.onbar { fill: #fff; }
table { border-collapse: collapse; font-size: .875rem; width: 100%; }
th, td { padding: 4px 14px 4px 0; border-bottom: 1px solid var(--grid); text-align: left; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
"""

_LINES = (("fan outer", (0.05, 0.95)), ("fan inner", (0.25, 0.75)), ("fan middle", (0.5,)))


def page(
    *,
    title: str,
    words: Sequence[str],
    futures: Futures | None,
    fleet: Fleet,
    results: Sequence[Result],
) -> str:
    """The whole page."""
    parts = [Markup(f"<h1>{escape(title)}</h1>")]
    parts += [Markup(f"<p>{escape(line)}</p>") for line in words]
    if futures is not None:
        parts.append(_figure(
            "Possible futures", fan(futures, what="dollars"),
            f"Money spent over time in {futures.finish_hours.size:,} drawn futures: half of them "
            "lie between the two inner lines, nine in ten between the outer ones.",
        ))  # fmt: skip
        parts.append(_figure(
            "", fan(futures, what="done"), "How much of the job is done by then."
        ))  # fmt: skip
    parts.append(_figure(
        "Machines that could be used", machines(fleet),
        f"{fleet.num_lost} machines are lost in {fleet.seconds / 3600:.0f} h. {fleet.source}.",
    ))  # fmt: skip
    parts.append(Markup("<h2>Where the time goes</h2>"))
    parts += [_bar(result) for result in results]
    body = Markup("").join(parts)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def fan(futures: Futures, *, what: str) -> Markup:
    """Quantiles over time, of dollars or of the share done."""
    values = futures.dollars if what == "dollars" else futures.done
    hours = [float(h) for h in futures.grid_hours]
    top = float(values.max()) if what == "dollars" else 1.0
    plot = Plot(
        width=860, height=240, x=(0.0, hours[-1]), y=(0.0, top or 1.0), x_label="hours",
        y_label="US dollars" if what == "dollars" else "share done",
        x_format=lambda v: f"{v:g}", y_format=(lambda v: f"${v:,.0f}") if what == "dollars"
        else (lambda v: f"{v:.0%}"), x_ticks=nice_ticks,
    )  # fmt: skip
    for style, quantiles in _LINES:
        for quantile in quantiles:
            row = values[futures.quantiles.index(quantile)]
            plot.line(list(zip(hours, map(float, row), strict=True)), style=style)
    return plot.svg(f"{what} over time, as quantiles of drawn futures")


def machines(fleet: Fleet) -> Markup:
    """Usable machines over time."""
    levels = fleet.levels()
    points = [(begin / 3600, float(number)) for begin, _, number in levels]
    points.append((fleet.seconds / 3600, points[-1][1] if points else 0.0))
    top = max((y for _, y in points), default=1.0)
    plot = Plot(
        width=860, height=160, x=(0.0, fleet.seconds / 3600), y=(0.0, top + 0.5),
        x_label="hours", y_label="machines", x_format=lambda v: f"{v:g}",
        y_format=lambda v: f"{v:g}", whole_y=True, x_ticks=nice_ticks,
    )  # fmt: skip
    plot.line(points, style="level", stairs=True)
    return plot.svg("machines that could be used, over time")


_GROUPS: Mapping[str, tuple[str, str]] = {
    "good": ("work that counts", "good"),
    "redone": ("done again", "lost"),
    "checkpoint": ("waiting for checkpoints", "cost"),
    "redundancy": ("computed twice", "cost"),
    "capacity": ("too few machines", "wait"),
}


def _bar(result: Result) -> Markup:
    """One policy's time as a bar with its name."""
    shares: dict[tuple[str, str], float] = {}
    for cause, seconds in result.outcome.seconds.items():
        key = _GROUPS.get(cause, ("standing still", "wait" if cause == "other" else "lost"))
        shares[key] = shares.get(key, 0.0) + seconds
    parts = [
        Part(name=name, amount=seconds, style=style) for (name, style), seconds in shares.items()
    ]
    label = f"{result.policy}: {result.share_of_bound:.1%} of the bound"
    return Markup(f"<p>{escape(label)}</p>") + share_bar(parts, width=860, label=label)


def _figure(heading: str, chart: Markup, caption: str) -> Markup:
    head = Markup(f"<h2>{escape(heading)}</h2>") if heading else Markup("")
    return head + Markup(f"<figure>{chart}<figcaption>{escape(caption)}</figcaption></figure>")
