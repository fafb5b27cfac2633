"""The built-in catalogue: facts that hang together, narrowed as asked, labelled with their age."""

from __future__ import annotations

from datetime import date

import pytest

from provision.catalog import CLOUDS, cloud_catalogue, is_cpu, local_catalogue, own_catalogue
from provision.list_prices import MACHINES, PRICES, TARIFFS
from sailor.cluster.gpu import GPU_TYPES
from sailor.errors import CloudError, ConfigError
from tests.helpers.planning import a_gpu


def test_every_price_is_of_a_machine_that_is_described_and_every_gpu_is_known():
    known = {(machine.cloud, machine.name) for machine in MACHINES}
    assert len(known) == len(MACHINES)
    assert {machine.gpu for machine in MACHINES} <= set(GPU_TYPES)
    assert {(listing.cloud, listing.machine) for listing in PRICES} == known


def test_prices_are_positive_dated_and_never_higher_on_spot():
    for listing in PRICES:
        assert date.fromisoformat(listing.as_of) <= date.today()
        assert listing.source
        for price in listing.spot.values():
            assert price is None or price > 0
            if price is not None and listing.on_demand is not None:
                assert price < listing.on_demand, listing


def test_price_per_gpu_is_within_what_such_a_gpu_costs_anywhere():
    """Catches a price typed for the wrong number of GPUs."""
    per_gpu: dict[str, list[float]] = {}
    kinds = {(m.cloud, m.name): m for m in MACHINES}
    for listing in PRICES:
        machine = kinds[listing.cloud, listing.machine]
        if listing.on_demand is not None:
            per_gpu.setdefault(machine.gpu, []).append(listing.on_demand / machine.num_gpus)
    for gpu, prices in per_gpu.items():
        assert max(prices) / min(prices) < 5, gpu


@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_cloud_has_offers_a_tariff_and_an_age(cloud):
    catalogue = cloud_catalogue(cloud, max_nodes=2)
    assert catalogue.pool.offers
    assert catalogue.network.tariffs[cloud] == TARIFFS[cloud]
    assert catalogue.age_days(date.today()) >= 0
    assert "snapshot" in catalogue.label


def test_offers_are_narrowed_to_what_is_allowed():
    catalogue = cloud_catalogue(
        "gcp", zones=["us-central1-f"], machine_types=["a2-highgpu-8g"], spot=True, max_nodes=3
    )
    (offer,) = catalogue.pool.offers
    assert (offer.zone.name, offer.spot, offer.count) == ("us-central1-f", True, 3)


def test_a_name_the_catalogue_does_not_know_is_refused_with_those_it_knows():
    with pytest.raises(ConfigError) as caught:
        cloud_catalogue("gcp", regions=["us-centrall"], max_nodes=1)
    assert caught.value.code == "E102"
    assert "us-central1" in caught.value.why


def test_a_zone_without_that_machine_names_zones_that_have_it():
    with pytest.raises(CloudError) as caught:
        cloud_catalogue("gcp", regions=["us-west1"], machine_types=["a3-highgpu-8g"], max_nodes=1)
    assert caught.value.code == "E404"
    assert "us-east4-a" in caught.value.why


def own(*machine_types, **how):
    how = {"cluster": "c", "zones": (), "max_nodes": 4, **how}
    return own_catalogue("slurm", machine_types=machine_types, **how)


def test_an_own_cluster_is_named_by_gpu_and_count():
    (offer,) = own("H100-80x8").pool.offers
    assert (offer.machine_type.num_gpus, offer.machine_type.gpu.name) == (8, "H100-80")
    assert (offer.count, offer.spot, offer.zone.region) == (4, False, "c")
    for wrong in ("8xH100", "0*H100-80x8", "x*H100-80x8", "H100-80x"):
        with pytest.raises(ConfigError, match="no machine type"):
            own(wrong)
    with pytest.raises(ConfigError, match="needs to know your machines"):
        own()


def test_an_own_cluster_can_say_how_many_machines_are_in_which_zone():
    offers = own("2*L4-24x1@zonea", "A100-40x4", zones=["zoneb", "zonec"]).pool.offers
    assert [(o.zone.name, o.machine_type.name, o.count) for o in offers] == [
        ("zonea", "L4-24x1", 2), ("zoneb", "A100-40x4", 4), ("zonec", "A100-40x4", 4),
    ]  # fmt: skip
    (cpu,) = own("9*cpux2", cpu=a_gpu()).pool.offers
    assert (cpu.machine_type.num_gpus, cpu.count) == (2, 4)  # never more than max_nodes
    assert is_cpu("9*cpux2")
    assert not is_cpu("L4-24x1")


def test_this_computer_costs_nothing():
    catalogue = local_catalogue(gpu=a_gpu(), nodes=3, gpus_per_node=2)
    (offer,) = catalogue.pool.offers
    assert (offer.price_per_hour, offer.count, offer.machine_type.num_gpus) == (0.0, 3, 2)
    assert catalogue.as_of is None
