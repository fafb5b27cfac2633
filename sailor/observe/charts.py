"""The charts of reports, plans and simulations, as Vega-Lite puts them: marks over two axes.

Says what is drawn; scales, ticks and the drawing itself are Vega's (``vega``). Colours are names of
CSS variables of the page. Every mark carries a title, every chart a label for those who do not see
it. Takes numbers, knows nothing of runs. Rows of bars are in ``gantt``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from sailor.observe.vega import as_svg

Point = tuple[float, float]

_LEFT = 46  # room for the labels of a y axis, the same on all charts so that they line up
_DAY_S = 86_400.0
# Of an axis of large numbers: billions, not giga, and no thousands of nothing.
COUNT = "datum.value ? replace(datum.label, 'G', 'B') : '0'"
_CLOCK = (
    "datum.value < 3600000 ? utcFormat(datum.value, '%-M:%S') : "
    "floor(datum.value / 3600000) + utcFormat(datum.value, ':%M:%S')"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """One axis from the lower to the upper limit; what lies beyond is drawn at its edge.

    ``format`` is d3's, ``label`` a Vega expression for what stands at a tick, ``unit`` what values
    are divided by. On a clock they are milliseconds, and ticks stand at round minutes.
    """

    name: str
    limits: tuple[float, float]
    format: str = "~s"
    label: str | None = None
    unit: float = 1.0
    whole: bool = False
    is_clock: bool = False

    def channel(self, guide: Mapping[str, Any] | None) -> dict[str, Any]:
        """Where a value of this axis lies. ``guide``: how the axis itself is drawn, if it is."""
        low, high = self.limits
        if not (math.isfinite(low) and math.isfinite(high)):
            low, high = 0.0, 1.0
        elif high <= low:  # some room, whatever was asked for
            low, high = low - 0.5, low + 0.5
        domain = [low / self.unit, high / self.unit]
        return {
            "type": "temporal" if self.is_clock else "quantitative",
            "scale": {"domain": domain, "nice": False, "clamp": True}
            | ({"type": "utc"} if self.is_clock else {"zero": False}),
            "axis": None if guide is None else self._drawn() | dict(guide),
        }

    def across(self, width: int) -> dict[str, Any]:
        """As the x axis of a chart of this width."""
        return self.channel({
            "grid": False, "titleAnchor": "end", "tickCount": max(3, width // 110),
            "labelFlush": False,
        })  # fmt: skip

    def up(self, height: int) -> dict[str, Any]:
        """As the y axis of a chart of this height, its name on top."""
        return self.channel({
            "domain": False, "ticks": False, "tickCount": max(3, height // 45), "labelPadding": 6,
            "minExtent": _LEFT, "maxExtent": _LEFT, "titleAngle": 0, "titleAlign": "left",
            "titleX": -_LEFT, "titleY": -10, "titleBaseline": "bottom",
        })  # fmt: skip

    def _drawn(self) -> dict[str, Any]:
        drawn: dict[str, Any] = {"title": self.name}
        if not self.is_clock:
            drawn["format"] = self.format
        if self.label is not None:
            drawn["labelExpr"] = self.label
        if self.whole:
            drawn["tickMinStep"] = 1
        return drawn


def time_axis(until: float, *, name: str = "time") -> Axis:
    """Seconds from 0 on: as such, as a clock tells them, or in days, by how many there are."""
    limits = (0.0, until)
    if until < 10:
        return Axis(name=name, limits=limits, format=",~r", label="datum.label + ' s'")
    if until < 3 * _DAY_S:
        return Axis(name=name, limits=limits, unit=1e-3, label=_CLOCK, is_clock=True)
    return Axis(name=name, limits=limits, format=",~r", unit=_DAY_S, label="datum.label + ' d'")


@dataclass(frozen=True, kw_only=True, slots=True)
class Marks:
    """One layer of a chart: a mark of Vega-Lite's for each row, or one line through all.

    Rows have any of x, x2, y, y2, title and colour; what else places them is in ``encoding``.
    """

    mark: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    encoding: Mapping[str, Any] = field(default_factory=dict)


def bands(stretches: Sequence[tuple[float, float, str]], *, colour: str) -> Marks:
    """Shade stretches of the x axis, each (begin, end, title)."""
    return Marks(
        # With an edge, so that nothing short vanishes.
        mark={"type": "rect", "color": css(colour), "stroke": css(colour), "strokeWidth": 1},
        rows=[{"x": begin, "x2": end, "title": title} for begin, end, title in stretches],
        encoding={"y": {"value": 0}, "y2": {"value": "height"}},
    )


def line(
    points: Sequence[Point], *, colour: str, title: str, stairs: bool = False, **style: Any
) -> Marks:
    """Join points; as stairs, each value holds until the next. ``style`` is of Vega's mark."""
    interpolate = "step-after" if stairs else "linear"
    return Marks(
        mark={"type": "line", "color": css(colour), "strokeWidth": 1.6, "description": title,
              "interpolate": interpolate, **style},
        rows=[{"x": x, "y": y} for x, y in points],
    )  # fmt: skip


def area(points: Sequence[Point], *, colour: str) -> Marks:
    """Fill between points and the axis. The line over it has the title."""
    return Marks(
        mark={"type": "area", "color": css(colour), "aria": False},
        rows=[{"x": x, "y": y} for x, y in points],
    )


