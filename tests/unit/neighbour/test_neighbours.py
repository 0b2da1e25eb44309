"""The kernel's neighbour table, its notifications, the filter of arrivals, and router advertisements."""

from __future__ import annotations

import errno
import itertools
import socket
import struct
from ipaddress import IPv6Network

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scapy.layers.inet6 import ICMPv6ND_RA

from edge.neighbour.arrivals import program
from edge.neighbour.discovery import (
    Advertised,
    is_of_a_router,
    is_router_solicitation,
    router_advertisement,
    soliciting_mac,
)
from edge.neighbour.router_advertisement import (
    ALL_NODES,
    MAX_SOLICITING,
    MULTICAST_INTERVAL_SECONDS,
    UNICAST_ANSWERS,
    UNICAST_ANSWERS_IN_ALL,
    Solicitations,
    Solicited,
)
from edge.neighbour.table import changed_address, hardware_address, neighbour_request

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


def test_known_neighbour_has_a_mac() -> None:
    assert hardware_address(answer(), 3, ADDRESS) == "52:54:00:12:34:56"


def test_infiniband_port_has_the_mac_of_its_guid() -> None:
    port = bytes.fromhex("a0000027fe800000000000007cfe900300292652")
    assert hardware_address(answer(mac=port), 3, ADDRESS) == "7c:fe:90:29:26:52"


def test_ipv6_neighbour_is_requested_and_parsed() -> None:
    address = socket.inet_pton(V6, "fd00::5")
    known = answer(family=V6, address=address)
    assert hardware_address(known, 3, address) == "52:54:00:12:34:56"
    assert hardware_address(known, 3, ADDRESS) is None
    assert hardware_address(answer(), 3, address) is None
    assert changed_address(known) == "fd00::5"
    assert neighbour_request(3, address, 7)[16] == V6
    link_local, lo = socket.inet_pton(V6, "fe80::5"), socket.if_nametoindex("lo")
    on_lo = changed_address(answer(family=V6, address=link_local, interface=lo))
    assert on_lo == "fe80::5%lo", "on another link it is another host's"


@pytest.mark.parametrize("state", [0, 0x01, 0x20, 0x40, 0x01 | 0x20])
def test_incomplete_or_failed_entry_has_no_mac(state: int) -> None:
    assert hardware_address(answer(state=state), 3, ADDRESS) is None


@pytest.mark.parametrize(
    "other",
    [
        answer(flags=0x08),
        answer(interface=4),
        answer(family=V6),
        answer(address=socket.inet_aton("10.0.0.6")),
        answer(mac=bytes(19)),
        answer(mac=b""),
        answer(kind=29),
        error(errno.ENOENT),
        error(errno.ENODEV),
        error(0),
    ],
)
def test_answer_about_another_entry_has_no_mac(other: bytes) -> None:
    assert hardware_address(other, 3, ADDRESS) is None


def test_error_of_the_kernel_is_raised() -> None:
    with pytest.raises(OSError, match="RTM_GETNEIGH"):
        hardware_address(error(errno.EOPNOTSUPP), 3, ADDRESS)


def test_attributes_come_in_any_order_and_are_aligned() -> None:
    mac, address = struct.pack("=HH", 10, 2) + MAC + bytes(2), struct.pack("=HH", 8, 1) + ADDRESS
    for attributes in (mac + address, address + mac):
        assert hardware_address(message(attributes), 3, ADDRESS) == "52:54:00:12:34:56"


@given(st.binary(max_size=60))
@example(bytes(8))
@example(struct.pack("=HH", 3, 1) + bytes(4))
def test_attributes_with_a_wrong_length_end_the_parsing(tail: bytes) -> None:
    found = hardware_address(message(tail), 3, ADDRESS)
    assert found is None or ADDRESS in tail


# --- the filter of packets that arrive, run here as the kernel runs it ------------------------------------------------


HTTP, GRPC = 7080, 42113


UDP, TCP = socket.IPPROTO_UDP, socket.IPPROTO_TCP


def payload(protocol: int, source: int, target: int, flags: int) -> bytes:
    ports = struct.pack("!HH", source, target)
    return ports + (bytes(4) if protocol == UDP else bytes(8) + bytes((0x50, flags)) + bytes(6))


def frame(protocol: int, source: int, target: int, *, flags: int = 0x02, options: int = 0, offset: int = 0) -> bytes:
    """Return an Ethernet frame of IPv4 with so many bytes of options, at this fragment offset."""
    length = 0x45 + options // 4
    header = struct.pack("!BBHHHBBH8x", length, 0, 40, 0, offset, 64, protocol, 0) + bytes(options)
    return bytes(12) + b"\x08\x00" + header + payload(protocol, source, target, flags)


def frame6(protocol: int, source: int, target: int, *, flags: int = 0x02) -> bytes:
    header = struct.pack("!IHBB32x", 6 << 28, 20, protocol, 64)
    return bytes(12) + b"\x86\xdd" + header + payload(protocol, source, target, flags)


