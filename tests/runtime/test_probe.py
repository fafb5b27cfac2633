"""A silent node is asked after: dead, busy or out of reach."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys

from sailor.runtime.messages import Hello
from sailor.runtime.probe import Answer, ask, reach_seconds
from sailor.runtime.roster import ANSWERS_LONGER, ASK_EVERY_S, QUIET_S, Roster

LISTENER = """
import socket, sys, time
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    time.sleep(600)
"""


def asked(port: int) -> Answer:
    return asyncio.run(ask(("127.0.0.1", port), seconds=2.0))


def test_a_stopped_process_still_answers_and_a_dead_one_is_refused() -> None:
    process = subprocess.Popen([sys.executable, "-c", LISTENER], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert asked(port) is Answer.open
        os.kill(process.pid, signal.SIGSTOP)
        assert asked(port) is Answer.open
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    assert asked(port) is Answer.refused


def test_a_machine_that_neither_answers_nor_refuses_is_unreachable() -> None:
    """A full queue of connections that nobody accepts: the kernel lets further ones wait."""
    with socket.socket() as server, contextlib.ExitStack() as waiting:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        assert asyncio.run(ask(server.getsockname(), seconds=0.4)) is Answer.nothing


def test_what_cannot_be_reached_is_not_worth_asking() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        assert asyncio.run(reach_seconds(taken.getsockname(), seconds=1.0)) is None


def a_roster(*, reach_s: float | None) -> Roster:
    roster = Roster()
    hello = Hello(
        node="n0", zone="z", machine_type="m", pid=1, host="127.0.0.1", port=1, workers=()
    )
    assert roster.admit(hello, link="a link", now=0.0) == ""
    roster.agents["n0"].reach_s = reach_s
    return roster


def test_a_quiet_node_is_asked_after_once_in_a_while() -> None:
    roster = a_roster(reach_s=0.001)
    assert roster.to_ask_after(now=QUIET_S) == []
    assert [agent.node for agent in roster.to_ask_after(now=1.5)] == ["n0"]
    assert roster.to_ask_after(now=1.6) == []
    assert roster.to_ask_after(now=1.6 + ASK_EVERY_S) != []
    roster.heard("n0", now=3.0)
    assert roster.to_ask_after(now=3.1) == []


def test_a_node_whose_port_cannot_be_asked_has_its_heartbeats_alone() -> None:
    roster = a_roster(reach_s=None)
    assert roster.to_ask_after(now=4.0) == []
    roster.parted("n0", "a link", now=10.0)
    waits = {"reconnect_s": 0.4, "silence_s": 5.0}
    assert roster.overdue(now=10.3, **waits) == []
    assert roster.overdue(now=10.5, **waits) != []
    roster.agents["n0"].reach_s = 0.001
    assert roster.overdue(now=10.5, **waits) == []
    assert roster.overdue(now=10.1 + 0.4 * ANSWERS_LONGER, **waits) != []
