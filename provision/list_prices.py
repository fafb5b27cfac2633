"""The numbers of the built-in catalogue. Facts, each list with its source and date; no logic.

Sources: the SkyPilot catalogue (gcp and azure of 2026-05-20, aws v8 of 2026, lambda of 2026-05-07),
network rates from the clouds' documentation. GCP machines with T4 or V100 are an n1-standard host
(8 virtual CPUs for each GPU, about 0.0475 dollars an hour each, 0.010 spot) plus the GPUs.

Left out on purpose: on-demand prices the catalogue's keepers flag as wrong (GCP A100-80 and H100 in
some regions are listed at half the price of their neighbours), and spot prices at 95 % or more of
on-demand, which mean that there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sailor.cluster.network import Tariff


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine type: network rate in Gb/s, one direction, whole machine."""

    cloud: str
    name: str
    gpu: str
    num_gpus: int
    network_gbps: float
    source: str


@dataclass(frozen=True, slots=True)
class Listing:
    """Prices of one machine type in one region, US dollars per machine and hour.

    ``spot`` has the zones, each with its spot price, or None where there is none.
    """

    cloud: str
    machine: str
    region: str
    on_demand: float | None
    spot: Mapping[str, float | None]
    source: str
    as_of: str


_DOCS = "cloud documentation"

