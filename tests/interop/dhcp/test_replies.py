"""How replies go out: as a frame by hand to a client without an address, by ARP to one that has it, else by broadcast;
and of many machines at once together.

Seen on the client's end of the cable, and taken apart by scapy.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.dhcp import BOOTP
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from edge.dhcp import Reply
from edge.dhcp.server import FrameSender, NoLinkError
from edge.dhcp_common import Port
from tests.interop.conftest import Network, Wire
from tests.interop.dhcp.conftest import DhcpLab, client_socket, message
from tests.waiting import wait_until

OpenWire = Callable[..., Wire]

EVERYBODY = "ff:ff:ff:ff:ff:ff"
RELAY_IP = "10.77.6.2"
MACHINES = 150
PORTS_67_TO_68 = bytes([0, 67, 0, 68])


def replies(frames: list[bytes]) -> list[Packet]:
    packets = [Ether(frame) for frame in frames]
    return [packet for packet in packets if BOOTP in packet and packet[BOOTP].op == 2]


def where(packet: Packet) -> tuple[str, str, int]:
    return packet.dst, packet[IP].dst, packet[UDP].dport


def checksums_are_right(packet: Packet) -> bool:
    rebuilt = Ether(bytes(packet))
    del rebuilt[IP].chksum
    del rebuilt[UDP].chksum
    return bytes(rebuilt) == bytes(packet)


def test_client_without_an_address_is_answered_by_unicast(network: Network, dhcp: DhcpLab, wire: OpenWire) -> None:
    ears = wire()
    with network.serving(dhcp.start):
        assert dhcp.udhcpc().returncode == 0
    offer, ack = replies(ears.received())
    assert where(offer) == where(ack) == (network.client_mac, network.client_ip, 68)
    for packet in (offer, ack):
        assert (packet[IP].src, packet[UDP].sport) == (network.server_ip, 67)
        assert checksums_are_right(packet)


def test_client_that_asks_for_broadcast_gets_it(network: Network, dhcp: DhcpLab, wire: OpenWire) -> None:
    ears = wire()
    with network.serving(dhcp.start):
        assert dhcp.udhcpc("-B").returncode == 0
    offer, ack = replies(ears.received())
    assert where(offer) == where(ack) == (EVERYBODY, "255.255.255.255", 68)
    assert {packet[IP].src for packet in (offer, ack)} == {network.server_ip}


def test_infiniband_client_is_answered_by_broadcast(network: Network, dhcp: DhcpLab, wire: OpenWire) -> None:
    """RFC 4390; sent over an Ethernet, for there is no InfiniBand here."""
    dhcp.register("10.77.6.70", "7c:fe:90:29:26:52", "ib")
    ears = wire()
    with network.serving(dhcp.start), client_socket(network, port=68) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
        identifier = ("client_id", bytes.fromhex("207cfe900300292652"))
        asks = message("discover", identifier, mac="", htype=32, hlen=0, xid=7)
        client.sendto(asks, ("255.255.255.255", 67))
        answer = BOOTP(client.recv(2000))
    assert (answer.xid, answer.htype, answer.hlen, answer.yiaddr) == (7, 32, 0, "10.77.6.70")
    (offer,) = replies(ears.received())
    assert where(offer) == (EVERYBODY, "255.255.255.255", 68)


def test_cards_of_one_machine_that_share_its_address_are_both_answered(
    network: Network, dhcp: DhcpLab, wire: OpenWire
) -> None:
    second = "52:54:00:77:00:99"
    two = dhcp.hardware()
    cards = two["spec"]["networkInterfaces"]
    cards[second] = cards[network.client_mac]
    dhcp.inventory.apply(two)
    network.run("ip", "link", "add", "second", "link", "eth0", "address", second, "type", "macvlan", "mode", "bridge")
    network.run("ip", "link", "set", "second", "up")
    with network.serving(dhcp.start):
        for interface in ("eth0", "second"):
            assert dhcp.udhcpc(interface=interface).returncode == 0
            assert dhcp.learned("bound")["ip"] == network.client_ip
            dhcp.forget()


def test_renewal_is_answered_where_the_client_is(network: Network, dhcp: DhcpLab, wire: OpenWire) -> None:
    network.give_client_its_address()
    ears = wire()
    with network.serving(dhcp.start), client_socket(network, network.client_ip, 68) as client:
        client.sendto(message("request", xid=7, ciaddr=network.client_ip), (network.server_ip, 67))
        answer = BOOTP(client.recv(2000))
    assert (answer.xid, answer.yiaddr) == (7, network.client_ip)
    (ack,) = replies(ears.received())
    assert where(ack) == (network.client_mac, network.client_ip, 68)
    assert ack[IP].src == network.server_ip


def test_server_without_the_privilege_broadcasts_and_logs_it_once(
    network: Network, dhcp: DhcpLab, wire: OpenWire, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ears = wire()

    def refuse(*_: object) -> None:
        raise NoLinkError("CAP_NET_RAW is missing")

    monkeypatch.setattr(FrameSender, "__init__", refuse)
    with network.serving(dhcp.start):
        assert dhcp.udhcpc().returncode == 0
        assert dhcp.udhcpc().returncode == 0
    assert {where(packet) for packet in replies(ears.received())} == {(EVERYBODY, "255.255.255.255", 68)}
    assert caplog.text.count("answered by broadcast, for CAP_NET_RAW is missing") == 1


def test_reply_too_long_for_a_frame_is_broadcast(network: Network, dhcp: DhcpLab, wire: OpenWire) -> None:
    # The kernel fragments what it sends itself. udhcpc's own packets have 328 bytes.
    network.mtu(network.server, "srv0", 332)
    dhcp.inventory.remove(dhcp.hardware())
    dhcp.register(name="a-machine-with-a-name-that-fills-the-reply-beyond-the-link")
    ears = wire()

    def pieces() -> list[Packet]:
        packets = map(Ether, ears.received())
        return [packet for packet in packets if IP in packet and packet[IP].src == network.server_ip]

    with network.serving(dhcp.start):
        dhcp.udhcpc("-T", "1", "-t", "1")  # which does not put them together; kernels and firmware do
        wait_until(lambda: len(pieces()) >= 2, "no reply")
    assert [(packet.dst, bool(packet[IP].frag)) for packet in pieces()] == [(EVERYBODY, False), (EVERYBODY, True)]


def test_frame_comes_from_the_address_that_the_interface_has_now(
    network: Network, dhcp: DhcpLab, wire: OpenWire
) -> None:
    ears = wire()
    with network.serving(dhcp.start):
        assert dhcp.udhcpc().returncode == 0
        network.set_mac(network.server, "srv0", "02:00:00:00:00:77")

        def comes_from_new_address() -> bool:
            assert dhcp.udhcpc().returncode == 0
            return replies(ears.received())[-1].src == "02:00:00:00:00:77"

        wait_until(comes_from_new_address, "the server does not read its hardware address again")


def test_error_of_a_link_that_can_not_be_opened_has_the_reason(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    for interface, why in (("lo", "lo is no Ethernet interface"), ("nic9", "No such device")):
        with pytest.raises(NoLinkError, match=why):
            network.inside(network.server, lambda name=interface: FrameSender(name, bytes((10, 77, 6, 1)), 67, 0.0))  # type: ignore[misc]

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("edge.dhcp.server.socket.socket", refuse)
    with pytest.raises(NoLinkError, match="CAP_NET_RAW is missing"):
        FrameSender("lo", bytes(4), 67, 0.0)


def test_link_receives_no_frames(network: Network, dhcp: DhcpLab) -> None:
    # Its receive buffer would fill with every frame of the network. packet(7): one of protocol 0 receives none.
    with network.serving(dhcp.start):
        assert dhcp.udhcpc().returncode == 0
        table = network.inside(network.server, Path("/proc/thread-self/net/packet").read_text)
    names, *sockets = [line.split() for line in table.splitlines()]
    assert [(row[names.index("Proto")], row[names.index("Rmem")]) for row in sockets] == [("0000", "0")]


# --- many machines at once ------------------------------------------------------------------------------------------


def mac(number: int) -> str:
    return f"52:54:00:dd:00:{number:02x}"


@pytest.fixture
def burst(
    network: Network, dhcp: DhcpLab, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[dict[int, str], int]]:
    """All machines ask within one turn of the server; what each was offered, and how many calls went out together."""
    network.add_address(network.client, "eth0", f"{RELAY_IP}/24")
    for number in range(MACHINES):
        dhcp.register(f"10.77.6.{100 + number}", mac(number), f"m-{number}")
    groups: list[int] = []
    send_group = Port._send_group

    def counted(port: Port, group: list[Reply]) -> None:
        groups.append(len(group))
        send_group(port, group)

    monkeypatch.setattr(Port, "_send_group", counted)

    def ask(port: int, giaddr: str = "0.0.0.0", flags: int = 0) -> tuple[dict[int, str], int]:
        with client_socket(network, "" if flags else RELAY_IP, port) as asker:
            for number in range(MACHINES):
                asks = message("discover", mac=mac(number), xid=number, giaddr=giaddr, flags=flags)
                asker.sendto(asks, (network.server_ip, 67))
            offered = {}
            while len(offered) < MACHINES:
                offer = BOOTP(asker.recv(2000))
                offered[offer.xid] = offer.yiaddr
        return offered, max(groups, default=1)

    return ask


EXPECTED = {number: f"10.77.6.{100 + number}" for number in range(MACHINES)}


def test_machines_behind_a_relay_each_get_their_own_offer_of_those_sent_together(
    network: Network, dhcp: DhcpLab, burst: Callable[..., Any]
) -> None:
    with network.serving(dhcp.start, "uvloop"):
        offered, most = burst(67, giaddr=RELAY_IP)
    assert offered == EXPECTED
    assert 1 < most <= 64


def test_machines_that_want_broadcasts_each_get_their_own_offer_in_a_frame_of_its_own(
    network: Network, dhcp: DhcpLab, burst: Callable[..., Any], wire: OpenWire
) -> None:
    """Clients without an address read frames. A virtual network card passes on what is not yet taken apart as one."""
    ears = wire()
    with network.serving(dhcp.start, "uvloop"):
        offered, _ = burst(68, flags=0x8000)
    offers = [frame for frame in ears.received() if frame[34:38] == PORTS_67_TO_68]
    assert offered == EXPECTED
    assert sorted(int.from_bytes(frame[46:50], "big") for frame in offers) == list(range(MACHINES))


def test_kernel_without_segmentation_sends_packets_singly_and_logs_it_once(
    network: Network,
    dhcp: DhcpLab,
    burst: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("edge.listener.turns._UDP_SEGMENT", 0x7FFF)  # such a control message is EINVAL
    with network.serving(dhcp.start, "uvloop"):
        assert burst(67, giaddr=RELAY_IP)[0] == EXPECTED
        assert burst(67, giaddr=RELAY_IP)[0] == EXPECTED
    assert caplog.text.count("does not segment UDP") == 1
    assert "was not sent" not in caplog.text
