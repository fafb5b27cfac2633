"""The built-in catalogue: facts that hang together, narrowed as asked, labelled with their age."""

from __future__ import annotations

from datetime import date

import pytest

from provision.catalog import CLOUDS, cloud_catalogue, local_catalogue, own_catalogue
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


def own(*machine_types):
    return own_catalogue("slurm", cluster=None, zones=[], machine_types=machine_types, max_nodes=2)


def test_an_own_cluster_is_named_by_gpu_and_count():
    (offer,) = own("H100-80x8").pool.offers
    assert offer.machine_type.num_gpus == 8
    assert offer.machine_type.gpu.name == "H100-80"
    with pytest.raises(ConfigError):
        own("8xH100")
    with pytest.raises(ConfigError):
        own()


def test_this_computer_costs_nothing():
    catalogue = local_catalogue(gpu=a_gpu(), nodes=3, gpus_per_node=2)
    offers = catalogue.pool.offers
    assert sum(offer.count for offer in offers) == 3
    assert all(o.price_per_hour == 0.0 and o.machine_type.num_gpus == 2 for o in offers)
    assert catalogue.as_of is None
