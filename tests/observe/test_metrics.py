"""Figures from events: what was kept, what was redone, where the time went, what it cost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sailor.observe.goodput import cause_kind
from sailor.observe.history import replay
from sailor.observe.metrics import (
    check_plans,
    check_samples,
    kept_steps,
    measure,
    thinned,
    throughput,
)
from sailor.observe.summary import summarise
from tests.observe.run_story import BATCH, SEQUENCE, Story, demo

EXACT = 1e-9  # sums of a few dozen floats


def simple() -> Story:
    return Story().start().nodes("node-1", "node-2").generation(1, "node-1", "node-2")


def test_the_demo_run_in_figures() -> None:
    history = replay(demo().events)
    figures = measure(history)
    assert [point.step for point in kept_steps(history)] == list(range(1, 21))
    assert figures.steps == 20
    assert figures.tokens == 20 * BATCH * SEQUENCE
    assert (figures.loss_first, figures.loss_last) == (pytest.approx(5.9), pytest.approx(4.0))
    assert figures.eval_last == 4.2
    assert figures.redone_steps == 2
    assert (figures.samples.lost, figures.samples.repeated) == (0, 0)
    assert figures.good_s == pytest.approx(20.0)
    assert figures.badput_s == pytest.approx(
        {
            "redone": 2.4,  # steps 9 and 10 of generation 2, and 0.4 s into step 11
            "capacity": 2.0,
            "start_up": 1.0,
            "transition_node_lost": 0.6,  # from its last sign of life to the next generation
            "transition_preempted": 0.5,
            "transition_join": 0.5,
            "evaluation": 0.4,
            "shut_down": 0.5,
        }
    )
    assert figures.good_s + sum(figures.badput_s.values()) == pytest.approx(figures.wall_s)
    assert figures.committed_steps == 20
    assert figures.durable_step == 20
    assert history.status == "done"


def test_the_newest_generation_of_a_step_counts_whatever_its_place_in_the_log() -> None:
    story = simple().steps(1, 4, generation=1)
    story.generation(2, "node-1", step=2)
    story.steps(3, 3, generation=2, loss=1.25)
    story.steps(4, 4, generation=1, loss=9.0)  # a late word from before
    history = replay(story.events)
    assert {step: p.generation for step, p in history.kept.items()} == {1: 1, 2: 1, 3: 2}
    assert history.kept[3].loss == 1.25
    assert history.steps_redone == 2


def test_a_late_word_of_a_step_that_was_not_set_back_is_kept() -> None:
    story = simple().steps(1, 2, generation=1)
    story.generation(2, "node-1", step=3)
    story.steps(3, 3, generation=1).steps(4, 4, generation=2)
    assert sorted(replay(story.events).kept) == [1, 2, 3, 4]
    assert replay(story.events).steps_redone == 0


def test_steps_ahead_of_a_rollback_do_not_count_even_if_never_redone() -> None:
    story = simple().steps(1, 9, generation=1).generation(2, "node-1", step=5)
    figures = measure(replay(story.events))
    assert (figures.steps, figures.redone_steps) == (5, 4)


def test_a_step_told_twice_counts_once_and_is_not_redone() -> None:
    story = simple().steps(1, 3, generation=1).steps(3, 3, generation=1)
    figures = measure(replay(story.events))
    assert (figures.steps, figures.redone_steps) == (3, 0)


def test_redone_steps_that_never_reached_the_log_are_counted_from_the_pause() -> None:
    story = simple().steps(1, 3, generation=1)
    story.transition(2, "node-2 lost", planned=False).generation(2, "node-1", step=3)
    story.steps(4, 4, generation=2).pause(2, "node-2 lost", planned=False, redone=1)
    assert replay(story.events).steps_redone == 1


def test_samples_of_a_missing_step_are_lost_and_of_a_doubled_one_repeated() -> None:
    story = simple().steps(1, 2, generation=1).steps(4, 4, generation=1)
    assert (check_samples(replay(story.events)).lost) == BATCH
    story.steps(5, 5, generation=1, first_sample=3 * BATCH + 2)
    check = check_samples(replay(story.events))
    assert check.repeated == BATCH - 2
    assert check.lost == BATCH + BATCH - 2


def test_samples_missing_at_the_very_start_are_lost() -> None:
    story = simple().steps(3, 4, generation=1)
    assert check_samples(replay(story.events)).lost == 2 * BATCH


def test_a_run_that_begins_after_a_given_step_expects_only_later_samples() -> None:
    story = Story().start().nodes("node-1").generation(1, "node-1", step=100)
    story.steps(101, 103, generation=1)
    check = check_samples(replay(story.events))
    assert (check.lost, check.repeated) == (0, 0)


def test_the_time_between_two_starts_is_stopped_time() -> None:
    story = simple().steps(1, 2, generation=1).end("interrupted", 75, after=1.0)
    story.t += 100.0
    story.start("resumed").nodes("node-9").generation(2, "node-9", step=2)
    assert replay(story.events).status == "running"
    story.steps(3, 3, generation=2).end()
    figures = measure(replay(story.events))
    assert figures.badput_s["stopped"] == pytest.approx(100.0)
    assert figures.badput_s["capacity"] == pytest.approx(2.0)
    assert figures.steps == 3
    assert figures.redone_steps == 0


def test_a_killed_process_leaves_stopped_time_from_its_last_event_on() -> None:
    story = simple().steps(1, 3, generation=1)
    story.t += 50.0
    story.start("resumed").nodes("node-9").generation(2, "node-9", step=1)
    story.steps(2, 2, generation=2)
    figures = measure(replay(story.events))
    assert figures.badput_s["stopped"] == pytest.approx(50.0)
    assert figures.redone_steps == 2
    assert figures.steps == 2


def test_parked_time_is_waiting_for_capacity() -> None:
    story = simple().steps(1, 2, generation=1)
    story.say("node_lost", generation=1, node="node-1", cause="killed", silent_s=0.0)
    story.transition(2, "node-1 lost", planned=False)
    story.say("parked", after=0.25, why="no plan for 0 nodes")
    story.say("unparked", after=30.0)
    story.generation(3, "node-2", step=2, after=0.75).steps(3, 3, generation=3)
    bad = measure(replay(story.events)).badput_s
    assert bad["capacity"] == pytest.approx(31.0)
    assert bad["transition_node_lost"] == pytest.approx(0.25)
    assert bad["transition_join"] == pytest.approx(0.75)


def test_a_run_that_leaves_the_parking_place_without_a_word_is_in_transition_again() -> None:
    story = simple().steps(1, 2, generation=1)
    story.transition(2, "node-1 lost", planned=False).say("parked", why="no plan for 0 nodes")
    story.transition(3, "node-5 joined", planned=False, after=30.0)
    story.generation(3, "node-5", step=2, after=0.75).steps(3, 3, generation=3)
    bad = measure(replay(story.events)).badput_s
    assert bad["capacity"] == pytest.approx(31.0)
    assert bad["transition_join"] == pytest.approx(0.75)


def test_the_first_generation_of_a_start_is_measured_but_is_no_pause() -> None:
    story = simple().steps(1, 1, generation=1).pause(1, "start", planned=False)
    history = replay(story.events)
    assert history.pauses == []
    assert [pause.total_s for pause in history.start_ups] == [0.62]


def test_the_loss_of_a_node_that_takes_no_part_costs_nothing() -> None:
    story = simple().steps(1, 2, generation=1)
    story.say("node_lost", generation=1, node="node-7", cause="killed", silent_s=0.0)
    story.steps(3, 3, generation=1)
    assert set(measure(replay(story.events)).badput_s) == {"capacity"}


def test_phases_of_a_step_that_are_not_work_are_not_good_time() -> None:
    story = simple().steps(
        1, 1, generation=1, seconds=2.0, phases={"forward": 1.0, "snapshot": 0.2, "evaluate": 0.5}
    )
    figures = measure(replay(story.events))
    assert figures.good_s == pytest.approx(1.3)
    assert figures.badput_s["checkpoint"] == pytest.approx(0.2)
    assert figures.badput_s["evaluation"] == pytest.approx(0.5)


def test_a_snapshot_that_holds_up_the_next_step_is_checkpoint_time_of_its_slowest_rank() -> None:
    story = simple().steps(1, 1, generation=1)
    story.say("snapshot", generation=1, step=1, workers=2, bytes=200, stall_s=0.3,
              copy_s=0.0, slowest="node-1/0.1")  # fmt: skip
    story.say("snapshot_copied", generation=1, step=1, workers=1, bytes=100)
    story.steps(2, 2, generation=1, gap=0.5)
    history = replay(story.events)
    assert measure(history).badput_s["checkpoint"] == pytest.approx(0.3)
    assert measure(history).badput_s["other"] == pytest.approx(0.2)
    snapshots = history.snapshots
    assert (snapshots.count, snapshots.bytes, snapshots.copies) == (2, 200, 1)
    assert snapshots.stall_s == pytest.approx(0.3)
    story.steps(3, 3, generation=1, phases={"forward": 0.5, "snapshot": 0.2})
    later = replay(story.events).snapshots
    assert later.stall_s == pytest.approx(0.5), (
        "what the next update waited for the copy counts too"
    )
    assert later.begun_s == pytest.approx(0.3)


def test_cost_runs_from_request_to_proven_release_over_all_starts() -> None:
    story = Story().start().nodes("node-1", price_per_hour=3600.0, boot=5.0)
    story.say("node_released", after=5.0, node="node-1", proof="gone")
    story.end("interrupted", 75)
    story.t += 1000.0
    story.start("resumed").nodes("node-1", price_per_hour=7200.0, boot=1.0)
    story.say("node_lost", after=1.0, node="node-1", cause="killed", silent_s=0.0)
    story.say("unparked", after=10.0)
    history = replay(story.events)
    assert measure(history).cost_usd == pytest.approx(10.0 + 4.0)
    assert [life.state() for life in history.ledger.lives] == ["released", "lost"]
    assert [life.node for life in history.ledger.unproven()] == ["node-1"]


def test_a_machine_nobody_proved_gone_costs_until_now() -> None:
    story = Story().start().nodes("node-1", price_per_hour=3600.0, boot=1.0)
    assert measure(replay(story.events), now=61.0).cost_usd == pytest.approx(61.0)


def test_a_release_that_could_not_be_proven_does_not_stop_the_meter() -> None:
    story = Story().start().nodes("node-1", price_per_hour=3600.0)
    story.say("node_released", node="node-1", proof="the cloud did not answer", released=False)
    history = replay(story.events)
    assert measure(history, now=10.0).cost_usd == pytest.approx(10.0)
    assert history.ledger.unproven()[0].proof == "the cloud did not answer"


def test_the_world_size_follows_generations_parking_and_the_end() -> None:
    history = replay(demo().events)
    assert [size for _, size in history.world] == [4, 3, 2, 3, 0]


def test_plans_are_held_against_what_they_did() -> None:
    first, *rest = check_plans(replay(demo().events))
    assert (first.layout, first.estimate_step_s, first.actual_step_s) == (
        "pp1 x dp4 x tp1", 0.8, 1.0,
    )  # fmt: skip
    assert first.ratio == pytest.approx(1.25)
    assert [check.ratio for check in rest] == [None, None, None]  # they had no estimate


def test_throughput_spreads_tokens_over_the_time_they_took() -> None:
    history = replay(demo().events)
    figures = measure(history)
    windows = throughput(kept_steps(history), until=figures.wall_s, num_windows=7)
    width = figures.wall_s / 7
    assert sum(rate * width for _, rate in windows) == pytest.approx(figures.tokens)


def test_lost_lines_of_the_log_are_counted() -> None:
    events = demo().events
    assert replay(events).missing_events == 0
    assert replay(events[:5] + events[8:]).missing_events == 3


def test_events_without_their_fields_do_not_break_the_projection() -> None:
    from dataclasses import replace

    bare = [replace(e, fields={"step": 1} if e.kind in ("step", "evaluated") else {})
            for e in demo().events]  # fmt: skip
    figures = measure(replay(bare))
    assert figures.goodput >= 0.0


def test_an_empty_log_has_figures_too() -> None:
    figures = measure(replay([]))
    assert (figures.wall_s, figures.goodput, figures.steps, figures.cost_usd) == (0.0, 0.0, 0, 0.0)


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        ("node-2 leaves in 30 s", "preempted"),
        ("node-2 leaves in 30 s; node-3 lost: killed", "preempted"),
        ("worker node-1/0.2 started", "join"),
        ("worker node-1/0.1 lost: ended", "worker_lost"),
        ("node-3 failed to switch: disk", "node_lost"),
        ("notice", "preempted"),
        ("node_lost", "node_lost"),
        ("node-1 lost without notice", "node_lost"),
        ("worker node-1/0.1 died", "worker_lost"),
        ("worker_lost", "worker_lost"),
        ("node-5 joined", "join"),
        ("rebalance", "other"),
    ],
)
def test_causes_fall_into_families(cause: str, kind: str) -> None:
    assert cause_kind(cause) == kind


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["steps", "lost", "transition", "generation", "parked", "unparked", "resume", "end",
             "evaluated", "snapshot", "notice", "nodes"]
        ),
        st.floats(0.0, 5.0),
        st.integers(0, 6),
    ),
    max_size=40,
)  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(ACTIONS)
def test_every_second_has_exactly_one_name_whatever_happens(
    actions: list[tuple[str, float, int]],
) -> None:
    story = simple()
    step, generation = 0, 1
    for what, seconds, number in actions:
        story.t += seconds
        match what:
            case "steps":
                phases = {"evaluate": seconds / 3, "snapshot": seconds / 7}
                story.steps(
                    step + 1, step + number, generation=generation, seconds=seconds, phases=phases
                )
                step += number
            case "lost":
                story.say("node_lost", node="node-2", cause="killed", silent_s=seconds)
            case "transition":
                story.transition(generation + 1, "node-2 lost", planned=number % 2 == 0)
            case "generation":
                generation, step = generation + 1, max(0, step - number)
                story.generation(generation, "node-1", step=step)
            case "parked":
                story.say("parked", why="few")
            case "unparked":
                story.say("unparked")
            case "resume":
                story.start("resumed")
            case "end":
                story.end("interrupted", 75)
            case "evaluated":
                story.say("evaluated", step=step, eval_loss=2.0, seconds=seconds * 2)
            case "snapshot":
                story.say(
                    "snapshot",
                    step=step,
                    workers=1,
                    bytes=1,
                    stall_s=seconds,
                    copy_s=0.0,
                    slowest="w",
                )
            case "notice":
                story.say("notice", node="node-2", seconds=seconds, source="local")
            case "nodes":
                story.nodes(f"node-{number}")
    history = replay(story.events)
    figures = measure(history)
    total = figures.good_s + sum(figures.badput_s.values())
    assert total == pytest.approx(figures.wall_s, abs=EXACT * (1 + figures.wall_s))
    assert all(seconds >= 0 for seconds in figures.badput_s.values())
    spans = history.accounts.spans
    assert all(a.end == b.begin for a, b in zip(spans, spans[1:], strict=False))
    assert history.steps_redone >= history.discarded


def test_mfu_is_model_flops_over_what_the_gpus_could_have_done() -> None:
    story = Story().start(flops_per_token=1e6).nodes("node-1", "node-2")
    plan = {"plan": {}, "describe": "x", "estimate_step_s": 1.0, "estimate_usd_per_hour": None}
    story.say("plan_chosen", generation=1, peak_flops=4e9, **plan)
    story.generation(1, "node-1", "node-2").steps(1, 4, generation=1, seconds=2.0)
    story.say("plan_chosen", generation=2, peak_flops=2e9, **plan)
    story.generation(2, "node-1", step=4).steps(5, 6, generation=2, seconds=4.0)
    figures = measure(replay(story.events))
    possible = 4 * 2.0 * 4e9 + 2 * 4.0 * 2e9
    assert figures.mfu == pytest.approx(1e6 * figures.tokens / possible)


@pytest.mark.parametrize("peak", [None, 0.0])
def test_without_a_known_peak_there_is_no_mfu(peak: float | None) -> None:
    story = Story().start(flops_per_token=1e6).nodes("node-1")
    story.say(
        "plan_chosen", generation=1, peak_flops=peak, plan={}, describe="x", estimate_step_s=1.0,
        estimate_usd_per_hour=None,
    )  # fmt: skip
    story.generation(1, "node-1").steps(1, 3, generation=1)
    assert measure(replay(story.events)).mfu is None
    assert summarise(story.events)["mfu"] == "n/a"


def test_memory_is_held_against_the_bound_of_its_rank() -> None:
    story = simple().steps(1, 1, generation=1)
    story.say(
        "plan_chosen", generation=1, plan={}, describe="x", estimate_step_s=1.0,
        estimate_usd_per_hour=None, estimate_bytes=[200, 400],
    )  # fmt: skip
    ranks = [
        {"rank": rank, "worker": f"node-{rank + 1}/0.1", "peak_bytes": 350, "base_bytes": 50}
        for rank in range(3)
    ]
    story.say("memory", generation=1, ranks=ranks)
    checks = measure(replay(story.events)).memory
    assert [check.ratio for check in checks] == [1.5, 0.75, None]
    assert [row["estimate_bytes"] for row in summarise(story.events)["memory"]] == [200, 400, None]


def test_a_step_is_split_into_its_phases_and_what_snapshots_took() -> None:
    story = simple().steps(1, 3, generation=1, phases={"forward": 0.3, "backward": 0.6})
    story.steps(4, 4, generation=1, phases={"forward": 0.7, "backward": 0.6})
    story.say(
        "snapshot", generation=1, step=4, workers=2, bytes=8, stall_s=0.2, copy_s=0.0, slowest="w"
    )
    assert measure(replay(story.events)).phases_s == pytest.approx(
        {"forward": 0.4, "backward": 0.6, "snapshot": 0.05}
    )


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
