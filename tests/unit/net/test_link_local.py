"""Both ways of asking whether an address is of its link alone say what `ipaddress` says."""

from __future__ import annotations

import socket
from ipaddress import IPv6Address

import pytest

from tink.net.link_local import is_link_local, is_link_local_packed

ADDRESSES = [
    "fe80::1",
    "FE80::1",
    "fe80::",
    "fe9f:1::2",
    "febf::1",
    "fec0::1",
    "fe7f::1",
    "fe8::1",
    "fe80:1::",
    "ff02::1",
]


@pytest.mark.parametrize("address", [*ADDRESSES, "ff02::1", "::fe80"])
def test_text_and_bytes_are_what_they_are_to_ipaddress(address: str) -> None:
    wanted = IPv6Address(address).is_link_local
    assert is_link_local(address) is wanted
    assert is_link_local(f"{address}%eth1") is wanted
    assert is_link_local_packed(socket.inet_pton(socket.AF_INET6, address)) is wanted


@pytest.mark.parametrize("text", ["", "fe", "fe80", "169.254.1.1", "fe8x", "10.0.0.1", "a:b:c:d:e:f:1:2"])
def test_what_is_no_ipv6_address_is_not_link_local(text: str) -> None:
    assert is_link_local(text) is False


def test_four_bytes_are_not_link_local() -> None:
    assert is_link_local_packed(b"\xfe\x80\0\1") is False
