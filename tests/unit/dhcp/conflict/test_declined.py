"""A DHCPDECLINE is looked into before anybody loses an address: anybody can send one in a machine's name."""

from __future__ import annotations

import socket
from collections.abc import Callable
from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.l2 import ARP, Ether

from edge.conflict import Claim, Prober, declined
from edge.conflict.declined import MAX_PROBED, PROBES, UNSEEN_SECONDS
from edge.dhcp.wire import MessageType, arp
from edge.journey.events import Outcome
from tests.unit.dhcp.harness import Edge, MakeEdge, MakeHardware, Wire

MAC, OTHER_NIC, SQUATTER = "52:54:00:12:34:56", "52:54:00:12:34:66", "02:00:00:00:00:99"
OURS, RELAY, OTHERS_RELAY = b"\x0a\x4d\0\1", b"\x0a\x4d\0\2", b"\x0a\x63\0\2"
ADDRESS = b"\x0a\x4d\0\x3a"
QUARANTINED = (MAC, "10.77.0.58")


@pytest.fixture
def blind(make_edge: MakeEdge, make_hardware: MakeHardware) -> Edge:
    """An edge that can't send ARP probes, and has a trusted relay."""
    return make_edge(make_hardware("lab-1", MAC, "10.77.0.58"), looks=False, relays="10.77.0.2/32")


# --- on the link ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hosts", [(), (MAC,), (MAC, MAC)])
def test_where_nobody_or_only_the_machine_answers_it_is_served_as_before(
    edge: Edge, captured: dict[str, bytes], decline: bytes, hosts: tuple[str, ...]
) -> None:
    begun = edge.now
    edge.send(decline)
    assert edge.send(captured["edk2_pxe_discover"]) is not None, "it is looked into: until then nothing is known"
    assert edge.look(*hosts) == PROBES
    assert edge.now - begun == pytest.approx(2 * declined.PROBE_SECONDS + declined.ANSWER_SECONDS)
    assert edge.quarantined == []
    assert edge.send(captured["edk2_pxe_discover"]) is not None
    told = [event for event in edge.events if "DECLINE" in event.message]
    assert [event.outcome for event in told] == [Outcome.INFO]
    assert ("only the machine itself answers" if hosts else "nobody answers") in told[0].message


@pytest.mark.parametrize("hosts", [(SQUATTER,), (MAC, SQUATTER), (SQUATTER, MAC)])
def test_where_another_host_answers_there_is_a_conflict(edge: Edge, decline: bytes, hosts: tuple[str, ...]) -> None:
    edge.send(decline)
    edge.look(*hosts)
    assert [entry[:2] for entry in edge.quarantined] == [QUARANTINED]
    assert SQUATTER in edge.events[-1].message


def test_another_interface_of_the_same_machine_is_no_other_host(
    make_edge: MakeEdge, make_hardware: MakeHardware, decline: bytes
) -> None:
    # Linux answers ARP for each of its addresses on each of its interfaces.
    obj = make_hardware("lab-1", MAC, "10.77.0.58")
    obj["spec"]["networkInterfaces"][OTHER_NIC] = {"dhcp": {"ip": "10.77.0.59"}}
    edge = make_edge(obj)
    edge.send(decline)
    edge.look(OTHER_NIC)
    assert edge.quarantined == []


def test_address_of_this_host_is_a_conflict_that_no_probe_finds(edge: Edge, decline: bytes) -> None:
    edge.send(decline)
    (address,) = edge.responder.declined.step()
    edge.responder.declined.is_ours(address)
    assert [entry[:2] for entry in edge.quarantined] == [QUARANTINED]
    assert "this host itself" in edge.events[-1].message
    assert edge.responder.declined.wait is None


