"""Which message a client gets in which state, and where it is sent: RFC 2131 sections 4.1 and 4.3, as a table."""

from __future__ import annotations

from typing import Any

import pytest

from edge.dhcp.datagram import BROADCAST
from edge.dhcp.wire import MessageType, codec
from edge.journey.events import Outcome
from edge.machines import DhcpMode
from tests.unit.dhcp.harness import Edge, MakeEdge, MakeHardware, Wire

MAC = "52:54:00:12:34:56"
CHADDR = bytes.fromhex("525400123456")
OURS, OTHERS, RELAY = b"\x0a\x4d\0\1", b"\x0a\x4d\0\2", b"\x0a\x4d\0\3"
ADDRESS, WRONG = b"\x0a\x4d\0\x3a", b"\x0a\x4d\0\x63"
NONE = bytes(4)

DISCOVER, OFFER, REQUEST, DECLINE, ACK, NAK, RELEASE, INFORM = (bytes((n,)) for n in range(1, 9))

TO_FRAME = ("10.77.0.58", 68, CHADDR)
TO_ADDRESS = ("10.77.0.58", 68, b"")
TO_ALL = (BROADCAST, 68, b"")
TO_RELAY = ("10.77.0.3", 67, b"")

# What the client sends: message, 54, 50, ciaddr. What it gets: message, and where to if it does not want broadcasts, if
# it does, and through a relay.
TABLE: dict[str, tuple[bytes, bytes | None, bytes | None, bytes, bytes | None, Any, Any, Any]] = {
    "DISCOVER": (DISCOVER, None, None, NONE, OFFER, TO_FRAME, TO_ALL, TO_RELAY),
    "DISCOVER with a wish": (DISCOVER, None, WRONG, NONE, OFFER, TO_FRAME, TO_ALL, TO_RELAY),
    "DISCOVER from an address": (DISCOVER, None, None, WRONG, OFFER, TO_FRAME, TO_ALL, TO_RELAY),
    "SELECTING": (REQUEST, OURS, ADDRESS, NONE, ACK, TO_FRAME, TO_ALL, TO_RELAY),
    "SELECTING another address": (REQUEST, OURS, WRONG, NONE, NAK, TO_ALL, TO_ALL, TO_RELAY),
    "SELECTING another server": (REQUEST, OTHERS, ADDRESS, NONE, None, None, None, None),
    "SELECTING another server's address": (REQUEST, OTHERS, WRONG, NONE, None, None, None, None),
    "INIT-REBOOT": (REQUEST, None, ADDRESS, NONE, ACK, TO_FRAME, TO_ALL, TO_RELAY),
    "INIT-REBOOT, moved": (REQUEST, None, WRONG, NONE, NAK, TO_ALL, TO_ALL, TO_RELAY),
    "RENEWING or REBINDING": (REQUEST, None, None, ADDRESS, ACK, TO_ADDRESS, TO_ADDRESS, TO_RELAY),
    "RENEWING, moved": (REQUEST, None, None, WRONG, NAK, TO_ALL, TO_ALL, TO_RELAY),
    "RENEWING with 54": (REQUEST, OURS, None, ADDRESS, ACK, TO_ADDRESS, TO_ADDRESS, TO_RELAY),
    "REQUEST for nothing": (REQUEST, None, None, NONE, None, None, None, None),
    "REQUEST for half an address": (REQUEST, OURS, b"\x0a\x4d", NONE, None, None, None, None),
    "REQUEST of nobody": (REQUEST, b"", ADDRESS, NONE, None, None, None, None),
    "INFORM": (INFORM, None, None, WRONG, ACK, ("10.77.0.99", 68, b""), ("10.77.0.99", 68, b""), TO_RELAY),
    "INFORM without an address": (INFORM, None, None, NONE, ACK, TO_ALL, TO_ALL, TO_RELAY),
    "DECLINE": (DECLINE, OURS, ADDRESS, NONE, None, None, None, None),
    "RELEASE": (RELEASE, OURS, None, ADDRESS, None, None, None, None),
    "OFFER": (OFFER, OURS, None, NONE, None, None, None, None),
    "ACK": (ACK, OURS, None, NONE, None, None, None, None),
    "NAK": (NAK, OURS, None, NONE, None, None, None, None),
    "no message type": (b"", None, None, NONE, None, None, None, None),
    "a message type that is none": (b"\x20", None, None, NONE, None, None, None, None),
}


