"""Declined addresses: the server probes before a machine loses its address, and then does not offer it for a while.

Any host can send a DHCPDECLINE in a machine's name.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.l2 import ARP, Ether

from edge.dhcp.wire import MessageType, frames
from edge.dhcp_common import AddressClaim, Prober, declines
from edge.dhcp_common.declines import MAX_ADDRESSES, MAX_PROBED, PROBES, UNPROBED_SECONDS
from edge.journey.events import Outcome
from edge.machines import Machine
from tests.unit.dhcp.harness import (
    IPXE_BIOS,
    MAC,
    PLAIN,
    PXE_DISCOVER,
    PXE_REQUEST,
    Edge,
    MakeEdge,
    altered,
    hardware,
    lab,
    message_type,
    read,
)

OTHER_NIC, SQUATTER = "52:54:00:12:34:66", "02:00:00:00:00:99"
OURS, RELAY, OTHERS_RELAY = b"\x0a\x4d\0\1", b"\x0a\x4d\0\2", b"\x0a\x63\0\2"
ADDRESS = b"\x0a\x4d\0\x3a"
QUARANTINED = (MAC, "10.77.0.58")


@pytest.fixture
def blind(make_edge: MakeEdge) -> Edge:
    """An edge that can't send ARP probes, and has a trusted relay."""
    return make_edge(lab(), looks=False, relays="10.77.0.2/32")


@pytest.fixture
def in_conflict(edge: Edge, decline: bytes) -> Edge:
    """An edge that found another host at the machine's address."""
    edge.send(decline)
    edge.look(SQUATTER)
    return edge


# --- on the link ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hosts", [(), (MAC,), (MAC, MAC)])
def test_declined_address_is_offered_again_if_no_host_or_only_the_machine_answers(
    edge: Edge, decline: bytes, hosts
) -> None:
    begun = edge.now
    edge.send(decline)
    assert edge.send(PXE_DISCOVER) is not None, "it is looked into: until then nothing is known"
    assert edge.look(*hosts) == PROBES
    assert edge.now - begun == pytest.approx(2 * declines.PROBE_SECONDS + declines.ANSWER_SECONDS)
    assert edge.quarantined == []
    assert edge.send(PXE_DISCOVER) is not None
    (told,) = (event for event in edge.events if "DECLINE" in event.message)
    assert told.outcome is Outcome.INFO
    assert ("only the machine itself answers" if hosts else "no host answers") in told.message


@pytest.mark.parametrize("hosts", [(SQUATTER,), (MAC, SQUATTER), (SQUATTER, MAC)])
def test_declined_address_is_quarantined_if_another_host_answers(
    edge: Edge, decline: bytes, hosts: tuple[str, ...]
) -> None:
    edge.send(decline)
    edge.look(*hosts)
    assert [entry[:2] for entry in edge.quarantined] == [QUARANTINED]
    assert SQUATTER in edge.events[-1].message


def test_another_interface_of_the_same_machine_is_no_other_host(make_edge: MakeEdge, decline: bytes) -> None:
    # Linux answers ARP for each of its addresses on each of its interfaces.
    obj = lab()
    obj["spec"]["networkInterfaces"][OTHER_NIC] = {"dhcp": {"ip": "10.77.0.59"}}
    edge = make_edge(obj)
    edge.send(decline)
    edge.look(OTHER_NIC)
    assert edge.quarantined == []


def test_interfaces_that_share_an_address_share_its_conflict(make_edge: MakeEdge, decline: bytes) -> None:
    obj = lab()
    cards = obj["spec"]["networkInterfaces"]
    cards[OTHER_NIC] = cards[MAC]
    edge = make_edge(obj)
    other = altered(PXE_DISCOVER, chaddr=bytes.fromhex(OTHER_NIC.replace(":", "")))
    edge.send(decline)
    edge.look(OTHER_NIC)
    assert edge.send(other) is not None, "the other interface has the address: that is no conflict"
    edge.send(decline)
    edge.look(OTHER_NIC, SQUATTER)
    assert [entry[:2] for entry in edge.quarantined] == [QUARANTINED, (OTHER_NIC, QUARANTINED[1])]
    assert edge.send(PXE_DISCOVER) is edge.send(other) is None


