"""Faults to inject on purpose: what goes wrong, when, to whom. Values only; others carry them out.

A script is a list of entries, in conf/faults or in a file of the user's own:

    - {kind: preempt, at: 40%, target: node-1, notice: 5s}
    - {kind: kill_node, at: 120}
    - {kind: slow_node, at: 30%, target: leader, factor: 3, lasts: 10s}
    - {kind: join, at: 20s}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

from sailor.units import parse_seconds

# Where a NaN, or a hang, is put for a worker to suffer: a word of its slot in the node's progress
# page. Memory that flips a bit asks nobody either.
PROGRESS_PAGE = "progress"
PROGRESS_SLOT_BYTES = 128
POISON_AT = 48

# What a file with a snapshot begins with, and the byte that says that its digests are written.
SNAPSHOT = b"SAILSNAP"
SEALED_AT = 12
SEALED = b"\x03"


class Poison(IntEnum):
    """What that word may say."""

    none = 0
    step = 1
    state = 2
    hang = 3


class FaultKind(Enum):
    """What can be made to go wrong."""

    preempt = "preempt"  # a notice, then the machine is taken
    kill_node = "kill_node"  # SIGKILL of every process of a node
    kill_worker = "kill_worker"  # SIGKILL of one worker
    stop_worker = "stop_worker"  # SIGSTOP of one worker: alive and silent
    hang_worker = "hang_worker"  # its training thread stands still for good, all else lives
    kill_agent = "kill_agent"  # SIGKILL of a node's agent alone
    slow_node = "slow_node"  # a node's workers get only a part of the time
    corrupt_snapshot = "corrupt_snapshot"  # bytes flipped in all snapshots a node holds
    nan_step = "nan_step"  # a worker computes one step with a NaN, and is itself again afterwards
    nan_state = "nan_state"  # a number of a worker's state becomes NaN, in its next snapshot too
    cut_node = "cut_node"  # a node's network carries nothing, and says nothing
    fill_disk = "fill_disk"  # where durable checkpoints go has no room
    kill_controller = "kill_controller"  # SIGKILL of the controller, that is, of run.py
    join = "join"  # not a fault: one more machine


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One entry. Exactly one of ``at_step`` (once that step is applied) and ``at_seconds`` (since
    the run started training, the time between two starts left out) is set.

    ``target`` is a node ("node-1"), a worker ("node-1/0"), a zone ("zone:local-a": all its nodes),
    "leader" (rank 0), "last" (the highest rank) or "newest"; None takes one that is in use, by the
    seed. ``lasts_seconds`` ends stop_worker, slow_node, cut_node and fill_disk, None never does; a
    slowed node gets 1/``factor`` of the time.
    """

    kind: FaultKind
    at_step: int | None = None
    at_seconds: float | None = None
    target: str | None = None
    notice_seconds: float = 0.0
    lasts_seconds: float | None = None
    factor: float = 2.0

    def __post_init__(self) -> None:
        if (self.at_step is None) == (self.at_seconds is None):
            raise ValueError("a fault happens at a step or at a time")
        if self.factor < 1:
            raise ValueError(f"factor {self.factor:g} would make a node faster")

    @property
    def at(self) -> str:
        """When, in words."""
        return f"step {self.at_step}" if self.at_seconds is None else f"{self.at_seconds:g} s"


# Keys of an entry; the first of each line is how we write it.
_KEYS = {
    "kind": "kind", "at": "at", "target": "target", "notice": "notice",
    "node": "target", "worker": "target",
    "step": "step", "at_step": "step",
    "second": "second", "seconds": "second", "at_second": "second", "at_seconds": "second",
    "notice_s": "notice", "notice_seconds": "notice",
    "lasts": "lasts", "for": "lasts", "factor": "factor",
}  # fmt: skip


def read_script(entries: Sequence[Mapping[str, Any]], *, total_steps: int) -> tuple[Fault, ...]:
    """The faults of a script, steps first, in the order they come due.

    Raises ValueError naming the entry and what is wrong with it.
    """
    faults = []
    for number, entry in enumerate(entries, start=1):
        try:
            faults.append(_read(entry, total_steps=total_steps))
        except ValueError as error:
            raise ValueError(f"entry {number}: {error}") from error
    return tuple(sorted(faults, key=lambda f: (f.at_step is None, f.at_step or f.at_seconds or 0)))


def _read(entry: Mapping[str, Any], *, total_steps: int) -> Fault:
    if not isinstance(entry, Mapping):
        raise ValueError(f"{entry!r} should be a mapping with kind and at")
    fields: dict[str, Any] = {}
    for key, value in entry.items():
        if key not in _KEYS:
            raise ValueError(
                f"unknown key {key!r}; known are kind, at, target, notice, lasts, factor"
            )
        if value is not None:
            fields[_KEYS[key]] = value
    kind = str(fields.get("kind"))
    if kind not in FaultKind.__members__:
        raise ValueError(f"kind {kind!r} is none of {', '.join(FaultKind.__members__)}")
    step, seconds = _moment(fields, total_steps=total_steps)
    if step is not None and step > total_steps:
        raise ValueError(f"{kind} at step {step} will never happen in {total_steps} steps")
    target = fields.get("target")
    return Fault(
        kind=FaultKind[kind],
        at_step=step,
        at_seconds=seconds,
        target=None if target is None else str(target),
        notice_seconds=_seconds(fields.get("notice", 0.0)),
        lasts_seconds=_seconds(fields["lasts"]) if "lasts" in fields else None,
        factor=_number(str(fields.get("factor", 2.0))),
    )


def _moment(fields: Mapping[str, Any], *, total_steps: int) -> tuple[int | None, float | None]:
    """(step, None) or (None, seconds)."""
    given = [name for name in ("at", "step", "second") if name in fields]
    if len(given) != 1:
        raise ValueError("say when, once: at: 120 (a step), at: 40% (of all steps) or at: 12s")
    value = fields[given[0]]
    if given[0] == "second":
        return None, _seconds(value)
    text = str(value).strip()
    if text.endswith("%"):
        share = _number(text[:-1])
        if not 0 <= share <= 100:
            raise ValueError(f"at {text} is not between 0% and 100%")
        return max(1, round(total_steps * share / 100)), None
    if given[0] == "at" and not text.isdigit():
        return None, parse_seconds(text)
    step = int(_number(text))
    if step < 0:
        raise ValueError(f"step {step} is less than 0")
    return step, None


def _seconds(value: Any) -> float:
    """'5s' or a plain number of seconds, which a key that says so may hold."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return parse_seconds(str(value))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
