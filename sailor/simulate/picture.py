"""A simulation as one page: the fan of futures, the policies against the bound, the machines.

Self-contained HTML with inline SVG, no script and no file beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from sailor.observe.charts import Axis, Part, chart, line, share_bar
from sailor.planner.futures import Futures
from sailor.simulate.fleet import Fleet
from sailor.simulate.goodput import Result

_STYLE = """
:root { color-scheme: light dark; --ink: #1b2127; --soft: #545d68; --grid: #dde2e8; --bg: #fff;
  --axis: #8b949e; --fan: #0a5fb4; --good: #1f6fbf; --lost: #b42318; --wait: #6e7781;
  --cost: #b36200; --onbar: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8edf2; --soft: #a3adb8; --grid: #2b343e;
  --bg: #11161c; --axis: #6b7683; --fan: #6db3ff; } }
body { margin: 0 auto; max-width: 900px; padding: 20px 24px 48px; background: var(--bg);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 32px 0 4px; }
figure { margin: 0; } p, figcaption { color: var(--soft); font-size: .875rem; max-width: 72ch; }
svg { display: block; max-width: 100%; height: auto; margin: 6px 0; }
svg text { font-family: inherit; }
table { border-collapse: collapse; font-size: .875rem; width: 100%; }
th, td { padding: 4px 14px 4px 0; border-bottom: 1px solid var(--grid); text-align: left; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
"""

_LINES: dict[float, dict[str, Any]] = {  # quantile -> how its line is drawn
    0.05: {"strokeOpacity": 0.45}, 0.25: {"strokeOpacity": 0.7}, 0.5: {"strokeWidth": 2.5},
    0.75: {"strokeOpacity": 0.7}, 0.95: {"strokeOpacity": 0.45},
}  # fmt: skip
_WIDTH = 860


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
    lines = [
        line(
            list(zip(hours, map(float, values[futures.quantiles.index(quantile)]), strict=True)),
            colour="fan", title=f"{quantile:.0%} of the futures lie below", **style,
        )
        for quantile, style in _LINES.items()
    ]  # fmt: skip
    return chart(
        lines, x=Axis(name="hours", limits=(0.0, hours[-1]), format=",~r"),
        y=Axis(name="US dollars", limits=(0.0, top or 1.0), format="$,.2~f")
        if what == "dollars" else Axis(name="share done", limits=(0.0, 1.0), format=".0%"),
        width=_WIDTH, height=240, label=f"{what} over time, as quantiles of drawn futures",
    )  # fmt: skip


def machines(fleet: Fleet) -> Markup:
    """Usable machines over time."""
    levels = fleet.levels()
    points = [(begin / 3600, float(number)) for begin, _, number in levels]
    points.append((fleet.seconds / 3600, points[-1][1] if points else 0.0))
    top = max((y for _, y in points), default=1.0)
    return chart(
        [line(points, colour="fan", title="machines", stairs=True, strokeWidth=1.2)],
        x=Axis(name="hours", limits=(0.0, fleet.seconds / 3600), format=",~r"),
        y=Axis(name="machines", limits=(0.0, top + 0.5), format=",~r", whole=True),
        width=_WIDTH, height=160, label="machines that could be used, over time",
    )  # fmt: skip


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
        Part(name=name, amount=seconds, colour=colour) for (name, colour), seconds in shares.items()
    ]
    label = f"{result.policy}: {result.share_of_bound:.1%} of the bound"
    return Markup(f"<p>{escape(label)}</p>") + share_bar(parts, width=_WIDTH, label=label)


def _figure(heading: str, chart: Markup, caption: str) -> Markup:
    head = Markup(f"<h2>{escape(heading)}</h2>") if heading else Markup("")
    return head + Markup(f"<figure>{chart}<figcaption>{escape(caption)}</figcaption></figure>")
