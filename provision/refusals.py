"""What a cloud's refusal means: which of E401 to E405, how long to wait, and what helps.

Judges plain facts about exceptions, so it needs no cloud's library. Texts are those that the
clouds' APIs and SkyPilot 0.14 use; what is not recognised counts as no capacity, which is tried
again, with the cloud's own words as the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from provision.clusters import LaunchRefused
from sailor.errors import CloudError


class Cause(Enum):
    """Why an order came to nothing, worst first: the worst of several is told."""

    credentials = "credentials"
    permission = "permission"
    quota = "quota"
    offering = "offering"
    throttled = "throttled"
    capacity = "capacity"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What follows from a cause; ``retry_s`` and ``lasting`` as in provisioner.Refused."""

    code: str
    retry_s: float | None = None
    lasting: bool = False


ANSWERS: Mapping[Cause, Answer] = {
    Cause.credentials: Answer(code="E401", lasting=True),
    Cause.permission: Answer(code="E402", lasting=True),
    # Quotas change by hand: not worth more than a look an hour. Throttling passes in a minute.
    Cause.quota: Answer(code="E403", retry_s=3600.0),
    Cause.offering: Answer(code="E404", lasting=True),
    Cause.throttled: Answer(code="E405", retry_s=60.0),
    Cause.capacity: Answer(code="E405"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """One exception, as plain values."""

    kind: str
    text: str


# A sign is looked for in "Kind: text", without regard to case. Order matters: what a cloud says
# about quotas often mentions permissions, and what it says about capacity mentions both.
_SIGNS: Sequence[tuple[Cause, str]] = (
    (Cause.throttled, r"RequestLimitExceeded|rateLimitExceeded|Throttling|TooManyRequests|\b429\b"),
    (Cause.quota, r"QUOTA_EXCEEDED|Quota '|VcpuLimitExceeded|MaxSpotInstanceCountExceeded"),
    (Cause.quota, r"QuotaExceeded|quota (?:limit|exceeded)|exceed\w* (?:\w+ ){0,3}quota"),
    (Cause.capacity, r"ZONE_RESOURCE_POOL_EXHAUSTED|InsufficientInstanceCapacity|SkuNotAvailable"),
    (Cause.capacity, r"SpotMaxPriceTooLow|does not have enough resources|AllocationFailed"),
    (Cause.capacity, r"InsufficientCapacity|no (?:longer )?available|provision.?timeout"),
    (Cause.credentials, r"InvalidCloudCredentials|NoCloudAccessError|CloudUserIdentityError"),
    (Cause.credentials, r"NoCredentialsError|DefaultCredentialsError|could not load credentials"),
    (Cause.credentials, r"Unauthorized\b|Unauthenticated|RefreshError|cannot be refreshed"),
    (Cause.credentials, r"AuthFailure|InvalidClientTokenId|ExpiredToken"),
    (Cause.credentials, r"is not enabled|No cloud is enabled|cloud access is not set up"),
    (Cause.permission, r"PERMISSION_DENIED|PermissionDenied|UnauthorizedOperation|AccessDenied"),
    (Cause.permission, r"accessNotConfigured|SERVICE_DISABLED|API has not been used|Forbidden"),
    (Cause.permission, r"AuthorizationFailed|does not have (?:\w+ ){0,3}permission|\b403\b"),
    (Cause.offering, r"Invalid (?:zone|region|instance|accelerator)|No resource satisfying"),
    (Cause.offering, r"NotSupportedError|not supported|No launchable resource|Unsupported"),
)  # fmt: skip

_SUGGEST = {
    "gcp": {
        Cause.credentials: "gcloud auth application-default login",
        Cause.permission: "gcloud services enable compute.googleapis.com",
        Cause.quota: "https://console.cloud.google.com/iam-admin/quotas",
    },
    "aws": {
        Cause.credentials: "aws configure",
        Cause.permission: "aws iam attach-user-policy --policy-arn "
        "arn:aws:iam::aws:policy/AmazonEC2FullAccess --user-name NAME",
        Cause.quota: "https://console.aws.amazon.com/servicequotas/home/services/ec2/quotas",
    },
    "azure": {
        Cause.credentials: "az login",
        Cause.permission: "az role assignment create --role Contributor --assignee NAME",
        Cause.quota: "https://portal.azure.com/#view/Microsoft_Azure_Capacity/QuotaMenuBlade",
    },
    "lambda": {Cause.credentials: "an API key in ~/.lambda_cloud/lambda_keys"},
    "runpod": {Cause.credentials: "runpod config"},
    "kubernetes": {Cause.credentials: "kubectl config use-context NAME"},
    "slurm": {Cause.credentials: "a Host in ~/.slurm/config, then: sky check slurm"},
}
# What goes on working; told in errors, not in the one-line fixes of action=check.
_WITHOUT = {
    Cause.credentials: "\npython run.py action=plan cloud={cloud}   needs no account, nor does "
    "action=simulate",
    Cause.quota: "\npython run.py action=plan cloud={cloud}   plans within the quotas there are",
}
_QUOTA_METRIC = re.compile(
    r"Quota '(?P<metric>[\w./-]+)' exceeded\.\s+Limit: (?P<limit>[\d.]+)"
    r"(?: in region (?P<region>[\w-]+))?"
)
_LONGEST_TEXT = 300


def judge(facts: Mapping[str, Any], *, cloud: str, machine: str, zone: str) -> LaunchRefused:
    """What a failed launch in ``zone`` means. ``facts`` are those of provision.skypilot.facts.

    The causes tried are listed, the worst decides: a zone without capacity is no comfort where the
    account may not rent at all.
    """
    found = list(_flat(facts))
    causes = [cause_of(fact) for fact in found]
    tried = causes[1:] if len(causes) > 1 else causes  # the outermost only sums up
    cause = min(tried, key=list(Cause).index)
    decisive = found[causes.index(cause, 1 if len(causes) > 1 else 0)]
    answer = ANSWERS[cause]
    error = CloudError(
        _what(cause, cloud=cloud, machine=machine, zone=zone, fact=decisive),
        code=answer.code,
        why=_said(found),
        where=f"{cloud}, {zone}",
        fix=fix_for(cause, cloud=cloud) + _WITHOUT.get(cause, "").format(cloud=cloud),
    )
    return LaunchRefused(error, retry_s=answer.retry_s, lasting=answer.lasting)


def cause_of(fact: Fact) -> Cause:
    """Which cause an exception's class and text speak of."""
    text = f"{fact.kind}: {fact.text}"
    return next((cause for cause, sign in _SIGNS if re.search(sign, text, re.I)), Cause.capacity)


def fix_for(cause: Cause, *, cloud: str) -> str:
    """One line that helps, where the cloud is known to have one."""
    return _SUGGEST.get(cloud, {}).get(cause, "") or {
        Cause.credentials: "sky check",
        Cause.offering: "cloud.zones=[]  cloud.machine_types=[]",
        Cause.capacity: "planner.patience=2h   waits longer",
        Cause.throttled: "planner.patience=2h   waits longer",
    }.get(cause, "")


def _what(cause: Cause, *, cloud: str, machine: str, zone: str, fact: Fact) -> str:
    match cause:
        case Cause.credentials:
            return f"SkyPilot has no access to {cloud}"
        case Cause.permission:
            return f"this account may not rent machines on {cloud}"
        case Cause.quota:
            if metric := _QUOTA_METRIC.search(fact.text):
                region = metric["region"] or zone
                return f"quota {metric['metric']} in {region} is used up: {metric['limit']} allowed"
            return f"the quota for {machine} in {zone} is used up"
        case Cause.offering:
            return f"{cloud} has no {machine} in {zone}"
        case Cause.throttled:
            return f"{cloud} asks for fewer requests"
    return f"no {machine} can be had in {zone} now"


def _flat(facts: Mapping[str, Any]) -> Iterator[Fact]:
    yield Fact(kind=str(facts.get("kind", "")), text=str(facts.get("text", "")))
    for tried in facts.get("history", ()):
        yield from _flat(tried)


def _said(found: Sequence[Fact]) -> str:
    """The clouds' own words, each once, the innermost first, in bounds."""
    lines = dict.fromkeys(_line(fact) for fact in reversed(found))
    return "\n".join(list(lines)[:4])


def _line(fact: Fact) -> str:
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", fact.text).split())
    return f"{fact.kind}: {text}"[:_LONGEST_TEXT]
