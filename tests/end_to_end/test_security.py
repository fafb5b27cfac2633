"""Strangers, liars and noise at the doors of a run that goes on; and where its secret is not."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil

from provision.processes import MARK
from sailor.runtime import messages as m
from sailor.runtime.identity import Identity, create_identity, load_identity
from tests.helpers import invariants as check
from tests.helpers.running import Place, Running, steps_done

PATIENCE_S = 60.0  # a server under load; nothing asserted depends on it
LENGTH = struct.Struct(">I")


def members(run: Running) -> list[psutil.Process]:
    """run.py and every process of its machines."""
    found = [psutil.Process(run.process.pid)]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK, "").startswith(f"{run.name}/"):
                found.append(process)
    return found


def doors(pid: int) -> set[int]:
    """Ports of this computer where a process listens, to nobody outside."""
    listening = [
        connection.laddr
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert all(address.ip == "127.0.0.1" for address in listening)
    return {address.port for address in listening}


@contextlib.contextmanager
def speaking(port: int, identity: Identity) -> Iterator[ssl.SSLSocket]:
    """A connection of someone who holds a key."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as plain,
        identity.client_context().wrap_socket(plain) as secure,
    ):
        yield secure


def answer(sock: ssl.SSLSocket) -> bytes:
    """All that is said to us until the other side hangs up."""
    heard = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while data := sock.recv(4096):
            heard += data
    return heard


def frame(message: m.Message) -> bytes:
    data = m.encode(message)
    return LENGTH.pack(len(data)) + data


def noise(seed: int) -> Iterator[bytes]:
    """What no one who keeps the protocol would say first."""
    chance = random.Random(seed)
    beat = m.Heartbeat(node="node-1", workers=())
    whole = m.encode(beat)
    yield LENGTH.pack(0)
    yield LENGTH.pack(2**32 - 1) + bytes(100)
    yield LENGTH.pack(len(whole)) + whole[:-1] + b"\xc1"
    yield frame(beat)
    yield frame(msgspec.structs.replace(beat, version=99))
    yield frame(m.Shutdown(reason="said by nobody who may"))
    for _ in range(12):
        data = bytearray(chance.choice([whole, chance.randbytes(chance.randint(1, 300))]))
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        yield LENGTH.pack(len(data)) + bytes(data)


def test_noise_strangers_and_a_zombie_disturb_nothing(place: Place, tmp_path: Path):
    with (
        place.start("cloud.nodes=2", "train.steps=5000") as run,
        contextlib.ExitStack() as mute,
    ):
        run.until_step(2)
        ours = load_identity(run.folder / ".identity")
        theirs = create_identity(tmp_path / "identity", run=run.name)  # the name alone is no key
        (control,) = doors(run.process.pid)
        bulk = [door for node in ("node-1", "node-2") for door in doors(run.pid_of(node))]
        assert len(bulk) == 2
        for port in (control, *bulk):
            mute.enter_context(socket.create_connection(("127.0.0.1", port)))  # never says a word
            mute.enter_context(speaking(port, ours))
            for data in noise(port):
                with socket.create_connection(("127.0.0.1", port)) as plain:
                    plain.sendall(data)
                with speaking(port, ours) as secure:
                    secure.sendall(data)
                    assert answer(secure) == b""
            with contextlib.suppress(ConnectionError, ssl.SSLError), speaking(port, theirs) as liar:
                liar.sendall(frame(m.Shutdown(reason="said by nobody who may")))
                assert answer(liar) == b""
        known = [e for e in run.events if e.kind == "node_joined" and e["node"] == "node-1"]
        zombie = m.Hello(
            node="node-1", zone="local-a", machine_type="local", pid=known[0]["pid"] + 1,
            host="127.0.0.1", port=1, workers=(),
        )  # fmt: skip
        with speaking(control, ours) as secure:
            secure.sendall(frame(zombie))
            refusal = m.decoder(m.ToAgent).decode(answer(secure)[LENGTH.size :])
        assert isinstance(refusal, m.Refused)
        assert "another agent" in refusal.reason
        run.until_step(steps_done(run.events) + 5)
        run.signal(signal.SIGINT)
        ended = run.wait()
    assert ended.code == 75, ended.told()
    check.check_one_owner(ended.events)
    check.check_samples(ended.events, batch=8)
    check.check_replicas(ended.events, at_least=1)
    assert ended.summary["generations"] == 1
    assert [e.kind for e in ended.events if e.kind in ("node_lost", "fenced", "worker_lost")] == []
    assert "Traceback" not in ended.told()


def test_the_secret_is_in_one_file_that_only_its_owner_can_read(place: Place):
    with place.start("cloud.nodes=2", "train.steps=20") as run:
        run.until_step(2)
        folder = run.folder / ".identity"
        key = (folder / "run.key").read_text()
        secret = [line for line in key.splitlines() if "-----" not in line]
        assert len("".join(secret)) > 100
        for process in members(run):
            shown = " ".join([*process.cmdline(), *map("=".join, process.environ().items())])
            assert not any(line in shown for line in secret)
        ended = run.wait()
    assert ended.code == 0, ended.told()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "run.key").stat().st_mode & 0o777 == 0o600
    for path in ended.folder.rglob("*"):
        if path.is_file() and path.parent != folder:
            data = path.read_bytes()
            assert not any(line.encode() in data for line in secret), path
    assert not any(line in ended.out + ended.err for line in secret)
