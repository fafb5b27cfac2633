"""A whole run over IPv6, and what its workers' libraries are told of the network."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.end_to_end.test_losses import hold_to_invariants, of_kind
from tests.helpers.network import has_ipv6
from tests.helpers.running import Place

STEPS = 60


@pytest.mark.skipif(not has_ipv6(), reason="this computer has no IPv6")
def test_a_run_over_ipv6_is_the_run_that_it_would_be(place: Place, undisturbed) -> None:
    """Controller, agents, copies and the workers' sums: nothing of it uses IPv4."""
    with place.start("runtime.host=::1", "cloud.nodes=2", f"train.steps={STEPS}") as run:
        run.until_step(2)
        joined = of_kind(run.events, "node_joined")
        machines = [event["pid"] for event in joined]
        workers = [entry["pid"] for event in joined for entry in event["workers"]]
        dialled = set()
        for pid in (run.process.pid, *machines, *workers):
            for line in psutil.Process(pid).net_connections("inet"):
                dialled |= {end.ip for end in (line.laddr, line.raddr) if end}
        told = [told_of_sockets(pid) for pid in workers]
        ended = run.wait()
    assert ended.code == 0, ended.told()
    assert dialled == {"::1"}
    assert told == 2 * [
        {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo", "NCCL_SOCKET_FAMILY": "AF_INET6"}
    ]
    hold_to_invariants(ended, undisturbed(STEPS), steps=STEPS)


def told_of_sockets(pid: int) -> dict[str, str]:
    """Of a worker's environment, which it has of its zygote's start."""
    words = (Path("/proc") / str(pid) / "environ").read_bytes().decode().split("\0")
    return dict(word.split("=", 1) for word in words if "_SOCKET_" in word)
