"""Relays: where replies go, what of option 82 comes back, and what a relay may ask for in it."""

from __future__ import annotations

from typing import Any

import pytest

from edge.dhcp import Reply
from edge.dhcp.wire import MessageType, codec
from edge.dhcp.wire.relay_agent import relay_agent_of
from edge.journey.events import Outcome
from tests.unit.dhcp.harness import (
    CAPTURED,
    PXE_DISCOVER,
    PXE_REQUEST,
    Edge,
    MakeEdge,
    altered,
    lab,
    message_type,
    option_codes,
    read,
)

RELAY = b"\x0a\x4d\0\2"
CIRCUIT = b"\x01\x04eth7\x02\x06\x02\0\0\0\0\7"
INFORMATION = [CIRCUIT, b"\x01\x04eth7\x01\x01x", b"", b"\x01\xff", b"\xff", b"\0\0"]


def twice(edge: Edge, packet: bytes, **where: Any) -> Reply | None:
    """Return the answer in full, which must also be the answer to a known packet."""
    first = edge.send(packet, **where)
    assert edge.send(packet, **where) == first
    return first


@pytest.mark.parametrize("giaddr", [RELAY, bytes(4)], ids=["relay", "switch that snoops"])
@pytest.mark.parametrize("name", ["edk2_pxe_discover", "ipxe_efi_discover", "edk2_http_request", "plain_discover"])
@pytest.mark.parametrize("information", INFORMATION)
def test_relay_information_comes_back_unchanged_as_the_last_option(
    edge: Edge, giaddr: bytes, name: str, information: bytes
) -> None:
    reply = twice(edge, altered(CAPTURED[name], giaddr=giaddr, options={82: information}))
    assert read(reply).options[82] == information
    assert option_codes(reply.payload)[-2:] == [82, 255]


def test_long_relay_information_comes_back_whole(edge: Edge) -> None:
    information = (b"\x01\xf0" + bytes(240)) * 2
    reply = twice(edge, altered(PXE_DISCOVER, giaddr=RELAY, options={82: information}))
    assert read(reply).options[82] == information


def test_refusal_carries_the_relay_information_too(edge: Edge) -> None:
    reply = edge.send(altered(PXE_REQUEST, giaddr=RELAY, options={50: b"\x0a\x4d\0\x63", 82: CIRCUIT}))
    assert message_type(reply) is MessageType.NAK
    assert read(reply).options[82] == CIRCUIT


def test_relay_that_wants_to_be_the_server_is_named_as_it(edge: Edge) -> None:
    """RFC 5107: so that renewals come through the relay, which can add option 82 to them."""
    override = b"\x0b\x04\x0a\x4d\0\2"
    discover = altered(PXE_DISCOVER, giaddr=RELAY, options={82: CIRCUIT + override})
    assert read(twice(edge, discover)).options[54] == RELAY
    request = altered(PXE_REQUEST, giaddr=RELAY, options={54: RELAY, 82: CIRCUIT + override})
    assert message_type(twice(edge, request)) is MessageType.ACK
    assert read(twice(edge, request)).options[54] == RELAY
    # Without the sub-option the same REQUEST is for another server, and one for us is for us with it, too.
    assert edge.send(altered(request, options={82: CIRCUIT})) is None
    assert message_type(edge.send(altered(request, options={54: b"\x0a\x4d\0\1"}))) is MessageType.ACK


@pytest.mark.parametrize("value", [b"\x0a\x4d\0", b"\xff\xff\xff\xff", bytes(4), b"\x7f\0\0\1", b""])
def test_server_override_that_is_no_address_is_passed_over(edge: Edge, value: bytes) -> None:
    information = b"\x0b" + bytes((len(value),)) + value
    reply = twice(edge, altered(PXE_DISCOVER, giaddr=RELAY, options={82: information}))
    assert read(reply).options[54] == b"\x0a\x4d\0\1"
    assert read(reply).options[82] == information


