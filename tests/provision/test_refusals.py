"""What clouds say when they refuse, and what becomes of it: a code, a wait, a way out."""

from __future__ import annotations

import pytest

from provision.refusals import Cause, Fact, cause_of, judge

GCP_QUOTA = "Quota 'PREEMPTIBLE_NVIDIA_A100_GPUS' exceeded.  Limit: 8.0 in region us-central1."


@pytest.mark.parametrize(
    ("kind", "text", "cause"),
    [
        ("VMError", "ZONE_RESOURCE_POOL_EXHAUSTED: does not have enough resources", "capacity"),
        ("ServiceUnavailable", "503 ... ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "capacity"),
        ("ClientError", "An error (InsufficientInstanceCapacity) when calling", "capacity"),
        ("ClientError", "(SpotMaxPriceTooLow) Your Spot request price", "capacity"),
        ("HttpError", f"QUOTA_EXCEEDED: {GCP_QUOTA}", "quota"),
        ("ClientError", "(VcpuLimitExceeded) You have requested more vCPU capacity", "quota"),
        ("ClientError", "(MaxSpotInstanceCountExceeded) Max spot instance count exceeded", "quota"),
        ("HttpResponseError", "(QuotaExceeded) Operation could not be completed", "quota"),
        ("HttpError", "403 PERMISSION_DENIED: Required 'compute.instances.create'", "permission"),
        ("HttpError", "accessNotConfigured: Compute Engine API has not been used in project 1",
         "permission"),
        ("ClientError", "(UnauthorizedOperation) You are not authorized", "permission"),
        ("ClientError", "(AuthFailure) AWS was not able to validate them", "credentials"),
        ("NoCredentialsError", "Unable to locate credentials", "credentials"),
        ("NoCloudAccessError", "No cloud is enabled", "credentials"),
        ("ValueError", "Invalid zone 'us-central1-z' for region 'us-central1'", "offering"),
        ("ResourcesUnavailableError", "No resource satisfying GCP(a2-highgpu-1g)", "offering"),
        ("NotSupportedError", "Spot instances are not supported in Slurm.", "offering"),
        ("ClientError", "(RequestLimitExceeded) Request limit exceeded.", "throttled"),
        ("HttpError", "rateLimitExceeded: Quota exceeded for quota group", "throttled"),
        ("RuntimeError", "something nobody has seen before", "capacity"),
    ],
)  # fmt: skip
def test_a_clouds_words_are_understood(kind, text, cause):
    assert cause_of(Fact(kind=kind, text=text)) is Cause[cause]


def told(*history: tuple[str, str], text: str = "Failed to provision all possible launchable"):
    facts = {
        "kind": "ResourcesUnavailableError", "text": text,
        "history": [{"kind": k, "text": t, "history": []} for k, t in history],
    }  # fmt: skip
    return judge(facts, cloud="gcp", machine="a2-highgpu-1g", zone="us-central1-a")


def test_a_used_up_quota_is_named_with_its_region_and_limit():
    refusal = told(("HttpError", GCP_QUOTA))
    assert refusal.error.code == "E403"
    assert "PREEMPTIBLE_NVIDIA_A100_GPUS in us-central1 is used up: 8.0" in refusal.error.what
    assert "console.cloud.google.com" in refusal.error.fix
    assert (refusal.retry_s, refusal.lasting) == (3600.0, False)


def test_the_worst_of_several_causes_is_told_and_all_are_listed():
    refusal = told(
        ("VMError", "ZONE_RESOURCE_POOL_EXHAUSTED in us-central1-a"),
        ("HttpError", "PERMISSION_DENIED in us-central1-b"),
    )
    assert refusal.error.code == "E402"
    assert refusal.lasting
    assert "us-central1-a" in refusal.error.why
    assert "us-central1-b" in refusal.error.why
    assert refusal.error.fix == "gcloud services enable compute.googleapis.com"


def test_no_capacity_is_worth_another_try_and_has_a_way_out():
    refusal = told(("VMError", "ZONE_RESOURCE_POOL_EXHAUSTED"))
    assert (refusal.error.code, refusal.lasting, refusal.retry_s) == ("E405", False, None)
    assert "planner.patience" in refusal.error.fix


def test_an_exception_without_history_is_its_own_cause():
    assert told(text="GCP is not enabled. Run sky check").error.code == "E401"


def test_words_are_kept_short_and_without_colours():
    refusal = told(("VMError", "\x1b[31mZONE_RESOURCE_POOL_EXHAUSTED\x1b[0m " + "x" * 2000))
    assert "\x1b" not in refusal.error.why
    assert max(map(len, refusal.error.why.splitlines())) <= 300
