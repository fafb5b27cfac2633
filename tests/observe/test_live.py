"""What a person sees while a run goes on."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from sailor.clock import HandClock
from sailor.observe.events import Event, EventLog
from sailor.observe.history import RunHistory, replay
from sailor.observe.live import PlainView, fitted, open_view, panel
from sailor.observe.metrics import measure
from sailor.observe.words import tell
from tests.observe.run_story import Story, demo


def plain(story: Story, *, past: Story | None = None) -> list[str]:
    """The lines of a plain view of a story, without the one on the report."""
    out = io.StringIO()
    view = PlainView(Console(file=out, width=80), replay(past.events if past else []))
    for event in story.events:
        view.see(event)
    view.close()
    return out.getvalue().splitlines()


def test_the_demo_run_in_plain_lines() -> None:
    lines = plain(demo())
    assert lines[0] == (
        'sailor   run "swift-otter"   gpt_tiny, 820 k parameters, 20 steps of 8 x 16 tokens'
    )
    assert "Ctrl-C saves and stops" in lines[1]
    assert lines[2] == "plan     pp1 x dp4 x tp1, about 0.80 s a step, $0.40 an hour"
    notable = [line for line in lines if line[8:9] in "!+>~."]
    assert [line for line in notable if line.startswith(" ")] == [
        " 00:03  > training on 4 nodes: pp1 x dp4 x tp1, 3.00 s after the start",
        " 00:08  ~ fault: node-2 gets a notice",
        " 00:08  ! node-2 preempted (30 s notice)",
        " 00:10  > continuing on 3 nodes: pp1 x dp3 x tp1, batch kept at 8, 0 steps lost, "
        "pause 0.62 s",
        " 00:13  ~ fault: node-3 is killed",
        " 00:14  ! node-3 lost without notice (connection lost)",
        " 00:15  > continuing on 2 nodes: pp1 x dp2 x tp1, batch kept at 8, 2 steps redone, "
        "pause 0.62 s",
        " 00:15  + node-5 asked for, cpu-1 in local-a",
        " 00:15  + node-5 joined, cpu-1 in local-a",
        " 00:20  > continuing on 3 nodes: pp1 x dp3 x tp1, batch kept at 8, 0 steps lost, "
        "pause 0.62 s",
    ]
    assert lines[-3:] == [
        "done     20 of 20 steps   loss 5.900 -> 4.000   held-out 4.200   27.9 s",
        "kept     goodput 71.7%   redone steps 2   lost samples 0   repeated samples 0   "
        "saved step 20",
        "machines 5 of 5 released",
    ]


def test_lines_on_progress_come_with_time_or_share_and_at_the_end() -> None:
    slow = Story().start(total_steps=1000).nodes("node-1").generation(1, "node-1")
    slow.steps(1, 12, generation=1, seconds=1.0)
    steps = [line for line in plain(slow) if "tok/s" in line]
    assert [int(line.split("step")[1].split("/")[0]) for line in steps] == [4, 9]
    fast = Story().start(total_steps=40).nodes("node-1").generation(1, "node-1")
    fast.steps(1, 40, generation=1, seconds=0.01)
    steps = [line for line in plain(fast) if "tok/s" in line]
    assert len(steps) == 10
    assert "step 40/40" in steps[-1]


def test_pace_counts_kept_tokens_between_two_lines() -> None:
    story = Story().start(total_steps=1000).nodes("node-1").generation(1, "node-1")
    story.steps(1, 12, generation=1, seconds=2.0)
    paces = [line.split("tok/s")[0].split()[-1] for line in plain(story) if "tok/s" in line]
    assert set(paces) == {"64"}  # 128 tokens in 2 s


def test_a_resumed_run_says_where_it_goes_on() -> None:
    past = Story().start().nodes("node-1").generation(1, "node-1").steps(1, 7, generation=1)
    past.end("interrupted", 75)
    now = Story()
    now.t = 500.0
    now.start("resumed").nodes("node-1").generation(2, "node-1", step=7)
    lines = plain(now, past=past)
    assert ", resumed   " in lines[0]
    assert (
        lines[2]
        == " 00:01  > training on 1 node: pp1 x dp1 x tp1 from step 7 on, 1.00 s after the start"
    )


@pytest.mark.parametrize(
    ("kind", "fields", "line"),
    [
        ("worker_lost", {"worker": "node-1/0.1", "cause": "signal 9", "silent_s": 0.0},
         "! worker node-1/0.1 lost (signal 9)"),
        ("worker_up", {"worker": "node-1/0.2", "pid": 4}, "+ worker node-1/0.2 started again"),
        ("worker_up", {"worker": "node-1/0.1", "pid": 4}, None),
        ("fenced", {"node": "node-1", "reason": "silent for 9 s"},
         "! node-1 shut out (silent for 9 s)"),
        ("parked", {"why": "no plan for 1 node"}, "! waiting for machines (no plan for 1 node)"),
        ("persist_failed", {"step": 9, "error": "disk full"},
         "! step 9 could not be saved (disk full); training goes on, last saved step 0"),
        ("transition_dropped", {"why": "the present layout is the best"},
         ". layout kept (the present layout is the best)"),
        ("stop_asked", {"end": "interrupted", "why": "Ctrl-C"},
         ". stopping after this step and saving (Ctrl-C)"),
        ("fault_injected", {"fault": "join", "target": "", "at": "step 3"},
         "~ fault: one more machine is asked for"),
        ("fault_injected", {"fault": "kill_node", "target": "x", "at": "step 3",
                            "skipped": "nobody is there who fits x"},
         "~ fault kill_node skipped: nobody is there who fits x"),
        ("committed", {"step": 3}, None),
        (
            "step_refused",
            {"step": 7, "why": "loss is not finite", "action": "rollback"},
            "! step 7 refused: its loss is not finite; going back to a saved state",
        ),
        (
            "quarantined", {"step": 6, "why": "step 7 was refused 2 times after it"},
            "! states of step 6 and later are not used again",
        ),
    ],
)  # fmt: skip
def test_each_notable_event_has_a_line(kind: str, fields: dict[str, object], line: str) -> None:
    story = Story().start().nodes("node-1").generation(1, "node-1").say(kind, **fields)
    assert tell(story.events[-1], replay(story.events)) == line


def test_a_node_that_goes_after_its_notice_is_no_surprise() -> None:
    story = Story().start().nodes("node-1").say("notice", node="node-1", seconds=5.0, source="x")
    story.say("node_lost", node="node-1", cause="connection closed", silent_s=0.0)
    assert tell(story.events[-1], replay(story.events)) == ". node-1 is gone, as announced"


def test_a_node_that_was_shut_out_is_not_told_lost_as_well() -> None:
    story = Story().start().nodes("node-1").say("fenced", node="node-1", reason="silent for 9 s")
    story.say("node_lost", node="node-1", cause="silent for 9 s", silent_s=0.0)
    assert tell(story.events[-1], replay(story.events)) is None


def test_machines_not_proven_gone_are_named_at_the_end() -> None:
    story = Story().start().nodes("node-1", "node-2")
    story.say("node_released", node="node-1", proof="gone").end("failed", 1)
    assert plain(story)[-1] == "machines 1 of 2 not proven gone: node-2"


def test_the_end_says_why_when_it_was_not_done() -> None:
    story = Story().start().nodes("node-1").generation(1, "node-1").steps(1, 3, generation=1)
    story.say("run_ended", end="limit", why="budget of $3 reached", exit_code=7)
    assert plain(story)[-3].startswith("stopped  3 of 20 steps (budget of $3 reached)")


def in_log(folder: Path, mode: str, console: Console, story: Story) -> None:
    """Play a story through a real log with a view on it."""
    clock = HandClock()
    with EventLog(folder / "events.jsonl", run="swift-otter", clock=clock) as log:
        view = open_view(mode, console=console, events=log, folder="runs/swift-otter")
        for event in story.events:
            clock.advance(event.t - clock.now())
            log.write(event.kind, generation=event.generation, **event.fields)
        view.close()
        view.close()


def test_json_mode_streams_the_events_themselves(tmp_path: Path) -> None:
    out = io.StringIO()
    in_log(tmp_path, "json", Console(file=out), demo())
    assert out.getvalue() == (tmp_path / "events.jsonl").read_text()
    assert json.loads(out.getvalue().splitlines()[0])["kind"] == "run_started"


def test_quiet_mode_says_nothing(tmp_path: Path) -> None:
    out = io.StringIO()
    in_log(tmp_path, "quiet", Console(file=out), demo())
    assert out.getvalue() == ""


def test_auto_is_plain_where_nothing_can_be_redrawn(tmp_path: Path) -> None:
    out = io.StringIO()
    in_log(tmp_path, "auto", Console(file=out), demo())
    assert "\x1b" not in out.getvalue()
    assert out.getvalue().endswith("report   runs/swift-otter/report.html\n")


def test_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    with EventLog(tmp_path / "e", run="x") as log, pytest.raises(ValueError, match="no view"):
        open_view("loud", console=Console(file=io.StringIO()), events=log)


@pytest.mark.parametrize("no_color", [False, True])
def test_live_mode_draws_and_honours_no_color(tmp_path: Path, no_color: bool) -> None:
    out = io.StringIO()
    console = Console(
        file=out, width=110, force_terminal=True, color_system="standard", no_color=no_color
    )
    in_log(tmp_path, "live", console, demo())
    text = out.getvalue()
    assert "! node-3 lost without notice" in text
    assert "done     20 of 20 steps" in text
    assert ("\x1b[31m" in text) is not no_color  # red, for what was lost


def test_the_panel_shows_progress_figures_and_machines() -> None:
    story = demo()
    events = [event for event in story.events if event.t <= 15.9]
    history = replay(events)
    out = io.StringIO()
    figures = measure(history, now=17.0)
    Console(file=out, width=110).print(
        panel(history, figures, now=17.0, began=0.0, tokens_per_second=7600.0)
    )
    text = out.getvalue()
    assert "step 9 of 20   45.0%   ETA 15.9 s (P90 34.0 s)" in text
    assert "loss 5.100" in text
    assert "7.6 k tok/s" in text
    assert "00:17" in text
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip().startswith("node-")}
    assert "lost" in rows["node-3"]
    assert "r0 s0 t0" in rows["node-1"]
    assert "up" in rows["node-5"]
    assert "joined, 1 s ago" in rows["node-5"]
    assert "connection lost" in rows["node-3"]
    assert "durable: " in text
    assert "MFU n/a" in text
    assert "badput  redone 14.1% | capacity 11.8%" in text


def shown(story: Story, *, width: int, height: int, now: float) -> list[str]:
    """The lines of a panel on a terminal of that size."""
    history = replay(story.events)
    out = io.StringIO()
    Console(file=out, width=width, height=height).print(
        panel(
            history, measure(history, now=now), now=now, began=0.0, tokens_per_second=7600.0,
            width=width, height=height, keys=("[d]etach", "[s]ave now", "[r]eplan", "[q]uit"),
        )
    )  # fmt: skip
    return out.getvalue().splitlines()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60)])
def test_the_panel_fits_on_a_small_and_on_a_large_terminal(width: int, height: int) -> None:
    names = [f"node-{number}" for number in range(1, 41)]
    story = Story().start(budget_usd=300.0, flops_per_token=1e6)
    story.nodes(*names, price_per_hour=2.5).generation(1, *names).steps(1, 12, generation=1)
    story.say("persisted", step=10, bytes=9, seconds=0.1, path="x")
    story.say("notice", node="node-39", seconds=30.0, source="the cloud")
    lines = shown(story, width=width, height=height, now=story.t + 28.0)
    assert len(lines) < height
    assert max(len(line.rstrip()) for line in lines) <= width
    text = "\n".join(lines)
    for fact in ("of $300.00", "a billion tokens", "durable: step 10 (28 s ago)", "notice of 30 s",
                 "(2.50/h)", "[s]ave now"):  # fmt: skip
        assert fact in text
    assert ("more" in text) is (height == 24)


def test_a_wish_to_save_is_shown_until_it_is_granted() -> None:
    story = Story().start().nodes("node-1").generation(1, "node-1").steps(1, 5, generation=1)
    story.say("save_asked", why="key s")
    assert any("saving" in line for line in shown(story, width=100, height=40, now=story.t))
    story.say("persisted", step=6, bytes=9, seconds=0.1, path="x")
    assert tell(story.events[-1], replay(story.events)) == ". step 6 is durable"
    assert not any("saving" in line for line in shown(story, width=100, height=40, now=story.t))


def test_the_panel_of_a_run_that_has_not_begun() -> None:
    out = io.StringIO()
    history = RunHistory()
    Console(file=out, width=100).print(
        panel(history, measure(history), now=0.0, began=0.0, tokens_per_second=0.0)
    )
    assert "step 0 of 0   not started" in out.getvalue()


def test_views_bear_events_that_lack_fields() -> None:
    from dataclasses import replace

    out = io.StringIO()
    view = PlainView(Console(file=out), RunHistory())
    bare: list[Event] = [
        replace(e, fields={k: v for k, v in e.fields.items() if k in ("step", "node", "worker")})
        for e in demo().events
        if e.kind not in ("notice", "fault_injected")
    ]
    for event in bare:
        view.see(event)
    view.close()
    assert "done" in out.getvalue()


def test_long_lines_are_cut_between_words_on_a_terminal_and_not_in_a_pipe() -> None:
    line = " 00:26  > continuing on 3 nodes: pp3 x dp1 x tp1, batch kept at 16, 0 steps lost"
    narrow = Console(width=40, force_terminal=True, file=io.StringIO())
    assert fitted(line, narrow) == (
        " 00:26  > continuing on 3 nodes: pp3 x\n          dp1 x tp1, batch kept at 16, 0\n"
        "          steps lost"
    )
    path = "report   /" + "x" * 60
    assert fitted(path, narrow).split() == path.split()  # to be copied in one piece
    assert fitted(line, Console(width=40, file=io.StringIO())) == line
    assert fitted("short", narrow) == "short"
