"""A way to a port of a machine that only ssh reaches, as a socket, for as long as it is used.

What goes through it is encrypted and authenticated by those who talk (``sailor/runtime/door.py``);
ssh is the way, not the lock. No port is opened here, so nobody else on this computer can take the
way, and ssh ends when the socket does, however its user ends.
"""

from __future__ import annotations

import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from sailor.addresses import joined

_ENDS_S = 5.0


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """How a machine is reached: ``ssh`` are the words after ssh that name where to go in,
    ``address`` is the machine's own as seen from there."""

    ssh: tuple[str, ...]
    address: str


@contextmanager
def tunnel(route: Route, *, port: int) -> Iterator[socket.socket]:
    """A socket whose other side is that port. Raises OSError when the way does not open, or closes
    while it is used: with what ssh said."""
    words = [
        "ssh", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "-o", "ConnectTimeout=15",
        "-W", joined(route.address, port), *route.ssh,
    ]  # fmt: skip
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile() as told:
        with theirs:
            process = subprocess.Popen(
                words, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=told,
                start_new_session=True,  # Ctrl-C is for whoever looks to understand
            )  # fmt: skip
        try:
            yield ours
        except Exception as error:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_ENDS_S / 5)  # if it is its fault, it is about to say so
            if not process.returncode:
                raise
            told.seek(0)
            why = told.read().decode(errors="replace").strip()[-500:]
            raise OSError(f"ssh {' '.join(route.ssh)}: {why or error}") from error
        finally:
            process.terminate()
            try:
                process.wait(_ENDS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
