"""What a run plans with changes when lines turn out to be slow, and with it the plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from actions.planning import question
from actions.terrain import Terrain
from actions.worth import Worth
from sailor.cluster.network import Link, Tier
from sailor.cluster.pool import Pool
from sailor.parallel.layout import Member, WorkerId
from sailor.planner.replan import replace_machines
from tests.helpers.compose import a_config
from tests.helpers.running import MODEL, slow_cores


def members(zones: str) -> list[Member]:
    return [
        Member(
            node=f"node-{i}", zone=f"local-{zone}", machine_type="local",
            workers=(WorkerId(node=f"node-{i}", slot=0, incarnation=1),),
        )
        for i, zone in enumerate(zones)
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def slow_computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same plans on every computer."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    slow_cores(tmp_path / "sailor")


def a_terrain() -> tuple[Terrain, Worth]:
    asked = question(a_config("cloud.nodes=4", *MODEL, "planner.microbatch_size=1"))
    plan = asked.answer().best.plan
    terrain, worth = Terrain(asked, plan), Worth(asked, plan)
    terrain.changed.append(worth.learn)
    return terrain, worth


def slow(bytes_per_second: float) -> Link:
    return Link(
        tier=Tier.region, seconds_per_message=1e-3, bytes_per_second=bytes_per_second,
        source="measured between node-1 and node-2",
    )  # fmt: skip


def test_a_slow_line_between_zones_changes_the_plan_and_what_a_change_is_worth():
    terrain, worth = a_terrain()
    crew = members("aaaa")
    before = terrain.replan(crew)
    assert terrain.assumed(crew[0], crew[1]).bytes_per_second > 1e6
    terrain.learn({("local-a", "local-a"): slow(1e5)})
    assert terrain.assumed(crew[0], crew[1]) == slow(1e5)
    after = terrain.replan(crew)
    # Boundaries are smaller than gradients: a longer pipeline has less to send.
    assert (before.describe(), after.describe()) == ("pp2 x dp2 x tp1", "pp4 x dp1 x tp1")
    was, now = terrain.asked.step_seconds(before), terrain.asked.step_seconds(after)
    assert now < was / 1.2
    assert worth.not_worth(before, after, steps_left=1000, pause_s=1.0) == ""
    assert "the change costs" in worth.not_worth(before, after, steps_left=1, pause_s=1e4)


def test_what_is_learned_later_adds_to_what_was_learned_before():
    terrain, _ = a_terrain()
    zones = terrain.asked.catalogue.network.zones
    zones["local-b"] = replace(zones["local-a"], name="local-b")
    a, b = members("ab")
    terrain.learn({("local-a", "local-b"): slow(2e4)})
    terrain.learn({("local-a", "local-a"): slow(3e4)})
    assert terrain.assumed(a, b) == terrain.assumed(b, a) == slow(2e4)
    assert terrain.assumed(a, a) == slow(3e4)


def test_times_of_this_computer_are_kept_when_it_is_planned_again():
    """They were forgotten once: a re-plan went by data sheets though the first plan did not."""
    terrain, _ = a_terrain()
    network = terrain.asked.catalogue.network
    measured = {Tier.zone: slow(1e5)}
    known = replace_machines(replace(network, measured=measured), Pool(offers=()))
    assert known.measured == measured