def dots(points: Sequence[tuple[float, float, str]], *, colour: str, **style: Any) -> Marks:
    """Round marks on values, each (x, y, title). ``style`` is of Vega's mark."""
    return Marks(
        mark={"type": "circle", "color": css(colour), "size": 40, "opacity": 1, **style},
        rows=[{"x": x, "y": y, "title": title} for x, y, title in points],
    )


def flags(at: Sequence[tuple[float, str]], *, colour: str, **style: Any) -> list[Marks]:
    """Vertical marks through the chart, each (x, title), with a small flag that has the title."""
    rows = [{"x": x, "title": title} for x, title in at]
    rule = {"type": "rule", "color": css(colour), "aria": False, **style}
    flag = {"type": "point", "shape": "triangle-right", "filled": True, "opacity": 1, "size": 60,
            "color": css(colour), "xOffset": 4, "yOffset": -5}  # fmt: skip
    return [
        Marks(mark=rule, rows=rows),
        Marks(mark=flag, rows=rows, encoding={"y": {"value": 0}}),
    ]


def level(y: float, *, colour: str, title: str) -> Marks:
    """A line across the chart at one value."""
    return Marks(
        mark={"type": "rule", "color": css(colour), "strokeWidth": 1.6, "strokeDash": [6, 3]},
        rows=[{"y": y, "title": title}],
    )


def level_band(low: float, high: float, *, colour: str, title: str) -> Marks:
    """Shade what lies between two values."""
    return Marks(
        mark={"type": "rect", "color": css(colour)},
        rows=[{"y": low, "y2": high, "title": title}],
        encoding={"x": {"value": 0}, "x2": {"value": "width"}},
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One piece of a whole, or of each stretch of the x axis: then with a value for each."""

    name: str
    colour: str
    amount: float = 0.0
    amounts: Sequence[float] = ()


def stack(edges: Sequence[float], parts: Sequence[Part]) -> list[Marks]:
    """Parts on top of each other, each amount holding from one edge to the next."""
    below, marks = [0.0] * len(edges), []
    for part in parts:
        amounts = [*part.amounts, part.amounts[-1]]  # the last one holds up to the last edge
        above = [low + amount for low, amount in zip(below, amounts, strict=True)]
        places = zip(edges, above, below, strict=True)
        marks.append(
            Marks(
                mark={"type": "area", "interpolate": "step-after", "color": css(part.colour),
                      "description": part.name},
                rows=[{"x": x, "y": y, "y2": y2} for x, y, y2 in places],
            )
        )  # fmt: skip
        below = above
    return marks


def chart(
    marks: Sequence[Marks], *, x: Axis, y: Axis, width: int, height: int, label: str
) -> Markup:
    """Marks over two axes, the first at the back."""
    places = {"x": (x, x.across(width)), "y": (y, y.up(height))}
    layers = [layer(each, places) for each in marks if each.rows]
    return as_svg({"layer": layers}, width=width, height=height, label=label)


def share_bar(parts: Sequence[Part], *, width: int, label: str) -> Markup:
    """One horizontal bar cut into its parts, with the share written in where there is room."""
    total = sum(part.amount for part in parts) or 1.0
    rows, at = [], 0.0
    for part in parts:
        share = part.amount / total
        rows.append({
            "x": at, "x2": at + share, "title": f"{part.name}: {share:.1%}",
            "colour": css(part.colour), "text": f"{share:.0%}" if share * width > 46 else "",
        })  # fmt: skip
        at += share
    axis = Axis(name="", limits=(0.0, 1.0))
    places = {"x": (axis, axis.channel(None))}
    bars = Marks(mark={"type": "rect", "stroke": css("bg")}, rows=rows)
    layers = [layer(each, places) for each in (bars, written(rows)) if each.rows]
    return as_svg({"layer": layers}, width=width, height=34, label=label)


def written(rows: Sequence[Mapping[str, Any]], **encoding: Any) -> Marks:
    """The ``text`` of bars in their middles. The bars have the titles."""
    return Marks(
        mark={"type": "text", "color": css("onbar"), "fontWeight": "bold", "aria": False},
        rows=[
            {"text": row["text"], "x": (row["x"] + row["x2"]) / 2, "row": row.get("row")}
            for row in rows
            if row["text"]
        ],
        encoding={"text": {"field": "text", "type": "nominal"}, **encoding},
    )


def layer(
    marks: Marks, places: Mapping[str, tuple[Axis, Mapping[str, Any]]]
) -> dict[str, Any]:  # fmt: skip
    """Marks as Vega-Lite has them. ``places``: x and y, each an axis and its channel."""
    rows = [dict(row) for row in marks.rows]
    encoding: dict[str, Any] = {}
    has = set(rows[0])
    for name, (axis, channel) in places.items():
        ends = [end for end in (name, f"{name}2") if end in has]
        encoding |= {end: {"field": end} for end in ends}
        if name in has:
            encoding[name] |= channel
        for row in rows:
            row |= {end: row[end] / axis.unit for end in ends}
    if "title" in has:
        encoding["description"] = {"field": "title", "type": "nominal"}
    if "colour" in has:
        encoding["color"] = {"field": "colour", "type": "nominal", "scale": None}
    encoding |= marks.encoding
    return {"data": {"values": rows}, "mark": dict(marks.mark), "encoding": encoding}


def css(colour: str) -> str:
    """The page's colour of this name."""
    return f"var(--{colour})"
