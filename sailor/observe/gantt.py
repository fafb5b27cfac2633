"""Rows of bars over one axis: machines over a run, parts of a pause, stages through a step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from sailor.observe.charts import Axis, Marks, css, layer, written
from sailor.observe.vega import as_svg

_ROW_HEIGHT = 22


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A stretch of a row, with ``text`` written on it; ``pale`` is drawn half as strong."""

    begin: float
    end: float
    colour: str
    title: str
    text: str = ""
    pale: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of bars, under its ``group``. ``marks`` are (x, colour, title)."""

    group: str
    name: str
    bars: tuple[Bar, ...]
    marks: tuple[tuple[float, str, str], ...] = ()


def gantt(
    rows: Sequence[Row], *, x: Axis, width: int, label: str, left: int = 0, bare: bool = False
) -> Markup:
    """The rows, headed by group. ``left``: pixels for names. ``bare``: without the x axis."""
    left = left or (110 if width > 500 else 84)
    names: list[str] = []
    heads: list[int] = []
    bars: list[dict[str, Any]] = []
    marks: list[dict[str, Any]] = []
    group = ""
    for row in rows:
        if row.group not in ("", group):
            group = row.group
            heads.append(len(names))
            names.append(group)
        at = len(names)
        names.append(f"\N{NO-BREAK SPACE}\N{NO-BREAK SPACE}{row.name}" if row.group else row.name)
        bars += [
            {"row": at, "x": bar.begin, "x2": max(bar.begin, bar.end), "title": bar.title,
             "colour": css(bar.colour), "strength": 0.55 if bar.pale else 1.0, "text": bar.text}
            for bar in row.bars
        ]  # fmt: skip
        marks += [
            {"row": at, "x": when, "title": title, "colour": css(colour)}
            for when, colour, title in row.marks
        ]
    line = {"y": _lines(names, heads, left=left)}
    layers = [
        Marks(
            # With an edge of the same colour, so that nothing short vanishes.
            mark={"type": "bar", "strokeWidth": 1}, rows=bars,
            encoding=line | {
                "opacity": {"field": "strength", "type": "quantitative", "scale": None},
                "stroke": {"field": "colour", "type": "nominal", "scale": None},
            },
        ),
        written(bars, **line),
        Marks(
            mark={"type": "point", "shape": "diamond", "filled": True, "size": 110, "opacity": 1,
                  "stroke": css("bg"), "strokeWidth": 1},
            rows=marks, encoding=line,
        ),
    ]  # fmt: skip
    places = {"x": (x, x.channel(None) if bare else x.across(width - left))}
    spec = {"layer": [layer(each, places) for each in layers if each.rows]}
    height = _ROW_HEIGHT * len(names) + (6 if bare else 44)
    return as_svg(spec, width=width, height=height, label=label)


def _lines(names: Sequence[str], heads: Sequence[int], *, left: int) -> dict[str, Any]:
    """The y axis: a line for each name, those of groups bold, written from the left edge on."""
    is_head = f"indexof({json.dumps(heads)}, datum.value) >= 0"
    return {
        "field": "row", "type": "ordinal",
        "scale": {"domain": list(range(len(names))), "paddingInner": 0.25, "paddingOuter": 0.1},
        "axis": {
            "title": None, "domain": False, "ticks": False, "labelAlign": "left",
            "labelPadding": left, "minExtent": left, "maxExtent": left, "labelLimit": left - 4,
            "labelExpr": f"{json.dumps(names)}[datum.value]",
            "labelFontWeight": {"condition": {"test": is_head, "value": "bold"}, "value": "normal"},
        },
    }  # fmt: skip