def test_one_address_is_looked_at_once_at_a_time_and_not_too_many_together(
    make_edge: MakeEdge,
    make_hardware: MakeHardware,
    wire: Wire,
    decline: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    count = MAX_PROBED + 10
    macs = [f"52:54:00:aa:00:{number:02x}" for number in range(count)]
    edge = make_edge(*(make_hardware(f"m{n}", mac, f"10.77.0.{100 + n}") for n, mac in enumerate(macs)))
    for _ in range(20):
        for number, mac in enumerate(macs):
            chaddr, address = bytes.fromhex(mac.replace(":", "")), bytes((10, 77, 0, 100 + number))
            edge.send(wire.altered(decline, chaddr=chaddr, options={50: address}))
    assert edge.look() == PROBES * MAX_PROBED
    assert caplog.text.count("is not looked into") == 1
    assert edge.send(decline) is None


@pytest.mark.parametrize("source", ["10.77.0.58", "10.99.0.9", "192.0.2.1"])
def test_unicast_decline_is_not_believed_and_told_once_a_minute_with_how_often(
    edge: Edge, captured: dict[str, bytes], decline: bytes, source: str
) -> None:
    for _ in range(50):
        edge.send(decline, source=source)
    assert edge.look(SQUATTER) == 0
    edge.now += 60
    edge.send(decline, source=source)
    first, second = edge.messages()
    assert first.startswith(f"a DHCPDECLINE from {source} is not believed: ")
    assert second.endswith("(49 more times since this was last said)")
    assert edge.quarantined == []


# --- where no probe is possible --------------------------------------------------------------------------------------


@pytest.mark.parametrize("relay", [RELAY, bytes(4)], ids=["behind a relay", "on a link without ARP"])
@pytest.mark.parametrize("fast_path", [False, True], ids=["in full", "known packets"])
def test_where_nobody_can_look_only_who_was_given_the_address_just_now_is_believed_and_for_a_minute(
    blind: Edge, wire: Wire, captured: dict[str, bytes], decline: bytes, relay: bytes, fast_path: bool
) -> None:
    decline, source = wire.altered(decline, giaddr=relay), "10.77.0.2" if any(relay) else "0.0.0.0"
    for _ in range(3):
        blind.send(decline, source=source)
    assert blind.quarantined == []
    discover, request = (wire.altered(captured[f"edk2_pxe_{name}"], giaddr=relay) for name in ("discover", "request"))
    for _ in range(2 if fast_path else 1):
        assert wire.kind(blind.send(request)) is MessageType.ACK
    blind.send(decline, source=source)
    assert blind.quarantined == [(*QUARANTINED, blind.now + UNSEEN_SECONDS)]
    assert blind.send(discover) is None
    blind.now += UNSEEN_SECONDS
    assert blind.send(discover) is not None


def test_address_that_was_given_long_ago_is_not_declined_where_nobody_can_look(
    blind: Edge, captured: dict[str, bytes], decline: bytes
) -> None:
    blind.send(captured["edk2_pxe_request"])
    for _ in range(3):
        blind.responder.declined.pass_time()
        blind.now += declined.ACKNOWLEDGED_SECONDS
    blind.send(decline)
    assert blind.quarantined == []


def test_word_of_a_relay_is_not_taken_where_one_can_look(
    edge: Edge, wire: Wire, captured: dict[str, bytes], decline: bytes
) -> None:
    edge.responder.declined.is_on_link = lambda address: address == ADDRESS
    edge.send(captured["edk2_pxe_request"])
    edge.send(wire.altered(decline, giaddr=RELAY), source="10.99.0.9")
    assert edge.look(MAC) == PROBES
    assert edge.quarantined == []


def test_relay_of_another_network_has_no_say_in_it(
    edge: Edge, wire: Wire, captured: dict[str, bytes], decline: bytes
) -> None:
    edge.send(wire.altered(captured["edk2_pxe_request"], giaddr=OTHERS_RELAY))
    edge.send(wire.altered(decline, giaddr=OTHERS_RELAY), source="10.99.0.2")
    assert edge.quarantined == []
    assert "its relay 10.99.0.2 is not of this machine's network" in edge.messages()[-1]


def test_probe_that_can_not_be_sent_leaves_the_machines_word(
    edge: Edge, captured: dict[str, bytes], decline: bytes
) -> None:
    edge.send(captured["edk2_pxe_request"])
    edge.send(decline)
    (address,) = edge.responder.declined.step()
    edge.responder.declined.probe_failed(address)
    assert edge.quarantined == [(*QUARANTINED, edge.now + UNSEEN_SECONDS)]


# --- who has the address keeps it -------------------------------------------------------------------------------------


def test_lease_is_renewed_in_quarantine_and_nothing_else_is(
    edge: Edge, wire: Wire, captured: dict[str, bytes], decline: bytes
) -> None:
    edge.send(decline)
    edge.look(SQUATTER)
    renewal = wire.altered(captured["plain_discover"], options={53: b"\3"}, ciaddr=ADDRESS)
    for source in ("10.77.0.58", "0.0.0.0"):
        assert wire.kind(edge.send(renewal, source=source)) is MessageType.ACK
    reboot = wire.altered(captured["plain_discover"], options={53: b"\3", 50: ADDRESS})
    assert edge.send(reboot) is None
    assert edge.send(captured["edk2_pxe_discover"]) is None


# --- DHCPRELEASE ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "giaddr", "ciaddr", "is_reported"),
    [
        ("10.77.0.58", bytes(4), ADDRESS, True),
        ("0.0.0.0", bytes(4), ADDRESS, True),
        ("10.77.0.2", RELAY, ADDRESS, True),
        ("10.99.0.9", RELAY, ADDRESS, False),
        ("10.99.0.9", bytes(4), ADDRESS, False),
        ("10.77.0.58", bytes(4), b"\x0a\x4d\0\x63", False),
        ("10.99.0.2", OTHERS_RELAY, ADDRESS, False),
    ],
)
def test_release_is_told_only_of_the_machines_own_address_and_from_where_it_can_be(
    blind: Edge, wire: Wire, captured: dict[str, bytes], source: str, giaddr: bytes, ciaddr: bytes, is_reported: bool
) -> None:
    packet = wire.altered(captured["plain_discover"], options={53: b"\7"}, ciaddr=ciaddr, giaddr=giaddr)
    blind.send(packet, source=source)
    assert blind.messages() == (["DHCPRELEASE of 10.77.0.58"] if is_reported else [])


