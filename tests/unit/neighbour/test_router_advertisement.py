"""The advertisement that ends iPXE's wait and changes nothing for other hosts."""

from __future__ import annotations

import itertools
from ipaddress import IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet6 import ICMPv6ND_RA

from edge.neighbour.router_advertisement import (
    ALL_NODES,
    MULTICAST_INTERVAL_SECONDS,
    UNICAST_ANSWERS,
    UNICAST_ANSWERS_IN_ALL,
    Advertised,
    Solicited,
    is_router_solicitation,
    router_advertisement,
)

SOLICITATION = bytes((133, 0, 0, 0, 0, 0, 0, 0))
WITH_LINK_ADDRESS = SOLICITATION + bytes.fromhex("0101525400123456")


def test_other_hosts_learn_no_router_no_prefix_and_no_dhcpv6() -> None:
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
def test_solicitation_is_recognised_unless_the_rfc_calls_it_invalid(
    packet: bytes, hop_limit: int, is_valid: bool
) -> None:
    assert is_router_solicitation(packet, hop_limit) is is_valid


@given(st.binary(max_size=200))
def test_no_packet_raises(packet: bytes) -> None:
    is_router_solicitation(packet, 255)
    is_router_solicitation(SOLICITATION + packet, 255)


def test_machines_are_sent_to_dhcpv6_and_told_what_is_on_the_link_and_nobody_makes_himself_an_address() -> None:
    on_link = (IPv6Network("fd00:77::/64"), IPv6Network("2001:db8::/56"))
    advertisement = ICMPv6ND_RA(router_advertisement(Advertised(True, 0, on_link, bytes.fromhex("525400123456"))))
    assert (advertisement.M, advertisement.O, advertisement.routerlifetime) == (1, 1, 0)
    assert advertisement["ICMPv6NDOptSrcLLAddr"].lladdr == "52:54:00:12:34:56"
    prefix = advertisement["ICMPv6NDOptPrefixInfo"]
    assert (prefix.prefix, prefix.prefixlen, prefix.L, prefix.A) == ("fd00:77::", 64, 1, 0)
    assert (prefix.payload.prefix, prefix.payload.prefixlen) == ("2001:db8::", 56)


def test_stand_in_for_a_router_says_for_how_long() -> None:
    assert ICMPv6ND_RA(router_advertisement(Advertised(lifetime=1800))).routerlifetime == 1800


# --- how often --------------------------------------------------------------------------------------------------------


def test_host_is_answered_at_its_own_address_at_once() -> None:
    assert Solicited().answer("fe80::1", 1000.0) == ("fe80::1", 0.0)


@pytest.mark.parametrize("source", ["::", "fd00::1"])
def test_host_without_a_link_local_address_is_answered_by_one_to_all_every_three_seconds(source: str) -> None:
    solicited = Solicited()
    assert solicited.answer(source, 1000.0) == (ALL_NODES, 0.0)
    assert solicited.answer(source, 1001.0) == (ALL_NODES, 2.0), "it is answered, too"
    assert solicited.answer(source, 1002.0) is None
    assert solicited.answer(source, 1003.5) == (ALL_NODES, 2.5)


@pytest.mark.parametrize("sources", [1, 5400], ids=["one host", "a host for each"])
def test_flood_of_solicitations_is_answered_at_a_limited_rate_and_hides_no_host(sources: int) -> None:
    """5,400 a second were answered one by one."""
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