MACHINES: tuple[Machine, ...] = (
    Machine("gcp", "a2-highgpu-1g", "A100-40", 1, 24, _DOCS),
    Machine("gcp", "a2-highgpu-2g", "A100-40", 2, 32, _DOCS),
    Machine("gcp", "a2-highgpu-4g", "A100-40", 4, 50, _DOCS),
    Machine("gcp", "a2-highgpu-8g", "A100-40", 8, 100, _DOCS),
    Machine("gcp", "a2-ultragpu-1g", "A100-80", 1, 24, _DOCS),
    Machine("gcp", "a2-ultragpu-2g", "A100-80", 2, 32, _DOCS),
    Machine("gcp", "a2-ultragpu-4g", "A100-80", 4, 50, _DOCS),
    Machine("gcp", "a2-ultragpu-8g", "A100-80", 8, 100, _DOCS),
    Machine("gcp", "a3-highgpu-1g", "H100-80", 1, 50, _DOCS),
    Machine("gcp", "a3-highgpu-2g", "H100-80", 2, 100, _DOCS),
    Machine("gcp", "a3-highgpu-4g", "H100-80", 4, 200, _DOCS),
    Machine("gcp", "a3-highgpu-8g", "H100-80", 8, 1000, _DOCS),
    Machine("gcp", "a3-megagpu-8g", "H100-80", 8, 1800, _DOCS),
    Machine("gcp", "a3-ultragpu-8g", "H200-141", 8, 3600, _DOCS),
    Machine("gcp", "a4-highgpu-8g", "B200-180", 8, 3600, _DOCS),
    Machine("gcp", "g2-standard-4", "L4-24", 1, 10, _DOCS),
    Machine("gcp", "g2-standard-24", "L4-24", 2, 32, _DOCS),
    Machine("gcp", "g2-standard-48", "L4-24", 4, 50, _DOCS),
    Machine("gcp", "g2-standard-96", "L4-24", 8, 100, _DOCS),
    Machine("gcp", "n1+T4x1", "T4-16", 1, 16, _DOCS),
    Machine("gcp", "n1+T4x4", "T4-16", 4, 32, _DOCS),
    Machine("gcp", "n1+V100x1", "V100-16", 1, 16, _DOCS),
    Machine("gcp", "n1+V100x4", "V100-16", 4, 32, _DOCS),
    Machine("gcp", "n1+V100x8", "V100-16", 8, 32, _DOCS),
    Machine("aws", "p3.2xlarge", "V100-16", 1, 10, _DOCS),
    Machine("aws", "p3.8xlarge", "V100-16", 4, 10, _DOCS),
    Machine("aws", "p3dn.24xlarge", "V100-32", 8, 100, _DOCS),
    Machine("aws", "p4d.24xlarge", "A100-40", 8, 400, _DOCS),
    Machine("aws", "p4de.24xlarge", "A100-80", 8, 400, _DOCS),
    Machine("aws", "p5.4xlarge", "H100-80", 1, 100, _DOCS),
    Machine("aws", "p5.48xlarge", "H100-80", 8, 3200, _DOCS),
    Machine("aws", "p5en.48xlarge", "H200-141", 8, 3200, _DOCS),
    Machine("aws", "p6-b200.48xlarge", "B200-180", 8, 3200, _DOCS),
    Machine("aws", "g5.xlarge", "A10G-24", 1, 10, _DOCS),
    Machine("aws", "g6.4xlarge", "L4-24", 1, 25, _DOCS),
    Machine("azure", "NC6s_v3", "V100-16", 1, 6, _DOCS),
    Machine("azure", "NC24s_v3", "V100-16", 4, 24, _DOCS),
    Machine("azure", "ND40rs_v2", "V100-32", 8, 100, _DOCS),
    Machine("azure", "NC4as_T4_v3", "T4-16", 1, 8, _DOCS),
    Machine("azure", "NC64as_T4_v3", "T4-16", 4, 32, _DOCS),
    Machine("azure", "NC24ads_A100_v4", "A100-80-PCIe", 1, 20, _DOCS),
    Machine("azure", "NC48ads_A100_v4", "A100-80-PCIe", 2, 40, _DOCS),
    Machine("azure", "NC96ads_A100_v4", "A100-80-PCIe", 4, 80, _DOCS),
    Machine("azure", "ND96asr_v4", "A100-40", 8, 1600, _DOCS),
    Machine("azure", "ND96amsr_A100_v4", "A100-80", 8, 1600, _DOCS),
    Machine("azure", "NC40ads_H100_v5", "H100-80-PCIe", 1, 40, _DOCS),
    Machine("azure", "NC80adis_H100_v5", "H100-80-PCIe", 2, 80, _DOCS),
    Machine("azure", "ND96isr_H100_v5", "H100-80", 8, 3200, _DOCS),
    Machine("azure", "ND96isr_H200_v5", "H200-141", 8, 3200, _DOCS),
    Machine("lambda", "gpu_1x_a10", "A10-24", 1, 10, "assumed"),
    Machine("lambda", "gpu_8x_v100", "V100-16", 8, 20, "assumed"),
    Machine("lambda", "gpu_1x_a100", "A100-40", 1, 20, "assumed"),
    Machine("lambda", "gpu_8x_a100", "A100-40", 8, 100, "assumed"),
    Machine("lambda", "gpu_8x_a100_80gb_sxm4", "A100-80", 8, 100, "assumed"),
    Machine("lambda", "gpu_1x_gh200", "GH200-96", 1, 100, "assumed"),
    Machine("lambda", "gpu_1x_h100_sxm5", "H100-80", 1, 100, "assumed"),
    Machine("lambda", "gpu_8x_h100_sxm5", "H100-80", 8, 400, "assumed"),
    Machine("lambda", "gpu_8x_b200_sxm6", "B200-180", 8, 400, "assumed"),
    Machine("runpod", "1x_A100-80GB_SECURE", "A100-80", 1, 10, "assumed"),
    Machine("runpod", "1x_H200-SXM_SECURE", "H200-141", 1, 25, "assumed"),
)

# Dollars per GB that leaves a zone. AWS bills both ends of traffic between zones.
TARIFFS: dict[str, Tariff] = {
    "gcp": Tariff(between_zones=0.01, between_regions=0.02, source="GCP price list"),
    "aws": Tariff(between_zones=0.02, between_regions=0.02, source="AWS price list"),
    "azure": Tariff(between_zones=0.0, between_regions=0.02, source="Azure price list"),
    "lambda": Tariff(source="no egress fee"),
    "runpod": Tariff(source="no egress fee"),
}