# --- ARP --------------------------------------------------------------------------------------------------------------


def test_probe_is_that_of_rfc_5227_and_claims_nothing() -> None:
    frame = arp.probe(bytes.fromhex("525400000001"), ADDRESS)
    packet = Ether(frame)
    assert (packet.dst, packet.src, packet.type) == ("ff:ff:ff:ff:ff:ff", "52:54:00:00:00:01", 0x0806)
    found = packet[ARP]
    assert (found.op, found.hwsrc, found.psrc, found.hwdst, found.pdst) == (
        1, "52:54:00:00:00:01", "0.0.0.0", "00:00:00:00:00:00", "10.77.0.58",
    )  # fmt: skip
    assert arp.claim(frame) is None


@pytest.mark.parametrize("op", [1, 2])
def test_any_arp_packet_of_a_host_says_where_it_is(op: int) -> None:
    packet = Ether(src=SQUATTER) / ARP(op=op, hwsrc=SQUATTER, psrc="10.77.0.58", pdst="10.77.0.1")
    assert arp.claim(bytes(packet)) == (ADDRESS, bytes.fromhex(SQUATTER.replace(":", "")))
    assert arp.claim(bytes(packet)[:41]) is None
    assert arp.claim(bytes(packet).replace(b"\x08\x06", b"\x08\x00", 1)) is None


@given(st.binary(max_size=80))
def test_no_frame_is_too_odd(frame: bytes) -> None:
    arp.claim(frame)


# --- relays -----------------------------------------------------------------------------------------------------------


GATEWAY, OTHER_RELAY = b"\x0a\x4d\0\1", b"\x0a\x4d\0\3"


