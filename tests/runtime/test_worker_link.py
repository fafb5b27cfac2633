"""The worker's end of its socket pair, and what a node writes of a checkpoint."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

from sailor.runtime.custody import boxes_to_write
from sailor.runtime.messages import Go, Halt, encode
from sailor.runtime.process import describe_exit
from sailor.runtime.worker_link import Channel, ChannelClosed, Done
from tests.helpers.builders import a_layout, a_plan


def framed(message) -> bytes:
    data = encode(message)
    return struct.pack(">I", len(data)) + data


def test_messages_arrive_whole_however_they_are_cut() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(theirs)
        data = framed(Go(generation=3, step=7)) + framed(Halt(generation=3, boundary=True))
        for byte in data[:5], data[5:30], data[30:]:
            ours.sendall(byte)
        assert channel.receive(timeout_s=5) == Go(generation=3, step=7)
        assert channel.receive(timeout_s=5) == Halt(generation=3, boundary=True)
        assert channel.receive(timeout_s=0.01) is None


def test_threads_do_not_mix_their_frames() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(theirs)
        senders = [
            threading.Thread(
                target=lambda: [channel.send(Done(generation=1, step=9)) for _ in range(200)]
            )
            for _ in range(3)
        ]
        for sender in senders:
            sender.start()
        frame = framed(Done(generation=1, step=9))
        got = b""
        while len(got) < 600 * len(frame):
            got += ours.recv(1 << 16)
        for sender in senders:
            sender.join()
        assert got == frame * 600


@pytest.mark.parametrize("last", [b"", struct.pack(">I", 1 << 31)])
def test_the_end_or_an_absurd_length_closes_the_channel(last: bytes) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        channel = Channel(theirs)
        ours.sendall(last)
        ours.close()
        with pytest.raises(ChannelClosed):
            channel.receive(timeout_s=5)
        with pytest.raises(ChannelClosed):
            channel.send(Done(step=1))


@pytest.mark.parametrize(
    ("status", "words"),
    [(-9, "killed by SIGKILL"), (-11, "killed by SIGSEGV"), (1, "exit status 1")],
)
def test_how_a_worker_ended_is_said_in_words(status: int, words: str) -> None:
    assert describe_exit(status) == words


@pytest.mark.parametrize("plan", [a_plan([2]), a_plan([], []), a_plan([2], [], [1, 3])])
def test_every_box_is_written_by_exactly_one_worker(plan) -> None:
    layout = a_layout(plan)
    written = [
        name
        for node in layout.nodes
        for names in boxes_to_write(layout, node=node).values()
        for name in names
    ]
    assert sorted(written) == sorted(box.name for box in layout.owners)
