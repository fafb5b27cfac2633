"""What an agent is told at its start, and what it makes of the address it is known by."""

from __future__ import annotations

from pathlib import Path

import pytest

from sailor.runtime.agent import AgentSettings, parse_arguments
from sailor.runtime.identity import create_identity
from tests.helpers.network import has_ipv6


def told(folder: Path, **changes: str) -> AgentSettings:
    create_identity(folder / "id", run="r")
    words = {
        "node": "n1", "zone": "z", "machine-type": "m", "slots": "1", "identity": f"{folder}/id",
        "controller": "10.0.0.1:7000", "host": "127.0.0.1", **changes,
    }  # fmt: skip
    return parse_arguments([x for key, value in words.items() for x in (f"--{key}", value)])[0]


def test_workers_talk_through_the_interface_that_holds_the_address(tmp_path):
    settings = told(tmp_path, host="localhost")
    assert settings.host in ("127.0.0.1", "::1"), "a name is told as an address"
    settings = told(tmp_path)
    assert settings.host == "127.0.0.1"
    assert settings.environment == {
        "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo", "NCCL_SOCKET_FAMILY": "AF_INET",
    }  # fmt: skip


@pytest.mark.skipif(not has_ipv6(), reason="this computer has no IPv6")
def test_a_controller_and_a_machine_may_be_known_by_ipv6_addresses(tmp_path):
    settings = told(tmp_path, controller="[fd00::1]:7000", host="[::1]")
    assert settings.controller == ("fd00::1", 7000)
    assert settings.host == "::1"
    assert settings.environment["NCCL_SOCKET_FAMILY"] == "AF_INET6"


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("controller", "fd00::1:7000", "needs brackets"),
        ("controller", "10.0.0.1", "is not HOST:PORT"),
        ("host", "203.0.113.9", "no interface of this machine holds 203.0.113.9; they hold"),
        ("host", "0.0.0.0", "no interface of this machine holds 0.0.0.0"),
    ],
)
def test_an_address_that_cannot_be_is_refused_with_what_there_is(
    tmp_path, capsys, key, value, word
):
    with pytest.raises(SystemExit) as end:
        told(tmp_path, **{key: value})
    assert end.value.code == 2
    assert word in capsys.readouterr().err