class Behind:
    """Machines behind relays of an edge that can't probe their link; the first machine is the captures'."""

    def __init__(self, edge: Edge, wire: Wire, request: bytes, decline: bytes) -> None:
        self.edge, self.wire, self.request, self.declining = edge, wire, request, decline

    def lease(self, relay: bytes, source: str, machine: int = 0, **options: bytes) -> None:
        """Assign a machine its address through a relay."""
        chaddr, address = bytes.fromhex("525400123456")[:5] + bytes((0x56 + machine,)), bytes((10, 77, 0, 58 + machine))
        packet = self.wire.altered(self.request, chaddr=chaddr, giaddr=relay, options={50: address})
        assert self.wire.kind(self.edge.send(packet, source=source)) is MessageType.ACK

    def decline(self, relay: bytes, source: str) -> bool:
        """Send a DHCPDECLINE of the first machine. Return True if the server no longer answers the machine."""
        before = len(self.edge.quarantined)
        self.edge.send(self.wire.altered(self.declining, giaddr=relay), source=source)
        return len(self.edge.quarantined) > before

    def decline_message(self) -> str:
        return next(message for message in reversed(self.edge.messages()) if "DECLINE" in message)


@pytest.fixture
def make_behind(
    make_edge: MakeEdge, make_hardware: MakeHardware, wire: Wire, captured: dict[str, bytes], decline: bytes
) -> Callable[[str], Behind]:
    def make(relays: str = "") -> Behind:
        machines = [make_hardware(f"lab-{n}", f"52:54:00:12:34:{0x56 + n:02x}", f"10.77.0.{58 + n}") for n in range(3)]
        edge = make_edge(*machines, looks=False, relays=relays, server_ip="10.77.9.1")
        named = {54: b"\x0a\x4d\x09\1"}
        return Behind(
            edge, wire, wire.altered(captured["edk2_pxe_request"], options=named), wire.altered(decline, options=named)
        )

    return make


@pytest.mark.parametrize("source", ["10.99.0.9", "10.77.0.58"], ids=["a routed host", "the machine's address"])
def test_host_that_claims_to_be_the_machines_relay_takes_no_address_from_it(
    make_behind: Callable[[], Behind], source: str
) -> None:
    """The attacker needs none of our answers: all values of a REQUEST are known beforehand."""
    behind = make_behind()
    for machine in (0, 1, 2, 0):
        behind.lease(RELAY, source, machine)
        assert not behind.decline(RELAY, source)
    (line,) = (message for message in behind.edge.messages() if "DECLINE" in message)
    assert line.startswith(f"a DHCPDECLINE from {source} is not believed: ")
    assert f"it comes from {source} and not from its relay 10.77.0.2; name {source} in --relays" in line


def test_relay_that_brought_leases_to_several_machines_is_believed_from_its_own_address(
    make_behind: Callable[[], Behind],
) -> None:
    behind = make_behind()
    for machine in (0, 0, 1):
        behind.lease(RELAY, "10.77.0.2", machine)
    assert not behind.decline(RELAY, "10.77.0.2")
    assert "its relay 10.77.0.2 is not known yet to serve 3 machines" in behind.decline_message()
    behind.lease(RELAY, "10.77.0.2", 2)
    assert not behind.decline(OTHER_RELAY, "10.77.0.3"), "a neighbour of the machines"
    assert behind.decline(RELAY, "10.77.0.2")


def test_gateway_of_the_hardware_is_believed_as_its_relay_from_its_own_address(
    make_behind: Callable[[], Behind],
) -> None:
    behind = make_behind()
    behind.lease(GATEWAY, "10.77.0.1")
    assert not behind.decline(GATEWAY, "10.99.0.9")
    assert behind.decline(GATEWAY, "10.77.0.1")


def test_machine_is_no_relay_of_its_neighbours(make_behind: Callable[[], Behind]) -> None:
    behind, neighbour = make_behind(), b"\x0a\x4d\0\x3b"
    for machine in range(3):
        behind.lease(neighbour, "10.77.0.59", machine)
    assert not behind.decline(neighbour, "10.77.0.59")
    assert "its relay 10.77.0.59 has an address that a Hardware reserves" in behind.decline_message()


