"""What the user's account with a cloud says, asked in all regions at once; nothing is rented.

No credentials, no library, no answer: each is a remark, and the built-in catalogue stands.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from provision import aws, gcp
from provision.catalog import Catalogue
from provision.facts import Facts, Lack, laid_over, merged
from provision.placement import GCP_HOSTS
from provision.refusals import Cause, fix_for
from sailor.cluster.pool import MachineType
from sailor.config import Config

EXTRA = "pip install 'sailor-train[cloud]'"
LIBRARIES = {"aws": "boto3", "gcp": "google.cloud.compute_v1"}
_AT_ONCE = 8


def asked_of_cloud(config: Config, catalogue: Catalogue) -> Catalogue:
    """The catalogue with the account's own facts, where this cloud can be asked."""
    facts = facts_of(config, catalogue)
    return catalogue if facts is None else laid_over(catalogue, facts)


def facts_of(config: Config, catalogue: Catalogue) -> Facts | None:
    """Everything the cloud says about the catalogue's machines; None where there is no way to ask.

    Without credentials or library the facts are a single Lack.
    """
    cloud = config.cloud.name
    if cloud not in LIBRARIES:
        return None
    lack = lacking(cloud)
    if lack is not None:
        return Facts(source=cloud, asked=datetime.now(UTC), lacks=(lack,))
    machines: dict[str, dict[str, MachineType]] = {}  # region -> name -> type
    for offer in catalogue.pool.offers:
        machines.setdefault(offer.zone.region, {})[offer.machine_type.name] = offer.machine_type
    ask = _ask_aws if cloud == "aws" else _ask_gcp()
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        parts = list(threads.map(lambda region: ask(region, machines[region]), machines))
    return merged(parts)


def _is_there(module: str) -> bool:
    """Whether it can be imported; others may have brought the package it is in."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def lacking(cloud: str) -> Lack | None:
    """What keeps us from asking a cloud at all: its library or its credentials."""
    library = LIBRARIES[cloud]
    if not _is_there(library):
        return Lack(what=f"anything of {cloud}", code="E605", why=f"no {library}", fix=EXTRA)
    login = fix_for(Cause.credentials, cloud=cloud)
    if cloud == "aws":
        import boto3

        os.environ.setdefault(
            "AWS_EC2_METADATA_DISABLED", "true"
        )  # this is not a machine of theirs
        if boto3.Session().get_credentials() is None:
            return Lack(
                what="anything of aws", code="E401", fix=login,
                why="no AWS_ACCESS_KEY_ID, and no ~/.aws/credentials or ~/.aws/config",
            )  # fmt: skip
        return None
    try:
        gcp.clients()
    except Exception as error:  # google.auth's DefaultCredentialsError, and what a broken file does
        return Lack(
            what="anything of gcp", code="E401", fix=login,
            why=f"no GOOGLE_APPLICATION_CREDENTIALS, and no login of gcloud's: {error}"[:300],
        )  # fmt: skip
    return None


def _ask_aws(region: str, machines: dict[str, MachineType]) -> Facts:
    ec2, service_quotas = aws.clients(region)
    return aws.ask(region, machines, ec2=ec2, service_quotas=service_quotas)


def _ask_gcp() -> Callable[[str, dict[str, MachineType]], Facts]:
    clients = gcp.clients()

    def ask(region: str, machines: dict[str, MachineType]) -> Facts:
        return gcp.ask(region, machines, clients=clients, hosts=GCP_HOSTS)

    return ask
