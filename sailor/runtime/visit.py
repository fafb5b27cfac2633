"""Visits to the door of a run that lives on another machine (``sailor/runtime/door.py``).

Blocking, for actions: one question, one answer, each with a deadline. ``bring`` carries files home,
in pieces and only what changed; the event log only ever grows, so only its end is fetched.
"""

from __future__ import annotations

import fcntl
import os
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from sailor.addresses import joined
from sailor.runtime.door import (
    FROM_DOOR,
    Answer,
    Leave,
    List,
    Listed,
    Look,
    NotHad,
    Piece,
    Read,
    Seen,
    Stop,
    Wish,
    is_shown,
)
from sailor.runtime.identity import Identity
from sailor.runtime.messages import MAX_FRAME_BYTES, PROTOCOL_VERSION, Message, encode
from sailor.runtime.requests import Request

EVENTS = "events.jsonl"
_LENGTH = struct.Struct(">I")
_ANSWER_S = 20.0
_CONNECT_S = 5.0
_AGAIN_S = 0.02


class NobodyHome(Exception):
    """The door does not open, or its answer made no sense."""


@contextmanager
def alone_with(mirror: Path) -> Iterator[BinaryIO]:
    """A log that is carried home, open at its end; meanwhile no other command writes into it, which
    looks at the same run. Raises NobodyHome when one does so for long."""
    with mirror.open("ab") as file:
        deadline = time.monotonic() + _ANSWER_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise NobodyHome(f"another command holds {mirror}") from error
            time.sleep(_AGAIN_S)
        file.seek(0, os.SEEK_END)
        yield file


def dial(address: tuple[str, int]) -> socket.socket:
    """A connection to an address. Raises NobodyHome."""
    try:
        return socket.create_connection(address, timeout=_CONNECT_S)
    except OSError as error:
        raise NobodyHome(f"{joined(*address)}: {error}") from error


class Visit:
    """A connection that is there, made secure; it is closed with the visit. Raises NobodyHome from
    every call when the other side is gone."""

    def __init__(self, plain: socket.socket, *, identity: Identity) -> None:
        try:
            plain.settimeout(_ANSWER_S)
            self._socket = identity.client_context().wrap_socket(plain)
        except (OSError, ssl.SSLError) as error:
            plain.close()
            raise NobodyHome(str(error) or type(error).__name__) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        """Go. The run is left alone."""
        self._socket.close()

    def look(self) -> Seen:
        """How the run is."""
        answer = self._ask(Look())
        assert isinstance(answer, Seen)
        return answer

    def wish(self, request: Request) -> None:
        """Ask something of the run."""
        self._ask(Wish(request=request))

    def stop(self) -> None:
        """Have it save and end."""
        self._ask(Stop())

    def leave(self) -> None:
        """Say that nothing is wanted any more."""
        self._ask(Leave())

    def follow(self, folder: Path) -> None:
        """Bring home what is new in the event log. ``folder`` is the run's, here."""
        with alone_with(folder / EVENTS) as file:
            have = file.tell()
            while True:
                answer = self._ask(Read(name=EVENTS, offset=have), missing=Piece(data=b"", size=0))
                assert isinstance(answer, Piece)
                if not answer.data:
                    return
                file.write(answer.data)
                file.flush()
                have += len(answer.data)

    def bring(self, folder: Path, *, wanted: Callable[[str], bool] = lambda name: True) -> int:
        """Bring home the files that are wanted and differ; how many. Each appears whole or not."""
        self.follow(folder)
        answer = self._ask(List())
        assert isinstance(answer, Listed)
        count = 0
        for name, (size, modified_ns) in answer.files.items():
            # Whoever answers was let in by its key, but what it names must stay in our folder.
            if name == EVENTS or not is_shown(name) or ".." in Path(name).parts:
                continue
            here = folder / name
            if wanted(name) and not _is_same(here, size, modified_ns):
                self._fetch(name, here)
                os.utime(here, ns=(modified_ns, modified_ns))
                count += 1
        return count

    def _fetch(self, name: str, here: Path) -> None:
        here.parent.mkdir(parents=True, exist_ok=True)
        partial = here.with_name(f"{here.name}.partial")
        with partial.open("wb") as file:
            while True:
                answer = self._ask(Read(name=name, offset=file.tell()))
                assert isinstance(answer, Piece)
                file.write(answer.data)
                if not answer.data or file.tell() >= answer.size:
                    break
        partial.replace(here)

    def _ask(self, message: Message, *, missing: Answer | None = None) -> Answer:
        """The answer. ``missing`` instead of raising for what cannot be had."""
        frame = encode(message)
        try:
            self._socket.sendall(_LENGTH.pack(len(frame)) + frame)
            (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
            if length > MAX_FRAME_BYTES:
                raise NobodyHome(f"a frame of {length} bytes")
            answer: Answer = FROM_DOOR.decode(self._exactly(length))
        except (OSError, ssl.SSLError, msgspec.MsgspecError) as error:
            raise NobodyHome(str(error) or type(error).__name__) from error
        if answer.version != PROTOCOL_VERSION:
            raise NobodyHome(f"it speaks protocol {answer.version}, not ours")
        if isinstance(answer, NotHad):
            if missing is not None:
                return missing
            raise NobodyHome(answer.reason)
        return answer

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = self._socket.recv(min(count - len(data), 1 << 20))
            if not part:
                raise NobodyHome("the door was closed")
            data += part
        return bytes(data)


def _is_same(path: Path, size: int, modified_ns: int) -> bool:
    try:
        state = path.stat()
    except OSError:
        return False
    return (state.st_size, state.st_mtime_ns) == (size, modified_ns)
