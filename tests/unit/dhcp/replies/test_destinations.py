"""Answers go where a packet says, which anybody can have written: so many to each, and so many in all."""

from __future__ import annotations

from typing import Any

import pytest

from edge.dhcp.replies.destinations import ANSWERS_IN_ALL, CLIENT_ANSWERS, RELAY_ANSWERS
from edge.journey.events import Outcome
from edge.machines import DhcpMode
from tests.unit.dhcp.harness import Edge, MakeEdge, MakeHardware, Wire

MAC = "52:54:00:12:34:56"
RELAY, LOOPBACK_RELAY, VICTIM = b"\x0a\x4d\0\2", b"\xac\x10\0\1", b"\xc0\0\2\1"


def answered(edge: Edge, packet: bytes, count: int, **where: Any) -> int:
    return sum(edge.send(packet, **where) is not None for _ in range(count))


def test_relay_of_the_machines_network_is_answered_without_end(
    edge: Edge, wire: Wire, captured: dict[str, bytes]
) -> None:
    packet = wire.altered(captured["edk2_pxe_discover"], giaddr=RELAY)
    assert answered(edge, packet, 3 * ANSWERS_IN_ALL) == 3 * ANSWERS_IN_ALL


@pytest.mark.parametrize("link", [{}, {82: b"\5\4\x0a\x4d\0\0"}], ids=["plain", "it names the machine's link"])
def test_other_relays_get_so_many_answers_a_second(
    edge: Edge, wire: Wire, captured: dict[str, bytes], caplog: pytest.LogCaptureFixture, link: dict[int, bytes]
) -> None:
    packet = wire.altered(captured["edk2_pxe_discover"], giaddr=LOOPBACK_RELAY, options=link)
    assert answered(edge, packet, RELAY_ANSWERS + 50) == RELAY_ANSWERS
    edge.now += 1
    assert answered(edge, packet, RELAY_ANSWERS + 50) == RELAY_ANSWERS
    assert caplog.text.count("the relay 172.16.0.1, which is not of its machine's network (1000 a second)") == 1
    edge.now += 60
    answered(edge, packet, RELAY_ANSWERS + 1)
    assert "(99 more times since this was last said)" in caplog.text


def test_all_other_relays_share_a_bound_that_leaves_the_machines_own_alone(
    edge: Edge, wire: Wire, captured: dict[str, bytes]
) -> None:
    packet = captured["edk2_pxe_discover"]
    sent = sum(
        edge.send(packet[:24] + b"\xc0\0" + number.to_bytes(2, "big") + packet[28:]) is not None
        for number in range(1, ANSWERS_IN_ALL + 500)
    )
    assert sent == ANSWERS_IN_ALL
    assert edge.send(wire.altered(packet, giaddr=RELAY)) is not None
    assert edge.send(packet) is not None


@pytest.mark.parametrize("kind", [1, 3, 8])
def test_no_kind_of_message_gets_around_it(edge: Edge, wire: Wire, captured: dict[str, bytes], kind: int) -> None:
    changes = {53: bytes((kind,)), 50: b"\x0a\x4d\0\x63"}
    packet = wire.altered(captured["plain_discover"], giaddr=VICTIM, options=changes)
    assert answered(edge, packet, RELAY_ANSWERS + 50) == RELAY_ANSWERS


def test_the_same_holds_in_the_proxy_modes(
    make_edge: MakeEdge, make_hardware: MakeHardware, captured: dict[str, bytes]
) -> None:
    edge = make_edge(make_hardware("lab-1", MAC, "10.77.0.58"), mode=DhcpMode.AUTO_PROXY)
    packet = captured["edk2_pxe_discover"]
    assert answered(edge, packet[:24] + VICTIM + packet[28:], RELAY_ANSWERS + 50) == RELAY_ANSWERS
    where = {"source": "192.0.2.1", "source_port": 4011, "port": 4011}
    assert answered(edge, captured["edk2_pxe_request_4011"], CLIENT_ANSWERS + 5, **where) == CLIENT_ANSWERS


def test_client_that_names_its_own_address_gets_so_many_answers_a_second(
    edge: Edge, wire: Wire, captured: dict[str, bytes]
) -> None:
    inform = wire.altered(captured["plain_discover"], options={53: b"\x08"}, ciaddr=b"\x0a\x4d\0\x63")
    assert answered(edge, inform, CLIENT_ANSWERS + 5) == CLIENT_ANSWERS
    where = {"source": "10.77.0.58", "source_port": 4011, "port": 4011}
    assert answered(edge, captured["edk2_pxe_request_4011"], CLIENT_ANSWERS + 5, **where) == CLIENT_ANSWERS


@pytest.mark.parametrize("source", ["192.0.2.1", "10.77.0.58"])
def test_inform_for_an_address_of_another_network_is_told_and_not_answered(
    edge: Edge, wire: Wire, captured: dict[str, bytes], source: str
) -> None:
    inform = wire.altered(captured["plain_discover"], options={53: b"\x08"}, ciaddr=VICTIM)
    assert answered(edge, inform, 20, source=source) == 0
    (event,) = edge.events
    assert (event.mac, event.outcome) == (MAC, Outcome.INFO)
    assert "DHCPINFORM for 192.0.2.1" in event.message
    assert source in event.message
