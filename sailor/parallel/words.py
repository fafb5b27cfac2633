"""Words between processes of one machine, through pipes: what lies where for whom.

A pipe has no name either: that of a process that was killed is at its end at once.
"""

from __future__ import annotations

import os
import select
import struct
import threading
import weakref
from dataclasses import dataclass

from sailor.parallel.comm import SLICE_S, Aborted, PeerLost

LEFT = "this group was left and cannot be used again"
_HEAD = struct.Struct("<4q")  # number, descriptor, num_bytes, use
_NO_BUFFER = -1
INLINE_BYTES = select.PIPE_BUF - _HEAD.size  # a longer word might be written in part


@dataclass(frozen=True, kw_only=True, slots=True)
class Word:
    """What a member says in operation ``number`` of a group: the bytes, where ``inline`` is not
    None, or else the buffer that they lie in: its descriptor, size, and the how many-eth use."""

    number: int
    inline: bytes | None = None
    descriptor: int = _NO_BUFFER
    num_bytes: int = 0
    use: int = 0

    def encode(self) -> bytes:
        """As it goes through a pipe."""
        if self.inline is None:
            return _HEAD.pack(self.number, self.descriptor, self.num_bytes, self.use)
        return _HEAD.pack(self.number, _NO_BUFFER, len(self.inline), 0) + self.inline


class Ear:
    """Words from one other process. They may be taken in another order than they were said in."""

    def __init__(self, descriptor: int) -> None:
        """Of a pipe that does not block; it is closed with this object."""
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._rest = bytearray()
        self._heard: dict[int, Word] = {}  # by number

    def take(self, number: int) -> Word | None:
        """The word of an operation, if it has come. Raises PeerLost when none will."""
        while number not in self._heard:
            try:
                data = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                return None
            if not data:
                raise PeerLost("a member has left the group, or its process has ended")
            self._rest += data
            self._parse()
        return self._heard.pop(number)

    def sleep(self) -> bool:
        """Until there is something to read, SLICE_S at most. Whether there is."""
        return bool(self._poll.poll(1000 * SLICE_S))

    def _parse(self) -> None:
        while len(self._rest) >= _HEAD.size:
            number, descriptor, num_bytes, use = _HEAD.unpack_from(self._rest)
            if descriptor != _NO_BUFFER:
                end = _HEAD.size
                word = Word(number=number, descriptor=descriptor, num_bytes=num_bytes, use=use)
            else:
                end = _HEAD.size + num_bytes
                if len(self._rest) < end:
                    return
                word = Word(number=number, inline=bytes(self._rest[_HEAD.size : end]))
            self._heard[number] = word
            del self._rest[:end]


class Mouth:
    """Words to one other process. It may be closed by another thread than speaks."""

    def __init__(self, descriptor: int) -> None:
        """Of a pipe that does not block; it is closed with this object at the latest."""
        self._descriptor = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def say(self, word: bytes) -> bool:
        """Whether there was room for it. Raises Aborted, PeerLost when nobody will hear it."""
        try:
            with self._lock:
                if not self._close.alive:
                    raise Aborted(LEFT)
                os.write(self._descriptor, word)
        except BlockingIOError:
            return False
        except BrokenPipeError as error:
            raise PeerLost("a member has left the group, or its process has ended") from error
        return True

    def sleep(self) -> None:
        """Until there may be room, SLICE_S at most."""
        self._poll.poll(1000 * SLICE_S)

    def close(self) -> None:
        """The other one still hears what was said, then that no more comes."""
        with self._lock:
            self._close()
