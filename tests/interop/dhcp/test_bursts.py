"""Many machines at once: the replies of one turn go out together, and each machine still gets its own."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from scapy.layers.dhcp import BOOTP, DHCP

from edge.dhcp import Reply
from edge.listener import Segments
from tests.interop.conftest import Network
from tests.interop.dhcp.conftest import DhcpLab

RELAY_IP = "10.77.6.2"
MACHINES = 150
ETH_P_IP = 0x0800  # linux/if_ether.h
PORTS_67_TO_68 = bytes([0, 67, 0, 68])


def mac(number: int) -> str:
    return f"52:54:00:dd:00:{number:02x}"


def discovers(giaddr: str, flags: int) -> list[bytes]:
    return [
        bytes(
            BOOTP(op=1, xid=number, chaddr=bytes.fromhex(mac(number).replace(":", "")), giaddr=giaddr, flags=flags)
            / DHCP(options=[("message-type", "discover"), "end"])
        )
        for number in range(MACHINES)
    ]


def frames_of_eth0() -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_IP))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    sock.bind(("eth0", ETH_P_IP))
    return sock


def waiting(frames: socket.socket) -> list[bytes]:
    """What has come so far."""
    frames.setblocking(False)
    came = []
    with suppress(BlockingIOError):
        while True:
            came.append(frames.recv(1 << 16))
    return came


@pytest.fixture
def burst(
    network: Network, dhcp: DhcpLab, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[dict[int, str], int]]:
    """All machines ask within one turn of the server; what each was offered, and how many calls went out together."""
    network.add_address(network.client, "eth0", f"{RELAY_IP}/24")
    for number in range(MACHINES):
        dhcp.register(f"10.77.6.{100 + number}", mac(number), f"m-{number}")
    groups: list[int] = []
    send_group = Segments._send_group

    def counted(segments: Segments[Reply], group: list[Reply]) -> None:
        groups.append(len(group))
        send_group(segments, group)

    monkeypatch.setattr(Segments, "_send_group", counted)

    def ask(port: int, giaddr: str = "0.0.0.0", flags: int = 0) -> tuple[dict[int, str], int]:
        with network.inside(network.client, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as asker:
            asker.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            asker.bind(("" if flags else RELAY_IP, port))
            asker.settimeout(20)
            for packet in discovers(giaddr, flags):
                asker.sendto(packet, ("10.77.6.1", 67))
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
    network: Network, dhcp: DhcpLab, burst: Callable[..., Any]
) -> None:
    """Clients without an address read frames. A virtual network card passes on what is not yet taken apart as one."""
    with network.serving(dhcp.start, "uvloop"), network.inside(network.client, frames_of_eth0) as frames:
        offered, _ = burst(68, flags=0x8000)
        offers = [frame for frame in waiting(frames) if frame[34:38] == PORTS_67_TO_68]
    assert offered == EXPECTED
    assert sorted(int.from_bytes(frame[46:50], "big") for frame in offers) == list(range(MACHINES))


def test_kernel_that_does_not_segment_sends_singly_and_says_so_once(
    network: Network,
    dhcp: DhcpLab,
    burst: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("edge.listener.segments._UDP_SEGMENT", 0x7FFF)  # such a control message is EINVAL
    with network.serving(dhcp.start, "uvloop"):
        assert burst(67, giaddr=RELAY_IP)[0] == EXPECTED
        assert burst(67, giaddr=RELAY_IP)[0] == EXPECTED
    assert caplog.text.count("does not segment UDP") == 1
    assert "was not sent" not in caplog.text
