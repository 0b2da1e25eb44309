"""Declines over IPv6: the server probes before a machine loses its address, because any host can send a Decline."""

from __future__ import annotations

import socket
from ipaddress import IPv6Address, IPv6Network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet6 import ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6NDOptDstLLAddr, ICMPv6NDOptSrcLLAddr, in6_getnsma

from edge.dhcp6 import server_duid
from edge.dhcp6.wire import MessageType6 as M
from edge.dhcp6.wire import Option, Status, options
from edge.dhcp_common.declines import DEFAULT_SECONDS, PROBES, UNPROBED_SECONDS
from edge.journey.events import Outcome
from edge.neighbour import discovery
from tests.unit.dhcp6.harness import (
    ADDRESS,
    LINK_LOCAL,
    MAC,
    SERVER_ID,
    Edge6,
    MakeEdge6,
    addresses,
    ask,
    hardware,
    ia,
    option,
    relayed,
    status,
)

SQUATTER, OTHER_NIC = "02:00:00:00:00:99", "52:54:00:fa:00:2b"
DECLINE, REQUEST, SOLICIT = (
    ask(M.DECLINE, SERVER_ID, ia(ADDRESS)),
    ask(M.REQUEST, SERVER_ID, ia()),
    ask(M.SOLICIT, ia()),
)
RELAY = IPv6Address("fd00:77::2")


@pytest.fixture
def blind(make_edge: MakeEdge6) -> Edge6:
    """An edge that can't probe, and has a trusted relay."""
    return make_edge(hardware(), looks=False, relays="fd00:77::2")


# --- on the link ------------------------------------------------------------------------------------------------------


def test_address_of_another_host_is_not_assigned_during_the_quarantine(edge: Edge6) -> None:
    assert status(edge.answer(DECLINE).get(Option.STATUS_CODE)) == Status.SUCCESS
    assert addresses(edge.answer(SOLICIT)), "it is looked into: until then nothing is known"
    assert edge.look(MAC) == PROBES
    assert (edge.quarantined, edge.events[-1].outcome) == ([], Outcome.INFO)
    edge.answer(DECLINE)
    edge.look(MAC, SQUATTER)
    assert edge.quarantined == [(MAC, ADDRESS, edge.now + DEFAULT_SECONDS)]
    assert edge.events[-1].message == (
        f"DHCPv6 DECLINE: another host, {SQUATTER}, already uses {ADDRESS}; it is not offered for 600 s. "
        "Find that host and stop it, or change the Hardware's dhcp.ipv6.address"
    )
    assert edge.send(SOLICIT) is None
    assert edge.send(ask(M.SOLICIT, ia(), option(Option.RAPID_COMMIT, b""))) is None
    assert "in quarantine, because another host was found there (DHCPv6 DECLINE)" in edge.events[-1].message
    assert edge.events[-1].outcome is Outcome.REFUSED
    refused = edge.answer(REQUEST)
    assert addresses(refused) == []
    inner = dict(options((refused.get(Option.IA_NA) or b"")[12:]))
    assert status(inner[Option.STATUS_CODE]) == Status.NO_ADDRS_AVAIL
    edge.now += DEFAULT_SECONDS
    assert addresses(edge.answer(SOLICIT))
    assert edge.quarantined[-1] == (MAC, ADDRESS, None)


def test_quarantine_allows_renewals_and_messages_without_an_address(edge: Edge6) -> None:
    edge.answer(DECLINE)
    edge.look(SQUATTER)
    for packet in (ask(M.RENEW, SERVER_ID, ia(ADDRESS)), ask(M.REBIND, ia(ADDRESS))):
        assert addresses(edge.answer(packet))
    assert edge.answer(ask(M.INFORMATION_REQUEST)).type is M.REPLY


def test_only_another_ipv6_address_of_the_hardware_ends_the_quarantine(make_edge: MakeEdge6) -> None:
    edge = make_edge(hardware(dhcp={"ip": "10.77.0.58"}))
    edge.answer(DECLINE)
    edge.look(SQUATTER)
    assert [each[1] for each in edge.quarantined] == [ADDRESS]
    edge.inventory.apply(hardware(dhcp={"ip": "10.77.0.59"}))
    assert edge.send(SOLICIT) is None
    edge.inventory.apply(hardware(ipv6="fd00:77::51"))
    assert [each[0] for each in addresses(edge.answer(SOLICIT))] == ["fd00:77::51"]
    assert edge.quarantined[-1] == (MAC, ADDRESS, None)


def test_decline_of_another_address_or_of_none_has_no_effect(edge: Edge6) -> None:
    for declined in (ia("fd00:77::99"), ia(), b""):
        edge.answer(ask(M.DECLINE, SERVER_ID, declined))
    assert edge.look(SQUATTER) == 0
    assert edge.quarantined == []


def test_decline_to_another_edge_is_probed_and_not_answered(edge: Edge6) -> None:
    other = ask(M.DECLINE, option(Option.SERVERID, server_duid(b"\2other")), ia(ADDRESS))
    assert edge.send(other, alone=True) is None
    assert edge.send(relayed(other, "fd00:77::2"), RELAY) is None
    assert edge.look(SQUATTER) == 0
    assert edge.send(other) is None
    assert edge.look(SQUATTER) == 1
    assert [each[:2] for each in edge.quarantined] == [(MAC, ADDRESS)]


def test_unicast_decline_or_one_on_another_link_has_no_effect(make_edge: MakeEdge6) -> None:
    edge = make_edge(hardware())
    edge.answer(REQUEST)
    assert status(edge.answer(DECLINE, alone=True).get(Option.STATUS_CODE)) == Status.USE_MULTICAST
    assert edge.look(SQUATTER) == 0
    edge = make_edge(hardware(), networks=(IPv6Network("fd00:99::/64"),))
    edge.answer(DECLINE)
    assert edge.look(SQUATTER) == 0
    assert "is not believed: the link that it came from is not of this machine's network" in edge.lines()[-1]


