"""action=down: end whatever runs have rented, and say how each machine was seen to be gone.

    python run.py action=down run.name=NAME        one run
    python run.py action=down run.all=true         every run of runs_dir, and whatever of ours
                                                   SkyPilot lists besides

For what a killed process left behind. A run that goes on here has its folder locked and is left
alone: ask it to stop. One with a machine of its own is saved, stopped and brought home, unless it
goes on and all runs are meant.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from actions.away import away
from actions.console import Console
from actions.following import goes_on
from actions.homecoming import take_down
from actions.run_folder import hold, owner_pid, said_of
from actions.status import no_such_run
from provision.clusters import Launcher, end_leftovers
from provision.local import end_leftovers as end_local_leftovers
from provision.orders import OrderBook, cluster_stem
from provision.sky_launcher import SkyLauncher, SkyProcess
from sailor.cluster.provisioner import Released
from sailor.config import Config
from sailor.errors import CloudError, ConfigError
from sailor.observe.events import EventLog, read_events
from sailor.observe.summary import summarise, write_summary


def run(config: Config, console: Console) -> int:
    """End leftovers and prove it. Raises CloudError E405 when something could not be proven gone,
    ConfigError when there is no such run (E608) or it goes on (E606)."""
    root = Path(config.runs_dir).expanduser()
    if config.run.name is None and not config.run.all:
        raise ConfigError(
            "nothing says which run to take down",
            code="E608",
            where="run.name=null run.all=false",
            fix="run.name=NAME   or   run.all=true",
        )
    paths = [root / config.run.name] if config.run.name is not None else _runs(root)
    if config.run.name is not None and not paths[0].is_dir():
        raise no_such_run(paths[0], root=root)
    with console.waiting("ending what is left"):
        found = asyncio.run(_take_down(paths, everything=config.run.all, console=console))
    _show(found, console)
    unproven = [proof for proofs in found.values() for proof in proofs if not proof.released]
    if unproven:
        raise CloudError(
            f"{len(unproven)} machines are not proven gone",
            code="E405",
            why="\n".join(f"{proof.node}: {proof.proof}" for proof in unproven),
            fix="run the same command again",
        )
    return 0


async def _take_down(
    paths: Sequence[Path], *, everything: bool, console: Console
) -> dict[str, tuple[Released, ...]]:
    """Run -> what was found of it. SkyPilot is asked only where a run rented through it."""
    found: dict[str, tuple[Released, ...]] = {}
    sky = SkyProcess(log_path=paths[0] / "logs" / "skypilot.log") if paths else None
    try:
        for path in paths:
            there = away(path)
            lives_away = there is not None and not there.is_home
            if everything and lives_away and goes_on(path):
                console.print(
                    f"{path.name} goes on and is left alone; {said_of(path, 'down')}   saves and "
                    "ends it", soft_wrap=True,
                )  # fmt: skip
                continue
            if everything and owner_pid(path) is not None:
                console.print(
                    f"{path.name} goes on and is left alone; kill -INT {owner_pid(path)}   saves "
                    "and stops it"
                )
                continue
            with hold(path, name=path.name):
                if there is not None and lives_away:
                    found[path.name] = await asyncio.to_thread(take_down, there, console)
                    continue
                launcher = None
                if sky is not None and OrderBook(path).remaining():
                    launcher = SkyLauncher(cloud="", run=path.name, sky=sky)
                found[path.name] = await end_run(path, launcher=launcher)
        if everything and sky is not None and importlib.util.find_spec("sky") is not None:
            launcher = SkyLauncher(cloud="", run="", sky=sky)
            mine = await _end_others(launcher, besides=_known_stems(paths))
            if mine:
                found["(no run folder)"] = mine
    finally:
        if sky is not None:
            await sky.close()
    return found


def _known_stems(paths: Sequence[Path]) -> list[str]:
    """How the names of clusters begin that belong to these runs, wherever they live."""
    stems = [cluster_stem(path) for path in paths]
    for path in paths:
        if there := away(path):
            stems += [cluster_stem(there.room), *filter(None, [there.place.stem])]
    return stems


async def end_run(path: Path, *, launcher: Launcher | None) -> tuple[Released, ...]:
    """End one run's leftovers and write the proofs into its log and summary."""
    proofs = await end_local_leftovers(path, run=path.name)
    if launcher is not None:
        proofs = (*proofs, *await end_leftovers(path, launcher=launcher))
    log_path = path / "events.jsonl"
    if proofs and log_path.exists():
        with EventLog(log_path, run=path.name) as events:
            for proof in proofs:
                events.write("node_released", **asdict(proof))
        write_summary(path / "summary.json", summarise(read_events(log_path)))
    return proofs


async def _end_others(launcher: SkyLauncher, *, besides: Sequence[str]) -> tuple[Released, ...]:
    """End clusters that carry our name and belong to no folder here."""
    proofs = []
    for cluster in await launcher.living():
        if any(cluster.startswith(f"{stem}-") for stem in besides):
            continue
        try:
            proof = await launcher.down(cluster)
        except CloudError as error:
            proofs.append(Released(node=cluster, released=False, proof=error.what))
        else:
            proofs.append(Released(node=cluster, released=True, proof=proof))
    return tuple(proofs)


def _runs(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.glob("*/config.yaml"))


def _show(found: dict[str, tuple[Released, ...]], console: Console) -> None:
    rows: list[dict[str, Any]] = [
        {"run": run, **asdict(proof)} for run, proofs in found.items() for proof in proofs
    ]
    console.document(rows)
    if not rows:
        console.print("nothing was left")
        return
    table = Table("run", "machine", "gone", "how it was checked", box=None)
    for row in rows:
        table.add_row(row["run"], row["node"], "yes" if row["released"] else "NO", row["proof"])
    console.print(table)
