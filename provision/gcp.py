"""What Google Cloud says: machines on offer, quotas, capacity now and of late. Asks, never rents.

Clients are given, so that anything that speaks the Compute API can answer. Every call has a time
limit and is made once (the library would repeat a failing one for ten minutes), and a failure is a
Lack, not an exception: planning goes on without.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from statistics import fmean
from typing import Any

from provision.facts import Facts, Lack
from provision.refusals import ANSWERS, Cause, Fact, cause_of, fix_for
from sailor.cluster.pool import MachineType, Quota

SOURCE = "Google Cloud"
_TIMEOUT_S = 10.0
_HISTORY = timedelta(days=14)  # older preemptions say little about tomorrow

# Our GPU -> the middle of Google's quota metric; preemptible ones have a prefix of their own.
_METRICS = {
    "T4-16": "NVIDIA_T4_GPUS", "L4-24": "NVIDIA_L4_GPUS", "V100-16": "NVIDIA_V100_GPUS",
    "A100-40": "NVIDIA_A100_GPUS", "A100-80": "NVIDIA_A100_80GB_GPUS",
    "H100-80": "NVIDIA_H100_GPUS", "H200-141": "NVIDIA_H200_GPUS", "B200-180": "NVIDIA_B200_GPUS",
}  # fmt: skip
_PREEMPTIBLE = "PREEMPTIBLE_"


@dataclass(frozen=True, kw_only=True, slots=True)
class Clients:
    """Compute API clients. ``advice`` is None where the library has none."""

    project: str
    machine_types: Any
    regions: Any
    advice: Any = None


def clients(*, project: str | None = None, endpoint: str | None = None) -> Clients:
    """Clients of the user's default credentials, or of none at an ``endpoint`` of one's own.

    Raises ModuleNotFoundError, and google.auth's DefaultCredentialsError where nobody is logged in.
    """
    # Looking for a metadata server would dial an address: this computer is not asked for one. Read
    # by google.auth when it is first imported.
    os.environ.setdefault("NO_GCE_CHECK", "true")
    compute = importlib.import_module("google.cloud.compute_v1")
    options: dict[str, Any] = {}
    if endpoint is not None:
        anonymous = importlib.import_module("google.auth.credentials").AnonymousCredentials()
        options = {"credentials": anonymous, "client_options": {"api_endpoint": endpoint}}
        project = project or "none"
    else:
        found, detected = importlib.import_module("google.auth").default()
        options = {"credentials": found}
        project = project or os.environ.get("GOOGLE_CLOUD_PROJECT") or detected
    advice = getattr(compute, "AdviceClient", None)
    return Clients(
        project=str(project),
        machine_types=compute.MachineTypesClient(**options),
        regions=compute.RegionsClient(**options),
        advice=None if advice is None else advice(**options),
    )


def ask(
    region: str,
    machines: Mapping[str, MachineType],
    *,
    clients: Clients,
    hosts: Mapping[str, str] | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Facts:
    """Everything Google says about these machine types in a region.

    ``hosts`` names the host of a machine that takes its GPUs as an attachment: such a machine is on
    offer wherever the host is, as far as this can tell.
    """
    lacks: list[Lack] = []

    def learnt(what: str, question: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return question()
        except Exception as error:  # google.api_core's, requests', or a malformed answer
            lacks.append(_lack(f"{what} in {region}", error))
            return otherwise

    offered = learnt(
        "machines on offer", lambda: _offered(clients, region, machines, hosts or {}), {}
    )
    quotas = learnt("quotas", lambda: _quotas(clients, region, machines), ())
    obtainable: dict[tuple[str, str], float] = {}
    preempted: dict[tuple[str, str], float] = {}
    if clients.advice is not None:
        of_late = partial(_of_late, clients, region, offered, set(hosts or {}), today=now())
        preempted = learnt("history of preemptions", of_late, {})
        for name, zones in sorted(offered.items()):
            share = learnt(
                f"capacity advice on {name}", partial(_advice, clients, region, name), None
            )
            if share is not None:
                obtainable |= {(zone, name): share for zone in zones}
    return Facts(
        source=SOURCE,
        asked=now(),
        offered=offered,
        quotas=tuple(quotas),
        obtainable=obtainable,
        preempted=preempted,
        lacks=tuple(lacks),
    )


def _offered(
    clients: Clients, region: str, machines: Mapping[str, MachineType], hosts: Mapping[str, str]
) -> dict[str, frozenset[str]]:
    """Machine type -> zones of the region that have it."""
    zones: dict[str, set[str]] = {}
    answer = clients.machine_types.aggregated_list(
        project=clients.project, retry=None, timeout=_TIMEOUT_S
    )
    for scope, found in answer:
        zone = scope.removeprefix("zones/")
        if zone.rpartition("-")[0] == region:
            for machine in found.machine_types:
                zones.setdefault(machine.name, set()).add(zone)
    return {name: frozenset(zones.get(hosts.get(name, name), ())) for name in machines}


def _quotas(
    clients: Clients, region: str, machines: Mapping[str, MachineType]
) -> tuple[Quota, ...]:
    """What is left of each GPU quota that matters."""
    answer = clients.regions.get(
        project=clients.project, region=region, retry=None, timeout=_TIMEOUT_S
    )
    left = {quota.metric: max(0, int(quota.limit - quota.usage)) for quota in answer.quotas}
    found = []
    for gpu in sorted({machine.gpu.name for machine in machines.values()}):
        metric = _METRICS.get(gpu)
        for spot, prefix in ((False, ""), (True, _PREEMPTIBLE)):
            if metric is not None and prefix + metric in left:
                name = prefix + metric
                found.append(
                    Quota(gpu=gpu, region=region, spot=spot, limit=left[name], metric=name)
                )
    return tuple(found)


def _advice(clients: Clients, region: str, machine: str) -> float | None:
    """Google's estimate that a spot machine can be had now, 0 to 1; None where it has none."""
    compute = importlib.import_module("google.cloud.compute_v1")
    answer = clients.advice.capacity(
        project=clients.project,
        region=region,
        capacity_advice_request_resource=compute.CapacityAdviceRequest(
            instance_properties=compute.CapacityAdviceRequestInstanceProperties(
                scheduling=compute.CapacityAdviceRequestInstancePropertiesScheduling(
                    provisioning_model="SPOT"
                )
            ),
            instance_flexibility_policy=compute.CapacityAdviceRequestInstanceFlexibilityPolicy(
                instance_selections={
                    "only": compute.CapacityAdviceRequestInstanceFlexibilityPolicyInstanceSelection(
                        machine_types=[machine]
                    )
                }
            ),
            size=1,
        ),
        retry=None,
        timeout=_TIMEOUT_S,
    )
    shares = [
        float(recommendation.scores.obtainability) for recommendation in answer.recommendations
    ]
    return min(1.0, max(0.0, max(shares))) if shares else None