def test_declined_address_of_this_host_is_quarantined_without_a_probe(edge: Edge, decline: bytes) -> None:
    edge.send(decline)
    (address,) = edge.responder.declines.step()
    edge.responder.declines.is_ours(address)
    assert [entry[:2] for entry in edge.quarantined] == [QUARANTINED]
    assert "this host itself" in edge.events[-1].message
    assert edge.responder.declines.wait is None


def test_each_address_has_one_search_and_the_number_of_searches_is_limited(
    make_edge: MakeEdge, decline: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    macs = [f"52:54:00:aa:00:{number:02x}" for number in range(MAX_PROBED + 10)]
    edge = make_edge(*(hardware(f"m{n}", mac, f"10.77.0.{100 + n}") for n, mac in enumerate(macs)))
    for _ in range(20):
        for number, mac in enumerate(macs):
            chaddr, address = bytes.fromhex(mac.replace(":", "")), bytes((10, 77, 0, 100 + number))
            edge.send(altered(decline, chaddr=chaddr, options={50: address}))
    assert edge.look() == PROBES * MAX_PROBED
    assert caplog.text.count("is not probed") == 1
    assert edge.send(decline) is None


@pytest.mark.parametrize("source", ["10.77.0.58", "10.99.0.9", "192.0.2.1"])
def test_unicast_decline_is_not_believed_and_is_reported_once_a_minute_with_its_count(
    edge: Edge, decline: bytes, source: str
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


@pytest.mark.parametrize(
    "change",
    [
        {"options": {50: b"\x0a\x4d\0\x3b"}},
        {"drop": (50,)},
        {"options": {54: RELAY}},
        {"drop": (54,)},
        {"chaddr": b"\2\0\0\0\0\1"},
    ],
    ids=["another address", "no address", "another server", "no server", "another machine"],
)
def test_decline_of_an_address_that_we_did_not_assign_is_not_believed(
    edge: Edge, decline: bytes, change: dict[str, Any]
) -> None:
    assert edge.send(altered(decline, **change)) is None
    assert edge.look(SQUATTER) == 0
    assert edge.quarantined == []
    assert edge.send(PXE_DISCOVER) is not None


def test_message_on_another_link_than_the_machines_has_no_effect(make_edge: MakeEdge, decline: bytes) -> None:
    """Any host of that link could answer the probe."""
    edge = make_edge(lab(), networks=(IPv4Network("10.99.0.0/24"),))
    release = altered(PLAIN, options={53: b"\7"}, ciaddr=ADDRESS)
    edge.send(release)
    assert edge.messages() == []
    edge.send(decline)
    assert edge.look(SQUATTER) == 0
    assert edge.quarantined == []
    assert "is not believed: the link that it came from is not of this machine's network" in edge.messages()[-1]
    edge.send(release, source="10.77.0.58")
    assert edge.messages()[1:] == ["DHCPRELEASE of 10.77.0.58"]


# --- where no probe is possible --------------------------------------------------------------------------------------


@pytest.mark.parametrize("relay", [RELAY, bytes(4)], ids=["behind a relay", "on a link without ARP"])
@pytest.mark.parametrize("requests", [1, 2], ids=["in full", "known packets"])
def test_without_probes_only_a_machine_with_a_recent_lease_is_believed_for_a_minute(
    blind: Edge, decline: bytes, relay: bytes, requests: int
) -> None:
    decline, source = altered(decline, giaddr=relay), "10.77.0.2" if any(relay) else "0.0.0.0"
    for _ in range(3):
        blind.send(decline, source=source)
    assert blind.quarantined == []
    discover, request = (altered(packet, giaddr=relay) for packet in (PXE_DISCOVER, PXE_REQUEST))
    for _ in range(requests):
        assert message_type(blind.send(request)) is MessageType.ACK
    blind.send(decline, source=source)
    assert blind.quarantined == [(*QUARANTINED, blind.now + UNPROBED_SECONDS)]
    assert blind.send(discover) is None
    blind.now += UNPROBED_SECONDS
    assert blind.send(discover) is not None


def test_without_probes_a_decline_of_an_old_lease_is_not_believed(blind: Edge, decline: bytes) -> None:
    blind.send(PXE_REQUEST)
    for _ in range(3):
        blind.responder.declines.pass_time()
        blind.now += declines.RECENT_SECONDS
    blind.send(decline)
    assert blind.quarantined == []


def test_relayed_decline_is_probed_if_the_address_is_on_our_link(edge: Edge, decline: bytes) -> None:
    edge.responder.declines.is_on_link = lambda address: address == ADDRESS
    edge.send(PXE_REQUEST)
    edge.send(altered(decline, giaddr=RELAY), source="10.99.0.9")
    assert edge.look(MAC) == PROBES
    assert edge.quarantined == []


def test_decline_through_a_relay_of_another_network_is_not_believed(edge: Edge, decline: bytes) -> None:
    edge.send(altered(PXE_REQUEST, giaddr=OTHERS_RELAY))
    edge.send(altered(decline, giaddr=OTHERS_RELAY), source="10.99.0.2")
    assert edge.quarantined == []
    assert "its relay 10.99.0.2 is not of this machine's network" in edge.messages()[-1]


def test_decline_is_judged_without_a_probe_if_sending_it_fails(edge: Edge, decline: bytes) -> None:
    edge.send(PXE_REQUEST)
    edge.send(decline)
    (address,) = edge.responder.declines.step()
    edge.responder.declines.probe_failed(address)
    assert edge.quarantined == [(*QUARANTINED, edge.now + UNPROBED_SECONDS)]


async def test_prober_without_its_socket_reports_that_no_probe_can_be_sent(edge: Edge) -> None:
    class ProberOnUdp(Prober):
        """A prober whose socket this process may or may not open."""

        is_allowed = True

        def _open(self) -> socket.socket:
            if not self.is_allowed:
                raise PermissionError(1, "Operation not permitted")
            return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

        def _send(self, sock: socket.socket, address: bytes) -> None:
            raise AssertionError("nothing is declined here")

        def _receive(self, sock: socket.socket) -> AddressClaim | None:
            raise AssertionError("nothing is declined here")

    prober = ProberOnUdp("lo", edge.responder.declines)
    prober.start()
    assert prober.can_probe
    prober.stop()
    prober.is_allowed = False
    prober.start()
    assert not prober.can_probe
    assert edge.responder.declines.wake is None


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
def test_release_is_reported_only_for_the_machines_own_address_from_its_own_network(
    blind: Edge, source: str, giaddr: bytes, ciaddr: bytes, is_reported: bool
) -> None:
    blind.send(altered(PLAIN, options={53: b"\7"}, ciaddr=ciaddr, giaddr=giaddr), source=source)
    assert blind.messages() == (["DHCPRELEASE of 10.77.0.58"] if is_reported else [])


# --- ARP --------------------------------------------------------------------------------------------------------------


def test_probe_is_that_of_rfc_5227_and_claims_nothing() -> None:
    frame = frames.arp_probe(bytes.fromhex("525400000001"), ADDRESS)
    packet = Ether(frame)
    found = packet[ARP]
    assert (packet.dst, packet.src, packet.type) == ("ff:ff:ff:ff:ff:ff", "52:54:00:00:00:01", 0x0806)
    assert (found.op, found.hwsrc, found.psrc) == (1, "52:54:00:00:00:01", "0.0.0.0")
    assert (found.hwdst, found.pdst) == ("00:00:00:00:00:00", "10.77.0.58")
    assert frames.arp_claim(frame) is None


@pytest.mark.parametrize("op", [1, 2])
def test_any_arp_packet_of_a_host_is_a_claim(op: int) -> None:
    packet = bytes(Ether(src=SQUATTER) / ARP(op=op, hwsrc=SQUATTER, psrc="10.77.0.58", pdst="10.77.0.1"))
    assert frames.arp_claim(packet) == (ADDRESS, bytes.fromhex(SQUATTER.replace(":", "")))
    assert frames.arp_claim(packet[:41]) is None
    assert frames.arp_claim(packet.replace(b"\x08\x06", b"\x08\x00", 1)) is None


@given(st.binary(max_size=80))
def test_odd_frames_raise_nothing(frame: bytes) -> None:
    header = bytes(Ether(src=SQUATTER) / ARP(op=2))[:22]  # up to the addresses
    for candidate in (frame, header + frame):
        claim = frames.arp_claim(candidate)
        assert claim is None or (len(claim.address), len(claim.hardware)) == (4, 6)


# --- relays of an edge that can't probe the machines' link ------------------------------------------------------------


OF_RELAY, ELSEWHERE = (RELAY, "10.77.0.2"), (OTHERS_RELAY, "10.99.0.2")
GATEWAY, NEIGHBOUR = (b"\x0a\x4d\0\1", "10.77.0.1"), (b"\x0a\x4d\0\x3b", "10.77.0.59")
"""Relays: giaddr and source address."""


class Behind:
    """Machines behind relays; the first machine is the captures'."""

    def __init__(self, make_edge: MakeEdge, decline: bytes, relays: str = "", link: bytes = b"") -> None:
        machines = [hardware(f"lab-{n}", f"52:54:00:12:34:{0x56 + n:02x}", f"10.77.0.{58 + n}") for n in range(3)]
        self.edge = make_edge(*machines, looks=False, relays=relays, server_ip="10.77.9.1")
        named = {54: b"\x0a\x4d\x09\1"} | ({82: link} if link else {})
        self.request, self.declining = (altered(packet, options=named) for packet in (PXE_REQUEST, decline))

    def lease(self, relay: bytes, source: str, machine: int = 0) -> None:
        """Assign a machine its address through a relay."""
        chaddr, address = bytes.fromhex("5254001234") + bytes((0x56 + machine,)), bytes((10, 77, 0, 58 + machine))
        packet = altered(self.request, chaddr=chaddr, giaddr=relay, options={50: address})
        assert message_type(self.edge.send(packet, source=source)) is MessageType.ACK

    def decline(self, relay: bytes, source: str) -> bool:
        """Send a DHCPDECLINE of the first machine. Return True if the server no longer answers the machine."""
        before = len(self.edge.quarantined)
        self.edge.send(altered(self.declining, giaddr=relay), source=source)
        return len(self.edge.quarantined) > before

    def decline_messages(self) -> list[str]:
        return [message for message in self.edge.messages() if "DECLINE" in message]


@pytest.mark.parametrize(
    ("relays", "leased", "machines", "declined_by", "why_not"),
    [
        # The attacker needs none of our answers: all values of a REQUEST are known beforehand.
        ("", (RELAY, "10.99.0.9"), 3, (RELAY, "10.99.0.9"), "it comes from 10.99.0.9 and not from its relay 10.77.0.2"),
        ("", (RELAY, "10.77.0.58"), 3, (RELAY, "10.77.0.58"), "10.77.0.58 and not from its relay 10.77.0.2"),
        ("", OF_RELAY, 2, OF_RELAY, "its relay 10.77.0.2 is not known yet to serve 3 machines"),
        ("", OF_RELAY, 3, OF_RELAY, None),
        ("", OF_RELAY, 3, (b"\x0a\x4d\0\3", "10.77.0.3"), "its relay 10.77.0.3"),
        ("", GATEWAY, 1, (GATEWAY[0], "10.99.0.9"), "it comes from 10.99.0.9 and not from its relay"),
        ("", GATEWAY, 1, GATEWAY, None),
        ("", NEIGHBOUR, 3, NEIGHBOUR, "its relay 10.77.0.59 has an address that a Hardware reserves"),
        ("192.0.2.0/24", OF_RELAY, 3, (RELAY, "192.0.2.9"), None),
        ("192.0.2.0/24", OF_RELAY, 3, OF_RELAY, "it comes from 10.77.0.2, which --relays does not name"),
        # RFC 3527: the relay's address is not in the machines' network, which its link selection names.
        ("", ELSEWHERE, 3, ELSEWHERE, "its relay 10.99.0.2 is not of this machine's network"),
        ("10.99.0.2", ELSEWHERE, 3, ELSEWHERE, None),
    ],
)
def test_decline_is_believed_from_a_known_or_listed_relay_at_its_own_address(
    make_edge: MakeEdge, decline: bytes, relays: str, leased: Any, machines: int, declined_by: Any, why_not: str | None
) -> None:
    behind = Behind(make_edge, decline, relays, b"\5\4\x0a\x4d\0\0" if leased is ELSEWHERE else b"")
    for machine in range(machines):
        behind.lease(*leased, machine)
    behind.lease(*leased)  # one machine counts once
    assert behind.decline(*declined_by) is (why_not is None)
    assert why_not is None or why_not in behind.decline_messages()[-1]


def test_untrusted_relay_is_reported_once_with_the_flag_that_lists_it(make_edge: MakeEdge, decline: bytes) -> None:
    behind = Behind(make_edge, decline)
    for _ in range(4):
        behind.lease(RELAY, "10.99.0.9")
        assert not behind.decline(RELAY, "10.99.0.9")
    (line,) = behind.decline_messages()
    assert line.startswith("a DHCPDECLINE from 10.99.0.9 is not believed: ")
    assert "; name 10.99.0.9 in --relays" in line


def test_unprobed_quarantine_of_a_machine_starts_once_in_ten_minutes(make_edge: MakeEdge, decline: bytes) -> None:
    behind = Behind(make_edge, decline, "10.77.0.2")
    silenced = 0
    for _ in range(60):
        behind.edge.responder.declines.pass_time()
        if not behind.edge.quarantine.holds(MAC):
            behind.lease(*OF_RELAY)
        silenced += behind.decline(*OF_RELAY)
        behind.edge.now += 30
    assert silenced == 3, "in half an hour"
    assert "one counts in 10 minutes where no probe is possible" in behind.decline_messages()[-1]


# --- quarantine -------------------------------------------------------------------------------------------------------


def test_lease_is_renewed_in_quarantine_and_nothing_else_is(in_conflict: Edge) -> None:
    renewal = altered(PLAIN, options={53: b"\3"}, ciaddr=ADDRESS)
    for source in ("10.77.0.58", "0.0.0.0"):
        assert message_type(in_conflict.send(renewal, source=source)) is MessageType.ACK
    assert in_conflict.send(altered(PLAIN, options={53: b"\3", 50: ADDRESS})) is None, "INIT-REBOOT"
    assert in_conflict.send(PXE_DISCOVER) is None


def test_declined_address_is_not_offered_again_until_the_time_is_over(edge: Edge, decline: bytes) -> None:
    packets = [PXE_DISCOVER, PXE_REQUEST, IPXE_BIOS]
    for packet in packets:
        assert edge.send(packet) is not None  # so that they are known ones
    edge.events.clear()
    assert edge.send(decline) is None
    edge.look(SQUATTER)
    assert edge.quarantined == [(*QUARANTINED, 1600.0)]
    assert [edge.send(packet) for packet in packets * 3] == [None] * 9
    told, refused = edge.events
    assert (told.outcome, told.message) == (
        Outcome.FAILED,
        f"DHCPDECLINE: another host, {SQUATTER}, already uses 10.77.0.58; it is not offered for 600 s. "
        "Find that host and stop it, or change the Hardware's dhcp.ip",
    )
    assert refused.outcome is Outcome.REFUSED
    assert "10.77.0.58 is in quarantine" in refused.message
    edge.now = 1599.9
    assert edge.send(packets[0]) is None
    edge.now = 1600.0
    assert message_type(edge.send(packets[0])) is MessageType.OFFER
    assert edge.quarantined[1:] == [(*QUARANTINED, None)]


def test_quarantine_leaves_other_machines_alone_and_ends_with_a_new_address(in_conflict: Edge) -> None:
    in_conflict.inventory.apply(hardware("lab-2", "52:54:00:12:34:57", "10.77.0.59"))
    other = altered(PXE_DISCOVER, chaddr=bytes.fromhex("525400123457"))
    for _ in range(2):
        assert message_type(in_conflict.send(other)) is MessageType.OFFER
    in_conflict.inventory.apply(lab(disableNetboot=True))
    assert in_conflict.send(PXE_DISCOVER) is None  # another change does not
    in_conflict.inventory.apply(lab("10.77.0.60"))
    assert in_conflict.quarantined[1:] == [(*QUARANTINED, None)]
    assert read(in_conflict.send(PXE_DISCOVER)).yiaddr == b"\x0a\x4d\0\x3c"


def test_quarantine_ends_with_the_hardware(in_conflict: Edge) -> None:
    in_conflict.inventory.remove(lab())
    assert in_conflict.quarantined[1:] == [(*QUARANTINED, None)]


def test_decline_through_a_relay_that_is_the_server_is_believed(make_edge: MakeEdge, decline: bytes) -> None:
    """RFC 5107: option 54 is the relay's."""
    edge = make_edge(lab(), relays="192.0.2.9")
    named = {54: RELAY, 82: b"\x0b\4" + RELAY}
    edge.send(altered(PXE_REQUEST, giaddr=RELAY, options=named))
    edge.send(altered(decline, giaddr=RELAY, options=named), source="192.0.2.9")
    assert len(edge.quarantined) == 1


def test_decline_is_reported_even_if_quarantines_are_off(make_edge: MakeEdge, decline: bytes) -> None:
    edge = make_edge(lab(), quarantine_seconds=0)
    edge.send(decline)
    edge.look(SQUATTER)
    assert edge.quarantined == []
    (message,) = edge.messages()
    assert message.startswith(f"DHCPDECLINE: another host, {SQUATTER}, already uses 10.77.0.58. Find that host")
    assert edge.send(PXE_DISCOVER) is not None


def test_second_decline_restarts_the_quarantine_and_is_reported_once_a_minute(
    in_conflict: Edge, decline: bytes
) -> None:
    in_conflict.now += 30
    in_conflict.send(decline)
    in_conflict.look(SQUATTER)
    assert [until for _, _, until in in_conflict.quarantined] == [1600.0, 1630.0]
    assert len(in_conflict.events) == 1
    for now, ended in ((1600.0, []), (1630.0, [(*QUARANTINED, None)])):
        in_conflict.now = now
        in_conflict.quarantine.expire()
        assert in_conflict.quarantined[2:] == ended


def test_quarantine_ends_without_a_packet_and_after_the_clock_was_set_back(make_edge: MakeEdge) -> None:
    macs = [f"52:54:00:00:00:0{number}" for number in range(3)]
    machines = [hardware(f"m{number}", mac, f"10.77.0.{number + 10}") for number, mac in enumerate(macs)]
    edge = make_edge(*machines, quarantine_seconds=60.0)
    for at, mac in enumerate([*macs, macs[0]]):
        edge.now = 10.0 * at
        edge.quarantine.begin(edge.inventory.by_mac(mac))
    for now, left in ((75.0, [True, False, True]), (-1000.0, [False] * 3)):
        edge.now = now
        edge.quarantine.expire()
        assert [mac in edge.quarantine.macs for mac in macs] == left
        assert [edge.quarantine.holds(mac) for mac in macs] == left
        assert {mac for mac, _, until in edge.quarantined if until is None} == {
            mac for mac, is_left in zip(macs, left, strict=True) if not is_left
        }


def test_quarantine_is_bounded_and_the_oldest_makes_room(edge: Edge) -> None:
    machine = edge.inventory.by_mac(MAC)
    rest = [getattr(machine, name) for name in Machine.__slots__[1:]]
    for number in range(MAX_ADDRESSES + 2):
        edge.quarantine.begin(Machine(f"mac {number}", *rest))
    assert [mac for mac, _, until in edge.quarantined if until is None] == ["mac 0", "mac 1"]
    assert len(edge.quarantine.macs) == MAX_ADDRESSES
