"""Telling a worker that waits from one that is stopped. The page they share, and the judgement.

Every worker's control thread writes the time into a page of shared memory several times a second,
whatever its training thread does. A worker that waits in a collective for a dead peer keeps
ticking: it is not to blame. One that was stopped (SIGSTOP) or whose interpreter hangs does not tick
and is ended, for its peers wait for it. So is one that ticks while its training thread neither
finishes a step nor waits for anybody, for much longer than a step takes: it hangs.

A machine may be so busy that a thread gets no turn for many seconds. The kernel counts that time,
and it is nobody's fault.
"""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from statistics import median

from sailor.faults import POISON_AT, PROGRESS_SLOT_BYTES, Poison

TICK_S = 0.1  # well below LOOK_S: between two looks at a worker that runs there is a tick
STALE_S = 3.0  # of 30 missed ticks: a loaded machine delays a thread, but not that long
STOPPED_LOOKS = 2  # looks in a row that must find it stopped: a debugger's pause is shorter
LOOK_S = 0.25
LAPSE_S = 4 * LOOK_S  # without a look: we stood still ourselves, with the whole machine perhaps
SILENT_S = 0.75  # without a tick before "stopped" is believed: a node that is slowed down runs, too

# An exchange between workers waits for the slowest of them to get there: for as long as its part of
# a step takes, which may be minutes on a large model. Before the first step nobody knows.
LEAST_EXCHANGE_S = 20.0
UNKNOWN_EXCHANGE_S = 300.0
STEPS_AN_EXCHANGE_MAY_TAKE = 10.0

# How long a training thread may neither step nor wait for a peer. It copies and waits for a segment
# between steps, 5 s at most; on a busy machine all of that takes longer.
HUNG_MARGIN_S = 10.0
HUNG_STEPS = 3.0
TELL = signal.SIGUSR1  # has a worker write into its log what its threads are at
_RECENT_STEPS = 16
KNOWN_STEPS = 3  # before so many steps nobody knows how long one takes

# Words of eight bytes of a slot. Each is stored and loaded whole: struct.pack_into puts zeros there
# first, and an agent that looks at that moment would see a worker that has never ticked.
_TICKED, _MOVED, _MOVES, _STEP, _DOING, _DEVICE, _POISON, _WAITED, _BUSY = range(9)
_SLOT_WORDS = PROGRESS_SLOT_BYTES // 8
assert _POISON * 8 == POISON_AT


class Doing(IntEnum):
    """What a worker is at. Names are those of WorkerStatus.doing."""

    idle = 0
    preparing = 1
    training = 2
    halted = 3
    finished = 4
    evaluating = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """One worker's words. Times are seconds of this machine's monotonic clock."""

    ticked_at: float
    moved_at: float
    moves: int
    step: int
    doing: Doing
    device_bytes: int
    waited_at: float = 0.0  # when its training thread was last seen to wait for a peer
    busy_s: float = 0.0  # of its last step: at work, its waits for others left out


class ProgressPage:
    """One file, two cache lines per slot; its worker writes, the agent reads."""

    def __init__(self, path: Path, mapping: mmap.mmap) -> None:
        """Use ``create`` or ``attach``."""
        self.path = path
        self.words = memoryview(mapping).cast("q")
        self.seconds = memoryview(mapping).cast("d")  # the same, for words that are fractions

    @staticmethod
    def create(path: Path, *, slots: int) -> ProgressPage:
        """A new page, for the agent."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, max(1, slots) * PROGRESS_SLOT_BYTES)
            return ProgressPage(path, mmap.mmap(descriptor, 0))
        finally:
            os.close(descriptor)

    @staticmethod
    def attach(path: Path) -> ProgressPage:
        """The agent's page, for a worker."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return ProgressPage(path, mmap.mmap(descriptor, 0))
        finally:
            os.close(descriptor)

    def read(self, slot: int) -> Progress:
        """A worker's words as they are now."""
        at = slot * _SLOT_WORDS
        return Progress(
            ticked_at=self.words[at + _TICKED] / 1e9,
            moved_at=self.words[at + _MOVED] / 1e9,
            moves=self.words[at + _MOVES],
            step=self.words[at + _STEP],
            doing=Doing(self.words[at + _DOING]),
            device_bytes=self.words[at + _DEVICE],
            waited_at=self.words[at + _WAITED] / 1e9,
            busy_s=self.seconds[at + _BUSY],
        )

    def reset(self, slot: int) -> None:
        """A new worker takes the slot: it counts as ticking from now."""
        now, at = time.monotonic_ns(), slot * _SLOT_WORDS
        fresh = {_TICKED: now, _MOVED: now, _MOVES: 0, _STEP: -1, _DOING: Doing.idle, _DEVICE: 0,
                 _POISON: Poison.none, _WAITED: now}  # fmt: skip
        for word, value in fresh.items():
            self.words[at + word] = value


