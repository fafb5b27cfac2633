"""A step without its peers: what collectives answered is recorded once, and replayed to a standby.

The first step of a process is slow: kernels load, memory is touched, caches fill, and no call makes
all of that happen but a step itself. A standby therefore runs a real step on state that is thrown
away, over groups that answer what a rank of the same role was answered earlier in the run. Zeros
would do for shapes, but not for numbers: they lead to divisions by nothing.

Of large answers the first and the last values are kept and the first repeated, of many answers to
the same question the first few: a recording stays small. What is asked must match what was recorded
operation by operation, or ``StaleRecording`` is raised and nothing is learned from it. Inside
``no_network`` a thread that opens or uses a connection is stopped.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import torch

from sailor.parallel.comm import DONE, Aborted, Communicator, NoGroup, Pending
from sailor.parallel.layout import Layout

HEAD = 3072  # values kept of the beginning of an answer
TAIL = 1024  # and of its end, where the last collective has its votes
SAMPLES = 4  # answers kept to questions that do not differ

_VERSION = 1


class StaleRecording(Exception):
    """What is asked is not what was asked when the recording was made."""


class LeftSandbox(Exception):
    """Somebody inside ``no_network`` used the network."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One collective of one rank: which of Communicator's, over which group among those of the
    rank, with which root (-1 where there is none). ``sample``: which answer it is given, -1 where
    there is none to give.
    """

    kind: str
    group: int
    root: int
    shape: tuple[int, ...]
    dtype: str
    sample: int = -1


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """All collectives of one step of one role, in the order they were started.

    ``samples`` are heads and tails of answers.
    """

    role: str
    operations: tuple[Operation, ...]
    samples: tuple[bytes, ...]
    version: int = _VERSION

    def to_bytes(self) -> bytes:
        """As msgpack."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def from_bytes(data: bytes) -> Recording:
        """What to_bytes made. Raises StaleRecording on anything else."""
        try:
            recording = msgspec.msgpack.decode(data, type=Recording)
        except msgspec.MsgspecError as error:
            raise StaleRecording(f"not a recording: {error}") from error
        if recording.version != _VERSION:
            raise StaleRecording(f"a recording of version {recording.version}")
        return recording


# Recording


class Recorder:
    """Listens to one step of one rank."""

    def __init__(self, layout: Layout, rank: int, *, role: str) -> None:
        self._role = role
        self._keys = [group.key for group in layout.groups_of(rank)]
        self._operations: list[Operation] = []
        self._samples: list[bytes] = []
        self._alike: dict[Operation, list[int]] = {}  # question -> its samples

    def wrap(self, groups: Mapping[str, Communicator]) -> dict[str, Communicator]:
        """The same groups, overheard."""
        return {key: _Overheard(groups[key], i, self) for i, key in enumerate(self._keys)}

    def asked(self, question: Operation) -> int:
        """Note a question; its number."""
        self._operations.append(question)
        return len(self._operations) - 1

    def answered(self, number: int, tensor: torch.Tensor) -> None:
        """Note its answer, or one like it that is kept already."""
        question = self._operations[number]
        kept = self._alike.setdefault(question, [])
        if len(kept) < SAMPLES:
            kept.append(len(self._samples))
            self._samples.append(_sample(tensor))
        sample = kept[number % len(kept)]
        self._operations[number] = msgspec.structs.replace(question, sample=sample)

    def recording(self) -> Recording:
        """What was heard, when the step is over."""
        return Recording(
            role=self._role, operations=tuple(self._operations), samples=tuple(self._samples)
        )


class _Overheard:
    """A group that notes what it is asked and what it answers."""

    def __init__(self, real: Communicator, index: int, recorder: Recorder) -> None:
        self.rank = real.rank
        self.size = real.size
        self._real = real
        self._index = index
        self._recorder = recorder

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        return self._note("all_reduce", tensor, self._real.all_reduce(tensor))

    def reduce(self, tensor: torch.Tensor, *, root: int) -> Pending:
        pending = self._real.reduce(tensor, root=root)
        return self._note("reduce", tensor, pending, root=root, answered=root == self.rank)

    def broadcast(self, tensor: torch.Tensor, *, root: int) -> Pending:
        pending = self._real.broadcast(tensor, root=root)
        return self._note("broadcast", tensor, pending, root=root, answered=root != self.rank)

    def all_gather(self, parts: torch.Tensor) -> Pending:
        return self._note("all_gather", parts, self._real.all_gather(parts))

    def reduce_scatter(self, parts: torch.Tensor) -> Pending:
        return self._note("reduce_scatter", parts, self._real.reduce_scatter(parts))

    def settle(self) -> None:
        self._real.settle()

    def rebind(self, abort: threading.Event) -> None:
        self._real.rebind(abort)

    def allow(self, *, seconds: float) -> None:
        self._real.allow(seconds=seconds)

    def interrupt(self) -> None:
        self._real.interrupt()

    def close(self) -> None:
        self._real.close()

    def _note(
        self, kind: str, tensor: torch.Tensor, pending: Pending, *, root: int = -1,
        answered: bool = True,
    ) -> Pending:  # fmt: skip
        number = self._recorder.asked(_asked(kind, self._index, root, tensor))
        return _Answer(pending, tensor, self._recorder, number) if answered else pending


class _Answer:
    """Notes the result when it is there."""

    def __init__(
        self, real: Pending, tensor: torch.Tensor, recorder: Recorder, number: int
    ) -> None:
        self._real = real
        self._tensor = tensor
        self._recorder = recorder
        self._number = number

    def wait(self) -> None:
        self._real.wait()
        self._recorder.answered(self._number, self._tensor)


