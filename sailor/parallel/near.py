"""Exchanges between ranks of one machine, through memory and pipes that their processes share.

The bytes of a tensor lie in a buffer, which its owner fills and the others read; a word through a
pipe says that they are there. No socket and no other thread takes part: in a group of gloo they are
most of what an exchange costs (docs/decisions/near-groups.md). Nobody writes into anybody else's
tensors, not even when a wait was left. A wait for a word looks at the abort event, and ends when
the other process does.

Members open each other's pipes and buffers by number (``/proc/PID/fd``), as the kernel lets
processes of one user. What a buffer held may be written over when everybody it was for has said so,
in the buffer.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch

from sailor.parallel.comm import (
    DONE,
    Aborted,
    Communicator,
    PeerLost,
    Pending,
    ProcessGroupCommunicator,
    waits,
)
from sailor.parallel.shared_buffers import BufferPool, MappedBuffer
from sailor.parallel.words import INLINE_BYTES, LEFT, Ear, Mouth, Word


class _Coming:
    """A collective that is complete when some members' words have come and are dealt with."""

    __slots__ = ("_deadline", "_finish", "_group", "_number", "_ranks")

    def __init__(
        self, group: NearCommunicator, *, number: int, ranks: tuple[int, ...],
        finish: Callable[[Mapping[int, Word]], None],
    ) -> None:  # fmt: skip
        self._group = group
        self._number = number
        self._ranks = ranks
        self._finish = finish
        self._deadline = time.monotonic() + group.timeout_s

    def wait(self) -> None:
        began = time.monotonic()
        try:
            said = {
                rank: self._group.hear(rank, self._number, deadline=self._deadline)
                for rank in self._ranks
            }
        finally:
            waits.seconds += time.monotonic() - began
        self._finish(said)


