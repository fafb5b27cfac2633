"""Machines without GPUs: the cheapest that is large enough, how it is asked for, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from actions.anchor import anchor, needed_bytes
from actions.domain import model_spec
from actions.planning import question
from provision.hosts import USABLE, host
from provision.placement import host_placement
from sailor.cluster.pool import Zone
from sailor.errors import CloudError, NoFeasiblePlan
from tests.helpers.compose import a_config

GIB = 1 << 30


@pytest.mark.parametrize(
    ("cloud", "name"), [("gcp", "n2-highmem-8"), ("aws", "r6i.2xlarge"), ("azure", "E8s_v5")]
)
def test_the_cheapest_that_holds_it_is_taken(cloud: str, name: str) -> None:
    found = host(cloud, needed_bytes=20 * GIB)
    assert found.name == name
    assert USABLE * found.memory_gib >= 20
    assert 0.4 < found.price_per_hour < 0.6


def test_one_that_does_not_exist_is_refused_with_the_numbers() -> None:
    with pytest.raises(NoFeasiblePlan, match="4.9 TiB") as caught:
        host("aws", needed_bytes=5000 * GIB)
    assert (caught.value.code, caught.value.exit_code) == ("E305", 3)
    assert "r6i.32xlarge" in caught.value.why
    assert "checkpoint.anchor=false" in caught.value.fix


def test_a_cloud_that_rents_gpus_only_has_none() -> None:
    with pytest.raises(CloudError) as caught:
        host("lambda", needed_bytes=GIB)
    assert caught.value.code == "E404"


def test_on_clusters_of_ones_own_it_is_asked_for_by_its_memory() -> None:
    found = host("kubernetes", needed_bytes=9 * GIB)
    zone = Zone(name="default", region="kubernetes", cloud="kubernetes")
    asked = host_placement(found, zone=zone)
    assert asked.accelerators is None
    assert asked.memory_gib == "21+"
    assert not asked.use_spot


def test_it_is_asked_for_by_name_in_its_zone_and_on_demand() -> None:
    zone = Zone(name="us-central1-a", region="us-central1", cloud="gcp")
    asked = host_placement(host("gcp", needed_bytes=GIB), zone=zone)
    assert (asked.infra, asked.instance_type) == ("gcp/us-central1/us-central1-a", "n2-highmem-2")
    assert not asked.use_spot
    azure = Zone(name="eastus", region="eastus", cloud="azure")
    named = host_placement(host("azure", needed_bytes=GIB), zone=azure)
    assert named.instance_type == "Standard_E2s_v5"


def test_an_anchor_goes_where_most_machines_are_and_takes_its_price_from_the_hours_limit() -> None:
    config = a_config("model=gpt_1b", "cloud=gcp", "checkpoint.anchor=true",
                      "budget.per_hour_usd=100", "faults=none")  # fmt: skip
    asked = question(config)
    found = anchor(config, asked.answer().best)
    assert found is not None
    assert found.zone in {offer.zone.name for offer in asked.catalogue.pool.offers}
    assert found.request().node == "anchor-1"
    assert asked.limits.dollars_per_hour == 100 - found.host.price_per_hour
    # Weight and two moments in fp32, twice.
    assert found.needed_bytes >= 24 * model_spec(config).num_parameters
    assert f"{found.host.price_per_hour:.3f}" in found.words()


def test_this_computer_is_asked_whether_all_of_it_fits() -> None:
    config = a_config("checkpoint.anchor=true", "faults=none")
    chosen = question(config).answer().best
    assert anchor(config, chosen) is not None
    huge = a_config(
        "model.num_layers=400", "model.hidden_size=8192", "model.ffn_hidden_size=32768",
        "model.num_heads=64", "model.num_kv_heads=64", "model.head_size=128",
        "checkpoint.anchor=true", "faults=none",
    )  # fmt: skip
    assert needed_bytes(model_spec(huge)) > 1 << 42
    with pytest.raises(NoFeasiblePlan) as caught:
        anchor(huge, chosen)
    assert caught.value.code == "E305"
    assert str(Path("/dev/shm")) in caught.value.why
