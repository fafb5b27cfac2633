"""Links by distance, and what crossing costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sailor.cluster.network import Link, Tariff, Tier
from sailor.cluster.pool import Quota
from tests.helpers.planning import a_gpu, a_machine, a_network, a_pool, an_offer

POOL = a_pool(
    an_offer(a_machine("m"), zone="a", region="r"),
    an_offer(a_machine("m"), zone="b", region="r"),
    an_offer(a_machine("m"), zone="c", region="s"),
    an_offer(a_machine("m"), zone="d", region="s", network="other"),
)


def test_the_further_the_slower_and_the_dearer():
    network = a_network(POOL, tariff=Tariff(between_zones=0.01, between_regions=0.02))
    links = [network.inside("m")] + [network.between("a", "m", z, "m") for z in "abc"]
    times = [link.seconds(1e6) for link in links]
    assert times == sorted(times)
    assert [link.tier for link in links] == [Tier.machine, Tier.zone, Tier.region, Tier.cloud]
    assert [network.dollars_per_gb("a", z) for z in "abc"] == [0.0, 0.01, 0.02]


def test_nothing_to_send_costs_nothing():
    assert a_network(POOL).between("a", "m", "c", "m").seconds(0) == 0.0


def test_zones_of_different_networks_do_not_connect():
    network = a_network(POOL)
    assert network.connected("a", "c")
    assert not network.connected("c", "d")


def test_quotas_of_a_pool_are_found_and_the_tightest_counts():
    quotas = tuple(Quota(gpu="A100-40", region="r", spot=True, limit=n, metric="x") for n in (8, 4))
    pool = a_pool(an_offer(), quotas=quotas)
    assert pool.allowance(gpu="A100-40", region="r", spot=True) == 4
    assert pool.allowance(gpu="A100-40", region="r", spot=False) is None


def test_one_name_cannot_mean_two_machines():
    pool = a_pool(an_offer(a_machine("m")), an_offer(a_machine("m", gpus=2), zone="b"))
    with pytest.raises(ValueError, match="two different machine types are called m"):
        _ = pool.machine_types


def test_bad_facts_are_refused():
    with pytest.raises(ValueError, match="peak_flops"):
        a_gpu(peak_flops=float("nan"))
    for price in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="its price is"):
            an_offer(price=price)


def test_what_was_measured_between_two_zones_counts_for_all_their_machines_and_no_others():
    measured = Link(
        tier=Tier.region, seconds_per_message=1e-3, bytes_per_second=1e6, source="measured"
    )
    network = replace(a_network(POOL), paths={("a", "b"): measured})
    assert network.between("b", "m", "a", "m") == network.between("a", "m", "b", "m") == measured
    assert network.between("a", "m", "a", "m") == a_network(POOL).between("a", "m", "a", "m")
    assert network.between("a", "m", "c", "m") == a_network(POOL).between("a", "m", "c", "m")