def _of_late(
    clients: Clients,
    region: str,
    offered: Mapping[str, frozenset[str]],
    attached: Collection[str],
    *,
    today: datetime,
) -> dict[tuple[str, str], float]:
    """(zone, machine type) -> share of the spot machines that stopped there in the last days that
    were preempted. Machines with ``attached`` GPUs have no history of their own. The first answer
    that is a refusal is the last that is asked for: accounts have this or have it not."""
    compute = importlib.import_module("google.cloud.compute_v1")
    found = {}
    for name in sorted(offered.keys() - set(attached)):
        for zone in sorted(offered[name]):
            answer = clients.advice.capacity_history(
                project=clients.project,
                region=region,
                capacity_history_request_resource=compute.CapacityHistoryRequest(
                    instance_properties=compute.CapacityHistoryRequestInstanceProperties(
                        machine_type=name,
                        scheduling=compute.CapacityHistoryRequestInstancePropertiesScheduling(
                            provisioning_model="SPOT"
                        ),
                    ),
                    location_policy=compute.CapacityHistoryRequestLocationPolicy(
                        location=f"zones/{zone}"
                    ),
                    types=["PREEMPTION"],
                ),
                retry=None,
                timeout=_TIMEOUT_S,
            )
            shares = [
                float(record.preemption_rate)
                for record in answer.preemption_history
                if _is_recent(record.interval.end_time, today=today)
            ]
            if shares:
                found[zone, name] = min(1.0, max(0.0, fmean(shares)))
    return found


def _is_recent(end: str, *, today: datetime) -> bool:
    """Whether an interval of history ended in the last days. Raises ValueError for no time."""
    return not end or today - datetime.fromisoformat(end) <= _HISTORY


def _lack(what: str, error: Exception) -> Lack:
    cause = cause_of(Fact(kind=type(error).__name__, text=str(error)))
    code = ANSWERS[cause].code
    fix = fix_for(cause, cloud="gcp") if cause is not Cause.capacity else ""
    return Lack(what=what, code=code, why=f"{type(error).__name__}: {error}"[:300], fix=fix)
