"""A machine of its own for a run's controller, on this computer: a process that nobody's terminal,
and no other process's end, takes away.

It is written down before it is started, as any machine is (``provision/machines.py``), so that
``action=down`` finds and ends it, by pid, start tick and mark. What it runs is the caller's.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from provision.local import CODE, RECORD, end_leftovers
from provision.machines import Machine, MachineRecord
from provision.processes import MARK, identify
from sailor.cluster.provisioner import Released
from sailor.errors import CloudError

NODE = "controller"


def start_here(folder: Path, *, run: str, command: Sequence[str], log_path: Path) -> None:
    """Start the command detached from this process. ``folder`` keeps the record of it.

    Its working directory is ours, for what a configuration names is named from there. Raises
    CloudError E410 when it cannot be started.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    log_path.parent.mkdir(parents=True, exist_ok=True)
    record = MachineRecord(folder / RECORD)
    machine = Machine(node=NODE, mark=f"{run}/{NODE}/{secrets.token_hex(8)}")
    record.wish(machine)
    code = os.pathsep.join(filter(None, (str(CODE), os.environ.get("PYTHONPATH"))))
    try:
        with log_path.open("ab") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env={**os.environ, MARK: machine.mark, "PYTHONPATH": code},
                start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        record.gone(machine, proof="never started")
        raise CloudError(
            "the controller's process cannot be started on this computer",
            code="E410", why=str(error), where=command[0], fix="cloud.controller=here",
        ) from error  # fmt: skip
    record.started(replace(machine, leader=identify(process.pid)))
    # It outlives us: nobody waits for it here, and a warning of that would be none of its business.
    process.returncode = 0


def lives_here(folder: Path) -> bool:
    """Whether a process that ``start_here`` started is there still."""
    machines = MachineRecord(folder / RECORD).remaining()
    return any(machine.leader is not None and machine.leader.alive for machine in machines)


async def end_here(folder: Path, *, run: str) -> tuple[Released, ...]:
    """End whatever was started there, at once, and prove it."""
    return await end_leftovers(folder, run=run)
