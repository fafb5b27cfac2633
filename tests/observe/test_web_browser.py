"""The page of a run in a real browser, on a phone and on a desk, while the run goes on."""

from pathlib import Path

import pytest

from sailor.observe.web.server import serve
from tests.helpers.browser import (
    DESK,
    PHONE,
    a_browser,
    complaints_of,
    cut_off,
    faint_texts,
    needs_browser,
    overflow,
    unlabelled,
)
from tests.observe.run_story import Story, demo
from tests.observe.test_web import write

NASTY = "<img src=x onerror=alert(1)>"


@needs_browser
@pytest.mark.timeout(300)
def test_the_page_follows_a_run_from_its_first_machine_to_its_end(tmp_path: Path) -> None:
    events = demo().events
    lost = next(i for i, event in enumerate(events) if event.kind == "node_lost")
    second = [i for i, event in enumerate(events) if event.kind == "generation_started"][1]
    write(tmp_path, events[:second])
    with serve(tmp_path) as served, a_browser() as browser:
        page = browser.new_page()
        complaints = complaints_of(page)
        page.goto(served.address)
        page.wait_for_selector("#machines [data-node=node-4] .gpu")
        assert page.locator("#machines li").count() == 4
        assert page.locator("#status").inner_text() == "running"
        assert page.locator("#layout-words").inner_text().startswith("pp1 x dp4 x tp1")

        write(tmp_path, events[second:lost])  # a machine leaves with notice
        page.wait_for_selector("#layout-words:has-text('dp3')")
        assert page.locator("#machines [data-node=node-2] .idle").count() == 1

        page.get_by_label("replica", exact=True).check()
        colours = page.eval_on_selector_all(
            "#machines .gpu:not(.idle)", "found => found.map((one) => one.className)"
        )
        assert len(set(colours)) == 3  # three replicas, three colours
        page.get_by_label("earlier layout").click()
        assert page.locator("#layout-words").inner_text().startswith("pp1 x dp4")
        page.get_by_label("later layout").click()

        write(tmp_path, events[lost:])
        page.wait_for_selector("#status:has-text('done')")
        before = page.locator("#lines").inner_text()
        assert "node-3 lost without notice" in before
        assert page.locator("#timeline rect.paused").count() == 3
        assert page.locator("#loss path.train").count() == 1
        page.reload()  # the past is there again
        page.wait_for_selector("body[data-drawn='20']")
        assert page.locator("#lines").inner_text() == before

        for width in (PHONE, DESK):
            page.set_viewport_size({"width": width, "height": 844})
            assert overflow(page) == []
            assert cut_off(page, ".tiles dd, .gpu, td") == []
        assert unlabelled(page) == []
        assert faint_texts(page) == []
        served.close()
        page.wait_for_selector("#lost:not([hidden])")
        assert "last word" in page.locator("#lost").inner_text()
        assert complaints == []


@needs_browser
@pytest.mark.timeout(300)
def test_in_the_dark_with_many_gpus_and_nasty_names_it_stays_a_page(tmp_path: Path) -> None:
    story = Story().start(model=NASTY).nodes(*(f"node-{i}" for i in range(6)), NASTY)
    story.say(
        "generation_started", generation=1, step=0, layout="pp2 x dp3 x tp4", world_size=24,
        nodes=[f"node-{i}" for i in range(6)], kept_groups=0, built_groups=9,
        ranks=[
            {"rank": 4 * i + j, "worker": f"node-{i}/{j}.1", "replica": i // 2, "stage": i % 2,
             "tensor_rank": j}
            for i in range(6) for j in range(4)
        ],
    )  # fmt: skip
    story.steps(1, 3, generation=1)
    story.say("node_lost", node=NASTY, cause=NASTY, silent_s=0.0)
    write(tmp_path, story.events)
    with serve(tmp_path, is_alive=lambda: False) as served, a_browser(dark=True) as browser:
        page = browser.new_page()
        complaints = complaints_of(page)
        page.goto(served.address)
        page.wait_for_selector("body[data-drawn='3']")
        assert page.locator("#status").inner_text() == "killed"
        assert page.locator("#machines .gpu:not(.idle)").count() == 24
        page.get_by_label("tensor group").check()
        assert page.locator("#legend li").count() == 6  # one for each stage of each replica
        assert page.locator("img").count() == 0
        assert NASTY in page.locator("#nodes").inner_text()
        assert overflow(page) == []
        assert faint_texts(page) == []
        assert complaints == []
