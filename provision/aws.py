"""What AWS says: zones and their names, machines on offer, spot prices, quotas. Asks, never rents.

Clients are given, so that anything that speaks boto3's words can answer. Every call has boto3's own
time limits (``clients``), and a failure is a Lack, not an exception: planning goes on without.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from provision.facts import Facts, Lack, LivePrice
from provision.refusals import ANSWERS, Cause, Fact, cause_of, fix_for
from sailor.cluster.pool import MachineType, Quota

SOURCE = "AWS"
_TIMEOUT_S = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class QuotaCode:
    """A service quota that counts virtual processors of some machine families."""

    code: str
    families: tuple[str, ...]
    spot: bool
    name: str


# From the service-quotas console; the P5 spot quota apart from that of P2 to P4.
QUOTAS = (
    QuotaCode(code="L-417A185B", families=("p",), spot=False, name="Running On-Demand P instances"),
    QuotaCode(
        code="L-7212CCBC", families=("p2", "p3", "p4"), spot=True,
        name="All P4, P3 and P2 Spot Instance Requests",
    ),
    QuotaCode(code="L-C4BD4855", families=("p5", "p6"), spot=True,
              name="All P5 Spot Instance Requests"),
    QuotaCode(
        code="L-DB2E81BA", families=("g", "vt"), spot=False,
        name="Running On-Demand G and VT instances",
    ),
    QuotaCode(
        code="L-3819A6DF", families=("g", "vt"), spot=True,
        name="All G and VT Spot Instance Requests",
    ),
)  # fmt: skip


def clients(region: str) -> tuple[Any, Any]:
    """EC2 and service-quotas clients of a region, impatient. Raises ModuleNotFoundError."""
    boto3 = importlib.import_module("boto3")
    config = importlib.import_module("botocore.config").Config(
        connect_timeout=_TIMEOUT_S, read_timeout=_TIMEOUT_S,
        retries={"max_attempts": 3, "mode": "standard"}, region_name=region,
    )  # fmt: skip
    return boto3.client("ec2", config=config), boto3.client("service-quotas", config=config)


def ask(
    region: str,
    machines: Mapping[str, MachineType],
    *,
    ec2: Any,
    service_quotas: Any,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Facts:
    """Everything AWS says about these machine types in a region."""
    lacks: list[Lack] = []
    names = sorted(machines)

    def learnt(what: str, question: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return question()
        except Exception as error:  # botocore's classes are made at run time, by name
            lacks.append(_lack(f"{what} in {region}", error))
            return otherwise

    zone_ids = learnt("zones", lambda: _zones(ec2), {})  # name -> id
    offered = learnt("machines on offer", lambda: _offered(ec2, names), {})
    prices = learnt("spot prices", lambda: _spot_prices(ec2, names, zone_ids, now()), {})
    processors = learnt("sizes of machines", lambda: _processors(ec2, names, offered), {})
    quotas: list[Quota] = []
    for quota in QUOTAS:
        mine = [name for name in names if _counts(quota, name) and name in processors]
        if not mine:
            continue
        limit = learnt(f"quota {quota.name}", partial(_limit, service_quotas, quota), None)
        if limit is not None:
            quotas += _in_gpus(quota, limit, mine, machines, processors, region)
    return Facts(
        source=SOURCE,
        asked=now(),
        prices=prices,
        offered=offered,
        quotas=tuple(quotas),
        zone_names={zone_id: name for name, zone_id in zone_ids.items()},
        lacks=tuple(lacks),
    )


def _zones(ec2: Any) -> dict[str, str]:
    answer = ec2.describe_availability_zones()
    return {str(z["ZoneName"]): str(z["ZoneId"]) for z in answer["AvailabilityZones"]}


def _offered(ec2: Any, names: Sequence[str]) -> dict[str, frozenset[str]]:
    """Machine type -> ids of zones that have it; none for one that the region lacks."""
    found: dict[str, set[str]] = {name: set() for name in names}
    for page in _pages(
        ec2.describe_instance_type_offerings,
        LocationType="availability-zone-id",
        Filters=[{"Name": "instance-type", "Values": list(names)}],
    ):
        for row in page["InstanceTypeOfferings"]:
            found[str(row["InstanceType"])].add(str(row["Location"]))
    return {name: frozenset(zones) for name, zones in found.items()}


def _spot_prices(
    ec2: Any, names: Sequence[str], zone_ids: Mapping[str, str], now: datetime
) -> dict[tuple[str, str], LivePrice]:
    """The newest price of each type in each zone. Rows that make no sense are left out."""
    newest: dict[tuple[str, str], LivePrice] = {}
    for page in _pages(
        ec2.describe_spot_price_history,
        InstanceTypes=list(names),
        ProductDescriptions=["Linux/UNIX"],
        StartTime=now,  # the price in force at that moment, however old
    ):
        for row in page["SpotPriceHistory"]:
            zone = row.get("AvailabilityZoneId") or zone_ids.get(str(row.get("AvailabilityZone")))
            try:
                price = LivePrice(dollars_per_hour=float(row["SpotPrice"]), since=row["Timestamp"])
            except (KeyError, TypeError, ValueError):
                continue
            key = (str(zone), str(row["InstanceType"]))
            if zone and (key not in newest or newest[key].since < price.since):
                newest[key] = price
    return newest


def _processors(
    ec2: Any, names: Sequence[str], offered: Mapping[str, frozenset[str]]
) -> dict[str, int]:
    """Virtual processors of each machine type that the region has: what quotas count."""
    here = [name for name in names if offered.get(name)]
    if not here:
        return {}
    answer = ec2.describe_instance_types(InstanceTypes=here)
    return {
        str(row["InstanceType"]): int(row["VCpuInfo"]["DefaultVCpus"])
        for row in answer["InstanceTypes"]
    }


def _limit(service_quotas: Any, quota: QuotaCode) -> float:
    answer = service_quotas.get_service_quota(ServiceCode="ec2", QuotaCode=quota.code)
    return float(answer["Quota"]["Value"])


def _counts(quota: QuotaCode, machine: str) -> bool:
    """Whether a machine's processors count there: p4d.24xlarge is of family p4, and of all p."""
    return any(
        re.match(rf"{known}(?!\d)" if known[-1].isdigit() else rf"{known}\d", machine)
        for known in quota.families
    )


