"""What Google says, asked through its own library at a local endpoint."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from provision import gcp
from provision.catalog import cloud_catalogue
from provision.facts import Facts
from provision.placement import GCP_HOSTS
from sailor.cluster.pool import MachineType
from tests.helpers.compute_api import ComputeApi, refusal, serving

pytest.importorskip("google.cloud.compute_v1", reason="needs google-cloud-compute: .[cloud]")
pytestmark = [
    # Of protobuf's C extension, as the library imports it; nothing we could do otherwise.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:google"),
    pytest.mark.filterwarnings("ignore::FutureWarning:google"),
]

MACHINES = ("a2-highgpu-1g", "g2-standard-4", "n1+V100x4")


def machines() -> dict[str, MachineType]:
    return cloud_catalogue("gcp", machine_types=MACHINES, max_nodes=1).pool.machine_types


def ask(api: ComputeApi) -> Facts:
    with serving(api):
        clients = gcp.clients(endpoint=api.endpoint, project="p")
        return gcp.ask("us-central1", machines(), clients=clients, hosts=GCP_HOSTS)


def an_api(**changes) -> ComputeApi:
    return ComputeApi(
        **{
            "machines": {
                "us-central1-a": ["a2-highgpu-1g", "n1-standard-32", "e2-micro"],
                "us-central1-b": ["g2-standard-4"],
                "europe-west4-a": ["a2-highgpu-1g"],
            },
            "quotas": {
                "NVIDIA_A100_GPUS": (8.0, 3.0),
                "PREEMPTIBLE_NVIDIA_A100_GPUS": (16.0, 0.0),
                "PREEMPTIBLE_NVIDIA_L4_GPUS": (0.0, 0.0),
                "CPUS": (24.0, 1.0),
            },
            "obtainability": {"a2-highgpu-1g": 0.4},
            **changes,
        }
    )


def test_machines_quotas_and_advice_of_a_region_are_learnt():
    facts = ask(an_api())
    assert facts.lacks == ()
    assert facts.offered == {
        "a2-highgpu-1g": frozenset({"us-central1-a"}),
        "g2-standard-4": frozenset({"us-central1-b"}),
        "n1+V100x4": frozenset({"us-central1-a"}),  # wherever its host is
    }
    quotas = {(quota.gpu, quota.spot): (quota.limit, quota.metric) for quota in facts.quotas}
    assert quotas == {
        ("A100-40", False): (5, "NVIDIA_A100_GPUS"),
        ("A100-40", True): (16, "PREEMPTIBLE_NVIDIA_A100_GPUS"),
        ("L4-24", True): (0, "PREEMPTIBLE_NVIDIA_L4_GPUS"),
    }
    assert facts.obtainable == {("us-central1-a", "a2-highgpu-1g"): pytest.approx(0.4)}


@pytest.mark.parametrize(
    ("answer", "code", "fix"),
    [
        (refusal(403, "forbidden", "Required 'compute.regions.get' permission for 'p'"), "E402",
         "gcloud services enable compute.googleapis.com"),
        (refusal(403, "accessNotConfigured", "Compute Engine API has not been used in project 1"),
         "E402", "gcloud services enable"),
        (refusal(403, "quotaExceeded", "QUOTA_EXCEEDED: Quota 'READS' exceeded.  Limit: 1.0"),
         "E403", "console.cloud.google.com"),
        (refusal(401, "authError", "Invalid Credentials: could not load credentials"), "E401",
         "gcloud auth"),
        (refusal(429, "rateLimitExceeded", "Rate Limit Exceeded"), "E405", ""),
        (refusal(503, "backendError", "ZONE_RESOURCE_POOL_EXHAUSTED"), "E405", ""),
        ((200, "<html>not JSON</html>"), "E405", ""),
        ((200, '{"quotas": [{"metric": "NVIDIA_A100_GPUS", "limit": "many"}]}'), "E405", ""),
    ],
    ids=["permission", "api off", "quota", "credentials", "throttled", "stock-out", "malformed",
         "wrong types"],
)  # fmt: skip
def test_a_refusal_is_a_lack_and_the_rest_is_learnt_all_the_same(answer, code, fix):
    facts = ask(an_api(trouble={"/regions/us-central1": answer}))
    lacks = {lack.what: lack for lack in facts.lacks}
    lack = lacks["quotas in us-central1"]
    assert lack.code == code
    assert fix in lack.fix
    assert facts.quotas == ()
    assert facts.offered["g2-standard-4"] == frozenset({"us-central1-b"})


def test_with_nothing_answered_nothing_is_claimed():
    nothing = refusal(503, "backendError", "down")
    facts = ask(an_api(trouble={"/projects/": nothing}))
    assert (facts.offered, facts.quotas, facts.obtainable) == ({}, (), {})
    assert [lack.what for lack in facts.lacks] == [
        "machines on offer in us-central1", "quotas in us-central1",
    ]  # fmt: skip


def test_the_history_of_preemptions_is_learnt_of_the_last_days_and_of_machines_that_have_one():
    """Shares of recent intervals are averaged; what ended a month ago says nothing of tomorrow."""
    today = datetime.now(UTC)
    ends = [(today - timedelta(days=days)).isoformat() for days in (1, 8, 40)]
    place = ("us-central1-a", "a2-highgpu-1g")
    api = an_api(preempted={place: list(zip(ends, (0.5, 0.7, 0.0), strict=True))})
    facts = ask(api)
    assert facts.preempted == {place: pytest.approx(0.6)}
    assert facts.lacks == ()
    asked = [path for path in api.asked if path.endswith("capacityHistory")]
    assert len(asked) == 2  # two types with a zone each; attached GPUs have no history of their own


def test_an_account_without_the_history_is_asked_for_it_once():
    api = an_api(trouble={"capacityHistory": refusal(403, "forbidden", "not on the list")})
    facts = ask(api)
    assert facts.preempted == {}
    assert [lack.what for lack in facts.lacks] == ["history of preemptions in us-central1"]
    assert sum(path.endswith("capacityHistory") for path in api.asked) == 1
    assert facts.obtainable  # and the rest is learnt all the same
