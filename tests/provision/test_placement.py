"""A plan's machines in SkyPilot's words, and what SkyPilot itself makes of them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import asdict

import pytest

from provision.catalog import CLOUDS, cloud_catalogue, own_catalogue
from provision.placement import INFRAS, Placement, gpu_name, placement
from sailor.cluster.gpu import GPU_TYPES
from sailor.cluster.pool import Offer
from sailor.errors import CloudError
from sailor.runtime.notices import CLOUDS as CLOUDS_WITH_NOTICES
from tests.helpers.compose import ROOT, a_config
from tests.helpers.planning import a_gpu

with_skypilot = pytest.mark.skipif(
    importlib.util.find_spec("sky") is None,
    reason="SkyPilot is not installed: pip install .[cloud]",
)


def offers_of(cloud: str, *machine_types: str) -> tuple[Offer, ...]:
    return cloud_catalogue(cloud, machine_types=machine_types, max_nodes=4).pool.offers


def placed(cloud: str, machine_type: str, *, spot: bool, **more) -> Placement:
    offer = next(o for o in offers_of(cloud, machine_type) if o.spot == spot)
    return placement(offer.machine_type, zone=offer.zone, spot=spot, **more)


def test_a_machine_is_pinned_to_its_zone_its_type_and_its_kind():
    assert placed("gcp", "a2-highgpu-1g", spot=True) == Placement(
        infra="gcp/us-central1/us-central1-a", use_spot=True, instance_type="a2-highgpu-1g",
        accelerators="A100:1",
    )  # fmt: skip
    n1 = placed("gcp", "n1+V100x4", spot=False)
    assert (n1.instance_type, n1.accelerators, n1.use_spot) == ("n1-standard-32", "V100:4", False)
    azure = placed("azure", "NC24ads_A100_v4", spot=True)
    assert (azure.infra, azure.instance_type) == ("azure/eastus", "Standard_NC24ads_A100_v4")
    assert placed("lambda", "gpu_8x_a100", spot=False).infra == "lambda"


def test_an_aws_zone_is_asked_for_by_the_accounts_own_name():
    named = placed("aws", "p4d.24xlarge", spot=True, zone_names={"use1-az1": "us-east-1f"})
    assert named.infra == "aws/us-east-1/us-east-1f"
    with pytest.raises(CloudError, match="no zone use1-az1") as refusal:
        placed("aws", "p4d.24xlarge", spot=True, zone_names={"use1-az9": "us-east-1a"})
    assert refusal.value.code == "E404"


def test_machines_of_ones_own_are_asked_for_by_what_they_have():
    def own(name: str, cluster: str | None) -> Placement:
        (offer,) = own_catalogue(
            "slurm", cluster=cluster, zones=(), machine_types=[name], max_nodes=2, cpu=a_gpu()
        ).pool.offers
        return placement(offer.machine_type, zone=offer.zone, spot=False)

    assert own("A100-80x8@gpus", "big") == Placement(
        infra="slurm/big/gpus", use_spot=False, accelerators="A100-80GB:8"
    )
    assert own("cpux2@batch", "big") == Placement(
        infra="slurm/big/batch", use_spot=False, cpus="2+"
    )
    assert own("L4-24x1", None).infra == "slurm"


def test_spot_is_refused_where_there_is_none():
    (offer, *_) = offers_of("lambda", "gpu_8x_a100")
    with pytest.raises(CloudError, match="no spot machines") as refusal:
        placement(offer.machine_type, zone=offer.zone, spot=True)
    assert refusal.value.fix == "cloud.spot=false"


@pytest.mark.parametrize("cloud", INFRAS)
def test_what_the_configuration_says_of_a_cloud_is_what_the_table_says(cloud):
    config = a_config(f"cloud={cloud}")
    infra = INFRAS[cloud]
    assert config.cloud.spot is (None if infra.spot else False)
    assert config.cloud.nodes_per_cluster <= infra.most_nodes
    text = (ROOT / "conf" / "cloud" / f"{cloud}.yaml").read_text()
    if not infra.ends_idle:
        assert "cannot end itself" in text
    if not infra.spot:
        assert "no spot" in text
    assert infra.gives_notice == (cloud in CLOUDS_WITH_NOTICES)


def test_every_gpu_of_a_cloud_has_a_name_at_skypilot():
    """Theirs as of 0.14, for those that ours are spelt differently from."""
    assert gpu_name("A100-40") == "A100"
    assert gpu_name("H200-141") == "H200"
    assert gpu_name("V100-32") == "V100-32GB"
    assert gpu_name("RTX-4090") == "RTX4090"
    assert all("-" not in gpu_name(name).removesuffix("GB") or "GB" in gpu_name(name)
               for name in GPU_TYPES if not name.startswith("Titan"))  # fmt: skip


@with_skypilot
@pytest.mark.timeout(300)
def test_skypilot_would_rent_exactly_what_the_plan_says_at_its_price(tmp_path):
    """Its optimiser in a process of its own, on our prices: place, type, GPUs, number and price."""
    offers = [
        offer
        for cloud in CLOUDS[:2]
        for offer in offers_of(cloud)
        if offer.zone.name in ("us-central1-a", "use1-az1", "use2-az3")
    ]
    wanted = [
        {**asdict(placement(o.machine_type, zone=o.zone, spot=o.spot)), "num_nodes": 3}
        for o in offers
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.sky_catalogue"], input=json.dumps(wanted), cwd=ROOT,
        env={**os.environ, "HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
             "AWS_EC2_METADATA_DISABLED": "true"},
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert len(found) == len(offers) > 10
    for offer, want, best in zip(offers, wanted, found, strict=True):
        zone = best["zone"] or best["region"]
        assert (best["cloud"], best["region"], zone) == (
            offer.zone.cloud, offer.zone.region, offer.zone.name,
        )  # fmt: skip
        assert best["instance_type"] == want["instance_type"]
        ((gpu, number),) = best["accelerators"].items()
        assert number == offer.machine_type.num_gpus
        assert want["accelerators"] in (None, f"{gpu}:{number}")
        assert (best["use_spot"], best["num_nodes"]) == (offer.spot, 3)
        # Cents: the host's cent is added to the GPUs' price again, in floating point.
        assert best["dollars_per_hour"] == pytest.approx(offer.price_per_hour, abs=0.005)