def _in_gpus(
    quota: QuotaCode, limit: float, mine: Iterable[str], machines: Mapping[str, MachineType],
    processors: Mapping[str, int], region: str,
) -> list[Quota]:  # fmt: skip
    """A quota of processors as GPUs of each type, if all of it went to that type."""
    most: dict[str, int] = {}
    for name in mine:
        gpus = int(limit // processors[name]) * machines[name].num_gpus
        gpu = machines[name].gpu.name
        most[gpu] = max(most.get(gpu, 0), gpus)
    return [
        Quota(
            gpu=gpu, region=region, spot=quota.spot, limit=gpus,
            metric=f"{quota.code} {quota.name}, {limit:g} vCPUs",
        )
        for gpu, gpus in most.items()
    ]  # fmt: skip


def _pages(call: Callable[..., Any], **arguments: Any) -> Iterable[Any]:
    """All pages of an answer that comes in several."""
    token = ""
    while True:
        page = call(**arguments, **({"NextToken": token} if token else {}))
        yield page
        token = page.get("NextToken") or ""
        if not token:
            return


def _lack(what: str, error: Exception) -> Lack:
    cause = cause_of(Fact(kind=type(error).__name__, text=str(error)))
    code = ANSWERS[cause].code
    fix = fix_for(cause, cloud="aws") if cause is not Cause.capacity else ""
    return Lack(what=what, code=code, why=f"{type(error).__name__}: {error}"[:300], fix=fix)
