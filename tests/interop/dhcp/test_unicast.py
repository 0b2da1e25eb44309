"""How replies go out: as a frame by hand to a client without an address, by ARP to one that has it, else by broadcast.

Seen on the client's end of the cable, and taken apart by scapy.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import Any

import pytest
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from edge.dhcp.sockets.link import Link, NoLinkError
from tests.interop.conftest import Network, Wire
from tests.interop.dhcp.conftest import DhcpLab
from tests.waiting import wait_until

OpenWire = Callable[..., Wire]

EVERYBODY = "ff:ff:ff:ff:ff:ff"


def replies(frames: list[bytes]) -> list[Packet]:
    """The server's DHCP messages."""
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
    offer, ack = replies(ears.heard())
    assert where(offer) == where(ack) == (network.client_mac, network.client_ip, 68)
    for packet in (offer, ack):
        assert (packet[IP].src, packet[UDP].sport) == (network.server_ip, 67)
        assert checksums_are_right(packet)


def test_client_that_asks_for_broadcast_gets_it(network: Network, dhcp: DhcpLab, wire: OpenWire) -> None:
    ears = wire()
    with network.serving(dhcp.start):
        assert dhcp.udhcpc("-B").returncode == 0
    offer, ack = replies(ears.heard())
    assert where(offer) == where(ack) == (EVERYBODY, "255.255.255.255", 68)
    assert {packet[IP].src for packet in (offer, ack)} == {network.server_ip}


def test_renewal_is_answered_where_the_client_is(network: Network, dhcp: DhcpLab, wire: OpenWire) -> None:
    network.give_client_its_address()
    ears = wire()
    with network.serving(dhcp.start):
        client = network.inside(network.client, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        with client:
            client.bind((network.client_ip, 68))
            client.settimeout(5)
            ask = BOOTP(op=1, xid=7, ciaddr=network.client_ip, chaddr=bytes.fromhex("525400cc0001"))
            client.sendto(bytes(ask / DHCP(options=[("message-type", "request"), "end"])), (network.server_ip, 67))
            answer = BOOTP(client.recv(2000))
    assert (answer.xid, answer.yiaddr) == (7, network.client_ip)
    (ack,) = replies(ears.heard())
    assert where(ack) == (network.client_mac, network.client_ip, 68)
    assert ack[IP].src == network.server_ip


def test_server_without_the_privilege_broadcasts_and_says_so_once(
    network: Network, dhcp: DhcpLab, wire: OpenWire, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ears = wire()

    def refuse(*_: object) -> None:
        raise NoLinkError("CAP_NET_RAW is missing")

    monkeypatch.setattr(Link, "__init__", refuse)
    with network.serving(dhcp.start):
        assert dhcp.udhcpc().returncode == 0
        assert dhcp.udhcpc().returncode == 0
    assert {where(packet) for packet in replies(ears.heard())} == {(EVERYBODY, "255.255.255.255", 68)}
    assert caplog.text.count("answered by broadcast, for CAP_NET_RAW is missing") == 1


def test_reply_too_long_for_a_frame_is_broadcast(network: Network, dhcp: DhcpLab, wire: OpenWire) -> None:
    # The kernel fragments what it sends itself. udhcpc's own packets have 328 bytes.
    network.mtu(network.server, "srv0", 332)
    dhcp.inventory.remove(dhcp.hardware())
    dhcp.register(name="a-machine-with-a-name-that-fills-the-reply-beyond-the-link")
    ears = wire()

    def pieces() -> list[Packet]:
        packets = map(Ether, ears.heard())
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
        dhcp.pause(1.2)
        assert dhcp.udhcpc().returncode == 0
    assert replies(ears.heard())[-1].src == "02:00:00:00:00:77"


def test_loopback_is_no_ethernet(network: Network) -> None:
    with pytest.raises(NoLinkError, match="lo is no Ethernet interface"):
        network.inside(network.server, lambda: Link("lo", bytes((10, 77, 6, 1)), 67, 0.0))


def test_interface_that_there_is_not_has_no_link(network: Network) -> None:
    with pytest.raises(NoLinkError, match="No such device"):
        network.inside(network.server, lambda: Link("nic9", bytes((10, 77, 6, 1)), 67, 0.0))


def test_link_needs_a_privilege(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("edge.dhcp.sockets.link.socket.socket", refuse)
    with pytest.raises(NoLinkError, match="CAP_NET_RAW is missing"):
        Link("lo", bytes(4), 67, 0.0)


def test_link_hears_nothing(network: Network, dhcp: DhcpLab, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its receive buffer would fill with every frame of the network.
    links = []
    opened = Link.__init__

    def remember(link: Link, *arguments: Any) -> None:
        opened(link, *arguments)
        links.append(link)

    monkeypatch.setattr(Link, "__init__", remember)
    with network.serving(dhcp.start):
        assert dhcp.udhcpc().returncode == 0
        (link,) = links
        with pytest.raises(BlockingIOError):
            link._socket.recv(2000)
