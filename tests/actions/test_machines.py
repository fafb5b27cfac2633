"""Which machines a run asks for, first and later, and how each is asked for."""

from __future__ import annotations

from collections import Counter

import pytest

from actions.machines import MOST_PLACES, first_requests, offers_by_place, placements
from actions.planning import question
from actions.traces import trace_of, zones_of
from actions.worth import Worth
from sailor.cluster.provisioner import NodeRequest
from sailor.errors import CloudError, ConfigError, DataError
from tests.helpers.compose import a_config
from tests.helpers.running import MODEL, slow_cores


@pytest.fixture
def _slow(tmp_path, monkeypatch):
    """Cores so slow that every machine is worth having; measured once for all."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    slow_cores(tmp_path / "sailor")


def planned(*words: str):
    config = a_config(*words)
    asked = question(config)
    return config, asked, asked.answer().best


def test_a_run_on_a_cloud_asks_for_the_machines_of_its_plan_at_their_price():
    config, asked, chosen = planned("model=gpt_1b", "cloud=gcp", "cloud.max_nodes=4")
    requests = first_requests(config, chosen)
    assert Counter((r.zone, r.machine_type, r.spot) for r in requests) == {
        (*rental.key, rental.offer.spot): rental.num_machines for rental in chosen.rentals
    }
    assert [r.node for r in requests] == [f"node-{i}" for i in range(1, len(requests) + 1)]
    assert sum(r.price_per_hour for r in requests) == pytest.approx(
        sum(rental.dollars_per_hour for rental in chosen.rentals)
    )
    place = placements(config, asked)
    wanted = place(requests[0])
    assert wanted.instance_type is not None
    assert wanted.infra.startswith(f"gcp/{chosen.rentals[0].offer.zone.region}/")
    with pytest.raises(CloudError, match="has no nothing"):
        place(NodeRequest(node="x", zone="nowhere", machine_type="nothing", spot=True))


def test_later_it_may_ask_for_the_same_machines_elsewhere_first_and_for_few_others():
    config, asked, chosen = planned("model=gpt_1b", "cloud=gcp", "cloud.max_nodes=4")
    offers = offers_by_place(config, asked, chosen)
    assert len(offers) == MOST_PLACES
    (kind,) = {machine_type for _, machine_type in chosen.plan.gpus_by_pool()}
    same = [place for place in offers if place[1] == kind]
    assert list(offers)[: len(same)] == same
    assert {zone for zone, _, _ in same} >= {r.zone for r in first_requests(config, chosen)}


@pytest.mark.usefixtures("_slow")
def test_a_trace_is_begun_with_what_its_zones_have(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("t_s,zone,delta\n0,east,3\n0,west,1\n60,west,4\n")
    config, asked, chosen = planned(
        *MODEL, "cloud=trace", f"cloud.trace.paths=[{path}]", "cloud.nodes=4",
    )  # fmt: skip
    assert Counter(r.zone for r in first_requests(config, chosen)) == {"east": 3, "west": 1}
    offers = offers_by_place(config, asked, chosen)
    assert set(offers) == {("east", "local", True), ("west", "local", True)}
    assert trace_of(config).seconds == 1.0  # a minute, sixty times as fast
    assert zones_of(trace_of(config)) == ("east", "west")


def test_a_trace_is_cut_scaled_and_drawn_as_asked(tmp_path):
    path = tmp_path / "big.csv"
    path.write_text("t_s,count\n0,40\n3600,10\n7200,40\n10800,0\n")
    read = trace_of(
        a_config("cloud=trace", f"cloud.trace.paths=[{path}]", "cloud.trace.begin=1h",
                 "cloud.trace.length=90min", "cloud.trace.faster=10", "cloud.trace.most=8",
                 "cloud.trace.notice=7s")
    )  # fmt: skip
    assert [(e.t, e.delta) for e in read.events] == [(0.0, 2), (360.0, 6)]
    assert read.seconds == 540.0
    one, other, again = (
        trace_of(a_config("cloud=trace", f"seed={seed}", "cloud.trace.notice=7s"))
        for seed in (1, 2, 1)
    )
    assert one == again != other
    assert {e.notice_seconds for e in one.events if e.delta < 0} == {7.0}


@pytest.mark.parametrize(
    ("word", "kind", "code"),
    [
        ("cloud.trace.rates=mars", ConfigError, "E102"),
        ("cloud.trace.paths=[no.csv]", DataError, "E506"),
    ],
)
def test_a_trace_that_cannot_be_had_is_told(word, kind, code):
    with pytest.raises(kind) as refusal:
        trace_of(a_config("cloud=trace", word))
    assert refusal.value.code == code


def test_a_trace_that_is_over_before_it_begins_is_told(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("t_s,count\n0,4\n60,2\n")
    with pytest.raises(ConfigError, match="is over before") as refusal:
        trace_of(a_config("cloud=trace", f"cloud.trace.paths=[{path}]", "cloud.trace.begin=1h"))
    assert refusal.value.code == "E104"


@pytest.mark.usefixtures("_slow")
def test_machines_are_worth_what_the_planner_says():
    """Four machines make two replicas; what a fifth adds is less than what the fourth did, and
    one that completes nothing alone is still of some use."""
    _, asked, chosen = planned(*MODEL, "cloud.nodes=4")
    worth = Worth(asked, chosen.plan)
    place = ("local-a", "local", True)
    here = [("local-a", "local")]
    assert 0 < worth.gain([])(place) < 1e-3  # one alone cannot hold the model; two can
    assert worth.gain(here)(place) > 1.0
    assert worth.gain(here * 3)(place) > worth.gain(here * 4)(place)
    assert worth.not_worth(chosen.plan, chosen.plan, steps_left=1000, pause_s=1.0)


@pytest.mark.usefixtures("_slow")
def test_a_change_is_worth_it_as_long_as_enough_steps_are_left():
    _, asked, chosen = planned(*MODEL, "cloud.nodes=4")
    _, _, fewer = planned(*MODEL, "cloud.nodes=2")
    worth = Worth(asked, chosen.plan)
    gained = asked.step_seconds(fewer.plan) - asked.step_seconds(chosen.plan)
    assert gained > 0
    enough = int(1.2 * 3.0 / gained) + 1
    assert worth.not_worth(fewer.plan, chosen.plan, steps_left=enough, pause_s=3.0) == ""
    why = worth.not_worth(fewer.plan, chosen.plan, steps_left=enough // 2, pause_s=3.0)
    assert "the change costs 3" in why