# --- where no probe is possible --------------------------------------------------------------------------------------


@pytest.mark.parametrize("link", ["fd00:77::2", None], ids=["behind a relay", "on a link that is no Ethernet"])
def test_without_probes_only_a_machine_with_a_recent_lease_is_believed_for_a_minute(
    blind: Edge6, link: str | None
) -> None:
    def send(packet: bytes) -> bool:
        sent = blind.send(packet) if link is None else blind.send(relayed(packet, link), RELAY)
        return sent is not None

    for _ in range(3):
        send(DECLINE)
        send(SOLICIT)
        send(ask(M.RENEW, SERVER_ID, ia(ADDRESS)))
    assert blind.quarantined == []
    assert "is not believed: this server has given the machine no address in the last minute" in blind.lines()[0]
    send(REQUEST)
    send(DECLINE)
    assert blind.quarantined == [(MAC, ADDRESS, blind.now + UNPROBED_SECONDS)]
    assert not send(SOLICIT)
    blind.now += UNPROBED_SECONDS
    assert send(SOLICIT)


@pytest.mark.parametrize("link", ["fd00:99::2", "::", "fe80::1"])
def test_decline_through_a_relay_of_another_link_is_not_believed(blind: Edge6, link: str) -> None:
    blind.send(relayed(REQUEST, "fd00:77::2"), RELAY)
    for _ in range(50):
        blind.send(relayed(DECLINE, link), IPv6Address("fd00:99::2"))
    assert blind.quarantined == []
    (line,) = (line for line in blind.lines() if "DECLINE" in line)
    assert "is not believed: its relay fd00:99::2 is not of this machine's network" in line


# --- neighbour discovery ----------------------------------------------------------------------------------------------


def test_probe_is_a_solicitation_to_the_group_of_the_address() -> None:
    target, mac = IPv6Address(ADDRESS), "f6:d7:2c:29:81:66"
    wanted = bytes(ICMPv6ND_NS(tgt=ADDRESS, cksum=0) / ICMPv6NDOptSrcLLAddr(lladdr=mac))
    assert discovery.neighbor_solicitation(bytes.fromhex(mac.replace(":", "")), target.packed) == wanted
    assert discovery.group_of(target.packed).packed == in6_getnsma(socket.inet_pton(socket.AF_INET6, ADDRESS))


def test_advertisement_is_a_claim_unless_a_router_may_have_forwarded_it() -> None:
    packet = bytes(ICMPv6ND_NA(tgt=ADDRESS) / ICMPv6NDOptDstLLAddr(lladdr=SQUATTER))
    assert discovery.advertised_neighbor(packet, 255) == (IPv6Address(ADDRESS).packed, bytes.fromhex("020000000099"))
    assert discovery.advertised_neighbor(packet, 254) is None
    assert discovery.advertised_neighbor(bytes(ICMPv6ND_NA(tgt=ADDRESS)), 255) is None, "it names no MAC"
    assert discovery.advertised_neighbor(bytes(ICMPv6ND_NS(tgt=ADDRESS)), 255) is None
    assert discovery.advertised_neighbor(packet[:-8] + b"\2\0" + bytes(6), 255) is None, "an option without length"


@given(st.binary(max_size=80))
def test_odd_advertisements_raise_nothing(packet: bytes) -> None:
    advertisement = bytes(ICMPv6ND_NA(tgt=ADDRESS) / ICMPv6NDOptDstLLAddr(lladdr=SQUATTER))
    for candidate in (b"\x88\0" + packet, advertisement + packet, advertisement[:-8] + packet + advertisement[-8:]):
        claim = discovery.advertised_neighbor(candidate, 255)
        assert claim is None or tuple(map(len, claim)) == (16, 6)


# --- relays of an edge that can not probe the machines' link ----------------------------------------------------------


NEIGHBOURS = [("m2", "52:54:00:fa:00:2c", "fd00:77::52"), ("m3", "52:54:00:fa:00:2d", "fd00:77::53")]


def lease_all(edge: Edge6, relay: IPv6Address) -> None:
    """Assign three machines their addresses through a relay."""
    edge.send(relayed(REQUEST, "fd00:77::2"), relay)
    for _, mac, _ in NEIGHBOURS:
        link_layer = option(Option.CLIENT_LINKLAYER_ADDR, b"\0\1" + bytes.fromhex(mac.replace(":", "")))
        assert edge.send(relayed(REQUEST, "fd00:77::2", LINK_LOCAL, link_layer), relay) is not None


def behind(make_edge: MakeEdge6, **more: Any) -> Edge6:
    return make_edge(hardware(), *(hardware(*each) for each in NEIGHBOURS), looks=False, **more)


@pytest.mark.parametrize("fast_path", [True, False])
def test_relay_of_the_network_is_believed_when_it_brought_leases_to_several_machines(
    make_edge: MakeEdge6, fast_path: bool
) -> None:
    edge = behind(make_edge, fast_path=fast_path)
    edge.send(relayed(REQUEST, "fd00:77::2"), RELAY)
    edge.send(relayed(DECLINE, "fd00:77::2"), RELAY)
    assert edge.quarantined == []
    lease_all(edge, RELAY)
    for neighbour in ("fd00:77::3", NEIGHBOURS[0][2]):
        edge.send(relayed(DECLINE, "fd00:77::2"), IPv6Address(neighbour))
    assert edge.quarantined == []
    edge.send(relayed(DECLINE, "fd00:77::2"), RELAY)
    assert edge.quarantined == [(MAC, ADDRESS, edge.now + UNPROBED_SECONDS)]
