"""Reading the kernel's answers about a neighbour, without a kernel."""

from __future__ import annotations

import errno
import socket
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge.neighbour.table import changed_address, hardware_address, request

ADDRESS = socket.inet_aton("10.0.0.5")
MAC = bytes.fromhex("525400123456")


V4, V6 = socket.AF_INET, socket.AF_INET6


def message(
    attributes: bytes, family: int = V4, interface: int = 3, state: int = 2, flags: int = 0, kind: int = 28
) -> bytes:
    body = struct.pack("=BxxxiHBB", family, interface, state, flags, 1) + attributes
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 1, 0) + body


def answer(*, address: bytes = ADDRESS, mac: bytes = MAC, **header: int) -> bytes:
    attributes = b"".join(
        struct.pack("=HH", 4 + len(value), number) + value + bytes(-len(value) % 4)
        for number, value in ((1, address), (2, mac), (3, bytes(16)))
    )
    return message(attributes, **header)


def error(code: int) -> bytes:
    return struct.pack("=IHHII", 36, 2, 0, 1, 0) + struct.pack("=i", -code) + bytes(16)


def test_known_neighbour_is_given_as_a_mac() -> None:
    assert hardware_address(answer(), 3, ADDRESS) == "52:54:00:12:34:56"


def test_neighbour_with_an_ipv6_address_is_asked_for_and_given_alike() -> None:
    address = socket.inet_pton(V6, "fd00::5")
    known = answer(family=V6, address=address)
    assert hardware_address(known, 3, address) == "52:54:00:12:34:56"
    assert hardware_address(known, 3, ADDRESS) is None
    assert hardware_address(answer(), 3, address) is None
    assert changed_address(known) == "fd00::5"
    assert request(3, address, 7)[16] == V6
    link_local, lo = socket.inet_pton(V6, "fe80::5"), socket.if_nametoindex("lo")
    on_lo = changed_address(answer(family=V6, address=link_local, interface=lo))
    assert on_lo == "fe80::5%lo", "on another link it is another host's"


@pytest.mark.parametrize("state", [0, 0x01, 0x20, 0x40, 0x01 | 0x20])
def test_state_that_proves_nothing_is_no_answer(state: int) -> None:
    assert hardware_address(answer(state=state), 3, ADDRESS) is None


@pytest.mark.parametrize(
    "other",
    [
        answer(flags=0x08),
        answer(interface=4),
        answer(family=V6),
        answer(address=socket.inet_aton("10.0.0.6")),
        answer(mac=bytes(20)),
        answer(mac=b""),
        answer(kind=29),
        error(errno.ENOENT),
        error(errno.ENODEV),
        error(0),
    ],
)
def test_answer_about_something_else_is_no_answer(other: bytes) -> None:
    assert hardware_address(other, 3, ADDRESS) is None


def test_kernel_that_can_not_be_asked_is_said_to_be_so() -> None:
    with pytest.raises(OSError, match="RTM_GETNEIGH"):
        hardware_address(error(errno.EOPNOTSUPP), 3, ADDRESS)


def test_attributes_come_in_any_order_and_are_aligned() -> None:
    mac, address = struct.pack("=HH", 10, 2) + MAC + bytes(2), struct.pack("=HH", 8, 1) + ADDRESS
    for attributes in (mac + address, address + mac):
        assert hardware_address(message(attributes), 3, ADDRESS) == "52:54:00:12:34:56"


@given(st.binary(max_size=60))
@example(bytes(8))
@example(struct.pack("=HH", 3, 1) + bytes(4))
def test_attributes_that_lie_about_their_length_end_the_reading(tail: bytes) -> None:
    found = hardware_address(message(tail), 3, ADDRESS)
    assert found is None or ADDRESS in tail
