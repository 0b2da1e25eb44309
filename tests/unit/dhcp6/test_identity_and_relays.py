"""Whose message it is, and the way back through relays (RFC 8415 sections 9 and 19, RFC 6939)."""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.dhcp6 import wire
from edge.dhcp6.wire import MessageType6 as M
from edge.dhcp6.wire import Option, option
from tests.unit.dhcp6.harness import (
    ADDRESS,
    EDK2_HTTP_SOLICIT,
    LINK_LOCAL,
    MAC,
    Edge6,
    MakeEdge6,
    addresses,
    ask,
    hardware,
    ia,
    relayed,
)
from tink.mac import eui64_mac

RELAY = IPv6Address("fd00:88::2")
PRIVATE = IPv6Address("fe80::1c2d:3e4f:5a6b:7c8d")
LINK_LAYER = option(Option.CLIENT_LINKLAYER_ADDR, b"\0\1" + bytes.fromhex(MAC.replace(":", "")))


@given(st.binary(min_size=6, max_size=6))
def test_mac_is_found_in_the_address_that_was_made_of_it(mac: bytes) -> None:
    made = IPv6Address(b"\xfe\x80" + bytes(6) + bytes((mac[0] ^ 2,)) + mac[1:3] + b"\xff\xfe" + mac[3:])
    assert eui64_mac(made) == (mac.hex(":") if not mac[0] & 1 else None)


def test_system_with_an_address_of_its_own_making_is_known_by_the_neighbour_table(edge: Edge6) -> None:
    packet = ask(M.SOLICIT, ia(), client=b"\0\2\0\0\xab\x11machine")
    assert edge.send(packet, PRIVATE) is None
    edge.neighbours[str(PRIVATE)] = MAC
    assert addresses(edge.answer(packet, PRIVATE))[0][0] == ADDRESS


@pytest.mark.parametrize("duid", ["00030001", "0001000101234567"])
def test_last_of_all_a_duid_with_a_mac_tells(edge: Edge6, duid: str) -> None:
    packet = ask(M.SOLICIT, ia(), client=bytes.fromhex(duid + MAC.replace(":", "")))
    assert addresses(edge.answer(packet, PRIVATE))[0][0] == ADDRESS
    assert edge.send(packet, IPv6Address("fe80::5054:ff:fefa:99")) is None, "the address it asks from says more"


def test_answer_goes_back_through_each_relay_with_its_interface(edge: Edge6) -> None:
    inner = relayed(EDK2_HTTP_SOLICIT, "fd00:77::2", LINK_LOCAL, option(Option.INTERFACE_ID, b"ge-0/0/7"))
    outer = relayed(inner, "::", IPv6Address("fe80::9"), option(Option.INTERFACE_ID, b"vlan7"), hops=1)
    reply = edge.send(outer, RELAY)
    assert reply is not None
    assert (reply.address, reply.port) == (str(RELAY), 547)
    first = reply.payload
    assert first[:2] == bytes((M.RELAY_REPL, 1))
    assert first[2:34] == outer[2:34]
    found = dict(wire.options(first[34:]))
    assert found[Option.INTERFACE_ID] == b"vlan7"
    second = found[Option.RELAY_MSG]
    assert second[:34] == bytes((M.RELAY_REPL, 0)) + inner[2:34]
    found = dict(wire.options(second[34:]))
    assert found[Option.INTERFACE_ID] == b"ge-0/0/7"
    assert addresses(wire.parse(found[Option.RELAY_MSG])[0])[0][0] == ADDRESS


def test_relay_says_whose_message_it_is_and_is_believed_first(edge: Edge6) -> None:
    packet = relayed(EDK2_HTTP_SOLICIT, "fd00:77::2", PRIVATE, LINK_LAYER)
    assert edge.send(packet, RELAY) is not None
    assert edge.send(relayed(EDK2_HTTP_SOLICIT, "fd00:77::2", PRIVATE), RELAY) is None
    another = option(Option.CLIENT_LINKLAYER_ADDR, b"\0\1" + bytes(6))
    assert edge.send(relayed(EDK2_HTTP_SOLICIT, "fd00:77::2", LINK_LOCAL, another), RELAY) is None


def test_relay_of_another_network_than_the_reservations_gets_no_answer(make_edge: MakeEdge6) -> None:
    edge = make_edge(hardware(), networks=(IPv6Network("fd00:88::/64"),))
    assert edge.send(relayed(EDK2_HTTP_SOLICIT, "fd00:77::2"), RELAY) is not None
    assert edge.send(relayed(EDK2_HTTP_SOLICIT, "fd00:99::2"), RELAY) is None
    assert "the machine is on another network" in edge.lines()[-1]


def test_relays_without_end_are_not_followed(edge: Edge6) -> None:
    packet = EDK2_HTTP_SOLICIT
    for hops in range(8):
        packet = relayed(packet, "fd00:77::2", LINK_LOCAL, hops=hops)
    assert edge.send(packet, RELAY) is not None
    assert edge.send(relayed(packet, "fd00:77::2", LINK_LOCAL, hops=8), RELAY) is None
