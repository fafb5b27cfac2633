"""The report: one page that needs nothing from anywhere, true to the log, readable by everybody."""

import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sailor.clock import HandClock
from sailor.observe.events import EventLog
from sailor.observe.history import replay
from sailor.observe.metrics import measure
from sailor.observe.picture import running_time
from sailor.observe.report import (
    newest_evaluation,
    paragraph,
    render,
    report_document,
    write_report,
)
from sailor.units import clock
from tests.observe.run_story import BATCH, SEQUENCE, Story, demo

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Checks that tags are balanced, and collects what a reader or a browser would take."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attributes]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attributes]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def long_run(num_steps: int = 10_000) -> Story:
    story = Story().start(total_steps=num_steps).nodes(*(f"node-{i}" for i in range(300)))
    story.generation(1, "node-1", "node-2")
    for i, first in enumerate(range(1, num_steps, 20)):
        story.steps(first, first + 19, generation=i + 1, eval_loss=3.0)
        story.transition(i + 2, "node-2 lost: x", planned=False)
        story.generation(i + 2, "node-1", "node-2", step=first + 19)
        story.pause(i + 2, "node-2 lost: x", planned=False)
    return story


@cache
def the_demo() -> str:
    """Its page, drawn once for all who read it."""
    return render(demo().events)


def test_the_page_is_whole_and_says_what_happened() -> None:
    text = Page(the_demo()).text
    for piece in (
        "gpt_tiny (820 k parameters) was trained for 20 of 20 steps",
        "1 machine preempted with notice, 1 machine lost without notice, 1 machine joined",
        "2 steps done again, no sample lost and none repeated",
        "All machines are proven gone.",
        "node-3 lost: connection closed",
        "pid gone, group empty",
        "python run.py model=gpt_tiny",
        "pp1 x dp4 x tp1",
        "work done again",
    ):
        assert piece in text


@pytest.mark.parametrize("story", [demo(), Story(), Story().start(), long_run(400)])
def test_the_page_asks_for_nothing_from_anywhere(story: Story) -> None:
    page = render(story.events)
    assert not re.search(r"https?:|//[a-z]|url\(|@import|<script|<link|<img|<iframe", page)
    allowed = {"content", "charset", "name", "lang", "http-equiv", "class", "role", "datetime"}
    for _, name, _ in Page(page).attributes:
        assert not name.startswith("on")
        assert name not in ("src", "href", "xlink:href", "action", "style") or name in allowed
    assert "default-src 'none'" in page


def test_whatever_a_name_holds_it_stays_text() -> None:
    nasty = "<script>alert('x')</script>&\"'"
    story = Story().start(model=nasty, command=nasty).nodes(nasty).generation(1, nasty)
    story.steps(1, 3, generation=1).pause(1, nasty, planned=True)
    story.say("node_lost", node=nasty, cause=nasty, silent_s=0.0)
    story.say("fault_injected", fault="kill_node", target=nasty, at=nasty)
    page = render(story.events, next_commands=[nasty])
    assert "<script" not in page
    assert nasty in Page(page).text


def test_a_long_run_still_makes_a_small_page() -> None:
    page = render(long_run().events)
    assert len(page.encode()) < 600_000  # of the 1.5 MB that a report may have
    assert "The first 100 of 500; report.json has all." in Page(page).text


def test_every_chart_has_a_label_and_comes_in_two_widths() -> None:
    page = Page(the_demo())
    labels = [value for tag, name, value in page.attributes if (tag, name) == ("svg", "aria-label")]
    assert len(labels) == 18
    assert all(labels)
    widths = {value for tag, name, value in page.attributes if (tag, name) == ("svg", "width")}
    assert widths == {"840", "340"}  # 340 fits a phone of 390 with its margins


def test_the_page_can_be_read_aloud() -> None:
    """A language, one title, sections under it, tables whose heads say what they head."""
    text = the_demo()
    assert '<html lang="en">' in text
    levels = [int(level) for level in re.findall(r"<h(\d)", text)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in zip(levels, levels[1:], strict=False))
    assert re.findall(r"<th(?![^>]* scope=)[ >]", text) == []
    for tag in ("header", "main"):
        assert text.count(f"<{tag}>") == 1
    for attributes in re.findall(r"<svg([^>]*)>", text):
        assert 'role="graphics-document"' in attributes
        assert re.search(r'aria-label="[^"]+"', attributes)


