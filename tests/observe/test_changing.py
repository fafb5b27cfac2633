"""What training waits for is told once it has waited for two seconds, with how far it is."""

import io

from rich.console import Console

from sailor.observe.changing import PATIENCE_S, Wait, waiting_for
from sailor.observe.history import replay
from sailor.observe.metrics import measure
from sailor.observe.panel import panel
from sailor.observe.web import facts
from sailor.observe.words import tell
from tests.observe.run_story import Story

DISK = [{"worker": f"node-{i}/{gpu}.1", "tier": "disk", "boxes": ["b"], "from": "step-40"}
        for i in (1, 2, 3) for gpu in (0, 1)]  # fmt: skip


def a_resumed_run() -> Story:
    """Three machines are there, the first layout is being prepared."""
    story = Story().start(status="resumed").nodes("node-1", "node-2", "node-3")
    return story.transition(1, "start", planned=False)


def wait_after(story: Story, seconds: float) -> Wait | None:
    return waiting_for(replay(story.events), now=story.t + seconds)


def test_a_short_change_is_not_told() -> None:
    story = a_resumed_run()
    assert wait_after(story, PATIENCE_S - 0.1) is None
    assert wait_after(story, PATIENCE_S) == Wait(what="preparing the layout", done=0, total=3)


def test_a_restore_says_from_where_and_how_many_machines_have_it() -> None:
    story = a_resumed_run().say("restored", generation=1, after=3.0, step=1200, sources=DISK)
    assert wait_after(story, 0.0) is None  # the restore itself has only begun
    what = "restoring step 1,200 from a durable checkpoint"
    assert wait_after(story, 2.0) == Wait(what=what, done=0, total=3)
    story.say("change_progress", generation=1, after=5.0, stage="switch", done=2, total=3)
    assert wait_after(story, 0.0) == Wait(what=what, done=2, total=3)
    story.generation(1, "node-1", "node-2", "node-3", step=1200)
    assert wait_after(story, 9.0) is None


def test_the_progress_of_an_earlier_stage_does_not_count_for_the_next() -> None:
    story = a_resumed_run()
    story.say("change_progress", generation=1, after=4.0, stage="prepare", done=3, total=3)
    story.say("restored", generation=1, step=0, sources=[DISK[0] | {"tier": "init"}])
    assert wait_after(story, 2.0) == Wait(what="making the first weights", done=0, total=1)


def test_what_is_prepared_while_training_goes_on_is_no_wait() -> None:
    story = Story().start().nodes("node-1").generation(1, "node-1").steps(1, 3, generation=1)
    story.transition(2, "node-2 joined", planned=True, after=30.0)
    assert wait_after(story, 30.0) is None
    live = [{"worker": "node-1/0.1", "tier": "live", "kept": 3}]
    story.say("restored", generation=2, step=3, sources=live)
    assert wait_after(story, 2.0) is not None  # it stands still from here on


def test_the_slowest_source_is_named_and_only_slow_ones_are_news() -> None:
    history = replay(a_resumed_run().events)
    told = {}
    for tier in ("memory", "peer", "anchor", "disk"):
        sources = [{"worker": "node-1/0.1", "tier": tier}, {"worker": "node-2/0.1", "tier": "live"}]
        event = a_resumed_run().say("restored", generation=1, step=7, sources=sources).events[-1]
        told[tier] = tell(event, history)
    assert told == {
        "memory": None, "peer": None, "anchor": ". restoring step 7 from the anchor",
        "disk": ". restoring step 7 from a durable checkpoint",
    }  # fmt: skip


def test_panel_and_page_show_the_wait_with_its_bar() -> None:
    story = a_resumed_run().say("restored", generation=1, step=1200, sources=DISK)
    story.say("change_progress", generation=1, after=5.0, stage="switch", done=1, total=3)
    history = replay(story.events)
    paper = io.StringIO()
    console = Console(file=paper, width=120, height=24, color_system=None)
    console.print(
        panel(history, measure(history), now=story.t, began=0.0, tokens_per_second=0.0, width=120)
    )
    lines = paper.getvalue().splitlines()
    words = "restoring step 1,200 from a durable checkpoint, 1 of 3 machines are ready"
    assert words in lines[0]
    assert lines[1].count("━") == 40  # a third; without colours the rest is blank
    drawn = facts.Story()
    for event in story.events:
        drawn.apply(event)
    assert facts.facts(drawn, now=story.t)["doing"] == words