# Replaying


class Replay:
    """Answers one step of one rank from a recording of its role."""

    def __init__(
        self, recording: Recording, layout: Layout, rank: int, *, role: str, abort: threading.Event
    ) -> None:
        """Raises StaleRecording when it is of another role."""
        if recording.role != role:
            raise StaleRecording(f"made for role {recording.role}, this is {role}")
        self._left = iter(recording.operations)
        self._samples = recording.samples
        self._abort = abort
        self._groups = {
            group.key: _Replayed(self, index, rank=group.ranks.index(rank), size=len(group.ranks))
            for index, group in enumerate(layout.groups_of(rank))
        }

    @property
    def groups(self) -> Mapping[str, Communicator]:
        """A stand-in for every group of the rank, by Group.key."""
        return self._groups

    def answer(
        self, kind: str, tensor: torch.Tensor, *, group: int, root: int = -1, answered: bool = True
    ) -> Pending:
        """Raises StaleRecording, or Aborted when the standby is wanted elsewhere."""
        if self._abort.is_set():
            raise Aborted("the rehearsal was called off")
        expected = next(self._left, None)
        asked = _asked(kind, group, root, tensor)
        if expected is None or msgspec.structs.replace(expected, sample=-1) != asked:
            raise StaleRecording(f"asked for {_words(asked)}, recorded is {_words(expected)}")
        if not answered:
            return DONE
        if not 0 <= expected.sample < len(self._samples):
            raise StaleRecording(f"no answer was recorded to {_words(asked)}")
        return _Filled(tensor, self._samples[expected.sample])

    def finish(self) -> None:
        """Raises StaleRecording when the step did less than was recorded."""
        if (left := next(self._left, None)) is not None:
            raise StaleRecording(f"the step ended before {_words(left)}")


class _Replayed(NoGroup):
    """A group of nobody. Satisfies Communicator."""

    def __init__(self, replay: Replay, index: int, *, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._replay = replay
        self._index = index

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        return self._replay.answer("all_reduce", tensor, group=self._index)

    def reduce(self, tensor: torch.Tensor, *, root: int) -> Pending:
        return self._replay.answer(
            "reduce", tensor, group=self._index, root=root, answered=root == self.rank
        )

    def broadcast(self, tensor: torch.Tensor, *, root: int) -> Pending:
        return self._replay.answer(
            "broadcast", tensor, group=self._index, root=root, answered=root != self.rank
        )

    def all_gather(self, parts: torch.Tensor) -> Pending:
        return self._replay.answer("all_gather", parts, group=self._index)

    def reduce_scatter(self, parts: torch.Tensor) -> Pending:
        return self._replay.answer("reduce_scatter", parts, group=self._index)


class _Filled:
    """The answer comes when it is waited for, as a real one would."""

    def __init__(self, tensor: torch.Tensor, answer: bytes) -> None:
        self._tensor = tensor
        self._answer = answer

    def wait(self) -> None:
        _fill(self._tensor, self._answer)


def _asked(kind: str, group: int, root: int, tensor: torch.Tensor) -> Operation:
    return Operation(
        kind=kind, group=group, root=root, shape=tuple(tensor.shape), dtype=str(tensor.dtype)
    )


def _words(operation: Operation | None) -> str:
    if operation is None:
        return "nothing more"
    return (
        f"{operation.kind} of {operation.dtype} {list(operation.shape)} in group "
        f"{operation.group}, root {operation.root}"
    )


def _sample(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().reshape(-1)
    if flat.numel() > HEAD + TAIL:
        flat = torch.cat((flat[:HEAD], flat[-TAIL:]))
    return flat.cpu().contiguous().view(torch.uint8).numpy().tobytes()


def _fill(tensor: torch.Tensor, answer: bytes) -> None:
    """Write head and tail; between them the head again and again. Raises StaleRecording."""
    numel = tensor.numel()
    kept = min(numel, HEAD + TAIL)
    if len(answer) != kept * tensor.element_size():
        raise StaleRecording(f"{len(answer)} bytes recorded of an answer of {numel} values")
    if not numel:
        return
    values = torch.frombuffer(bytearray(answer), dtype=tensor.dtype).to(tensor.device)
    if numel > kept:
        times = -(-(numel - TAIL) // HEAD)
        values = torch.cat((values[:HEAD].repeat(times)[: numel - TAIL], values[HEAD:]))
    with torch.no_grad():
        tensor.copy_(values.view(tensor.shape))


# The network


_inside = threading.local()
_hooked = threading.Lock()
_FORBIDDEN = ("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg",
              "socket.getaddrinfo", "socket.gethostbyname")  # fmt: skip


def _listen(event: str, arguments: Sequence[Any]) -> None:
    if event in _FORBIDDEN and getattr(_inside, "depth", None):
        raise LeftSandbox(f"{event} in a sandbox without network")


@contextmanager
def no_network() -> Iterator[None]:
    """Stop this thread, by LeftSandbox, when it uses the network. Others go on as they like.

    Interpreter hooks cannot be removed: the first use installs one, which costs an attribute lookup
    for each connection afterwards. What C++ does by itself is not seen; it has no group to use.
    """
    if _hooked.acquire(blocking=False):  # held for ever: one hook a process
        sys.addaudithook(_listen)
    outer: int = getattr(_inside, "depth", 0)
    _inside.depth = outer + 1
    try:
        yield
    finally:
        _inside.depth = outer
