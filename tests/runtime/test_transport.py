"""Links: what the run's key opens, and what everything else meets."""

import asyncio
import gc
import os
import socket
import ssl
import stat
import struct
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from sailor.runtime.identity import create_identity, load_identity
from sailor.runtime.messages import Beat, Heartbeat, ToAgent, ToController, decoder
from sailor.runtime.transport import Link, LinkClosed, connect, listen
from tests.helpers.network import has_ipv6

needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this computer has no IPv6")
TO_CONTROLLER = decoder(ToController)
TO_AGENT = decoder(ToAgent)


async def echo_beats(link: Link) -> None:
    while True:
        message = await link.receive()
        await link.send(Beat(generation=message.generation))


async def exchange(identity, generation, port, host="127.0.0.1"):
    link = await connect(host, port, identity=identity, decoder=TO_AGENT, deadline_s=5)
    await link.send(Heartbeat(node="a", workers=(), generation=generation))
    answer = await asyncio.wait_for(link.receive(), 5)
    await link.close()
    return answer


def with_server(identity, scenario, host="127.0.0.1"):
    async def main():
        async with await listen(
            host, 0, identity=identity, decoder=TO_CONTROLLER, on_link=echo_beats
        ) as server:
            return await asyncio.wait_for(scenario(server.address[1]), 20)

    return asyncio.run(main())


def test_a_member_of_the_run_is_answered(tmp_path: Path):
    identity = create_identity(tmp_path / "id", run="r")
    answer = with_server(identity, lambda port: exchange(identity, 7, port))
    assert answer == Beat(generation=7)


@needs_ipv6
def test_so_it_is_over_ipv6(tmp_path: Path):
    identity = create_identity(tmp_path / "id", run="r")
    answer = with_server(identity, lambda port: exchange(identity, 7, port, "::1"), "::1")
    assert answer == Beat(generation=7)


@needs_ipv6
def test_who_does_not_answer_there_is_named_in_brackets(tmp_path: Path):
    identity = create_identity(tmp_path / "id", run="r")
    with pytest.raises(LinkClosed, match=r"^\[::1\]:1: "):
        asyncio.run(exchange(identity, 7, 1, "::1"))


def test_the_key_is_readable_by_its_owner_only(tmp_path: Path):
    identity = create_identity(tmp_path / "id", run="r")
    assert stat.S_IMODE(os.stat(identity.key).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(tmp_path / "id").st_mode) == 0o700
    assert create_identity(tmp_path / "id", run="r") == load_identity(tmp_path / "id")


def test_what_is_sent_over_a_link_closed_meanwhile_is_told_as_that(tmp_path: Path):
    """Closed here and by the other side: a store's answer on its way then once ended a run."""
    identity = create_identity(tmp_path / "id", run="r")

    async def scenario(port):
        link = await connect("127.0.0.1", port, identity=identity, decoder=TO_AGENT, deadline_s=5)
        for _ in range(2):
            link.writer.close()
        with pytest.raises(LinkClosed):
            await link.send(Heartbeat(node="a", workers=(), generation=1))
        link.abort()

    with_server(identity, scenario)


def test_another_runs_key_is_refused_and_ours_still_works(tmp_path: Path):
    ours = create_identity(tmp_path / "ours", run="r")
    theirs = create_identity(tmp_path / "theirs", run="r")

    async def scenario(port):
        with pytest.raises(LinkClosed):
            await exchange(theirs, 1, port)
        return await exchange(ours, 2, port)

    assert with_server(ours, scenario) == Beat(generation=2)


def test_a_client_without_any_key_is_refused(tmp_path: Path):
    identity = create_identity(tmp_path / "id", run="r")

    async def scenario(port):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(b"hello")
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), 5)
        writer.transport.abort()
        return await exchange(identity, 3, port)

    assert with_server(identity, scenario) == Beat(generation=3)


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">I", 0xFFFFFFFF),
        struct.pack(">I", 3) + b"\xc1\xc1\xc1",
        struct.pack(">I", 0),
    ],
    ids=["oversized", "malformed", "empty"],
)
def test_a_frame_that_is_no_message_closes_only_its_own_link(tmp_path: Path, frame: bytes):
    identity = create_identity(tmp_path / "id", run="r")

    async def scenario(port):
        bad = await connect("127.0.0.1", port, identity=identity, decoder=TO_AGENT, deadline_s=5)
        bad.writer.write(frame)
        with pytest.raises(LinkClosed):
            await asyncio.wait_for(bad.receive(), 5)
        return await exchange(identity, 4, port)

    assert with_server(identity, scenario) == Beat(generation=4)


def test_a_sender_that_is_cancelled_ends_however_busy_it_is(tmp_path: Path):
    """An agent once lived on for ever: wait_for had swallowed the cancellation of a sender whose
    message was just through."""
    identity = create_identity(tmp_path / "id", run="r")

    async def scenario(port):
        link = await connect("127.0.0.1", port, identity=identity, decoder=TO_AGENT, deadline_s=5)

        async def send_for_ever():
            while True:
                await link.send(Heartbeat(node="a" * 20_000, workers=()))

        ended = 0
        for turns in range(40):
            sender = asyncio.create_task(send_for_ever())
            for _ in range(turns % 7 + 1):  # cancelled at every point of its round
                await asyncio.sleep(0)
            sender.cancel()
            await asyncio.wait({sender}, timeout=0.2)
            ended += sender.done()
            sender.cancel()
        link.abort()
        return ended

    assert with_server(identity, scenario) == 40


@pytest.mark.parametrize("turns", range(6))
def test_a_port_that_is_closed_leaves_no_socket_open(tmp_path: Path, turns: int):
    """asyncio's own server forgets one that it accepted in the moment before."""
    identity = create_identity(tmp_path / "id", run="r")

    async def scenario():
        listener = await listen(
            "127.0.0.1", 0, identity=identity, decoder=TO_CONTROLLER, on_link=echo_beats
        )
        with closing(socket.create_connection(listener.address)) as caller:
            for _ in range(turns):  # closed at every point of its way in
                await asyncio.sleep(0)
            await listener.close()
            its_end = caller.getsockname()
        for _ in range(500):
            if not is_open(its_end):
                break
            await asyncio.sleep(0.01)
        assert not is_open(its_end)

    def is_open(its_end):
        return any(c.raddr == its_end for c in psutil.Process().net_connections())

    gc.disable()  # it would close what is forgotten
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()


def test_a_port_that_is_closed_drops_whom_it_serves(tmp_path: Path):
    identity = create_identity(tmp_path / "id", run="r")

    async def scenario():
        async with await listen(
            "127.0.0.1", 0, identity=identity, decoder=TO_CONTROLLER, on_link=echo_beats
        ) as listener:
            link = await connect(
                *listener.address, identity=identity, decoder=TO_AGENT, deadline_s=5
            )
            await link.send(Heartbeat(node="a", workers=()))
            await link.receive()
        with pytest.raises(LinkClosed):
            await asyncio.wait_for(link.receive(), 5)

    asyncio.run(scenario())
