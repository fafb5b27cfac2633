"""Speeds by counts: tables, measured steps, the planner asked once, standbys held back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sailor.errors import NoFeasiblePlan
from sailor.simulate.formation import size
from sailor.simulate.pace import (
    PlannedSpeeds,
    Role,
    StepTable,
    TableSpeeds,
    WithStandbys,
    merged,
    pipelines,
    roles_of,
)
from tests.helpers.builders import a_plan, a_stage
from tests.helpers.simulation import linear

A, B = ("a", "m"), ("b", "m")


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 9))
def test_pipelines_use_every_machine_and_hold_whole_copies(a, b, depth):
    counts = {A: a, B: b}
    roles = pipelines(counts, depth=depth)
    for place in (A, B):
        assert sum(role.number for role in roles if role.place == place) == counts[place]
    held = sum(size(role.content) * role.number for role in roles)
    assert held == pytest.approx((a + b) / depth)
    by_part = {}
    for role in roles:
        by_part[role.content] = by_part.get(role.content, 0) + role.number
    if a + b >= depth:
        assert min(by_part.values()) == (a + b) // depth
        assert len(by_part) == depth


def test_a_table_is_capped_and_never_asked_for_less_than_it_has():
    speeds = TableSpeeds({4: 8.0, 5: 7.0, 6: 12.0}, samples_per_step=24.0, depth=2)
    assert speeds.best({A: 3}) is None
    assert speeds.best({A: 4}).step_seconds == 3.0
    # five are slower than four, so one stands by
    assert (speeds.best({A: 5}).step_seconds, speeds.best({A: 5}).num_nodes) == (3.0, 4)
    assert speeds.best({A: 5, B: 4}).num_nodes == 6


def test_speeds_of_zero_are_no_speeds():
    with pytest.raises(ValueError, match="without a single speed"):
        TableSpeeds({15: 0.0}, samples_per_step=1.0, depth=1)


def test_measured_steps_are_those_of_the_most_machines_seen():
    speeds = StepTable({2: 1.0, 4: 0.6})
    assert speeds.best({A: 1}) is None
    assert speeds.best({A: 3}).step_seconds == 1.0
    assert speeds.best({A: 9}).num_nodes == 4


def test_standbys_are_held_back_unless_everybody_is_needed():
    speeds = WithStandbys(linear(least=3), number=2)
    assert speeds.best({A: 8}).num_nodes == 6
    assert speeds.best({A: 4}).num_nodes == 4
    assert speeds.best({A: 2}) is None


def planned(**changes):
    """A planner that cuts the model over as many machines as there are, and counts its calls."""
    asked = []

    def replan(members):
        asked.append(len(members))
        if len(members) < 2:
            raise NoFeasiblePlan("too few", code="E301")
        half = len(members) // 2
        return a_plan(*([[2]] * half))

    speeds = PlannedSpeeds(
        replan,
        step_seconds=lambda plan: 8.0 / len(plan.replicas),
        gpus={"local": 1}, num_layers=4, **changes,
    )  # fmt: skip
    return speeds, asked


def test_the_planner_is_asked_once_for_the_same_counts():
    speeds, asked = planned()
    place = ("a", "local")
    assert speeds.best({place: 4}).step_seconds == 4.0
    assert speeds.best({place: 4, ("b", "local"): 0}).step_seconds == 4.0
    assert speeds.best({place: 1}) is None
    assert speeds.best({place: 1}) is None
    assert asked == [4, 1]


def test_many_machines_are_rounded_to_the_grain():
    speeds, asked = planned(grain=4)
    for number in (3, 8, 9, 10, 11):
        speeds.best({("a", "local"): number})
    assert asked == [3, 8]


def test_zones_that_are_twins_are_planned_as_one_and_seated_where_they_are():
    speeds, asked = planned(twin={"a": "a", "b": "a"})
    pace = speeds.best({("a", "local"): 3, ("b", "local"): 3})
    assert asked == [6]
    by_zone = {}
    for role in pace.roles:
        by_zone.setdefault(role.place[0], []).append((role.content, role.number))
    assert sum(n for _, n in by_zone["a"]) == sum(n for _, n in by_zone["b"]) == 3
    whole = {content for parts in by_zone.values() for content, _ in parts}
    assert merged([stretch for content in whole for stretch in content]) == ((0.0, 1.0),)


def test_a_machine_with_many_gpus_holds_what_all_its_stages_hold():
    plan = a_plan([2], [2])
    roles = roles_of(plan, gpus={"local": 4}, num_layers=4)
    assert roles == (Role(("a", "local"), ((0.0, 1.0),), 1),)
    assert roles_of(plan, gpus={"local": 1}, num_layers=4) == (
        Role(("a", "local"), ((0.0, 0.5),), 2),
        Role(("a", "local"), ((0.5, 1.0),), 2),
    )
    assert a_stage(0, 4).zone == "a"
