"""Charts by hand: ticks at round values, nothing off the page, nothing lost by thinning."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sailor.observe.charts import (
    Part,
    Plot,
    clock,
    nice_ticks,
    share_bar,
    thinned,
    time_ticks,
)

SIZES = st.floats(1e-6, 1e9)


@pytest.mark.parametrize(
    ("low", "high", "most", "ticks"),
    [
        (0.0, 10.0, 5, [0, 2, 4, 6, 8, 10]),
        (2.3, 5.7, 4, [3, 4, 5]),
        (0.0, 0.013, 6, [0.0, 0.005, 0.01]),
        (7.0, 7.0, 5, [7.0]),
    ],
)
def test_ticks_are_round(low: float, high: float, most: int, ticks: list[float]) -> None:
    assert nice_ticks(low, high, most) == pytest.approx(ticks)


@given(SIZES, SIZES, st.integers(2, 12))
def test_ticks_lie_inside_and_are_not_many(low: float, span: float, most: int) -> None:
    for ticks in (nice_ticks(low, low + span, most), time_ticks(low, low + span, most)):
        slack = 1e-6 * (low + span)
        assert all(low - slack <= tick <= low + span + slack for tick in ticks)
        assert len(ticks) <= most + 2


def test_whole_numbers_have_whole_ticks() -> None:
    assert nice_ticks(0.0, 3.4, 9, whole=True) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (0.5, "0.5 s"), (90, "1:30"), (3725, "1:02:05"), (266_400, "3 d 2 h")],
)
def test_moments_read_like_a_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@given(st.lists(st.tuples(st.integers(0, 10_000), st.floats(-1e3, 1e3)), max_size=900))
def test_thinning_keeps_order_ends_and_extremes(points: list[tuple[float, float]]) -> None:
    points = sorted(points)
    thin = thinned(points, most=100)
    assert len(thin) <= max(100, 104)
    assert thin == sorted(thin, key=lambda p: p[0])
    if points:
        values = [y for _, y in points]
        assert {thin[0], thin[-1]} == {points[0], points[-1]}
        assert {min(values), max(values)} <= {y for _, y in thin}


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=40))
def test_lines_stay_on_the_page(points: list[tuple[float, float]]) -> None:
    points = sorted(points)
    xs, ys = [x for x, _ in points], [y for _, y in points]
    plot = Plot(
        width=300, height=100, x=(min(xs), max(xs)), y=(min(ys), max(ys)), x_label="", y_label="",
        x_format=str, y_format=str,
    )  # fmt: skip
    plot.line(points, style="own")
    path = re.search(r'class="own" d="M([^"]+)"', str(plot.svg("")))
    assert path is not None
    for pair in re.split("[ML]", path[1]):
        x, y = map(float, pair.split(","))
        assert math.isfinite(x)
        assert -0.1 <= x <= 300.1
        assert -0.1 <= y <= 100.1


def test_a_bar_writes_shares_only_where_there_is_room() -> None:
    bar = str(
        share_bar(
            [
                Part(name="good & kept", amount=97.0, style="a"),
                Part(name="x", amount=3.0, style="b"),
            ],
            width=400,
            label="time",
        )  # fmt: skip
    )
    assert re.findall(r"<text[^>]*>([^<]+)<", bar) == ["97%"]
    assert "good &amp; kept: 97.0%" in bar
