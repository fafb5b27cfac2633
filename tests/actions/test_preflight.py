"""Before anything is touched: ports and clouds that cannot be used."""

from __future__ import annotations

import os
import socket

import pytest

from actions.domain import HERE
from actions.preflight import check_cloud, check_port
from sailor.errors import CloudError, ConfigError
from tests.helpers.compose import a_config


@pytest.fixture
def taken():
    """A port this process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_that_is_taken_is_refused_with_who_has_it(taken):
    with pytest.raises(ConfigError) as refusal:
        check_port(a_config(f"runtime.port={taken}"))
    assert refusal.value.code == "E602"
    assert str(os.getpid()) in refusal.value.why
    assert "runtime.port=0" in refusal.value.fix


def test_a_free_port_and_no_port_pass(taken):
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    check_port(a_config(f"runtime.port={free}"))
    check_port(a_config())


def test_an_address_that_is_not_ours_is_refused():
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1 cannot be used"):
        check_port(a_config("runtime.host=192.0.2.1", "runtime.port=5000"))


@pytest.mark.parametrize("cloud", HERE)
def test_this_computer_can_be_trained_on(cloud):
    check_cloud(a_config(f"cloud={cloud}"))


@pytest.mark.parametrize("cloud", ["gcp", "slurm"])
def test_a_cloud_that_cannot_be_rented_says_that_it_can_be_planned_for(cloud):
    with pytest.raises(CloudError, match="cannot be rented from here") as refusal:
        check_cloud(a_config(f"cloud={cloud}"))
    assert refusal.value.exit_code == 4
    assert "action=plan" in refusal.value.fix
