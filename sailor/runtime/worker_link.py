"""What an agent, its zygote and its workers say to each other on one node.

Agent and worker share an inherited socket pair that carries the frames of the control plane
(4-byte length, msgpack); agent and zygote a packet socket, one message a packet. Messages that
merely pass through an agent (Halt, Go, Drop, StoreSet, ...) are those of ``messages``. No torch.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from typing import Any

import msgspec

from sailor.parallel.layout import WorkerId
from sailor.plan import Plan
from sailor.runtime.messages import (
    MAX_FRAME_BYTES,
    Diverged,
    Drop,
    Go,
    Halt,
    Message,
    Recorded,
    Role,
    RunSettings,
    Shutdown,
    StepRecord,
    StoreGet,
    StoreSet,
    StoreValues,
    decoder,
    encode,
)

_LENGTH = struct.Struct(">I")
ZYGOTE_PACKET_BYTES = 64 << 10


class ChannelClosed(Exception):
    """The other side of a socket pair is gone."""


# Agent -> worker


class Build(Message, frozen=True, kw_only=True):
    """Prepare a generation in the background. Segments to write snapshots to come as Grants.

    ``kept``: the worker does the same work as in the generation it sits in; trainer, state and
    snapshot memory serve on.
    """

    settings: RunSettings
    plan: Plan
    workers: tuple[WorkerId, ...]  # rank order
    host: str  # where other workers reach this one
    kept: bool = False
    warm_up: bool = True  # a process that never ran a step runs a short one alone
    rehearse: bool = False  # run a step in the sandbox first, where there is a recording
    timeout_s: float  # of each group's set-up and operations


class Rehearse(Message, frozen=True, kw_only=True):
    """Run a step of a role of this layout in the sandbox, and keep the recording."""

    settings: RunSettings
    plan: Plan
    workers: tuple[WorkerId, ...]  # rank order
    role: Role


class LocalSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a worker takes boxes from: ``tier`` "live" (those that no other source names; it names
    none itself), "segment", "disk" or "init".

    ``path`` is a verified segment's file, or the folder of a durable checkpoint.
    """

    tier: str
    boxes: tuple[str, ...]
    path: str = ""


class Take(Message, frozen=True, kw_only=True):
    """Take these boxes into the prepared generation: the state after ``step``."""

    step: int
    sources: tuple[LocalSource, ...]


class Grant(Message, frozen=True, kw_only=True):
    """The worker may overwrite this segment, once."""

    segment: str


# Worker -> agent


class Ready(Message, frozen=True, kw_only=True):
    """The worker listens."""

    pid: int


class Built(Message, frozen=True, kw_only=True):
    """Groups and buffers of the generation are there."""


class Rehearsed(Message, frozen=True, kw_only=True):
    """The worker has run a step of a role in the sandbox, or could not and says why."""

    role: str
    seconds: float
    error: str = ""


class CouldNot(Message, frozen=True, kw_only=True):
    """The worker could not prepare or switch, and says why.

    ``path``: of the source whose bytes are not what was written, where that is the reason.
    """

    reason: str
    path: str = ""


class Took(Message, frozen=True, kw_only=True):
    """All boxes are in place; training can start. ``cpu_s``: as in Switched, of this process."""

    copy_s: float
    bytes_moved: int
    cpu_s: float = 0.0


class Stood(Message, frozen=True, kw_only=True):
    """The worker stands still after ``step``; -1 when it has no state of that generation."""

    step: int
    records: tuple[StepRecord, ...]


class Applied(Message, frozen=True, kw_only=True):
    """A step was applied; only rank 0 says so, for the record is the same on every rank."""

    record: StepRecord


class Done(Message, frozen=True, kw_only=True):
    """The last step of the run was applied."""

    step: int


class WantSegment(Message, frozen=True, kw_only=True):
    """The worker must snapshot now (it halts, or the step is to be durable) and has no grant."""


class Written(Message, frozen=True, kw_only=True):
    """A snapshot of ``step`` was copied into the granted segment. ``skipped``: so far, in all.

    ``stall_s``: that beginning the copy held the worker up; ``copy_s``: that it took, beside the
    next step. ``standing``: the worker stands still after it, as all agreed to.
    """

    step: int
    segment: str
    stall_s: float
    copy_s: float
    skipped: int
    standing: bool = False


ToWorker = Build | Rehearse | Take | Grant | Halt | Go | Drop | Shutdown | StoreValues
FromWorker = (
    Ready | Built | CouldNot | Took | Stood | Applied | Done | WantSegment | Written
    | Diverged | StoreSet | StoreGet | Recorded | Rehearsed
)  # fmt: skip


# Agent <-> zygote


class Fork(Message, frozen=True, kw_only=True):
    """Start a worker. Its end of the socket pair comes with the packet."""

    worker: WorkerId
    progress: str  # path of the progress page


class Imported(Message, frozen=True, kw_only=True):
    """The zygote has imported everything and can fork."""


class Forked(Message, frozen=True, kw_only=True):
    """A worker was started."""

    worker: WorkerId
    pid: int


class Exited(Message, frozen=True, kw_only=True):
    """A worker ended; ``status`` as from os.waitstatus_to_exitcode."""

    pid: int
    status: int


FromZygote = Imported | Forked | Exited


class Channel:
    """The worker's end: blocking, one reading thread, any number of writing ones."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._decoder = decoder(ToWorker)
        self._lock = threading.Lock()
        self._buffer = bytearray()

    def send(self, message: Message) -> None:
        """Write one message. Raises ChannelClosed."""
        frame = encode(message)
        try:
            with self._lock:
                self._socket.sendall(_LENGTH.pack(len(frame)) + frame)
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, *, timeout_s: float) -> Any:
        """The next message, or None when none came in time. Raises ChannelClosed."""
        deadline = time.monotonic() + timeout_s
        while (message := self._take()) is None:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._socket], [], [], left)[0]:
                return None
            try:
                data = self._socket.recv(1 << 16)
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            if not data:
                raise ChannelClosed("end of stream")
            self._buffer += data
        return message

    def _take(self) -> Any:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > MAX_FRAME_BYTES:
            raise ChannelClosed(f"frame of {length} bytes")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        message = self._decoder.decode(bytes(self._buffer[_LENGTH.size : end]))
        del self._buffer[:end]
        return message
