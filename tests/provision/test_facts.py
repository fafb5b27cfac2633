"""What a cloud says laid over what the catalogue remembers: each number with its source and age."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from provision.catalog import Catalogue, cloud_catalogue
from provision.facts import NO_PRICE, Facts, Lack, LivePrice, laid_over, merged
from sailor.cluster.pool import Quota

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
ZONE, NAME = "us-central1-a", "a2-highgpu-1g"


def remembered() -> Catalogue:
    return cloud_catalogue("gcp", regions=["us-central1"], machine_types=[NAME], max_nodes=4)


def facts(**said) -> Facts:
    return Facts(source="Google Cloud", asked=NOW, **said)


def spot_price(catalogue: Catalogue, zone: str = ZONE) -> float:
    return next(o.price_per_hour for o in catalogue.pool.offers if o.zone.name == zone and o.spot)


def a_price(dollars: float, *, hours_ago: float = 1.0) -> LivePrice:
    return LivePrice(dollars_per_hour=dollars, since=NOW - timedelta(hours=hours_ago))


def test_a_price_of_now_replaces_the_one_remembered_and_says_whence_it_is():
    before = remembered()
    dollars = spot_price(before) * 1.3
    after = laid_over(before, facts(prices={(ZONE, NAME): a_price(dollars)}))
    assert spot_price(after) == dollars
    offer = next(o for o in after.pool.offers if o.zone.name == ZONE and o.spot)
    assert (offer.source, offer.as_of) == ("Google Cloud", "2026-11-29")
    assert spot_price(after, "us-central1-c") == spot_price(before, "us-central1-c")
    assert after.remarks == ()
    assert "Google Cloud asked 2026-11-29 12:00 UTC" in after.label


def test_a_price_beyond_belief_is_remarked_and_not_taken():
    before = remembered()
    for dollars in (0.0, NO_PRICE, spot_price(before) * 9, spot_price(before) / 9):
        after = laid_over(before, facts(prices={(ZONE, NAME): a_price(dollars)}))
        assert spot_price(after) == spot_price(before)
        assert len(after.remarks) == 1
        assert "the catalogue's is kept" in after.remarks[0]


def test_an_old_price_is_taken_and_its_age_told():
    before = remembered()
    price = a_price(spot_price(before) * 1.1, hours_ago=100)
    after = laid_over(before, facts(prices={(ZONE, NAME): price}))
    assert spot_price(after) == price.dollars_per_hour
    assert "4 days old" in after.remarks[0]


def test_zones_without_the_machine_are_dropped_and_quotas_added():
    quota = Quota(gpu="A100-40", region="us-central1", spot=True, limit=2, metric="M")
    before = remembered()
    after = laid_over(before, facts(offered={NAME: frozenset({"us-central1-c"})}, quotas=(quota,)))
    assert after.pool.zones == ("us-central1-c",)
    assert after.pool.quotas == (quota,)
    assert set(after.network.zones) == {"us-central1-c"}
    (remark,) = after.remarks
    assert ZONE in remark


def test_what_could_not_be_learnt_leaves_the_catalogue_and_is_said():
    lack = Lack(what="quotas in us-central1", code="E402", fix="gcloud ...")
    after = laid_over(remembered(), facts(lacks=(lack,)))
    assert after.pool == remembered().pool
    assert after.remarks == ("not learnt: quotas in us-central1; the built-in catalogue is used",)


def test_regions_are_merged():
    one = facts(offered={NAME: frozenset({"a"})}, zone_names={"a": "x"})
    two = Facts(source="Google Cloud", asked=NOW - timedelta(hours=1), offered={
        NAME: frozenset({"b"})}, zone_names={"b": "y"})  # fmt: skip
    both = merged([one, two])
    assert both.offered == {NAME: frozenset({"a", "b"})}
    assert both.zone_names == {"a": "x", "b": "y"}
    assert both.asked == NOW - timedelta(hours=1)