@pytest.mark.parametrize(("source", "believed"), [("192.0.2.9", True), ("10.77.0.2", False)])
def test_listed_relays_are_trusted_by_their_source_address_and_no_others(
    make_behind: Callable[[str], Behind], source: str, believed: bool
) -> None:
    behind = make_behind("192.0.2.0/24")
    for machine in range(3):
        behind.lease(RELAY, "10.77.0.2", machine)
    assert behind.decline(RELAY, source) is believed
    if not believed:
        assert "it comes from 10.77.0.2, which --relays does not name" in behind.decline_message()


def test_relay_with_an_address_elsewhere_has_to_be_listed(make_behind: Callable[[str], Behind], wire: Wire) -> None:
    """RFC 3527: the relay's address is not in the machines' network, which its link selection names."""
    for relays in ("", "10.99.0.2"):
        behind = make_behind(relays)
        for name in ("request", "declining"):
            packet = wire.altered(getattr(behind, name), options={82: b"\5\4\x0a\x4d\0\0"})
            setattr(behind, name, packet)
        for machine in range(3):
            behind.lease(OTHERS_RELAY, "10.99.0.2", machine)
        assert behind.decline(OTHERS_RELAY, "10.99.0.2") is bool(relays)


def test_machine_is_silenced_once_in_ten_minutes_if_no_probe_can_be_sent(make_behind: Callable[[str], Behind]) -> None:
    behind = make_behind("10.77.0.2")
    silenced = 0
    for _ in range(60):
        behind.edge.responder.declined.pass_time()
        if not behind.edge.quarantine.holds(MAC):
            behind.lease(RELAY, "10.77.0.2")
        silenced += behind.decline(RELAY, "10.77.0.2")
        behind.edge.now += 30
    assert silenced == 3, "in half an hour"
    assert "one counts in 10 minutes where no probe is possible" in behind.decline_message()


def test_decline_on_a_link_that_is_not_the_machines_has_no_effect(
    make_edge: MakeEdge, make_hardware: MakeHardware, decline: bytes
) -> None:
    """Any host of that link could answer the probe."""
    edge = make_edge(make_hardware("lab-1", MAC, "10.77.0.58"), networks=(IPv4Network("10.99.0.0/24"),))
    edge.send(decline)
    assert edge.look(SQUATTER) == 0
    assert edge.quarantined == []
    assert "is not believed: the link that it came from is not of this machine's network" in edge.messages()[-1]


def test_release_on_a_link_that_is_not_the_machines_is_not_reported(
    make_edge: MakeEdge, make_hardware: MakeHardware, wire: Wire, captured: dict[str, bytes]
) -> None:
    edge = make_edge(make_hardware("lab-1", MAC, "10.77.0.58"), networks=(IPv4Network("10.99.0.0/24"),))
    release = wire.altered(captured["plain_discover"], options={53: b"\7"}, ciaddr=ADDRESS)
    edge.send(release)
    assert edge.messages() == []
    edge.send(release, source="10.77.0.58")
    assert edge.messages() == ["DHCPRELEASE of 10.77.0.58"]


# --- the prober -------------------------------------------------------------------------------------------------------


class ProberOnUdp(Prober):
    """A prober whose socket this process may or may not open."""

    is_allowed = True

    def _open(self) -> socket.socket:
        if not self.is_allowed:
            raise PermissionError(1, "Operation not permitted")
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def _send(self, sock: socket.socket, address: bytes) -> None:
        raise AssertionError("nothing is declined here")

    def _receive(self, sock: socket.socket) -> Claim | None:
        raise AssertionError("nothing is declined here")


async def test_prober_without_its_socket_reports_that_no_probe_can_be_sent(edge: Edge) -> None:
    assert edge.responder.declined is not None
    prober = ProberOnUdp("lo", edge.responder.declined)
    prober.start()
    assert prober.can_probe
    prober.stop()
    prober.is_allowed = False
    prober.start()
    assert not prober.can_probe
    assert edge.responder.declined.wake is None
