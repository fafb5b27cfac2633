"""A run that lived elsewhere comes home: its results are fetched, its machine is proven gone.

What is fetched is the run folder: log, summary, report, plan, logs, and durable checkpoints and
exports where they lie in it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

import msgspec

from actions.away import Away
from actions.console import Console
from actions.following import FollowAway, Follower
from actions.run_folder import said_of
from provision.lodging import NODE
from sailor.cluster.provisioner import Released
from sailor.errors import CloudError
from sailor.observe.events import Event, EventLog, read_events
from sailor.observe.history import replay
from sailor.observe.ledger import CONTROLLER
from sailor.observe.report import write_report
from sailor.observe.summary import summarise, write_summary
from sailor.runtime.visit import EVENTS, NobodyHome, alone_with

LEFT = 75  # it ended before it could say how
_LEAVES_S = 3.0  # for a door to shut by itself
_STOPS_S = 600.0  # for a run to save and give everything back
_LOOK_S = 0.2


def come_home(follow: Follower, console: Console) -> int:
    """Fetch everything of a run that has ended, end its machine, say so; the run's exit code.

    0 for a run of this computer: whoever started it has its code. Raises CloudError E410 when it
    cannot be reached, E405 when its machine is not proven gone.
    """
    if not isinstance(follow, FollowAway):
        return 0
    there = follow.there
    seen = follow.seen
    if there.is_home:  # another command was faster
        ends = replay(_log(there)).ends
        return int(ends[-1].get("exit_code") or 0) if ends else LEFT
    if seen is None or follow.trouble:
        raise unreached(there, follow.trouble)
    with console.waiting("bringing results home"):
        fetch(there)
    proofs = end_machine(there)
    for proof in proofs:
        console.print(f"{proof.node}: {proof.proof}", soft_wrap=True)
    if not all(proof.released for proof in proofs):
        raise CloudError(
            "the controller's machine is not proven gone", code="E405",
            why="\n".join(proof.proof for proof in proofs if not proof.released),
            fix=f"{said_of(there.path, 'down')}   tries again",
        )  # fmt: skip
    if not replay(_log(there)).starts:
        console.print(seen.told.strip(), soft_wrap=True)  # it was refused before it had a log
    return seen.exit_code or 0


def fetch(there: Away) -> None:
    """Bring everything home and let the door shut. Raises CloudError E410."""
    try:
        with there.visit() as visit:
            visit.bring(there.path)
            visit.leave()
    except NobodyHome as error:
        if not there.is_home:  # else another command has just brought it home
            raise unreached(there, str(error)) from error


def end_machine(there: Away) -> tuple[Released, ...]:
    """End the machine of a run; if that is proven, count its cost up to now and note that the run
    is home."""
    deadline = time.monotonic() + _LEAVES_S
    while there.place.cloud == "local" and there.may_live() and time.monotonic() < deadline:
        time.sleep(_LOOK_S / 4)
    proofs = there.end_machine()
    if all(proof.released for proof in proofs):
        there.catch_up()
        _book(there, proofs)
        there.note(msgspec.structs.replace(there.place, home=True))
    return proofs


def _book(there: Away, proofs: Sequence[Released]) -> None:
    """Write the ends into the log, the machine's own among them, and draw summary and report of it
    anew. Of a machine that lives the log here is a mirror: nothing is written into it before."""
    if not (there.path / EVENTS).exists():
        return
    try:
        with alone_with(there.path / EVENTS):
            _write_ends(there, proofs)
    except NobodyHome:  # whoever holds it stands still, and there is nothing left to carry home
        _write_ends(there, proofs)


def _write_ends(there: Away, proofs: Sequence[Released]) -> None:
    history = replay(_log(there))
    left = {life.node for life in history.ledger.unproven()}
    gone = [proof for proof in proofs if proof.node in left]
    own = {life.node for life in history.ledger.unproven() if life.role == CONTROLLER}
    if own and NODE not in {proof.node for proof in gone}:
        gone.append(Released(node=NODE, released=True, proof="nothing of it is on record"))
    if not gone:
        return
    with EventLog(there.path / EVENTS, run=there.path.name) as events:
        for proof in gone:
            events.write("node_released", **asdict(proof))
    if history.starts:
        write_summary(there.path / "summary.json", summarise(_log(there)))
        write_report(there.path)


def take_down(there: Away, console: Console) -> tuple[Released, ...]:
    """Have a run save and end, wherever it stands, bring it home and end its machine; the proofs of
    all its machines.

    One that cannot be reached is ended as it is. What its controller has rented on a cloud only the
    controller's SkyPilot knows: that is not proven then, and said.
    """
    before = len(_log(there))
    why = ""
    try:
        with there.visit() as visit:
            if visit.look().exit_code is None:
                visit.stop()
            deadline = time.monotonic() + _STOPS_S
            while visit.look().exit_code is None:
                visit.follow(there.path)
                if time.monotonic() > deadline:
                    raise NobodyHome(f"it did not end within {_STOPS_S:.0f} s")
                time.sleep(_LOOK_S)
            visit.bring(there.path)
            visit.leave()
    except NobodyHome as error:
        why = str(error)
        console.print(f"{there.path.name} is ended as it is: {why}", soft_wrap=True)
    told = [
        Released(node=event["node"], released=event["released"], proof=event["proof"])
        for event in _log(there)[before:]
        if event.kind == "node_released"
    ]
    own = end_machine(there)
    known = {proof.node for proof in (*told, *own)}
    if there.place.cloud != "local":
        told += [proof for proof in _out_of_sight(there, why) if proof.node not in known]
    return (*told, *own)


def _out_of_sight(there: Away, why: str) -> list[Released]:
    lives = replay(_log(there)).ledger.unproven()
    missed = f"was not reached ({why})" if why else "has ended without a word of it"
    proof = (
        f"the controller that rented it {missed}; without it agents end after runtime.lease, and "
        "clusters nobody uses after cloud.idle where the cloud can do that"
    )
    return [Released(node=life.node, released=False, proof=proof) for life in lives]


def _log(there: Away) -> Sequence[Event]:
    path = there.path / EVENTS
    return read_events(path) if path.exists() else ()


def unreached(there: Away, why: str) -> CloudError:
    """E410: the run may go on, but nobody answers."""
    return CloudError(
        f"the controller of run {there.path.name} does not answer", code="E410",
        why=f"{why or 'its door does not open'}; if its machine lives, the run goes on",
        where=str(there.room),
        fix=f"{said_of(there.path, 'watch')}   tries again"
        f"\n{said_of(there.path, 'down')}   ends its machine and proves it",
    )  # fmt: skip