def a_paid_run(**changes) -> Story:
    """Two machines at $60 an hour together, planned for two minutes and a half."""
    story = Story().start(budget_usd=4.0, flops_per_token=5e6, **changes)
    story.say(
        "plan_chosen", generation=1, plan={"model": "gpt_tiny"}, describe="pp1 x dp2 x tp1",
        estimate_step_s=7.5, estimate_usd_per_hour=60.0, estimate_relative_error=0.3,
        peak_flops=1e9,
    )  # fmt: skip
    story.nodes("node-1", "node-2", price_per_hour=30.0)
    story.generation(1, "node-1", "node-2").steps(1, 20, generation=1, seconds=9.0)
    return story.end()


def test_money_is_drawn_with_its_budget_and_what_the_plan_said() -> None:
    page = Page(render(a_paid_run().events))
    assert "of a budget of $4.00; the plan said $2.50, as a range $1.75 to $3.25" in page.text
    assert "budget: $4.00" in page.text
    assert "planned: $1.75 to $3.25" in page.text
    assert "money $2.50 $3.02 1.21" in page.text
    assert "a step 7.500 s ± 30% 9.000 s 1.20" in page.text


def test_where_devices_have_a_peak_their_use_is_drawn() -> None:
    """128 tokens of 5e6 FLOPs in 9 s on 1e9 FLOP/s."""
    assert "Model FLOPs utilization of each step, on average 7.1%" in render(a_paid_run().events)
    assert "Model FLOPs utilization" not in the_demo()


def test_a_run_that_costs_nothing_has_no_picture_of_money() -> None:
    story = Story().start().nodes("node-1").generation(1, "node-1").steps(1, 3, generation=1)
    assert "<h2>Money</h2>" not in render(story.events)


def test_what_differs_from_the_default_run_and_the_versions_are_told() -> None:
    story = Story().start(changed={"train.steps": 7, "budget.total_usd": None}, versions={"x": "1"})
    text = Page(render(story.events)).text
    assert "budget.total_usd null train.steps 7" in text
    assert "Versions x 1" in text


def test_what_the_model_writes_is_shown_or_how_to_ask_for_it() -> None:
    assert "python run.py action=eval run.name=swift-otter" in the_demo()
    found = {
        "step": 1200, "held_out_loss": 2.5, "bits_per_byte": 3.1, "held_out_tokens": 4096,
        "samples": [{"prompt": "def ", "text": "def <b>x</b>"}],
    }  # fmt: skip
    text = Page(render(demo().events, evaluation=found)).text
    assert "The checkpoint of step 1,200" in text
    assert "def <b>x</b>" in text
    assert "Nobody has asked it yet" not in text


def test_the_newest_evaluation_of_a_folder_is_the_one_that_can_be_read(tmp_path: Path) -> None:
    assert newest_evaluation(tmp_path) is None
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "step-00000010.json").write_text('{"step": 10}')
    (tmp_path / "eval" / "step-00000020.json").write_text('{"step": 20')
    assert newest_evaluation(tmp_path) == {"step": 10}


PLAN = {"replicas": [{"stages": [{"layers": [0, 4]}]}] * 2, "optimizer_sharding": False}


def lag_of(*, plan: dict, copies: bool) -> list[tuple[float, int]]:
    story = Story().start()
    story.say(
        "plan_chosen", generation=1, plan=plan, describe="pp1 x dp2 x tp1", estimate_step_s=1.0,
        estimate_usd_per_hour=0.0,
    )  # fmt: skip
    story.nodes("node-1", "node-2").generation(1, "node-1", "node-2")
    story.steps(1, 3, generation=1)
    for workers in (1, 1):
        story.say("snapshot", generation=1, after=1.0, step=3, workers=workers, bytes=1,
                  stall_s=0.0, copy_s=0.0, slowest="node-1/0.1")  # fmt: skip
    if copies:
        story.say("snapshot_copied", generation=1, after=1.0, step=3, workers=2, bytes=1)
    return replay(story.events).snapshots.safe


