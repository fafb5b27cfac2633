"""action=train with cloud.controller=cluster: send the run to a machine of its own, and look on.

Everything that can be refused is refused here, before a machine is rented: the configuration, the
text, the plan. Then the machine is given the run's folder and configuration, starts it
(``actions/hosted.py``), and this command only looks: closing it, or this computer, changes nothing.
The same command again looks on again; a run that stopped is sent once more and goes on.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import sys
import time
from pathlib import Path

import msgspec
import yaml

from actions.away import DOOR_FILE, Away, Place, away
from actions.begin import Beginning, begin
from actions.console import Console
from actions.domain import HERE, first_weights
from actions.limits import refuse_when_spent
from actions.own_machine import OwnMachine, own_machine
from actions.planning import Question, question
from actions.prospects import answered
from actions.run_folder import refuse_another, run_name, said_of
from actions.steering import farewell_away, keys_of
from actions.watch import attend
from provision.lodging import NODE, lives_here, start_here
from provision.orders import OrderBook
from provision.payload import make_payload
from provision.placement import host_placement
from provision.sky_lodging import HOUSE_THERE, Lease, SkyLodging
from sailor.config import Config, Output, UiMode
from sailor.config_keys import plain
from sailor.errors import CloudError, ConfigError
from sailor.observe.events import EventLog, read_events
from sailor.observe.ledger import CONTROLLER
from sailor.runtime.door import is_shown
from sailor.runtime.identity import create_identity
from sailor.units import parse_seconds

_OPENS_S = 60.0  # for a door of this computer
_PORTS = range(20_000, 30_000)  # below those that systems give away by themselves


def run(config: Config, console: Console) -> int:
    """Send the run off, unless it is there already, and show it until it ends or nobody looks.

    Returns its exit code, 75 when the view was closed and it goes on: what a recipe does after
    training is not to be done yet. Raises what ``actions.begin`` and planning
    raise; ConfigError E603, E606; CloudError E401 to E405 and E410; LimitReached E702.
    """
    path = Path(config.runs_dir).expanduser() / run_name(config)
    there = away(path)
    if there is not None and there.may_live():
        refuse_another(path, config)
        if config.run.fresh:
            raise ConfigError(
                f"run {path.name} goes on, on a machine of its own", code="E606", where=str(path),
                why="run.fresh=true would set aside what it is still writing",
                fix=f"{said_of(path, 'down')}   saves and stops it first\nrun.name=NEW_NAME",
            )  # fmt: skip
        console.print(f"run {path.name} has its own machine; this looks at it", soft_wrap=True)
    else:
        with begin(config, console) as beginning:
            if beginning is None:
                return 0
            with console.waiting("searching for plans"):
                asked = question(config, live=config.cloud.live is not False)
                own = own_machine(config, answered(asked)[0].best)
            assert own is not None, "a run is sent only where its controller has a machine"
            _refuse_spent(config, beginning)
            there = _send(config, console, beginning, asked, own)
    keys = keys_of(path)
    return attend(config, console, path, keys=keys, farewell=farewell_away(path))


def _send(
    config: Config, console: Console, beginning: Beginning, asked: Question, own: OwnMachine
) -> Away:
    """Rent the machine and start the run there. From the first line on the record, ``action=down``
    finds it; from the first in the log, it is counted."""
    folder = beginning.folder
    there = Away(path=folder.path)
    there.room.mkdir(mode=0o700, exist_ok=True)
    create_identity(there.identity, run=f"{folder.name}-door")
    cloud = config.cloud
    place = Place(cloud="local" if cloud.name in HERE else cloud.name, port=_a_port(cloud.name))
    there.note(place)
    there.catch_up()
    with EventLog(folder.events, run=folder.name) as events:
        own.book(events)
    same_files = cloud.name in HERE or cloud.shared_files
    stage(
        sent(config, run=folder.name, tokens=beginning.tokens if same_files else None),
        folder.path, into=there.house, command=console.command,
    )  # fmt: skip
    if cloud.name in HERE:
        with console.waiting("starting the controller"):
            _start_here(there, keeps_s=parse_seconds(cloud.controller_keeps))
        console.print("the controller runs in a process of its own")
        return there
    console.print(f"the controller lives on {own.words()}; renting it takes minutes")
    try:
        with console.waiting("renting the controller's machine"):
            lease = _lease(config, there, beginning, asked, own)
            asyncio.run(SkyLodging(room=there.room).rent(lease))
    except CloudError as error:
        if not OrderBook(there.room).remaining():  # nothing is left: the same command asks again
            _not_had(beginning, error)
            there.note(msgspec.structs.replace(place, home=True))
        raise
    return there


def _a_port(cloud: str) -> int:
    """For the door; on this computer the door takes a free one and says which."""
    return 0 if cloud in HERE else secrets.choice(_PORTS)


def _refuse_spent(config: Config, beginning: Beginning) -> None:
    """Raises LimitReached E702 when the run has nothing left to pay the machine with."""
    log = beginning.folder.events
    if log.exists():
        past = read_events(log)
        with EventLog(log, run=beginning.folder.name) as events:
            refuse_when_spent(config.budget, past=past, now=events.t)


def _not_had(beginning: Beginning, error: CloudError) -> None:
    """It is not paid for."""
    with EventLog(beginning.folder.events, run=beginning.folder.name) as events:
        events.write(
            "node_refused", node=NODE, role=CONTROLLER, code=error.code, why=error.what,
            retry_s=None, lasting=False,
        )  # fmt: skip


def sent(config: Config, *, run: str, tokens: Path | None) -> Config:
    """The configuration as it is there: the same run, shown to nobody.

    ``tokens``: made here, where that machine sees the same files.
    """
    copy = msgspec.convert(plain(config), type=Config)
    copy.action, copy.output = "train", Output.text
    copy.ui.mode, copy.ui.web = UiMode.plain, False
    copy.run.name, copy.run.fresh = run, False
    if tokens is not None:
        copy.data.prepared = str(tokens.absolute())
    return copy


def stage(config: Config, folder: Path, *, into: Path, command: str) -> None:
    """Make the folder that a controller's machine is given: the configuration that is sent, and of
    the run so far what its folder here holds and that one lacks."""
    there = into / "runs" / folder.name
    there.mkdir(mode=0o700, parents=True, exist_ok=True)
    for source in sorted(folder.rglob("*")):
        name = str(source.relative_to(folder))
        target = there / name
        # A log that is longer there knows more than ours.
        if is_shown(name) and source.is_file() and not _has_more(target, source):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    document = yaml.safe_dump(plain(config), sort_keys=False, allow_unicode=True)
    for place in (into, there) if _has_begun(there) else (into,):
        (place / "config.yaml").write_text(f"# {command}\n{document}")


def _has_begun(folder: Path) -> bool:
    """Whether a run has started there before: the log also tells of its controller's machine."""
    log = folder / "events.jsonl"
    return log.exists() and any(event.kind == "run_started" for event in read_events(log))


