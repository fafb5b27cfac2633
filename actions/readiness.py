"""What is missing before a run on a cloud, or here, can begin, each with one command that helps.

Half of action=check. Looks at files, libraries and, with credentials, at the account; rents
nothing.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from actions.account import EXTRA, LIBRARIES, facts_of
from actions.console import Console
from actions.domain import HERE
from actions.planning import catalogue_of
from actions.preflight import check_cloud, check_port
from provision.facts import Facts, laid_over
from provision.refusals import ANSWERS, Cause, fix_for
from sailor.config import Config
from sailor.errors import ConfigError, SailorError
from sailor.units import gib

SHARED_MEMORY = Path("/dev/shm")
_LEAST_SHARED_BYTES = 1 << 30
_LEAST_DISK_BYTES = 1 << 30

# Where a cloud's own tools keep what opens it; SkyPilot looks at the same places.
CREDENTIALS = {
    "azure": ("~/.azure/azureProfile.json",),
    "lambda": ("~/.lambda_cloud/lambda_keys",),
    "runpod": ("~/.runpod/config.toml",),
    "kubernetes": ("~/.kube/config",),
    "slurm": ("~/.slurm/config",),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that was looked at. ``fix`` is one command; ``code`` as in docs/errors.md."""

    what: str
    fine: bool
    found: str
    code: str = ""
    fix: str = ""


def check_place(config: Config, console: Console) -> int:
    """Show every finding. Exit code 0 when nothing is missing, else 4."""
    with console.waiting("looking"):
        findings = list(find(config))
    console.document([asdict(finding) for finding in findings])
    table = Table("", "what", "found", "do this", box=None)
    for finding in findings:
        fix = "" if finding.fine else finding.fix
        table.add_row("ok" if finding.fine else "NO", finding.what, finding.found, fix)
    console.print(table)
    missing = [finding for finding in findings if not finding.fine]
    console.print(
        f"{len(missing)} of {len(findings)} are missing" if missing else "nothing is missing"
    )
    return 4 if missing else 0


def find(config: Config) -> Iterator[Finding]:
    """Everything there is to look at, the simplest first."""
    cloud = config.cloud.name
    yield from _runs_folder(config)
    if cloud in HERE:
        yield from _this_computer(config)
        return
    skypilot = importlib.util.find_spec("sky") is not None
    yield Finding(
        what="SkyPilot", fine=skypilot, code="E406", fix=EXTRA,
        found=_version("skypilot") if skypilot else "not installed",
    )  # fmt: skip
    yield from _reachable(config)
    if cloud in LIBRARIES:
        yield from _account(config)
    else:
        places = CREDENTIALS[cloud]
        there = [place for place in places if Path(place).expanduser().exists()]
        yield Finding(
            what=f"access to {cloud}", fine=bool(there), code=ANSWERS[Cause.credentials].code,
            found=", ".join(there) or f"none of {', '.join(places)}",
            fix=fix_for(Cause.credentials, cloud=cloud),
        )  # fmt: skip


def _runs_folder(config: Config) -> Iterator[Finding]:
    """Whether runs can be written, and how much room there is."""
    folder = Path(config.runs_dir).expanduser()
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    may = there.is_dir() and os.access(there, os.W_OK)
    yield Finding(
        what=f"a folder for runs, {folder}", fine=may and free >= _LEAST_DISK_BYTES, code="E607",
        found=f"{gib(free)} free" if may else f"{there} cannot be written",
        fix="runs_dir=/ANOTHER/FOLDER",
    )  # fmt: skip


def _this_computer(config: Config) -> Iterator[Finding]:
    free = shutil.disk_usage(SHARED_MEMORY).free
    yield Finding(
        what="shared memory for snapshots", fine=free >= _LEAST_SHARED_BYTES, code="E609",
        found=f"{gib(free)} free in {SHARED_MEMORY}",
        fix="mount -o remount,size=4G /dev/shm   (docker run --shm-size=4g)",
    )  # fmt: skip
    cores = len(os.sched_getaffinity(0))
    yield Finding(what="processors", fine=True, found=f"{cores} for {config.cloud.nodes} machines")
    try:
        check_port(config)
    except ConfigError as error:
        yield Finding(what="port", fine=False, found=error.what, code=error.code, fix=error.fix)
    else:
        port = config.runtime.port
        yield Finding(what="port", fine=True, found=str(port) if port else "any free one")


def _reachable(config: Config) -> Iterator[Finding]:
    try:
        check_cloud(config)
    except SailorError as error:
        if error.code != "E406":  # told already
            yield Finding(
                what="machines reach us, and a place for checkpoints", fine=False, found=error.what,
                code=error.code, fix=error.fix.partition("   ")[0],
            )  # fmt: skip
    else:
        yield Finding(
            what="machines reach us, and a place for checkpoints", fine=True,
            found=f"{config.runtime.address}, {config.checkpoint.directory or 'shared files'}",
        )  # fmt: skip


def _account(config: Config) -> Iterator[Finding]:
    """Credentials, permissions, machines and quotas, as the cloud itself says."""
    catalogue = catalogue_of(config)
    facts = facts_of(config, catalogue)
    assert facts is not None
    for lack in facts.lacks:
        found = lack.why.splitlines()[0] if lack.why else "no answer"
        yield Finding(what=lack.what, fine=False, found=found, code=lack.code, fix=lack.fix)
    if not facts.offered:
        return
    offered = sorted(name for name, zones in facts.offered.items() if zones)
    yield Finding(
        what="machines on offer", fine=bool(offered), code=ANSWERS[Cause.offering].code,
        found=", ".join(offered) or "none of those allowed", fix="cloud.regions=[]",
    )  # fmt: skip
    yield from _quotas(config, facts, laid_over(catalogue, facts).pool.offers != ())


def _quotas(config: Config, facts: Facts, anything: bool) -> Iterator[Finding]:
    """One finding for each quota that lets nothing through; one for all that do."""
    cloud = config.cloud.name
    used_up = [quota for quota in facts.quotas if quota.limit == 0]
    for quota in used_up:
        kind = "spot" if quota.spot else "on-demand"
        yield Finding(
            what=f"{kind} quota for {quota.gpu} in {quota.region}", fine=False,
            found=f"{quota.metric}: none left", code=ANSWERS[Cause.quota].code,
            fix=fix_for(Cause.quota, cloud=cloud),
        )  # fmt: skip
    rest = len(facts.quotas) - len(used_up)
    if rest and anything:
        yield Finding(what="quotas", fine=True, found=f"{rest} let machines through")


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "installed"