def accepts(packet: bytes) -> bool:
    """Interpret the instructions of classic BPF that the filter uses (linux/filter.h)."""
    instructions = list(struct.iter_unpack("=HBBI", program(HTTP, GRPC)))
    at, accumulator, index = 0, 0, 0
    while True:
        code, if_true, if_false, operand = instructions[at]
        at += 1
        match code:
            case 0x28:
                accumulator = int.from_bytes(packet[operand : operand + 2], "big")
            case 0x30:
                accumulator = packet[operand]
            case 0x48:
                accumulator = int.from_bytes(packet[index + operand : index + operand + 2], "big")
            case 0x50:
                accumulator = packet[index + operand]
            case 0xB1:
                index = 4 * (packet[operand] & 0x0F)
            case 0x15:
                at += if_true if accumulator == operand else if_false
            case 0x45:
                at += if_true if accumulator & operand else if_false
            case 0x06:
                return operand > 0


COUNTED = [
    frame(UDP, 2000, 69),
    frame(UDP, 2000, 69, options=8),
    frame(TCP, 2000, HTTP),
    frame(TCP, 2000, GRPC),
    frame(TCP, HTTP, 2000, flags=0x12),
    frame(TCP, GRPC, 2000, flags=0x12, options=4),
    frame6(UDP, 2000, 69),
    frame6(TCP, 2000, HTTP),
    frame6(TCP, GRPC, 2000, flags=0x12),
]
OTHERS = [
    frame(UDP, 69, 2000),
    frame(UDP, 2000, HTTP),
    frame(UDP, 2000, 69, offset=100),
    frame(TCP, 2000, 22),
    frame(TCP, 2000, 69),
    frame(TCP, 2000, HTTP, flags=0x10),
    frame(1, 2000, 69),
    bytes(12) + b"\x08\x06" + bytes(46),
    frame6(UDP, 69, 2000),
    frame6(UDP, 2000, HTTP),
    frame6(TCP, 2000, HTTP, flags=0x10),
    frame6(TCP, 2000, 443),
    frame6(58, 2000, 69),
]


@pytest.mark.parametrize(
    ("packet", "wanted"), [*((each, True) for each in COUNTED), *((each, False) for each in OTHERS)]
)
def test_filter_accepts_requests_to_our_ports_and_tcp_answers_only(packet: bytes, wanted: bool) -> None:
    assert accepts(packet) is wanted


# --- The advertisement that ends iPXE's wait and changes nothing for other hosts --------------------------------------


SOLICITATION = bytes((133, 0, 0, 0, 0, 0, 0, 0))
WITH_LINK_ADDRESS = SOLICITATION + bytes.fromhex("0101525400123456")


def test_default_advertisement_has_no_router_no_prefix_and_no_dhcpv6() -> None:
    advertisement = ICMPv6ND_RA(router_advertisement())
    assert (advertisement.type, advertisement.code) == (134, 0)
    assert (advertisement.routerlifetime, advertisement.M, advertisement.O) == (0, 0, 0)
    assert (advertisement.chlim, advertisement.reachabletime, advertisement.retranstimer) == (0, 0, 0)
    assert not advertisement.payload


@pytest.mark.parametrize(
    ("packet", "hop_limit", "is_valid"),
    [
        (SOLICITATION, 255, True),  # as iPXE sends it
        (WITH_LINK_ADDRESS, 255, True),  # as Linux does
        (SOLICITATION, 254, False),
        (SOLICITATION, -1, False),
        (SOLICITATION[:7], 255, False),
        (b"\x86" + SOLICITATION[1:], 255, False),
        (b"\x85\x01" + SOLICITATION[2:], 255, False),
        (SOLICITATION + b"\1\0" + bytes(6), 255, False),
        (SOLICITATION + b"\1\2" + bytes(6), 255, False),
        (SOLICITATION + b"\1", 255, False),
    ],
)
def test_valid_solicitation_is_recognised(packet: bytes, hop_limit: int, is_valid: bool) -> None:
    assert is_router_solicitation(packet, hop_limit) is is_valid


@given(st.binary(max_size=200))
def test_no_solicitation_raises(packet: bytes) -> None:
    assert is_router_solicitation(packet, 255) in (True, False)
    assert is_router_solicitation(SOLICITATION + packet, 255) in (True, False)


def test_advertisement_with_dhcpv6_has_the_prefixes_without_autoconfiguration() -> None:
    on_link = (IPv6Network("fd00:77::/64"), IPv6Network("2001:db8::/56"))
    advertisement = ICMPv6ND_RA(router_advertisement(Advertised(True, 0, on_link, bytes.fromhex("525400123456"))))
    assert (advertisement.M, advertisement.O, advertisement.routerlifetime) == (1, 1, 0)
    assert advertisement["ICMPv6NDOptSrcLLAddr"].lladdr == "52:54:00:12:34:56"
    prefix = advertisement["ICMPv6NDOptPrefixInfo"]
    assert (prefix.prefix, prefix.prefixlen, prefix.L, prefix.A) == ("fd00:77::", 64, 1, 0)
    assert (prefix.payload.prefix, prefix.payload.prefixlen) == ("2001:db8::", 56)


