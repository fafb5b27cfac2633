"""Process groups on this computer that pose as machines: told apart, listed and ended for certain.

A machine is a process group whose leader was started in a session of its own, plus whatever carries
the machine's mark in its environment: a child that left the group is still found. A process is
known by (boot, pid, start tick), so that a recycled pid is never taken for ours. Linux only.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "SAILOR_MACHINE"  # environment variable that every process of a machine inherits

_PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessId:
    """One process of one boot of this computer: the pid alone may belong to another one later."""

    pid: int
    start_tick: int  # field 22 of /proc/PID/stat: clock ticks since boot
    boot: str

    @property
    def alive(self) -> bool:
        """Whether exactly this process exists and has not exited."""
        state = _stat(self.pid)
        return (
            state is not None
            and state.name not in "ZX"
            and state.start_tick == self.start_tick
            and boot_id() == self.boot
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stat:
    name: str  # one letter: R, S, D, T, Z (exited, not reaped), X
    group: int
    start_tick: int


def identify(pid: int) -> ProcessId | None:
    """The full identity of a process, or None when there is none with that pid."""
    state = _stat(pid)
    if state is None:
        return None
    return ProcessId(pid=pid, start_tick=state.start_tick, boot=boot_id())


def boot_id() -> str:
    """A name for this boot of the computer: pids and ticks of another boot mean nothing."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def living_members(*, mark: str, leader: ProcessId | None) -> tuple[int, ...]:
    """Pids of a machine that have not exited: its group while its leader's pid is surely the
    leader's, and every process that carries the mark."""
    group = _group(leader)
    members = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        pid = int(entry.name)
        state = _stat(pid)
        if state is None or state.name in "ZX":
            continue
        if (group is not None and state.group == group) or _mark_of(pid) == mark:
            members.append(pid)
    return tuple(members)


def kill_machine(*, mark: str, leader: ProcessId | None) -> None:
    """SIGKILL to the whole group at one instant, as a machine vanishes, then to its strays.

    A stray that forks at that very moment may leave a child: call again until none is left.
    """
    group = _group(leader)
    if group is not None:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    for pid in living_members(mark=mark, leader=leader):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _group(leader: ProcessId | None) -> int | None:
    """The process group that a leader surely still names; a leader not yet reaped does."""
    if leader is None or leader.boot != boot_id():
        return None
    state = _stat(leader.pid)
    return leader.pid if state is not None and state.start_tick == leader.start_tick else None


def _mark_of(pid: int) -> str | None:
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:  # gone, or another user's
        return None
    wanted = MARK.encode() + b"="
    for entry in environment.split(b"\0"):
        if entry.startswith(wanted):
            return entry[len(wanted) :].decode(errors="replace")
    return None


def _stat(pid: int) -> _Stat | None:
    """Fields 3, 5 and 22 of /proc/PID/stat (proc(5)); None when the process is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the second field, the command, may hold anything
    return _Stat(name=fields[0], group=int(fields[2]), start_tick=int(fields[19]))