def _gcp(machine: str, region: str, on_demand: float | None, spot: float, zones: str) -> Listing:
    """GCP has one spot price in all zones of a region; zones are letters."""
    return Listing(
        "gcp", machine, region, on_demand, {f"{region}-{z}": spot for z in zones},
        "SkyPilot catalogue, GCP", "2026-05-20",
    )  # fmt: skip


def _aws(machine: str, region: str, on_demand: float | None, **spot: float | None) -> Listing:
    """AWS zones by their ids, which mean the same in every account: az1=2.47."""
    short = {"us-east-1": "use1", "us-east-2": "use2", "us-west-2": "usw2"}[region]
    return Listing(
        "aws", machine, region, on_demand, {f"{short}-{z}": p for z, p in spot.items()},
        "SkyPilot catalogue v8, AWS", "2026-05-20",
    )  # fmt: skip


def _azure(machine: str, region: str, on_demand: float | None, spot: float | None) -> Listing:
    """Azure has one price in a region; its zones are not told apart here."""
    return Listing(
        "azure", machine, region, on_demand, {region: spot},
        "SkyPilot catalogue, Azure", "2026-05-20",
    )  # fmt: skip


def _flat(cloud: str, machine: str, on_demand: float, as_of: str) -> Listing:
    """One price everywhere, no spot."""
    return Listing(cloud, machine, cloud, on_demand, {cloud: None}, "SkyPilot catalogue", as_of)