def test_link_is_that_of_sub_option_5_or_else_of_the_relay() -> None:
    def link(**fields: Any) -> bytes:
        return relay_agent_of(codec.parse(altered(PXE_DISCOVER, **fields))).link

    assert link() == b""
    assert link(giaddr=RELAY) == RELAY
    assert link(giaddr=RELAY, options={82: b"\5\4\x0a\1\0\0"}) == b"\x0a\1\0\0"
    assert link(options={82: b"\5\4\x0a\1\0\0"}) == b"\x0a\1\0\0"
    assert link(giaddr=RELAY, options={82: b"\5\3\x0a\1\0"}) == RELAY


@pytest.mark.parametrize(
    ("giaddr", "information", "of_another_network"),
    [
        (RELAY, b"", None),
        (b"\x0a\x4d\1\2", b"", "10.77.1.2"),
        (b"\x0a\x4d\1\2", b"\5\4\x0a\x4d\0\0", None),
        (RELAY, b"\5\4\x0a\x4d\2\0", "10.77.2.0"),
        (bytes(4), b"\5\4\x0a\x4d\2\0", None),  # no relay would send that; a switch that snoops has no say in it
    ],
)
def test_machine_behind_a_relay_of_another_network_is_served_and_the_operator_warned_once(
    edge: Edge, giaddr: bytes, information: bytes, of_another_network: str | None
) -> None:
    packet = altered(PXE_DISCOVER, giaddr=giaddr, options={82: information})
    for _ in range(3):
        assert message_type(edge.send(packet)) is MessageType.OFFER
    warnings = [event for event in edge.events if event.outcome is Outcome.FAILED]
    assert len(warnings) == (of_another_network is not None)
    for warning in warnings:
        words = f"a relay of another network ({of_another_network}) than that of its address 10.77.0.58"
        assert words in warning.message
        assert warning.detail["relay"] == codec.options.dotted(giaddr)


def test_link_that_a_relay_names_counts_for_known_packets_too(edge: Edge) -> None:
    plain = altered(PXE_DISCOVER, giaddr=RELAY)
    for _ in range(3):
        edge.send(plain)
        edge.send(altered(plain, options={82: b"\5\4\x0a\x4d\2\0"}))
        edge.now += 60
    assert len([event for event in edge.events if event.outcome is Outcome.FAILED]) == 3


def test_without_a_netmask_no_relay_is_wrong(make_edge: MakeEdge) -> None:
    edge = make_edge(lab(dhcp={"netmask": None, "gateway": None}))
    edge.send(altered(PXE_DISCOVER, giaddr=b"\x0a\x09\1\2"))
    assert {event.outcome for event in edge.events} == {Outcome.OK}


def test_invented_relays_are_answered_but_fill_neither_log_nor_memory(edge: Edge) -> None:
    def send(giaddr: bytes) -> None:
        edge.send(PXE_DISCOVER[:24] + giaddr + PXE_DISCOVER[28:])

    for number in range(3000):
        send(b"\x0a\x63" + number.to_bytes(2, "big"))
    warnings = [event for event in edge.events if event.outcome is Outcome.FAILED]
    assert len(warnings) == 30
    assert len(edge.responder.fast_path._relays) <= 1024
    for number in range(3000):
        send(b"\x0a\x4d\0" + bytes((number % 255,)))
    reservation = next(iter(edge.responder._replies.reservations.values()))
    assert len(reservation.network.links) <= 64
    send(RELAY)
    assert RELAY in reservation.network.links, "what was invented keeps nobody out who is real"


@pytest.mark.parametrize("giaddr", [b"\xff\xff\xff\xff", b"\xe0\0\0\1", b"\x7f\0\0\1", b"\0\0\0\1"])
def test_server_is_not_led_to_send_to_addresses_that_are_no_hosts(
    edge: Edge, giaddr: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    edge.send(PXE_DISCOVER)  # so that the packet is a known one
    for source in ("10.77.0.2", "10.77.0.2", "10.77.0.4"):
        assert edge.send(altered(PXE_DISCOVER, giaddr=giaddr), source=source) is None
    assert caplog.text.count("is ignored") == 2
    assert "its relay address (giaddr)" in caplog.text
