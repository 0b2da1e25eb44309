"""Port 4011: clients that have an address and ask for their boot file only."""

from __future__ import annotations

import pytest

from edge.dhcp.wire import MessageType
from edge.journey.events import Outcome
from tests.unit.dhcp.harness import Edge, MakeEdge, MakeHardware, Wire

MAC = "52:54:00:12:34:56"


@pytest.mark.parametrize(
    ("name", "port", "file"),
    [
        ("edk2_pxe_request_4011", 4011, b"snponly.efi"),
        ("ipxe_efi_request_4011", 68, f"http://10.77.0.1:7080/ipxe/script/{MAC}/auto.ipxe".encode()),
    ],
)
def test_request_is_answered_where_it_came_from_with_the_file_and_no_lease(
    edge: Edge, wire: Wire, captured: dict[str, bytes], name: str, port: int, file: bytes
) -> None:
    packet = wire.altered(captured[name], drop=(54,))
    for server in ({}, {54: b"\x0a\x4d\0\1"}):
        reply = edge.send(wire.altered(packet, options=server), source="10.77.0.58", source_port=port, port=4011)
        answer = wire.read(reply)
        assert (reply.address, reply.port, reply.ethernet) == ("10.77.0.58", port, b"")
        assert wire.kind(reply) is MessageType.ACK
        assert (answer.yiaddr, answer.ciaddr) == (bytes(4), b"\x0a\x4d\0\x3a")
        assert not {51, 58, 59, 1, 3, 6, 12} & answer.options.keys()
        assert answer.options[54] == b"\x0a\x4d\0\1"
        assert answer.file == file


def test_request_for_another_server_or_from_nowhere_is_not_answered(
    edge: Edge, wire: Wire, captured: dict[str, bytes]
) -> None:
    for_another = captured["ipxe_efi_request_4011"]  # names 10.77.0.2
    assert edge.send(for_another, source="10.77.0.58", source_port=68, port=4011) is None
    for source in ("0.0.0.0", "127.0.0.1", "255.255.255.255"):
        assert edge.send(captured["edk2_pxe_request_4011"], source=source, source_port=68, port=4011) is None
    stranger = wire.altered(captured["edk2_pxe_request_4011"], chaddr=b"\2\0\0\0\0\1")
    assert edge.send(stranger, source="10.77.0.9", port=4011) is None


def test_only_requests_of_netboot_clients_belong_on_this_port(
    edge: Edge, wire: Wire, captured: dict[str, bytes]
) -> None:
    for name in ("edk2_pxe_discover", "edk2_pxe_request", "plain_discover"):
        edge.send(captured[name])  # known packets are none here
    for name in ("edk2_pxe_discover", "plain_discover"):
        assert edge.send(captured[name], source="10.77.0.58", source_port=68, port=4011) is None
    request = wire.altered(captured["plain_discover"], options={53: b"\3", 50: b"\x0a\x4d\0\x3a"})
    edge.send(request)
    assert edge.send(request, source="10.77.0.58", source_port=68, port=4011) is None
    on_both = wire.altered(captured["edk2_pxe_request"], drop=())
    assert wire.read(edge.send(on_both, source="10.77.0.58", port=4011)).yiaddr == bytes(4)
    assert wire.read(edge.send(on_both)).yiaddr == b"\x0a\x4d\0\x3a"
    for_nothing = wire.altered(captured["edk2_pxe_request"], drop=(50, 54))
    assert edge.send(for_nothing, source="10.77.0.58", port=4011) is not None
    assert edge.send(for_nothing) is None
    for kind in (4, 7, 8):
        packet = wire.altered(captured["edk2_pxe_request_4011"], options={53: bytes((kind,))})
        assert edge.send(packet, source="10.77.0.58", port=4011) is None


def test_machine_that_may_not_netboot_is_told_to_go_on_and_the_journey_why(
    make_edge: MakeEdge, make_hardware: MakeHardware, wire: Wire, captured: dict[str, bytes]
) -> None:
    edge = make_edge(make_hardware("lab-1", MAC, "10.77.0.58", disableNetboot=True))
    reply = edge.send(captured["edk2_pxe_request_4011"], source="10.77.0.58", source_port=4011, port=4011)
    assert reply is None or wire.read(reply).file == b""
    (event,) = edge.events
    assert event.outcome is Outcome.REFUSED
    assert "disableNetboot is true" in event.message


def test_machine_that_is_not_served_hears_nothing(
    make_edge: MakeEdge, make_hardware: MakeHardware, captured: dict[str, bytes]
) -> None:
    edge = make_edge(make_hardware("lab-1", MAC, "10.77.0.58", disableDhcp=True))
    assert edge.send(captured["edk2_pxe_request_4011"], source="10.77.0.58", source_port=4011, port=4011) is None
    assert "disableDhcp is true" in edge.messages()[0]


def test_reply_that_would_be_too_large_is_refused_with_the_reason(
    edge: Edge, wire: Wire, captured: dict[str, bytes]
) -> None:
    packet = wire.altered(captured["edk2_pxe_request_4011"], drop=(57,), options={82: bytes(400)})
    assert edge.send(packet, source="10.77.0.58", source_port=4011, port=4011) is None
    assert "the client takes 548" in edge.messages()[0]
