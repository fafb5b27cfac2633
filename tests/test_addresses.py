"""A host and a port in one word, with IPv6 addresses in brackets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sailor.addresses import bare, is_loopback, joined, numeric, parted


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.7:7000", "10.0.0.7", 7000),
        ("node-1.zone.internal:1", "node-1.zone.internal", 1),
        ("[fd00::7]:7000", "fd00::7", 7000),
        ("[::1]:0", "::1", 0),
        ("[fe80::1%eth0]:80", "fe80::1%eth0", 80),
    ],
)
def test_a_word_is_taken_apart_and_put_together_again(text, host, port):
    assert parted(text) == (host, port)
    assert joined(host, port) == text
    assert joined(f"[{host}]", port) == text if ":" in host else joined(host, port) == text


@given(address=st.ip_addresses(), port=st.integers(0, 65535))
def test_every_address_survives(address, port):
    assert parted(joined(str(address), port)) == (str(address), port)


@pytest.mark.parametrize(
    "text", ["", "host", ":80", "host:", "host:x", "host:-1", "host:65536", "[]:80", "host:٣"]
)
def test_what_is_no_such_word_is_refused(text):
    with pytest.raises(ValueError, match="port|HOST:PORT"):
        parted(text)


def test_an_ipv6_address_without_brackets_does_not_say_where_it_ends():
    with pytest.raises(ValueError, match="brackets"):
        parted("fd00::7:7000")


def test_an_address_is_known_whatever_it_is_written_in():
    assert numeric("[::ffff:10.0.0.7]") == numeric("10.0.0.7")
    assert numeric("fe80::1%eth0") == numeric("fe80::1")
    assert numeric("node-1") is None
    assert [bare("[::1]"), bare("::1"), bare("h")] == ["::1", "::1", "h"]
    assert all(map(is_loopback, ["127.0.10.1", "::1", "[::1]", "localhost"]))
    assert not any(map(is_loopback, ["10.0.0.7", "fd00::7", "node-1", "0.0.0.0", "::"]))
