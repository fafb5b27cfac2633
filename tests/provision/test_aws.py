"""What AWS says, asked through boto3 at moto, and at botocore's own stub where moto is too kind."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from provision import aws
from provision.catalog import cloud_catalogue
from sailor.cluster.pool import MachineType

boto3 = pytest.importorskip("boto3", reason="needs boto3: pip install .[cloud]")
moto = pytest.importorskip("moto", reason="needs moto: pip install .[clouds-dev]")
pytestmark = pytest.mark.filterwarnings(
    # botocore and moto call datetime.utcnow and the like; theirs to mend.
    "ignore::DeprecationWarning"
)

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
NAMES = ("p4d.24xlarge", "g6.4xlarge")


@pytest.fixture(autouse=True)
def _no_account(monkeypatch):
    """Keys that open nothing, and no look for a metadata server."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_SESSION_TOKEN": "testing", "AWS_EC2_METADATA_DISABLED": "true",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)


def machines() -> dict[str, MachineType]:
    return cloud_catalogue("aws", machine_types=NAMES, max_nodes=1).pool.machine_types


def a_stub(service: str):
    from botocore.stub import Stubber

    client = boto3.client(service, region_name="us-east-1")
    return client, Stubber(client)


def test_zones_machines_and_quotas_are_learnt_from_moto():
    with moto.mock_aws():
        ec2, service_quotas = aws.clients("us-east-1")
        facts = aws.ask(
            "us-east-1", machines(), ec2=ec2, service_quotas=service_quotas, now=lambda: NOW
        )
    assert facts.zone_names["use1-az6"].startswith("us-east-1")
    assert facts.offered["p4d.24xlarge"] <= set(facts.zone_names)
    assert facts.offered["p4d.24xlarge"]
    assert {zone for zone, _ in facts.prices} <= set(facts.zone_names)
    # moto knows no quotas of EC2, and says so as AWS would: each is a lack, none an exception.
    assert all("quota" in lack.what for lack in facts.lacks)


def price(zone: str, dollars: str, *, hours_ago: float, machine: str = "p4d.24xlarge") -> dict:
    return {
        "AvailabilityZone": zone, "InstanceType": machine, "ProductDescription": "Linux/UNIX",
        "SpotPrice": dollars, "Timestamp": NOW - timedelta(hours=hours_ago),
    }  # fmt: skip


def stubbed(ec2, quotas, *, spot_pages, limits: dict[str, float]) -> None:
    """The answers of a region, in the order in which they are asked for."""
    ec2.add_response(
        "describe_availability_zones",
        {"AvailabilityZones": [
            {"ZoneName": "us-east-1a", "ZoneId": "use1-az6"},
            {"ZoneName": "us-east-1b", "ZoneId": "use1-az1"},
        ]},
    )  # fmt: skip
    ec2.add_response(
        "describe_instance_type_offerings",
        {"InstanceTypeOfferings": [{"InstanceType": "p4d.24xlarge", "Location": "use1-az6"}]},
    )
    for page in spot_pages:
        ec2.add_response("describe_spot_price_history", page)
    ec2.add_response(
        "describe_instance_types",
        {"InstanceTypes": [
            {"InstanceType": "p4d.24xlarge", "VCpuInfo": {"DefaultVCpus": 96}},
        ]},
        {"InstanceTypes": ["p4d.24xlarge"]},
    )  # fmt: skip
    for code, value in limits.items():
        quotas.add_response(
            "get_service_quota", {"Quota": {"QuotaCode": code, "Value": value}},
            {"ServiceCode": "ec2", "QuotaCode": code},
        )  # fmt: skip


def test_prices_of_all_pages_are_the_newest_of_each_zone_and_quotas_count_gpus():
    ec2, ec2_stub = a_stub("ec2")
    quotas, quotas_stub = a_stub("service-quotas")
    pages = [
        {"NextToken": "more", "SpotPriceHistory": [
            price("us-east-1a", "9.5", hours_ago=5), price("us-east-1a", "9.8", hours_ago=1),
        ]},
        {"SpotPriceHistory": [
            price("us-east-1b", "7.25", hours_ago=90), price("us-east-1z", "1.0", hours_ago=1),
            price("us-east-1b", "a lot", hours_ago=1),
        ]},
    ]  # fmt: skip
    stubbed(
        ec2_stub, quotas_stub, spot_pages=pages, limits={"L-417A185B": 192.0, "L-7212CCBC": 95.0}
    )
    with ec2_stub, quotas_stub:
        facts = aws.ask("us-east-1", machines(), ec2=ec2, service_quotas=quotas, now=lambda: NOW)
    assert {key: value.dollars_per_hour for key, value in facts.prices.items()} == {
        ("use1-az6", "p4d.24xlarge"): 9.8, ("use1-az1", "p4d.24xlarge"): 7.25,
    }  # fmt: skip
    assert facts.offered == {
        "p4d.24xlarge": frozenset({"use1-az6"}), "g6.4xlarge": frozenset(),
    }  # fmt: skip
    # Two machines of eight GPUs on demand; on spot not even one: 95 of 96 processors.
    assert {(q.spot, q.limit) for q in facts.quotas} == {(False, 16), (True, 0)}
    assert all("vCPUs" in quota.metric for quota in facts.quotas)


@pytest.mark.parametrize(
    ("error", "code"),
    [("UnauthorizedOperation", "E402"), ("AuthFailure", "E401"), ("RequestLimitExceeded", "E405"),
     ("InsufficientInstanceCapacity", "E405"), ("VcpuLimitExceeded", "E403")],
)  # fmt: skip
def test_what_is_refused_is_a_lack_and_the_rest_is_learnt_all_the_same(error, code):
    ec2, ec2_stub = a_stub("ec2")
    quotas, quotas_stub = a_stub("service-quotas")
    ec2_stub.add_client_error("describe_availability_zones", service_error_code=error)
    ec2_stub.add_response(
        "describe_instance_type_offerings",
        {"InstanceTypeOfferings": [{"InstanceType": "p4d.24xlarge", "Location": "use1-az6"}]},
    )
    ec2_stub.add_client_error("describe_spot_price_history", service_error_code=error)
    ec2_stub.add_client_error("describe_instance_types", service_error_code=error)
    with ec2_stub, quotas_stub:
        facts = aws.ask("us-east-1", machines(), ec2=ec2, service_quotas=quotas, now=lambda: NOW)
    assert {lack.code for lack in facts.lacks} == {code}
    assert facts.lacks[0].what == "zones in us-east-1"
    assert facts.offered["p4d.24xlarge"] == frozenset({"use1-az6"})
    assert facts.prices == {}


def test_quota_families_are_told_apart():
    counting = {quota.code: [n for n in ("p4d.24xlarge", "p5.48xlarge", "p6-b200.48xlarge",
                                         "g6.4xlarge", "vt1.3xlarge", "m5.large", "p3dn.24xlarge")
                             if aws._counts(quota, n)] for quota in aws.QUOTAS}  # fmt: skip
    assert counting == {
        "L-417A185B": ["p4d.24xlarge", "p5.48xlarge", "p6-b200.48xlarge", "p3dn.24xlarge"],
        "L-7212CCBC": ["p4d.24xlarge", "p3dn.24xlarge"],
        "L-C4BD4855": ["p5.48xlarge", "p6-b200.48xlarge"],
        "L-DB2E81BA": ["g6.4xlarge", "vt1.3xlarge"],
        "L-3819A6DF": ["g6.4xlarge", "vt1.3xlarge"],
    }