class NearCommunicator:
    """A group all of whose members are processes of one machine and one user."""

    def __init__(
        self, group: ProcessGroupCommunicator, *, pids: Sequence[int], ears: Mapping[int, Ear],
        mouths: Mapping[int, Mouth],
    ) -> None:  # fmt: skip
        """``group``: theirs of gloo, over which nothing more is said. ``ears`` and ``mouths``: by
        member, for words from and to it."""
        self.rank = group.rank
        self.size = group.size
        self._group = group
        self._pids = pids
        self._ears = ears
        self._mouths = mouths
        self._others = tuple(mouths)
        self._own = BufferPool()
        self._theirs: dict[tuple[int, int], MappedBuffer] = {}  # by member and descriptor
        self._number = 0  # of the last operation
        self._closed = False

    @property
    def timeout_s(self) -> float:
        """What an operation may take."""
        return self._group.timeout_s

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        self._begin()
        own = self._say(tensor, to=self._others)

        def finish(said: Mapping[int, Word]) -> None:
            self._sum(tensor, own, said, lambda part: part)

        return self._coming(self._others, finish)

    def reduce(self, tensor: torch.Tensor, *, root: int) -> Pending:
        self._begin()
        if self.rank != root:
            self._say(tensor, to=(root,))
            return DONE

        def finish(said: Mapping[int, Word]) -> None:
            own = tensor if root < 2 else tensor.clone()  # else it is written before it is read
            self._sum(tensor, own, said, lambda part: part)

        return self._coming(self._others, finish)

    def broadcast(self, tensor: torch.Tensor, *, root: int) -> Pending:
        self._begin()
        if self.rank == root:
            self._say(tensor, to=self._others)
            return DONE

        def finish(said: Mapping[int, Word]) -> None:
            tensor.copy_(self._part(root, said[root], tensor))
            self._have_read(said)

        return self._coming((root,), finish)

    def all_gather(self, parts: torch.Tensor) -> Pending:
        self._begin()
        self._say(parts[self.rank], to=self._others)

        def finish(said: Mapping[int, Word]) -> None:
            for rank, word in said.items():
                parts[rank].copy_(self._part(rank, word, parts[rank]))
            self._have_read(said)

        return self._coming(self._others, finish)

    def reduce_scatter(self, parts: torch.Tensor) -> Pending:
        self._begin()
        own = self._say(parts, to=self._others)

        def finish(said: Mapping[int, Word]) -> None:
            self._sum(parts, own, said, lambda part: part[self.rank])

        return self._coming(self._others, finish)

    def settle(self) -> None:
        return

    def rebind(self, abort: threading.Event) -> None:
        self._group.rebind(abort)

    def allow(self, *, seconds: float) -> None:
        self._group.allow(seconds=seconds)

    def interrupt(self) -> None:
        return

    def close(self) -> None:
        """The others hear of it at once. The ears close with this object: another thread may be
        asleep over them."""
        self._closed = True
        for mouth in self._mouths.values():
            mouth.close()
        self._group.close()

    # Words

    def _begin(self) -> None:
        if self._closed:
            raise Aborted(LEFT)
        self._number += 1

    def _say(self, tensor: torch.Tensor, *, to: tuple[int, ...]) -> torch.Tensor:
        """Let members know a tensor. Returns what they will see."""
        num_bytes = tensor.numel() * tensor.element_size()
        if num_bytes <= INLINE_BYTES:
            flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
            word = Word(number=self._number, inline=flat.numpy().tobytes())
            seen = self._part(self.rank, word, tensor)
        else:
            buffer = self._own.free(num_bytes)
            buffer.fill(tensor, readers=to)
            word = Word(
                number=self._number, descriptor=buffer.descriptor, num_bytes=buffer.num_bytes,
                use=buffer.use,
            )  # fmt: skip
            seen = buffer.mapped.like(tensor)
        encoded, deadline = word.encode(), time.monotonic() + self.timeout_s
        with self._left_if_broken():
            for rank in to:
                while not self._mouths[rank].say(encoded):  # a pipe full of words
                    self._mouths[rank].sleep()
                    self._look_up(deadline)
        return seen

    def hear(self, rank: int, number: int, *, deadline: float) -> Word:
        """What a member says in an operation. Raises Aborted."""
        ear = self._ears[rank]
        with self._left_if_broken():
            while (word := ear.take(number)) is None:
                if not ear.sleep():
                    self._look_up(deadline)
            return word

    def _look_up(self, deadline: float) -> None:
        """Now and then while something is waited for. Raises Aborted."""
        self._group.waiting()
        if self._closed or self._group.abort.is_set():
            raise Aborted("the generation was aborted")
        if time.monotonic() > deadline:
            raise PeerLost(f"no answer within {self.timeout_s:.0f} s")

    @contextlib.contextmanager
    def _left_if_broken(self) -> Iterator[None]:
        try:
            yield
        except Aborted:
            self.close()
            raise

    def _coming(
        self, ranks: tuple[int, ...], finish: Callable[[Mapping[int, Word]], None]
    ) -> Pending:
        return _Coming(self, number=self._number, ranks=ranks, finish=finish)

    # What was said

    def _sum(
        self, tensor: torch.Tensor, own: torch.Tensor, said: Mapping[int, Word],
        of: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:  # fmt: skip
        """Add up, in one order on all members: all have the same bits."""
        first, second, *rest = (
            of(own if rank == self.rank else self._part(rank, said[rank], tensor))
            for rank in range(self.size)
        )
        total = torch.add(first, second, out=of(tensor))
        for part in rest:
            total.add_(part)
        self._have_read(said)

    def _part(self, rank: int, word: Word, like: torch.Tensor) -> torch.Tensor:
        """A tensor that a member spoke of, as it has it. Raises PeerLost."""
        if word.inline is not None:
            return torch.frombuffer(bytearray(word.inline), dtype=like.dtype).view(like.shape)
        key = rank, word.descriptor
        if key not in self._theirs:
            try:
                opened = _open(self._pids[rank], word.descriptor, os.O_RDWR)
            except OSError as error:
                self.close()
                raise PeerLost("a member's process has ended") from error
            self._theirs[key] = MappedBuffer(opened, word.num_bytes)
            os.close(opened)
        return self._theirs[key].like(like)

    def _have_read(self, said: Mapping[int, Word]) -> None:
        """Their buffers may be filled again."""
        for rank, word in said.items():
            if word.inline is None:
                self._theirs[rank, word.descriptor].read[self.rank] = word.use


def near(group: ProcessGroupCommunicator) -> Communicator:
    """A group of gloo whose members are processes of one machine, as one that needs no sockets.

    Collective. The group itself where one of them may not open another's pipes. Raises Aborted.
    """
    others = [rank for rank in range(group.size) if rank != group.rank]
    if not others:
        return group
    entries, doors, exits = ([-1] * group.size for _ in range(3))
    for rank in others:  # a pipe from each: one end to hear by, one for it to open
        entries[rank], doors[rank] = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        told = torch.zeros((group.size, 1 + group.size), dtype=torch.int64)
        told[group.rank] = torch.tensor([os.getpid(), *doors])
        group.all_gather(told).wait()
        pids: list[int] = told[:, 0].tolist()
        for rank in others:
            door = int(told[rank, 1 + group.rank])
            with contextlib.suppress(OSError):
                exits[rank] = _open(pids[rank], door, os.O_WRONLY | os.O_NONBLOCK)
        missing = torch.tensor([float(any(exits[rank] < 0 for rank in others))])
        group.all_reduce(missing).wait()
    except BaseException:
        _close_all((*entries, *exits))
        raise
    finally:
        _close_all(doors)  # everybody has opened its own
    if missing.item():
        _close_all((*entries, *exits))
        return group
    return NearCommunicator(
        group, pids=pids, ears={rank: Ear(entries[rank]) for rank in others},
        mouths={rank: Mouth(exits[rank]) for rank in others},
    )  # fmt: skip


def _open(pid: int, descriptor: int, flags: int) -> int:
    """Another process's descriptor as one of this process."""
    return os.open(f"/proc/{pid}/fd/{descriptor}", flags | os.O_CLOEXEC)


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        if descriptor >= 0:
            os.close(descriptor)
