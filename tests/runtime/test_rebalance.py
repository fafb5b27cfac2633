"""Who should have whose seats, as tables: paces, lines and losses in, one move or none out."""

from dataclasses import replace

import pytest

from sailor.runtime.paces import Pace
from sailor.runtime.rebalance import Option, Rules, Standing, decide
from sailor.runtime.rebalancing import options
from tests.helpers.builders import a_layout, a_member, a_plan

TWO_PIPELINES = a_layout(a_plan([2], [2]))  # n0 -> n1 and n2 -> n3, two microbatches each


def paces(*seconds, nodes=None, late=None):
    """Seconds at work in a step of each rank, the same in both halves unless ``late`` is given."""
    names = nodes or [worker.node for worker in TWO_PIPELINES.workers]
    both = dict(enumerate(zip(seconds, late or seconds, strict=True)))
    return Pace(nodes=dict(enumerate(names)), seconds=both)


def standing(pace, *given, **changes):
    fields = {
        "layout": TWO_PIPELINES, "pace": pace, "before": {}, "step_s": 1.0, "steps_left": 1000,
        "pause_s": 2.0, "loss_s": 20.0, "options": given,
    }  # fmt: skip
    return Standing(**{**fields, **changes})


def judge(*args, **changes):
    return decide(standing(*args, **changes), rules=Rules())


EVEN = paces(0.2, 0.4, 0.2, 0.4)
SLOW_N3 = paces(0.2, 0.4, 0.2, 0.8)
ALL = tuple(Option(node=f"n{i}", to="spare") for i in range(4))


def test_where_all_seats_are_well_taken_nothing_moves():
    verdict = judge(EVEN, *ALL)
    assert verdict.node == ""
    assert verdict.why == "no other placement is better by more than noise"


def test_a_machine_that_was_slow_from_the_start_loses_its_seats_to_one_that_stands_by():
    verdict = judge(SLOW_N3, *ALL)
    assert (verdict.node, verdict.to) == ("n3", "spare")
    # Each microbatch takes n2 0.1 s and n3 0.4 s: 0.1 + 0.4 + 0.4 before, 0.1 + 0.2 + 0.2 after.
    assert verdict.gained_s_per_step == pytest.approx(1 - 0.5 / 0.9)


def test_a_seat_that_nobody_waits_for_gains_nothing():
    """The other pipeline is as slow: a step is as long as before."""
    both_slow = paces(0.2, 0.8, 0.2, 0.8)
    assert judge(both_slow, Option(node="n3", to="spare")).node == ""


def test_a_gain_that_half_of_the_steps_do_not_show_is_none():
    assert judge(paces(0.2, 0.4, 0.2, 0.8, late=(0.2, 0.4, 0.2, 0.4)), *ALL).node == ""
    assert judge(paces(0.2, 0.4, 0.2, 0.4, late=(0.2, 0.4, 0.2, 0.8)), *ALL).node == ""


def test_a_gain_no_larger_than_noise_is_none():
    assert judge(paces(0.2, 0.4, 0.2, 0.42), *ALL).node == ""


@pytest.mark.parametrize(
    ("steps_left", "pause_s", "moves"), [(1000, 2.0, True), (8, 2.0, False), (1000, 230.0, False)]
)
def test_a_move_must_gain_twice_its_pause_over_the_steps_left(steps_left, pause_s, moves):
    verdict = judge(SLOW_N3, *ALL, steps_left=steps_left, pause_s=pause_s)
    assert bool(verdict.node) == moves
    assert verdict.gained_s_per_step == pytest.approx(1 - 0.5 / 0.9)
    if not moves:
        assert "does not pay" in verdict.why


def test_a_machine_that_was_moved_away_from_rests():
    verdict = judge(SLOW_N3, *ALL, resting=frozenset({"spare"}))
    assert verdict.node == ""
    assert "moved away from" in verdict.why


def test_of_two_that_stand_by_the_faster_one_is_taken():
    """What they did when they had the seat is known; at that time everything took twice as long."""
    then = {
        "slow": paces(0.4, 0.8, 0.4, 1.6, nodes=["n0", "n1", "n2", "slow"]),
        "fast": paces(0.4, 0.8, 0.4, 0.7, nodes=["n0", "n1", "n2", "fast"]),
    }
    both = [Option(node="n3", to=name) for name in then]
    verdict = judge(SLOW_N3, *both, before=then)
    assert verdict.to == "fast"
    # n3 would take 0.35 s of work, so the other pipeline is the one that is waited for.
    assert verdict.gained_s_per_step == pytest.approx(1 - 0.5 / 0.9)