def question(
    wire: Wire, captured: dict[str, bytes], row: str, *, client: str, flags: int = 0, relay: bytes = NONE
) -> bytes:
    kind, server, requested, ciaddr = TABLE[row][:4]
    changes = {53: kind, 54: server, 50: requested}
    return wire.altered(  # type: ignore[no-any-return]
        captured[client],
        drop=(50, 53, 54),
        options={code: value for code, value in changes.items() if value is not None},
        ciaddr=ciaddr,
        flags=flags,
        giaddr=relay,
    )


@pytest.mark.parametrize("client", ["edk2_pxe_discover", "ipxe_efi_discover", "edk2_http_discover", "plain_discover"])
@pytest.mark.parametrize("row", TABLE)
def test_each_state_gets_its_answer_at_the_place_where_the_client_hears_it(
    edge: Edge, wire: Wire, captured: dict[str, bytes], row: str, client: str
) -> None:
    *_, answer, direct, wants_broadcast, relayed = TABLE[row]
    for flags, relay, where in (
        (0, NONE, direct),
        (codec.BROADCAST_FLAG, NONE, wants_broadcast),
        (0, RELAY, relayed),
        (codec.BROADCAST_FLAG, RELAY, relayed),
    ):
        for _ in range(3):  # in full, then as a packet that is known
            reply = edge.send(question(wire, captured, row, client=client, flags=flags, relay=relay))
            if answer is None:
                assert reply is None
                continue
            found = wire.read(reply)
            assert (reply.address, reply.port, reply.ethernet) == where
            assert found.options[53] == answer
            assert found.options[54] == OURS
            assert found.giaddr == relay
            leases = answer in (OFFER, ACK) and "INFORM" not in row
            assert found.yiaddr == (ADDRESS if leases else NONE)
            assert ({51, 58, 59} <= found.options.keys()) is leases
            # RFC 2131 table 3: an ACK repeats ciaddr, an offer and a refusal do not.
            assert found.ciaddr == (TABLE[row][3] if answer == ACK else NONE)
            assert found.flags == (flags | codec.BROADCAST_FLAG if answer == NAK and relay != NONE else flags)


@pytest.mark.parametrize("mode", [DhcpMode.PROXY, DhcpMode.AUTO_PROXY])
@pytest.mark.parametrize("row", TABLE)
def test_a_proxy_answers_discovers_of_netboot_clients_and_leaves_the_lease_to_its_server(
    make_edge: MakeEdge,
    make_hardware: MakeHardware,
    wire: Wire,
    captured: dict[str, bytes],
    row: str,
    mode: DhcpMode,
) -> None:
    edge = make_edge(make_hardware("lab-1", MAC, "10.77.0.58"), mode=mode)
    for flags, relay, where in ((0, NONE, TO_ALL), (codec.BROADCAST_FLAG, NONE, TO_ALL), (0, RELAY, TO_RELAY)):
        assert edge.send(question(wire, captured, row, client="plain_discover", flags=flags, relay=relay)) is None
        for client in ("edk2_pxe_discover", "ipxe_efi_discover", "edk2_http_discover"):
            reply = edge.send(question(wire, captured, row, client=client, flags=flags, relay=relay))
            if not row.startswith("DISCOVER"):
                assert reply is None
                continue
            found = wire.read(reply)
            assert (reply.address, reply.port, reply.ethernet) == where
            assert (found.options[53], found.yiaddr) == (OFFER, NONE)
            assert found.flags & codec.BROADCAST_FLAG  # there is no address to which a relay could send it
            assert not {1, 3, 6, 12, 15, 28, 42, 51, 58, 59} & found.options.keys()


def test_client_that_is_refused_its_address_is_told_by_whom_and_why(
    edge: Edge, wire: Wire, captured: dict[str, bytes]
) -> None:
    found = wire.read(edge.send(question(wire, captured, "INIT-REBOOT, moved", client="ipxe_efi_discover")))
    assert found.options[56] == b"10.77.0.99 is not reserved for this machine"
    assert found.options[61] == codec.parse(captured["ipxe_efi_discover"]).options[61]
    assert (found.siaddr, found.file) == (NONE, b"")
    assert edge.messages() == ["DHCPNAK: it asked for 10.77.0.99, reserved for it is 10.77.0.58"]


