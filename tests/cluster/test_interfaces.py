"""The interface and family of addresses that a machine's peers reach it by."""

from __future__ import annotations

import psutil
import pytest

from sailor.cluster.interfaces import Family, Way, way_of

# What psutil says of a cloud's machine: containers' bridge first, both families, a second card.
MACHINE = {
    "docker0": ("172.17.0.1", "02:42:ac:11:00:01"),
    "lo": ("127.0.0.1", "::1", "00:00:00:00:00:00"),
    "ens5": ("10.0.0.7", "10.0.0.70", "fd00::7", "fe80::1%ens5", "02:fc:00:00:00:01"),
    "ens50": ("10.1.0.7",),
}


@pytest.mark.parametrize(
    ("known_by", "interface", "address", "family"),
    [
        ("10.0.0.7", "ens5", "10.0.0.7", Family.ipv4),
        ("10.0.0.70", "ens5", "10.0.0.70", Family.ipv4),  # its second address: not the first one
        ("10.1.0.7", "ens50", "10.1.0.7", Family.ipv4),
        ("fd00:0::7", "ens5", "fd00::7", Family.ipv6),
        ("[fd00::7]", "ens5", "fd00::7", Family.ipv6),
        ("::ffff:10.0.0.7", "ens5", "10.0.0.7", Family.ipv4),
        ("fe80::1%ens5", "ens5", "fe80::1%ens5", Family.ipv6),
        ("172.17.0.1", "docker0", "172.17.0.1", Family.ipv4),
        ("127.0.0.1", "lo", "127.0.0.1", Family.ipv4),
        ("127.0.10.2", "lo", "127.0.10.2", Family.ipv4),  # a machine that is one of many here
        ("::1", "lo", "::1", Family.ipv6),
    ],
)
def test_the_interface_is_the_one_that_holds_what_peers_dial(known_by, interface, address, family):
    way = way_of((known_by,), MACHINE)
    assert way == Way(interface=interface, address=address)
    assert way.family is family


def test_of_a_names_addresses_the_first_that_is_here_is_taken():
    way = way_of(("203.0.113.9", "fd00::7", "10.0.0.7"), MACHINE)
    assert way is not None
    assert (way.interface, way.family) == ("ens5", Family.ipv6)


@pytest.mark.parametrize("known_by", [(), ("203.0.113.9",), ("0.0.0.0",), ("::",), ("node-1",)])
def test_an_address_that_no_interface_holds_is_no_way_here(known_by):
    assert way_of(known_by, MACHINE) is None


def test_a_machine_without_ipv6_has_no_way_by_it():
    assert way_of(("::1",), {"lo": ("127.0.0.1",)}) is None


def test_both_libraries_are_told_the_whole_name_and_the_family():
    way = way_of(("fd00::7",), MACHINE)
    assert way is not None
    assert way.environment() == {
        "GLOO_SOCKET_IFNAME": "ens5", "NCCL_SOCKET_IFNAME": "=ens5",
        "NCCL_SOCKET_FAMILY": "AF_INET6",
    }  # fmt: skip


def test_this_computers_own_interfaces_are_understood():
    interfaces = {
        name: tuple(address.address for address in addresses)
        for name, addresses in psutil.net_if_addrs().items()
    }
    way = way_of(("127.0.0.1",), interfaces)
    assert way is not None
    assert way.address == "127.0.0.1"