def test_one_known_to_be_as_slow_takes_no_seat():
    then = {"spare": paces(0.2, 0.4, 0.2, 0.8, nodes=["n0", "n1", "n2", "spare"])}
    assert judge(SLOW_N3, *ALL, before=then).node == ""


def test_two_machines_that_take_turns_do_not_swap_in_the_next_busy_hour():
    """Everything takes three times as long now than when the other one had the seat."""
    then = {"n3": EVEN}
    nodes = ["n0", "n1", "n2", "spare"]
    now = paces(0.6, 1.2, 0.6, 1.2, nodes=nodes)
    assert judge(now, Option(node="spare", to="n3"), before=then).node == ""


def test_a_pace_known_from_another_seat_counts_in_this_one():
    """It did the first stage's work in two thirds of the other's time."""
    then = {"spare": paces(0.1, 0.4, 0.15, 0.4, nodes=["spare", "n1", "n2", "n3"])}
    slow_end = paces(0.15, 0.8, 0.15, 0.8)
    moved = judge(slow_end, Option(node="n1", to="spare"), before=then)
    assert moved.node == ""  # the other pipeline is as slow
    one = a_layout(a_plan([2]))
    pace = paces(0.15, 0.8, nodes=["n0", "n1"])
    past = {"spare": paces(0.1, 0.8, nodes=["spare", "n1"])}
    verdict = judge(pace, Option(node="n1", to="spare"), before=past, layout=one)
    # The stage of 0.4 s a microbatch would take 0.267 s.
    before, after = 0.075 + 0.4 + 0.4, 0.075 + 2 * 0.4 * (2 / 3)
    assert verdict.gained_s_per_step == pytest.approx(1 - after / before)


def test_lines_count_as_the_planner_has_them():
    verdict = judge(EVEN, Option(node="n1", to="near", step_ratio=0.9))
    assert (verdict.node, verdict.to) == ("n1", "near")
    assert verdict.gained_s_per_step == pytest.approx(0.1)
    assert judge(SLOW_N3, Option(node="n3", to="far", step_ratio=2.0)).node == ""


def test_seats_go_to_machines_that_are_lost_less_often_where_that_pays():
    """One loss in 1,000 s less, of 20 s each, is 2 % of the time: of a 1 s step 20 ms."""
    safer = Option(node="n0", to="anchor", losses_per_s=1e-3)
    verdict = judge(EVEN, safer, steps_left=1000)
    assert verdict.node == "n0"
    assert verdict.gained_s_per_step == pytest.approx(0.02)
    assert judge(EVEN, safer, steps_left=100).node == ""
    assert judge(EVEN, replace(safer, losses_per_s=-1e-3)).node == ""


def test_nobody_stands_by():
    assert judge(SLOW_N3).why == "no machine that stands by fits anybody's seats"


def test_options_are_all_that_fit_and_the_planner_is_asked_only_about_other_zones():
    asked = []

    def step_seconds(plan):
        asked.append([stage.zone for _, _, stage in plan.stages()])
        return 1.0 if len(asked) == 1 else 1.5

    two_zones = a_plan([2], [2])
    second = replace(
        two_zones.replicas[1],
        stages=tuple(replace(stage, zone="b") for stage in two_zones.replicas[1].stages),
    )
    layout = replace(
        TWO_PIPELINES, plan=replace(two_zones, replicas=(two_zones.replicas[0], second))
    )
    free = [a_member("near"), a_member("elsewhere", zone="c")]
    rates = {"n0": 3.0, "near": 1.0}
    found = options(
        layout, free, step_seconds=step_seconds, losses_per_s=lambda node: rates.get(node, 0.0)
    )
    assert [(o.node, o.to, o.step_ratio, o.losses_per_s) for o in found] == [
        ("n0", "near", 1.0, 2.0), ("n1", "near", 1.0, -1.0),
        ("n2", "near", 1.5, -1.0), ("n3", "near", 1.5, -1.0),
    ]  # fmt: skip
    assert asked == [["a", "a", "b", "b"], ["a", "a", "a", "b"], ["a", "a", "b", "a"]]