def _has_more(target: Path, source: Path) -> bool:
    return target.exists() and target.stat().st_size >= source.stat().st_size


def _start_here(there: Away, *, keeps_s: float) -> None:
    """Start the door on this computer and wait until it opens. Raises CloudError E410."""
    (there.house / DOOR_FILE).unlink(missing_ok=True)
    log = there.room / "door.log"
    start_here(
        there.room, run=there.path.name, log_path=log,
        command=(
            sys.executable, "-m", "actions.hosted", "door", str(there.house.absolute()),
            there.path.name, "--identity", str(there.identity.absolute()),
            "--keeps-s", f"{keeps_s:.0f}",
        ),
    )  # fmt: skip
    deadline = time.monotonic() + _OPENS_S
    while not (there.house / DOOR_FILE).exists():
        if not lives_here(there.room) or time.monotonic() > deadline:
            raise CloudError(
                "the controller's own process did not start", code="E410", where=str(log),
                why=log.read_text(errors="replace")[-500:].strip() or "it said nothing",
                fix="cloud.controller=here",
            )  # fmt: skip
        time.sleep(0.05)


def _lease(
    config: Config, there: Away, beginning: Beginning, asked: Question, own: OwnMachine
) -> Lease:
    """What to ask SkyPilot for. Raises CloudError E404."""
    cloud, machine = config.cloud, own.host
    zone = next(o.zone for o in asked.catalogue.pool.offers if o.zone.name == own.zone)
    mounts: dict[str, Path] = {}
    if not cloud.shared_files:
        mounts[f"{HOUSE_THERE}/tokens"] = beginning.tokens
        if model := first_weights(config):
            mounts[f"{HOUSE_THERE}/model"] = Path(model)
    return Lease(
        cloud=cloud.name, run=there.path.name, zone=zone.name, machine_type=machine.name,
        placement=host_placement(machine, zone=zone, zone_names=asked.catalogue.zone_names or None),
        payload=make_payload(there.room / ".payload", rents="cloud"), house=there.house,
        identity=there.identity, port=there.place.port, python=cloud.python or "",
        keeps_s=parse_seconds(cloud.controller_keeps), launch_s=parse_seconds(cloud.join),
        idle_minutes=max(1, round(parse_seconds(cloud.idle) / 60)), mounts=mounts,
    )  # fmt: skip