def test_advertisement_of_a_router_has_its_lifetime() -> None:
    assert ICMPv6ND_RA(router_advertisement(Advertised(lifetime=1800))).routerlifetime == 1800


# --- iPXE alone, and no router beside it ---


@pytest.mark.parametrize(
    ("packet", "source", "mac"),
    [
        (SOLICITATION, "fe80::5054:ff:fe12:3456", "52:54:00:12:34:56"),  # iPXE, whose address is made of its MAC
        (WITH_LINK_ADDRESS, "fe80::1", "52:54:00:12:34:56"),
        (SOLICITATION, "fe80::1", ""),
        (SOLICITATION, "::", ""),  # EDK2
        (SOLICITATION, "fd00::5054:ff:fe12:3456", ""),
    ],
)
def test_solicitation_contains_its_mac_as_option_or_in_the_address(packet: bytes, source: str, mac: str) -> None:
    assert soliciting_mac(packet, source) == mac


@pytest.mark.parametrize(
    ("says", "is_router"),
    [
        (Advertised(), False),  # another edge, which says that it is none
        (Advertised(lifetime=1800), True),
        (Advertised(managed=True), True),
        (Advertised(prefixes=(IPv6Network("fd00:77::/64"),)), True),
    ],
)
def test_advertisement_with_any_offer_is_one_of_a_router(says: Advertised, is_router: bool) -> None:
    packet = router_advertisement(says)
    assert is_of_a_router(packet, 255, "fe80::1") is is_router
    assert not is_of_a_router(packet, 254, "fe80::1")
    assert not is_of_a_router(packet, 255, "fd00::1")
    assert not is_of_a_router(packet + b"\1", 255, "fe80::1")
    assert not is_of_a_router(SOLICITATION, 255, "fe80::1")


@given(st.binary(max_size=200))
def test_no_advertisement_raises(packet: bytes) -> None:
    assert is_of_a_router(packet, 255, "fe80::1") in (True, False)
    assert is_of_a_router(bytes((134, 0)) + packet, 255, "fe80::1") in (True, False)


def test_last_solicitation_of_a_limited_number_of_machines_is_remembered() -> None:
    now = [1000.0]
    solicitations = Solicitations(lambda: now[0])
    solicitations.record("52:54:00:12:34:56")
    now[0] += 4
    solicitations.record("52:54:00:12:34:56")
    assert solicitations.get("52:54:00:12:34:56") == 1004.0
    assert solicitations.get("52:54:00:12:34:57") is None
    for number in range(MAX_SOLICITING):
        solicitations.record(str(number))
    assert solicitations.get("52:54:00:12:34:56") is None


# --- how often --------------------------------------------------------------------------------------------------------


def test_solicitation_is_answered_at_once_to_the_hosts_address() -> None:
    assert Solicited().answer("fe80::1", 1000.0) == ("fe80::1", 0.0)


@pytest.mark.parametrize("source", ["::", "fd00::1"])
def test_host_without_link_local_address_gets_an_advertisement_to_all_nodes(source: str) -> None:
    solicited = Solicited()
    assert solicited.answer(source, 1000.0) == (ALL_NODES, 0.0)
    assert solicited.answer(source, 1001.0) == (ALL_NODES, 2.0), "it is answered, too"
    assert solicited.answer(source, 1002.0) is None
    assert solicited.answer(source, 1003.5) == (ALL_NODES, 2.5)


@pytest.mark.parametrize("sources", [1, 5400], ids=["one host", "a host for each"])
def test_flood_of_solicitations_is_answered_at_a_limited_rate_and_starves_no_host(sources: int) -> None:
    """Before the limit, 5,400 a second were answered one by one."""
    solicited, single, to_all = Solicited(), 0, []
    for number in range(54_000):
        now = 1000 + number / 5400
        found = solicited.answer(f"fe80::{number % sources + 1:x}", now)
        if found is not None and found[0] == ALL_NODES:
            to_all.append(now + found[1])
        else:
            single += found is not None
    assert single <= 11 * (UNICAST_ANSWERS if sources == 1 else UNICAST_ANSWERS_IN_ALL)
    assert len(to_all) in (4, 5)
    assert all(b - a >= MULTICAST_INTERVAL_SECONDS for a, b in itertools.pairwise(to_all))
    found = solicited.answer("fe80::aaaa", 1010.0)
    assert found is not None or to_all[-1] > 1010.0, "it is answered at its address, or by the next to all"


def test_unsolicited_advertisement_counts_as_one_to_all() -> None:
    solicited = Solicited()
    solicited.sent_to_all(1000.0)
    assert solicited.answer("::", 1000.0) == (ALL_NODES, MULTICAST_INTERVAL_SECONDS)
