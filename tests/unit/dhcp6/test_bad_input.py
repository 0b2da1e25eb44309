"""What anybody can send: nothing raises, nonsense is not answered, and no answer brings about another one."""

from __future__ import annotations

from ipaddress import IPv6Address

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scapy.layers.dhcp6 import DHCP6_Advertise

from edge.dhcp6 import wire
from edge.dhcp6.responder import ANSWERS
from edge.dhcp6.wire import MessageType6 as M
from edge.dhcp6.wire import Option, option
from tests.unit.dhcp6.harness import (
    ADDRESS,
    EDK2_HTTP_SOLICIT,
    EDK2_PXE_SOLICIT,
    EDK2_STACK_SOLICIT,
    LINK_LOCAL,
    MAC,
    SERVER_ID,
    Edge6,
    addresses,
    ask,
    ia,
    relayed,
)

FIXTURES = [HealthCheck.function_scoped_fixture]
PACKETS = [
    EDK2_HTTP_SOLICIT,
    EDK2_PXE_SOLICIT,
    EDK2_STACK_SOLICIT,
    ask(M.RENEW, SERVER_ID, ia(ADDRESS)),
    relayed(relayed(EDK2_PXE_SOLICIT, "fd00:77::2"), "::", IPv6Address("fe80::9"), option(Option.INTERFACE_ID, b"1")),
]
SOURCES = st.one_of(st.just(LINK_LOCAL), st.binary(min_size=16, max_size=16).map(IPv6Address))


@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=FIXTURES)
def test_no_message_raises_and_no_answer_is_more_than_one_message_of_a_server(edge: Edge6, data: st.DataObject) -> None:
    packet = bytearray(data.draw(st.sampled_from(PACKETS)))
    for _ in range(data.draw(st.integers(0, 6))):
        packet[data.draw(st.integers(0, len(packet) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(packet[: data.draw(st.integers(0, len(packet)))])
    reply = edge.send(cut, data.draw(SOURCES), alone=data.draw(st.booleans()))
    if reply is not None:
        assert reply.payload[0] in (M.ADVERTISE, M.REPLY, M.RELAY_REPL)
        assert not IPv6Address(reply.address).is_multicast
        assert len(reply.payload) <= len(cut) + 400
        assert edge.send(reply.payload, IPv6Address(reply.address)) is None
    edge.send(data.draw(st.binary(max_size=600)), data.draw(SOURCES))


@given(junk=st.binary(max_size=400), kind=st.sampled_from(list(M)))
@settings(max_examples=200, deadline=None, suppress_health_check=FIXTURES)
def test_options_that_lie_are_never_answered_as_if_they_were_true(edge: Edge6, junk: bytes, kind: M) -> None:
    reply = edge.send(ask(kind, SERVER_ID, ia(), junk))
    if reply is not None:
        given = {each for each, *times in addresses(wire.parse(reply.payload)[0]) if any(times)}
        assert given <= {ADDRESS}


@pytest.mark.parametrize("kind", [M.ADVERTISE, M.REPLY, M.RECONFIGURE, M.RELAY_REPL])
def test_replies_of_servers_are_never_answered(edge: Edge6, kind: M) -> None:
    assert edge.send(ask(kind, SERVER_ID, ia())) is None
    assert edge.send(relayed(ask(kind, SERVER_ID, ia()), "fd00:77::2"), IPv6Address("fd00:77::2")) is None


@pytest.mark.parametrize("source", ["ff02::1:2", "::", "::1", "fd00:77::50", "2001:db8::1"])
def test_who_is_not_on_the_link_and_no_relay_gets_no_answer(edge: Edge6, source: str) -> None:
    assert edge.send(EDK2_HTTP_SOLICIT, IPv6Address(source)) is None
    named = bytes.fromhex("00030001" + MAC.replace(":", ""))
    assert edge.send(ask(M.SOLICIT, ia(), client=named), IPv6Address(source)) is None


@pytest.mark.parametrize(
    "packet",
    [
        b"\1abc" + ia(),  # without a client's DUID
        ask(M.SOLICIT, SERVER_ID, ia()),
        ask(M.REBIND, SERVER_ID, ia()),
        ask(M.INFORMATION_REQUEST, ia()),
        ask(M.REQUEST, ia()),
    ],
)
def test_messages_that_the_rfc_calls_invalid_get_no_answer(edge: Edge6, packet: bytes) -> None:
    assert edge.send(packet) is None


def test_message_full_of_identity_associations_costs_a_bounded_answer(edge: Edge6) -> None:
    reply = edge.send(ask(M.SOLICIT, *[ia(iaid=bytes((0, 0, 0, number))) for number in range(200)]))
    assert reply is not None
    assert len(reply.payload) < 700
    assert edge.send(ask(M.SOLICIT, *[ia()] * 300)) is None


def test_storm_is_answered_so_often_a_second_and_no_more(edge: Edge6) -> None:
    answered = sum(edge.send(EDK2_HTTP_SOLICIT) is not None for _ in range(ANSWERS + 200))
    assert answered == ANSWERS
    edge.now += 1.5
    assert edge.send(EDK2_HTTP_SOLICIT) is not None


def test_relay_of_the_machines_network_may_carry_a_whole_site(edge: Edge6) -> None:
    own, other = (IPv6Address(each) for each in ("fd00:77::2", "fd00:88::2"))
    packet = relayed(EDK2_PXE_SOLICIT, "fd00:77::2")
    assert all(edge.send(packet, own) is not None for _ in range(ANSWERS + 50))
    assert sum(edge.send(packet, other) is not None for _ in range(ANSWERS + 50)) == ANSWERS


def test_other_programs_read_our_answers_as_meant(edge: Edge6) -> None:
    reply = edge.send(EDK2_HTTP_SOLICIT)
    assert reply is not None
    read = DHCP6_Advertise(reply.payload)
    assert read.trid == 0xEBD538
    (address,) = read["DHCP6OptIA_NA"].ianaopts
    assert (address.addr, address.preflft, address.validlft) == (ADDRESS, 1000, 1000)