class Ticker:
    """A worker's pen for its slot. ``tick`` belongs to one thread, ``move`` to another."""

    def __init__(self, page: ProgressPage, slot: int) -> None:
        self._words, self._seconds = page.words, page.seconds
        self._at = slot * _SLOT_WORDS
        self._moves = 0

    def tick(self) -> None:
        """I live."""
        self._words[self._at + _TICKED] = time.monotonic_ns()

    def waits(self) -> None:
        """The training thread waits for a peer."""
        self._words[self._at + _WAITED] = time.monotonic_ns()

    def poison(self) -> Poison:
        """The fault that was put here since the last look."""
        word = self._words[self._at + _POISON]
        if word:
            self._words[self._at + _POISON] = Poison.none
        return Poison(word)

    def move(self, *, step: int, doing: Doing, device_bytes: int = 0, busy_s: float = 0.0) -> None:
        """The training thread got somewhere."""
        self._moves += 1
        self._seconds[self._at + _BUSY] = busy_s
        self._words[self._at + _STEP] = step
        self._words[self._at + _DOING] = doing
        self._words[self._at + _DEVICE] = device_bytes
        self._words[self._at + _MOVES] = self._moves
        self._words[self._at + _MOVED] = time.monotonic_ns()


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What the agent saw of one worker. ``stopped_looks``: how often in a row, this one included,
    the kernel called it stopped. ``starved_s``: how long since its tick its threads were ready and
    got no turn."""

    ticked_at: float
    stopped_looks: int
    starved_s: float = 0.0


class Watch:
    """Since when somebody has looked without a lapse."""

    def __init__(self, now: float) -> None:
        self._looked_at = self.since = now

    def look(self, now: float) -> None:
        """A look is taken: the watch begins anew with it if the last one is long past."""
        if now - self._looked_at > LAPSE_S:
            self.since = now
        self._looked_at = now


def is_stopped(look: Look, *, now: float, watched_since: float) -> bool:
    """Whether a worker is to be ended for being stopped.

    One that is stopped at every look but ticks in between is slow, not stopped: a busy host may
    take a machine's time away in slices. Silence counts from where we watched: before that the
    whole machine may have stood still, and who wakes up first is no reason to end the others.
    """
    silent_s = now - max(look.ticked_at, watched_since)
    if look.stopped_looks >= STOPPED_LOOKS and silent_s > SILENT_S:
        return True
    return silent_s - look.starved_s > STALE_S


class Pace:
    """How long a worker's steps take, from looks at its progress. Of one generation."""

    def __init__(self) -> None:
        self.step_seconds: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._generation = 0
        self._last: Progress | None = None

    def look(self, progress: Progress, *, generation: int) -> None:
        """Note what was seen. Another generation is another pace."""
        last, self._last = self._last, progress
        if generation != self._generation:
            self._generation = generation
            self.step_seconds.clear()
            return
        trains = progress.doing is Doing.training
        if trains and last is not None and 0 <= last.step < progress.step:
            steps = progress.step - last.step
            took_s = (progress.moved_at - last.moved_at) / steps
            self.step_seconds.extend([took_s] * min(steps, _RECENT_STEPS))


class Starvation:
    """How long a process got no turn since a sign of life last changed."""

    def __init__(self) -> None:
        self._sign: float | None = None
        self._then_s = 0.0

    def since(self, sign: float, *, delay_s: float) -> float:
        """``sign``: when it was given. ``delay_s``: what the kernel has counted so far."""
        if sign != self._sign:
            self._sign, self._then_s = sign, delay_s
        return max(0.0, delay_s - self._then_s)


def is_hung(
    progress: Progress,
    step_seconds: Sequence[float],
    *,
    now: float,
    watched_since: float,
    starved_s: float = 0.0,
) -> bool:
    """Whether a worker that ticks is to be ended, for its training thread hangs.

    A thread that waits for a peer says so all the time; one that computes finishes a step before
    long. How long that takes is known after some steps; until then an exchange's time-out decides.
    """
    if progress.doing is not Doing.training or len(step_seconds) < KNOWN_STEPS:
        return False
    still_s = now - max(progress.moved_at, progress.waited_at, watched_since) - starved_s
    return still_s > HUNG_MARGIN_S + HUNG_STEPS * median(step_seconds)


def exchange_timeout_s(step_seconds: Collection[float]) -> float:
    """How long a worker waits in one exchange before it leaves the step, from what recent steps
    took. A lost peer is known of long before; this is for a link that went silent."""
    if not step_seconds:
        return UNKNOWN_EXCHANGE_S
    return max(LEAST_EXCHANGE_S, STEPS_AN_EXCHANGE_MAY_TAKE * median(step_seconds))


def kernel_state(pid: int) -> str:
    """The one-letter process state of /proc ("T" is stopped); empty when there is no process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]


def starved_seconds(pid: int) -> float:
    """How long the threads of a process have been ready to run and waited for their turn, in all
    (second field of schedstat); 0 where the kernel does not count it."""
    total = 0
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return total / 1e9  # a thread ended meanwhile: a little less than it was
    return total / 1e9


def peak_bytes(pid: int) -> int:
    """The most memory of its own that a process has had; 0 when there is no process.

    Its largest resident set (VmHWM) less what is others' as well and is there now: libraries, and
    shared memory, which holds snapshots and what ranks of one machine exchange. Too little by what
    of that came after the peak.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    resident = {
        name: int(value.split()[0]) * 1024
        for name, _, value in (line.partition(":") for line in status.splitlines())
        if name in ("VmHWM", "RssFile", "RssShmem")
    }
    return max(
        0, resident.get("VmHWM", 0) - resident.get("RssFile", 0) - resident.get("RssShmem", 0)
    )


def stopped_looks(states: Sequence[str]) -> int:
    """How many of the last states, newest last, are an unbroken run of "T"."""
    count = 0
    for state in reversed(states):
        if state != "T":
            break
        count += 1
    return count
