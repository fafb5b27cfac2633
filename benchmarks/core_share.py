"""A share of a core for each machine of a run on this computer: a cgroup with a quota.

Machines that share cores slow each other down the more there are of them, whatever they do. With a
share each, small enough that all shares together are there, one has the same computer among eight
as among two, and what still grows with their number is the program's.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil

PERIOD_US = 10_000
_ROOT = Path("/sys/fs/cgroup")


class CoreShares:
    """Shares of a core, a cgroup each. Root only; see ``available``."""

    def __init__(self, share: float) -> None:
        self.share = share
        self._groups: dict[int, Path] = {}

    @staticmethod
    def available() -> bool:
        """Whether this kernel lets us have such groups."""
        return os.access(_parent(), os.W_OK) and (
            _parent() != _ROOT or "cpu" in (_ROOT / "cgroup.subtree_control").read_text().split()
        )

    def confine(self, pid: int) -> None:
        """A process, and all that it has started or will start, from now on. Once is enough."""
        if pid in self._groups:
            return
        group = _parent() / f"sailor-{os.getpid()}-{pid}"
        group.mkdir()
        self._groups[pid] = group
        quota = round(PERIOD_US * self.share)
        if _parent() == _ROOT:
            (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        with contextlib.suppress(psutil.NoSuchProcess):
            leader = psutil.Process(pid)
            for process in (leader, *leader.children(recursive=True)):
                with contextlib.suppress(ProcessLookupError):
                    (group / "cgroup.procs").write_text(str(process.pid))

    def end(self) -> None:
        """The groups are gone; whoever was in them has ended."""
        for group in self._groups.values():
            with contextlib.suppress(OSError):
                group.rmdir()


def _parent() -> Path:
    """Where groups for processors are: version 1 has a tree of its own for them."""
    return _ROOT / "cpu" if (_ROOT / "cpu").is_dir() else _ROOT