def test_a_step_is_safe_once_two_machines_hold_all_of_it() -> None:
    """By replicas that are copies of each other, as soon as all have taken their snapshots; by
    copies where the state is spread."""
    assert [step for _, step in lag_of(plan=PLAN, copies=False)] == [3]
    spread = PLAN | {"optimizer_sharding": True}
    assert lag_of(plan=spread, copies=False) == []
    assert [step for _, step in lag_of(plan=spread, copies=True)] == [3]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (0.5, "0.5 s"), (90, "1:30"), (3725, "1:02:05"), (266_400, "3 d 2 h")],
)
def test_moments_read_like_a_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2.2)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_and_marks_stand_out_in_both_colour_schemes() -> None:
    """4.5:1 for text and 3:1 for lines and marks, the limits of WCAG 2.2 AA."""
    page = the_demo()
    light = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", page.split("@media")[0]))
    changed = page.split("prefers-color-scheme: dark")[1].split("* {")[0]
    dark = light | dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", changed))

    def ratio(scheme: dict[str, str], a: str, b: str) -> float:
        high, low = sorted((luminance(scheme[a]), luminance(scheme[b])), reverse=True)
        return (high + 0.05) / (low + 0.05)

    for scheme in (light, dark):
        for ink, paper in (
            ("ink", "bg"), ("ink", "card"), ("soft", "bg"), ("soft", "card"),
            ("warn-ink", "warn-bg"), ("lost", "bg"), ("came", "bg"), ("train", "bg"),
        ):  # fmt: skip
            assert ratio(scheme, ink, paper) >= 4.5, (ink, paper)
        for mark in ("held", "notice", "c-good", "axis"):
            assert ratio(scheme, mark, "bg") >= 3.0, mark
        assert ratio(scheme, "onbar", "c-good") >= 4.0  # bold


def test_the_report_is_rebuilt_from_the_log_alone(tmp_path: Path) -> None:
    hand = HandClock()
    with EventLog(tmp_path / "events.jsonl", run="swift-otter", clock=hand) as log:
        for event in demo().events:
            hand.advance(event.t - hand.now())
            log.write(event.kind, generation=event.generation, **event.fields)
    page = write_report(tmp_path)
    first = page.read_bytes(), (tmp_path / "report.json").read_bytes()
    page.unlink()
    (tmp_path / "report.json").unlink()
    write_report(tmp_path)
    assert (page.read_bytes(), (tmp_path / "report.json").read_bytes()) == first
    document = json.loads(first[1])
    assert document["summary"]["steps"] == 20
    assert document["loss"][0] == [1.0, 5.9]
    assert document["eval_loss"] == [[20, 4.2]]
    assert [size for _, size in document["world_size"]] == [4, 3, 2, 3, 0]


def test_no_log_is_no_report(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_report(tmp_path)


def test_what_must_not_be_overlooked_is_said_at_the_top() -> None:
    story = Story().start().nodes("node-1").generation(1, "node-1").steps(1, 2, generation=1)
    story.steps(4, 5, generation=1)
    story.say("persist_failed", generation=1, step=5, error="no space left on device")
    story.end("failed", 1)
    text = Page(render(story.events[:3] + story.events[4:])).text
    assert "samples were lost and 0 repeated" in text
    assert "1 lines of the log are missing" in text
    assert "still costing money: node-1" in text
    assert "at step 5: no space left on device" in text


def test_a_run_without_mishaps_is_told_without_them() -> None:
    story = Story().start(total_steps=3).nodes("node-1").generation(1, "node-1")
    story.steps(1, 3, generation=1).say("node_released", node="node-1", proof="gone").end()
    history = replay(story.events)
    assert paragraph(history, measure(history)) == (
        "gpt_tiny (820 k parameters) was trained for 3 of 3 steps (384 tokens) in 4.00 s, on 1 "
        "machine in 1 zone. It reached its last step. 75% of the time went into steps that were "
        "kept. Training loss went from 5.900 to 5.700. All machines are proven gone."
    )


def test_the_hours_between_two_starts_take_no_room_on_the_time_axes() -> None:
    story = Story().start().nodes("node-1").generation(1, "node-1").steps(1, 5, generation=1)
    story.end("interrupted", 75)
    story.t += 36_000.0
    story.start("resumed").nodes("node-9").generation(2, "node-9", step=5)
    story.steps(6, 9, generation=2).end()
    shrink = running_time(replay(story.events))
    assert shrink(story.t) == pytest.approx(story.t - 36_000.0)
    assert shrink(3.0) == 3.0
    assert "in 2 starts" in Page(render(story.events)).text


def test_the_document_holds_the_same_figures_as_the_summary() -> None:
    document = report_document(demo().events)
    rates = document["tokens_per_second"]
    width = document["summary"]["wall_s"] / len(rates)
    assert sum(rate * width for _, rate in rates) == pytest.approx(20 * BATCH * SEQUENCE)
    assert [line for _, line in document["happenings"]][1] == "~ fault: node-2 gets a notice"