PRICES: tuple[Listing, ...] = (
    _gcp("a2-highgpu-1g", "us-central1", 3.6734, 1.8038, "abcf"),
    _gcp("a2-highgpu-2g", "us-central1", 7.3468, 3.6077, "abcf"),
    _gcp("a2-highgpu-4g", "us-central1", 14.6935, 7.2154, "abcf"),
    _gcp("a2-highgpu-8g", "us-central1", 29.3871, 14.4308, "abcf"),
    _gcp("a2-highgpu-1g", "us-west1", 3.6734, 1.8038, "b"),
    _gcp("a2-highgpu-4g", "us-west1", 14.6935, 7.2154, "b"),
    _gcp("a2-highgpu-8g", "us-west1", 29.3871, 14.4308, "b"),
    _gcp("a2-highgpu-1g", "europe-west4", 2.4277, 1.5617, "ab"),
    _gcp("a2-highgpu-8g", "europe-west4", 19.4217, 12.4939, "ab"),
    _gcp("a2-ultragpu-1g", "us-central1", None, 2.5138, "ac"),
    _gcp("a2-ultragpu-8g", "us-central1", None, 20.1102, "ac"),
    _gcp("a2-ultragpu-8g", "us-east4", None, 18.2211, "c"),
    _gcp("a2-ultragpu-1g", "us-east5", 5.5238, 1.6565, "ab"),
    _gcp("a2-ultragpu-2g", "us-east5", 11.0476, 3.3131, "ab"),
    _gcp("a2-ultragpu-4g", "us-east5", 22.0953, 6.6261, "ab"),
    _gcp("a2-ultragpu-8g", "us-east5", 44.1906, 13.2522, "ab"),
    _gcp("a3-highgpu-1g", "us-central1", None, 4.4842, "abc"),
    _gcp("a3-highgpu-8g", "us-central1", None, 35.8736, "abc"),
    _gcp("a3-highgpu-1g", "us-east4", 10.9791, 3.3501, "abc"),
    _gcp("a3-highgpu-2g", "us-east4", 21.9581, 6.7003, "abc"),
    _gcp("a3-highgpu-4g", "us-east4", 43.9162, 13.4005, "abc"),
    _gcp("a3-highgpu-8g", "us-east4", 87.8325, 26.8011, "abc"),
    _gcp("a3-highgpu-8g", "us-east5", 98.9257, 27.556, "a"),
    _gcp("a3-highgpu-8g", "europe-west4", 111.8172, 32.6275, "bc"),
    _gcp("a3-megagpu-8g", "us-central1", 92.2143, 37.6648, "abc"),
    _gcp("a3-megagpu-8g", "us-east4", 92.2143, 18.5275, "abc"),
    _gcp("a3-ultragpu-8g", "us-central1", 86.7599, 42.2565, "b"),
    _gcp("a3-ultragpu-8g", "us-east4", 86.7599, 34.4602, "b"),
    _gcp("a4-highgpu-8g", "us-central1", 90.216, 34.2368, "b"),
    _gcp("a4-highgpu-8g", "us-east4", 64.44, 32.6064, "b"),
    _gcp("g2-standard-4", "us-central1", 0.7068, 0.296, "abc"),
    _gcp("g2-standard-24", "us-central1", 2.0008, 0.8387, "abc"),
    _gcp("g2-standard-48", "us-central1", 4.0017, 1.6774, "abc"),
    _gcp("g2-standard-96", "us-central1", 8.0033, 3.3547, "abc"),
    _gcp("g2-standard-4", "us-east4", 0.7045, 0.2959, "ac"),
    _gcp("g2-standard-96", "us-east4", 7.9771, 3.3506, "ac"),
    _gcp("g2-standard-4", "europe-west4", 0.7423, 0.3402, "abc"),
    _gcp("g2-standard-96", "europe-west4", 8.4072, 3.9559, "abc"),
    _gcp("n1+T4x1", "us-central1", 0.73, 0.245, "abcf"),
    _gcp("n1+T4x4", "us-central1", 2.92, 0.98, "abcf"),
    _gcp("n1+V100x1", "us-central1", 2.86, 1.32, "abcf"),
    _gcp("n1+V100x4", "us-central1", 11.44, 5.28, "abcf"),
    _gcp("n1+V100x8", "us-central1", 22.88, 10.56, "abcf"),
    _gcp("n1+V100x4", "us-west1", 11.44, 5.28, "ab"),
    _aws("p3.2xlarge", "us-east-1", 3.06, az1=0.3707, az2=0.4281, az5=0.4041, az6=0.3841),
    _aws("p3.2xlarge", "us-east-2", 3.06, az1=0.5901, az2=0.7522),
    _aws("p3.2xlarge", "us-west-2", 3.06, az1=0.6598, az2=0.5415, az3=0.5349),
    _aws("p3.8xlarge", "us-east-1", 12.24, az1=1.4427, az2=1.5132, az5=1.4129, az6=1.4762),
    _aws("p3.8xlarge", "us-east-2", 12.24, az1=1.3235, az2=1.2635),
    _aws("p3.8xlarge", "us-west-2", 12.24, az1=2.9372, az2=3.0794, az3=2.7475),
    _aws("p3dn.24xlarge", "us-east-1", 31.212, az1=8.2921, az6=6.2567),
    _aws("p3dn.24xlarge", "us-west-2", 31.212, az1=8.807, az3=7.1973),
    _aws("p4d.24xlarge", "us-east-1", 21.9576, az1=2.4655, az2=8.1915, az4=8.1203, az6=7.8799),
    _aws("p4d.24xlarge", "us-east-2", 21.9576, az1=6.0374, az2=6.0965, az3=None),
    _aws("p4d.24xlarge", "us-west-2", 21.9576, az1=7.9992, az2=8.2259, az3=9.7315, az4=8.4794),
    _aws("p4de.24xlarge", "us-east-1", 27.4471, az4=9.9734, az6=8.6505),
    _aws("p4de.24xlarge", "us-west-2", 27.4471, az1=10.9991, az2=11.0144, az3=10.3338),
    _aws("p5.4xlarge", "us-east-1", 6.88, az1=None, az2=None, az4=None, az6=None),
    _aws("p5.4xlarge", "us-east-2", 6.88, az1=None, az2=None, az3=None),
    _aws("p5.48xlarge", "us-east-1", 55.04, az1=None, az2=19.2531, az3=21.1543, az6=17.6289),
    _aws("p5.48xlarge", "us-east-2", 55.04, az1=11.2543, az2=11.5616, az3=11.9912),
    _aws("p5.48xlarge", "us-west-2", 55.04, az1=12.6935, az2=12.9785, az3=12.9727, az4=16.1301),
    _aws("p5en.48xlarge", "us-east-1", 63.296, az2=18.2492, az6=16.5551),
    _aws("p5en.48xlarge", "us-east-2", 63.296, az1=22.937, az2=24.2039, az3=16.24),
    _aws("p5en.48xlarge", "us-west-2", 63.296, az2=23.893, az3=15.482, az4=18.3464),
    _aws("p6-b200.48xlarge", "us-east-1", 113.9328, az6=21.0148),
    _aws("p6-b200.48xlarge", "us-east-2", 113.9328, az1=22.564, az2=21.7293, az3=21.153),
    _aws("p6-b200.48xlarge", "us-west-2", 113.9328, az1=28.442, az2=25.106, az4=23.0826),
    _aws("g5.xlarge", "us-east-1", 1.006, az1=None, az2=None, az4=None, az6=None),
    _aws("g6.4xlarge", "us-east-1", 1.3232, az1=0.6637, az2=0.6855, az4=0.6933, az6=0.6785),
    _aws("g6.4xlarge", "us-east-2", 1.3232, az1=0.5288, az2=0.5283, az3=0.5281),
    _aws("g6.4xlarge", "us-west-2", 1.3232, az1=0.7747, az2=0.8978, az3=0.5665, az4=0.5368),
    _azure("NC6s_v3", "eastus", 3.06, 0.5655),
    _azure("NC24s_v3", "eastus", 12.24, 2.262),
    _azure("ND40rs_v2", "eastus", 22.032, 4.0715),
    _azure("NC4as_T4_v3", "eastus", 0.526, 0.2042),
    _azure("NC64as_T4_v3", "eastus", 4.352, 1.6899),
    _azure("NC24ads_A100_v4", "eastus", 3.673, 0.7467),
    _azure("NC48ads_A100_v4", "eastus", 7.346, 1.4934),
    _azure("NC96ads_A100_v4", "eastus", 14.692, 2.9869),
    _azure("ND96asr_v4", "eastus", 27.197, 5.9833),
    _azure("ND96amsr_A100_v4", "eastus", 32.77, 8.5202),
    _azure("NC40ads_H100_v5", "eastus", 6.98, 2.1924),
    _azure("NC80adis_H100_v5", "eastus", 13.96, 4.3848),
    _azure("ND96isr_H100_v5", "eastus", 98.32, 18.1695),
    _azure("NC24ads_A100_v4", "westus2", 3.673, 1.2984),
    _azure("ND96asr_v4", "westus2", 27.197, 5.9833),
    _azure("ND96amsr_A100_v4", "westus2", 32.77, 8.5202),
    _azure("ND96isr_H100_v5", "westus2", 98.32, 18.1695),
    _azure("ND96isr_H200_v5", "westus2", 84.80, None),
    _azure("NC24ads_A100_v4", "westus3", 3.673, 1.3366),
    _azure("ND96amsr_A100_v4", "westus3", 32.77, 8.5202),
    _azure("ND96isr_H100_v5", "westus3", 98.32, 18.1695),
    _flat("lambda", "gpu_1x_a10", 1.29, "2026-05-07"),
    _flat("lambda", "gpu_8x_v100", 6.32, "2026-05-07"),
    _flat("lambda", "gpu_1x_a100", 1.99, "2026-05-07"),
    _flat("lambda", "gpu_8x_a100", 15.92, "2026-05-07"),
    _flat("lambda", "gpu_8x_a100_80gb_sxm4", 22.32, "2026-05-07"),
    _flat("lambda", "gpu_1x_gh200", 2.29, "2026-05-07"),
    _flat("lambda", "gpu_1x_h100_sxm5", 4.29, "2026-05-07"),
    _flat("lambda", "gpu_8x_h100_sxm5", 31.92, "2026-05-07"),
    _flat("lambda", "gpu_8x_b200_sxm6", 53.52, "2026-05-07"),
    _flat("runpod", "1x_A100-80GB_SECURE", 1.39, "2026-05-20"),
    _flat("runpod", "1x_H200-SXM_SECURE", 4.59, "2026-05-20"),
)
