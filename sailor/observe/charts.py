"""Small charts as inline SVG, drawn by hand: no script, no font, no file but the page they are in.

Colours are CSS classes of the page, so that light, dark and print look right. Every mark carries a
title, every chart a label for those who do not see it. Takes numbers, knows nothing of runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

Point = tuple[float, float]

_TOP, _BOTTOM, _RIGHT = 14, 34, 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One layer of a stack: a value for each stretch of the x axis."""

    name: str
    style: str
    values: Sequence[float]


class Plot:
    """A chart with two axes. Add bands first, then lines, then marks; ``svg`` ends it."""

    def __init__(
        self,
        *,
        width: int,
        height: int,
        x: tuple[float, float],
        y: tuple[float, float],
        x_label: str,
        y_label: str,
        x_format: Callable[[float], str],
        y_format: Callable[[float], str],
        whole_y: bool = False,
        x_ticks: Callable[[float, float, int], list[float]] | None = None,
    ) -> None:
        self._width, self._height = width, height
        self._left = 50
        self._x, self._y = _wide(x), _wide(y)
        self._parts: list[str] = []
        y_ticks = nice_ticks(*self._y, most=5, whole=whole_y)
        for tick in y_ticks:
            at = self._sy(tick)
            self._parts.append(
                f'<line class="grid" x1="{self._left}" x2="{width - _RIGHT}" y1="{at}" y2="{at}"/>'
                f'<text class="tick" x="{self._left - 6}" y="{at + 4}" text-anchor="end">'
                f"{escape(y_format(tick))}</text>"
            )
        base = height - _BOTTOM
        ticks = (x_ticks or nice_ticks)(*self._x, max(3, width // 110))
        for tick in ticks:
            at = self._sx(tick)
            self._parts.append(
                f'<line class="axis" x1="{at}" x2="{at}" y1="{base}" y2="{base + 4}"/>'
                f'<text class="tick" x="{at}" y="{base + 16}" text-anchor="middle">'
                f"{escape(x_format(tick))}</text>"
            )
        self._parts.append(
            f'<line class="axis" x1="{self._left}" x2="{width - _RIGHT}" y1="{base}" y2="{base}"/>'
            f'<text class="name" x="{width - _RIGHT}" y="{height - 4}" text-anchor="end">'
            f"{escape(x_label)}</text>"
            f'<text class="name" x="4" y="10">{escape(y_label)}</text>'
        )

    def band(self, begin: float, end: float, *, style: str, title: str) -> None:
        """Shade a stretch of the x axis; at least a hair wide, so that nothing short vanishes."""
        x0, x1 = self._sx(begin), self._sx(end)
        self._parts.append(
            f'<rect class="{style}" x="{x0}" y="{_TOP}" width="{max(1.5, round(x1 - x0, 1))}" '
            f'height="{self._height - _BOTTOM - _TOP}"><title>{escape(title)}</title></rect>'
        )

    def line(self, points: Sequence[Point], *, style: str, stairs: bool = False) -> None:
        """Join points; as stairs, each value holds until the next point."""
        if not points:
            return
        thin = list(points) if stairs else thinned(points, most=self._width // 2)
        path = [f"M{self._sx(thin[0][0])},{self._sy(thin[0][1])}"]
        for x, y in thin[1:]:
            path.append(
                f"H{self._sx(x)}V{self._sy(y)}" if stairs else f"L{self._sx(x)},{self._sy(y)}"
            )
        self._parts.append(f'<path class="{style}" d="{"".join(path)}"/>')

    def area(self, points: Sequence[Point], *, style: str) -> None:
        """Fill between points and the axis."""
        if not points:
            return
        base = self._height - _BOTTOM
        thin = thinned(points, most=self._width // 2)
        path = "".join(f"L{self._sx(x)},{self._sy(y)}" for x, y in thin)
        first, last = self._sx(thin[0][0]), self._sx(thin[-1][0])
        self._parts.append(f'<path class="{style}" d="M{first},{base}{path}L{last},{base}Z"/>')

    def level(self, y: float, *, style: str, title: str) -> None:
        """A line across the chart at one value; nothing when it lies outside."""
        if self._y[0] <= y <= self._y[1]:
            at = self._sy(y)
            self._parts.append(
                f'<line class="{style}" x1="{self._left}" x2="{self._width - _RIGHT}" y1="{at}" '
                f'y2="{at}"><title>{escape(title)}</title></line>'
            )

    def level_band(self, low: float, high: float, *, style: str, title: str) -> None:
        """Shade what lies between two values, as far as it is on the chart."""
        top, base = self._sy(min(high, self._y[1])), self._sy(max(low, self._y[0]))
        if base > top:
            self._parts.append(
                f'<rect class="{style}" x="{self._left}" y="{top}" '
                f'width="{self._width - _RIGHT - self._left}" height="{round(base - top, 1)}">'
                f"<title>{escape(title)}</title></rect>"
            )

    def stack(self, edges: Sequence[float], layers: Sequence[Layer]) -> None:
        """Layers on top of each other, each value holding from one edge to the next."""
        below = [0.0] * (len(edges) - 1)
        for layer in layers:
            above = [low + value for low, value in zip(below, layer.values, strict=True)]
            there = "".join(
                f"L{self._sx(edges[i])},{self._sy(y)}H{self._sx(edges[i + 1])}"
                for i, y in enumerate(above)
            )
            back = "".join(
                f"L{self._sx(edges[i + 1])},{self._sy(below[i])}H{self._sx(edges[i])}"
                for i in range(len(below) - 1, -1, -1)
            )
            self._parts.append(
                f'<path class="{layer.style}" d="M{there[1:]}{back}Z">'
                f"<title>{escape(layer.name)}</title></path>"
            )
            below = above

    def dot(self, x: float, y: float, *, style: str, title: str) -> None:
        """A round mark on a value."""
        self._parts.append(
            f'<circle class="{style}" cx="{self._sx(x)}" cy="{self._sy(y)}" r="3.5">'
            f"<title>{escape(title)}</title></circle>"
        )

    def flag(self, x: float, *, style: str, title: str) -> None:
        """A vertical mark through the chart with a small flag on top."""
        at = self._sx(x)
        self._parts.append(
            f'<g class="{style}"><title>{escape(title)}</title>'
            f'<line x1="{at}" x2="{at}" y1="{_TOP - 4}" y2="{self._height - _BOTTOM}"/>'
            f'<path d="M{at},{_TOP - 10}l7,4l-7,4z"/></g>'
        )

    def svg(self, label: str) -> Markup:
        """The chart as an element; ``label`` is what it shows, in words."""
        return _svg(self._width, self._height, label, self._parts)

    def _sx(self, x: float) -> float:
        lo, hi = self._x
        return round(self._left + (x - lo) / (hi - lo) * (self._width - self._left - _RIGHT), 1)

    def _sy(self, y: float) -> float:
        lo, hi = self._y
        base = self._height - _BOTTOM
        return round(base - (y - lo) / (hi - lo) * (base - _TOP), 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One piece of a whole."""

    name: str
    amount: float
    style: str


def share_bar(parts: Sequence[Part], *, width: int, label: str) -> Markup:
    """One horizontal bar cut into its parts, with the share written in where there is room."""
    total = sum(part.amount for part in parts) or 1.0
    drawn, at = [], 0.0
    for part in parts:
        wide = part.amount / total * width
        title = f"{part.name}: {part.amount / total:.1%}"
        drawn.append(
            f'<rect class="{part.style}" x="{at:.1f}" y="0" width="{max(0.5, wide - 1):.1f}" '
            f'height="34"><title>{escape(title)}</title></rect>'
        )
        if wide > 46:
            drawn.append(
                f'<text class="onbar" x="{at + wide / 2:.1f}" y="22" text-anchor="middle">'
                f"{part.amount / total:.0%}</text>"
            )
        at += wide
    return _svg(width, 34, label, drawn)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A stretch of a row of a Gantt chart."""

    begin: float
    end: float
    style: str
    title: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of a Gantt chart, under its ``group``. ``marks`` are (x, style, title)."""

    group: str
    name: str
    bars: tuple[Bar, ...]
    marks: tuple[tuple[float, str, str], ...] = ()


def gantt(
    rows: Sequence[Row],
    *,
    width: int,
    until: float,
    x_format: Callable[[float], str],
    x_ticks: Callable[[float, float, int], list[float]],
    label: str,
) -> Markup:
    """Rows of bars over one time axis, headed by group."""
    left, line_height = (110 if width > 500 else 72), 22
    span = max(until, 1e-9)

    def sx(x: float) -> float:
        return round(left + min(max(x / span, 0.0), 1.0) * (width - left - _RIGHT), 1)

    parts: list[str] = []
    y, group = 4, None
    for row in rows:
        if row.group != group:
            group = row.group
            if group:
                parts.append(f'<text class="group" x="0" y="{y + 14}">{escape(group)}</text>')
                y += line_height
        parts.append(f'<text class="tick" x="8" y="{y + 14}">{escape(row.name)}</text>')
        for bar in row.bars:
            wide = max(1.5, round(sx(bar.end) - sx(bar.begin), 1))
            parts.append(
                f'<rect class="{bar.style}" x="{sx(bar.begin)}" y="{y + 3}" width="{wide}" '
                f'height="{line_height - 8}" rx="2"><title>{escape(bar.title)}</title></rect>'
            )
        for x, style, title in row.marks:
            parts.append(
                f'<g class="{style}"><title>{escape(title)}</title>'
                f'<path d="M{sx(x)},{y + 1}l5,9l-5,9l-5,-9z"/></g>'
            )
        y += line_height
    base = y + 4
    parts.append(f'<line class="axis" x1="{left}" x2="{width - _RIGHT}" y1="{base}" y2="{base}"/>')
    for tick in x_ticks(0.0, span, max(3, width // 110)):
        parts.append(
            f'<line class="axis" x1="{sx(tick)}" x2="{sx(tick)}" y1="{base}" y2="{base + 4}"/>'
            f'<text class="tick" x="{sx(tick)}" y="{base + 16}" text-anchor="middle">'
            f"{escape(x_format(tick))}</text>"
        )
    return _svg(width, base + 22, label, parts)


def nice_ticks(low: float, high: float, most: int = 6, *, whole: bool = False) -> list[float]:
    """Round values from low to high, at most about ``most``: steps of 1, 2 or 5 times 10^n."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    rough = span / max(1, most)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    if whole:
        step = max(1.0, round(step))
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def time_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round moments in seconds: seconds, minutes, hours and days as a clock has them."""
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)
    rough = (high - low) / max(1, most)
    if rough < 1:
        return nice_ticks(low, high, most)
    days = 86_400.0 * max(1, math.ceil(rough / 86_400))
    step = next((float(s) for s in steps if s >= rough * 0.999), days)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def clock(seconds: float) -> str:
    """A moment on a time axis: '0.5 s', '1:30', '2:05:00' or '3 d 4 h'."""
    if seconds >= 3 * 86_400:
        days, hours = int(seconds // 86_400), int(seconds % 86_400 // 3600)
        return f"{days} d {hours} h" if hours else f"{days} d"
    if seconds != int(seconds):
        return f"{seconds:.1f} s"
    whole = int(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def thinned(points: Sequence[Point], *, most: int) -> list[Point]:
    """At most about ``most`` points that look the same: of each bucket its lowest and highest."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(len(points) / (most / 2))
    kept = [points[0]]
    for begin in range(0, len(points), size):
        bucket = points[begin : begin + size]
        extremes = {min(bucket, key=lambda p: p[1]), max(bucket, key=lambda p: p[1])}
        kept += sorted(extremes)
    return [*kept, points[-1]]


def _svg(width: int, height: int, label: str, parts: Sequence[str]) -> Markup:
    return Markup(
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def _wide(limits: tuple[float, float]) -> tuple[float, float]:
    """Limits with some room between them, whatever was asked for."""
    low, high = limits
    if not (math.isfinite(low) and math.isfinite(high)):
        return 0.0, 1.0
    return (low, high) if high > low else (low - 0.5, low + 0.5)