def test_renewals_do_not_look_like_boots_in_the_journey(edge: Edge, wire: Wire, captured: dict[str, bytes]) -> None:
    edge.send(question(wire, captured, "RENEWING or REBINDING", client="plain_discover"))
    assert [(event.outcome, event.message) for event in edge.events] == [
        (Outcome.INFO, "DHCPACK 10.77.0.58 (renewal) to operating system")
    ]
    edge.send(question(wire, captured, "SELECTING", client="plain_discover"))
    assert (edge.events[1].outcome, edge.events[1].message) == (Outcome.OK, "DHCPACK to operating system")


def test_inform_is_answered_where_it_came_from_if_the_client_does_not_say_where_it_is(
    edge: Edge, wire: Wire, captured: dict[str, bytes]
) -> None:
    packet = question(wire, captured, "INFORM without an address", client="plain_discover")
    reply = edge.send(packet, source="10.77.0.80")
    assert (reply.address, reply.port) == ("10.77.0.80", 68)
    for source in ("0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255"):
        assert edge.send(packet, source=source).address == BROADCAST
    assert edge.send(wire.altered(packet, ciaddr=b"\xe0\0\0\1"), source="10.77.0.80").address == "10.77.0.80"


def test_release_is_noted_once_a_minute_if_it_is_for_us(edge: Edge, wire: Wire, captured: dict[str, bytes]) -> None:
    packet = question(wire, captured, "RELEASE", client="plain_discover")
    edge.send(wire.altered(packet, options={54: OTHERS}))
    assert edge.events == []
    for _ in range(3):
        edge.send(packet)
    assert edge.messages() == ["DHCPRELEASE of 10.77.0.58"]
    edge.now += 60
    edge.send(wire.altered(packet, drop=(54,)))  # as systemd-networkd does
    assert edge.messages() == ["DHCPRELEASE of 10.77.0.58"] * 2


def test_transaction_and_hardware_address_are_those_of_the_question(
    edge: Edge, wire: Wire, captured: dict[str, bytes]
) -> None:
    for name in ("edk2_pxe_discover", "ipxe_bios_discover"):
        for _ in range(2):
            asked, answer = codec.parse(captured[name]), wire.read(edge.send(captured[name]))
            assert (answer.op, answer.htype, answer.hops, answer.secs) == (2, 1, 0, 0)
            assert (answer.xid, answer.chaddr) == (asked.xid, asked.chaddr)


def test_uuid_comes_back_as_sent_and_one_of_another_shape_costs_no_boot(
    edge: Edge, wire: Wire, captured: dict[str, bytes]
) -> None:
    for uuid, echoed in (
        (b"\0" + bytes(range(16)), True), (b"\1" + bytes(range(16)), False), (b"\1short", False), (b"", False),
    ):  # fmt: skip
        for _ in range(2):
            answer = wire.read(edge.send(wire.altered(captured["edk2_pxe_discover"], options={97: uuid})))
            assert answer.options.get(97) == (uuid if echoed else None)
            assert answer.file == b"snponly.efi"


def test_a_client_that_renews_never_sees_an_address_of_another_machine(
    edge: Edge, wire: Wire, captured: dict[str, bytes]
) -> None:
    packet = question(wire, captured, "RENEWING or REBINDING", client="edk2_pxe_discover")
    assert wire.kind(edge.send(packet)) is MessageType.ACK
    stranger = wire.altered(packet, chaddr=b"\2\0\0\0\0\1")
    assert edge.send(stranger) is None


@pytest.mark.parametrize("client", ["edk2_pxe_discover", "ipxe_efi_discover", "edk2_http_discover", "plain_discover"])
@pytest.mark.parametrize("state", ["SELECTING", "INIT-REBOOT"])
def test_a_known_packet_that_asks_for_another_address_is_refused(
    edge: Edge, wire: Wire, captured: dict[str, bytes], state: str, client: str
) -> None:
    right = question(wire, captured, state, client=client)
    wrong = wire.altered(right, options={50: WRONG})
    for _ in range(3):
        assert wire.kind(edge.send(right)) is MessageType.ACK
        assert wire.kind(edge.send(wrong)) is MessageType.NAK
