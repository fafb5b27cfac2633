"""Charts as a reader has them: text that is text, titles on marks, the page's own colours."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sailor.observe.charts import (
    COUNT,
    Axis,
    Part,
    area,
    bands,
    chart,
    dots,
    flags,
    level,
    level_band,
    line,
    share_bar,
    stack,
    time_axis,
)
from sailor.observe.gantt import Bar, Row, gantt

NASTY = "<script>alert(1)</script> & \"quoted\" 'name' \\ ]]> é"


def texts(svg: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(svg).iter("text")]


def titles(svg: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(svg).iter("title")]


def everything(*, width: int = 400) -> str:
    """A chart of one of each mark."""
    points = [(0.0, 1.0), (50.0, 2.0), (100.0, 3.0)]
    parts = [Part(name="kept", colour="good", amounts=[0.5, 0.25]),
             Part(name="lost", colour="lost", amounts=[0.5, 0.75])]  # fmt: skip
    return chart(
        [
            *stack([0.0, 50.0, 100.0], parts),
            bands([(20.0, 20.0, "a pause")], colour="paused"),
            level_band(1.0, 2.0, colour="fill", title="planned"),
            level(2.5, colour="lost", title="budget"),
            area(points, colour="fill"),
            line(points, colour="train", title="loss"),
            dots([(50.0, 2.0, "held-out")], colour="held"),
            *flags([(70.0, NASTY)], colour="lost"),
        ],
        x=time_axis(100.0), y=Axis(name="loss", limits=(0.0, 4.0)), width=width, height=200,
        label=f"all of {NASTY}",
    )  # fmt: skip


def test_a_chart_is_of_the_size_that_was_asked_for_and_says_what_it_shows() -> None:
    for width in (340, 840):
        root = ElementTree.fromstring(everything(width=width))
        assert (root.get("width"), root.get("height")) == (str(width), "200")
        assert root.get("viewBox") == f"0 0 {width} 200"
        assert root.get("aria-label") == f"all of {NASTY}"


def test_every_mark_has_its_title_and_axes_have_their_names() -> None:
    svg = everything()
    assert titles(svg) == [
        "kept", "lost", "a pause", "planned", "budget", "loss", "held-out", NASTY,
    ]  # fmt: skip
    assert {"time", "loss", "0:00", "1:00"} <= set(texts(svg))


def test_a_chart_asks_for_nothing_and_takes_its_colours_from_the_page() -> None:
    """Nor has it an id, which would be there twice on a page of two charts."""
    svg = everything()
    assert not re.search(r"https?:|xmlns|url\(|<script|<style|<image|\bid=|\bstyle=|\bon\w+=", svg)
    colours = set(re.findall(r'(?:fill|stroke)="([^"]*)"', svg))
    assert {colour for colour in colours if not colour.startswith("var(--")} <= {"none"}


def test_the_same_figures_are_drawn_the_same_again() -> None:
    assert everything() == everything()


def test_what_took_no_time_is_still_seen() -> None:
    """A stretch without a width has an edge all the same."""
    mark = re.search(r'<path[^>]*d="([^"]*)"[^>]*><title>a pause</title>', everything())
    assert mark is not None
    assert 'stroke="var(--paused)"' in mark[0]
    bar = Bar(begin=5.0, end=5.0, colour="lost", title="lost at once")
    svg = gantt(
        [Row(group="", name="n", bars=(bar,))], x=time_axis(60.0), width=300, label="rows"
    )  # fmt: skip
    assert re.search(r'stroke="var\(--lost\)"[^>]*><title>lost at once', svg)


@pytest.mark.parametrize(
    ("until", "ticks"),
    [
        (0.8, ["0 s", "0.2 s", "0.4 s", "0.6 s", "0.8 s"]),
        (60.0, ["0:00", "0:15", "0:30", "0:45", "1:00"]),
        (3.0 * 3600, ["0:00", "1:00:00", "2:00:00", "3:00:00"]),
        (10.0 * 86_400, ["0 d", "2 d", "4 d", "6 d", "8 d", "10 d"]),
    ],
)
def test_time_is_told_as_a_clock_does(until: float, ticks: list[str]) -> None:
    svg = chart(
        [line([(0.0, 0.0), (until, 1.0)], colour="train", title="x")], x=time_axis(until),
        y=Axis(name="", limits=(0.0, 1.0)), width=500, height=100, label="x",
    )  # fmt: skip
    assert [text for text in texts(svg) if re.search(r":|\d [sd]$", text)] == ticks


def test_large_numbers_are_told_short_and_whole_ones_stay_whole() -> None:
    svg = chart(
        [line([(0.0, 0.0), (4e9, 2.0)], colour="train", title="x")],
        x=Axis(name="tokens", limits=(0.0, 4e9), label=COUNT),
        y=Axis(name="GPUs", limits=(0.0, 2.4), format=",.0f", whole=True),
        width=500, height=300, label="x",
    )  # fmt: skip
    assert {"1B", "4B", "0", "1", "2"} <= set(texts(svg))
    assert texts(svg).count("1") == 1


def test_a_bar_writes_shares_only_where_there_is_room() -> None:
    svg = share_bar(
        [Part(name="good & kept", amount=97.0, colour="a"), Part(name="x", amount=3.0, colour="b")],
        width=400, label="time",
    )  # fmt: skip
    assert texts(svg) == ["97%"]
    assert titles(svg) == ["good & kept: 97.0%", "x: 3.0%"]


def test_rows_stand_under_their_group_and_may_have_any_name() -> None:
    up = Bar(begin=0.0, end=9.0, colour="good", title="up", text="1.1")
    lost = (9.0, "lost", "gone")
    svg = gantt(
        [Row(group=NASTY, name="node-1", bars=(up,), marks=(lost,)),
         Row(group=NASTY, name="node-2", bars=(up,)),
         Row(group="zone-b", name="node-1", bars=())],
        x=time_axis(60.0), width=600, label="machines", left=300,
    )  # fmt: skip
    told = [text.strip("\N{NO-BREAK SPACE}") for text in texts(svg)]
    assert told[-7:-2] == [NASTY, "node-1", "node-2", "zone-b", "node-1"]
    assert told[-2:] == ["1.1", "1.1"]
    assert titles(svg) == ["up", "up", "gone"]


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=40),
    st.sampled_from([(0.0, 0.0), (0.0, 1e3), (float("nan"), 1.0)]),
)
def test_nothing_leaves_the_page_whatever_the_limits(
    points: list[tuple[float, float]], limits: tuple[float, float]
) -> None:
    svg = chart(
        [line(sorted(points), colour="own", title="own")], x=Axis(name="", limits=limits),
        y=Axis(name="", limits=(-1e3, 1e3)), width=300, height=100, label="x",
    )  # fmt: skip
    path = re.search(r'd="M([^"]+)"[^>]*><title>own', svg)
    assert path is not None
    for pair in re.split("[ML]", path[1].removesuffix("Z")):
        x, y = map(float, pair.split(","))
        assert -0.1 <= x <= 300.1
        assert -0.1 <= y <= 100.1
